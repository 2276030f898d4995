"""d3p 0.2.0 and NumPyro 0.11, timed by the interpreter that has them (papers/d3p/.venv, made by ``make peer``).

Reads requests, one line of JSON each, and answers each with a line of JSON, so that the caller can take turns between
its own programs and these. The first request of a kind compiles and warms up; every answer is one timed run.

    echo '{"what": "step", "model": "vae", "private": true, "batch": 128, "number": 2}' | .venv/bin/python peer.py

The data are an argument of the compiled program, not constants in it as in d3p's own batchifier: a constant would more
than double d3p's time.
"""

from __future__ import annotations

import functools
import json
import sys
import time

COLUMNS = 100
CLIP, SIGMA, LEARNING_RATE = 10.0, 1.5, 1e-3


@functools.cache
def sampler(records, batch, kind):
    """Return a program that draws a number of subsets and adds up their positions."""
    import d3p.random
    import jax
    import jax.numpy as jnp

    draw = feistel if kind == "feistel" else choice

    def program(number, key):
        return jax.lax.fori_loop(0, number, lambda i, total: total + jnp.sum(draw(key, i, records, batch)), 0)

    key = d3p.random.PRNGKey(0)
    compiled = jax.jit(program)
    return lambda number: compiled(number, key).block_until_ready()


def feistel(key, i, records, batch):
    """Draw a subset the way d3p's batchifier does."""
    import d3p.random
    import jax.numpy as jnp
    from d3p.util import sample_from_array

    return sample_from_array(d3p.random.fold_in(key, i), jnp.arange(records), batch, 0)


def choice(key, i, records, batch):
    """Draw a subset by the routine of JAX 0.4.13."""
    import d3p.random
    import jax

    jax_key = d3p.random.convert_to_jax_rng_key(d3p.random.fold_in(key, i))
    return jax.random.choice(jax_key, records, (batch,), replace=False)


@functools.cache
def step(model, private, batch, records):
    """Return a program that takes a number of steps, each on a subset drawn by d3p's sampler."""
    import d3p.random
    import jax
    import jax.numpy as jnp
    import numpyro
    from d3p.svi import DPSVI
    from numpyro.infer import SVI, Trace_ELBO

    functions, data = {"vae": vae, "logistic": logistic}[model](records)
    optimizer = numpyro.optim.Adam(LEARNING_RATE)
    if private:
        svi = DPSVI(*functions, optimizer, Trace_ELBO(), clipping_threshold=CLIP, dp_scale=SIGMA, size=records)
        start = d3p.random.PRNGKey(1)
    else:
        svi = SVI(*functions, optimizer, Trace_ELBO(), size=records)
        start = jax.random.PRNGKey(1)
    key = d3p.random.PRNGKey(0)
    state = svi.init(start, *(column[:batch] for column in data))

    def program(number, state, key, data):
        def one(i, state):
            positions = feistel(key, i, records, batch)
            return svi.update(state, *(jnp.take(column, positions, axis=0) for column in data))[0]

        return jax.lax.fori_loop(0, number, one, state)

    compiled = jax.jit(program)
    return lambda number: jax.block_until_ready(compiled(number, state, key, data))


def vae(records):
    """Return the paper's VAE and made-up binary images."""
    from vae_model import PIXELS, guide, model

    return (model, guide), (made_up(records, PIXELS, binary=True),)


def logistic(records):
    """Return the paper's logistic regression (its section 3) and made-up records."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def model(x, y, size):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(COLUMNS), 4.0).to_event(1))
        with numpyro.plate("records", size, x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def guide(x, y, size):
        mean = numpyro.param("mean", jnp.zeros(COLUMNS))
        spread = jnp.exp(numpyro.param("log_spread", jnp.zeros(COLUMNS)))
        numpyro.sample("w", dist.Normal(mean, spread).to_event(1))

    x = made_up(records, COLUMNS, binary=False)
    return (model, guide), (x, (x[:, 0] > 0).astype(jnp.float32))


def made_up(records, columns, binary):
    """Return made-up numbers: time does not depend on their values."""
    import jax.numpy as jnp
    import numpy as np

    values = np.random.default_rng(0).standard_normal((records, columns), dtype=np.float32)
    return jnp.asarray((values > 1).astype(np.float32) if binary else values)


def answer(request):
    """Return the seconds that one unit of what is asked for takes: by the clock, and on the processor."""
    what, number = request.pop("what"), request.pop("number", 1)
    if what == "versions":
        from importlib.metadata import version

        return {name: version(name) for name in ("d3p", "jax", "numpyro")}
    if what == "forget":
        step.cache_clear()
        sampler.cache_clear()
        return {}
    build = {"sampler": sampler, "step": step}[what]
    known = build.cache_info().misses
    program = build(**request)
    if build.cache_info().misses > known:
        program(1)
    wall, cpu = time.perf_counter(), time.process_time()
    program(number)
    return {"wall": (time.perf_counter() - wall) / number, "cpu": (time.process_time() - cpu) / number}


def main():
    """Answer requests until there are no more."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
