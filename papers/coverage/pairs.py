"""How often the intervals of ``tacit.pairs`` hold the truth: the method's own functions, with plain normal noise.

    python papers/coverage/pairs.py --replicates 20             logistic designs at epsilon 1
    python papers/coverage/pairs.py --designs wide --epsilons 0.3 3

All replicates run in one program, in which the wall is a sum and normal noise of the same size: a study of the method,
not of the wall. Non-private figures are those of Laplace's approximation at the mode of the same records.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from tacit.accounting import noise_multiplier
from tacit.methods.pairs import pairs
from tacit.types import Plan, Release

WIDTH, DRAWS = 8, 300
Z90 = 1.6449


def logistic(x, y=None):
    """Return a logistic regression with weak priors."""
    w = numpyro.sample("w", dist.Normal(0, 2.5).expand([WIDTH]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def poisson(x, y=None):
    """Return a Poisson regression with weak priors."""
    w = numpyro.sample("w", dist.Normal(0, 2.5).expand([WIDTH]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(jnp.clip(x @ w, -10, 5))), obs=y)


def columns(key, size, scale=1.0, heavy=False, correlation=0.0):
    """Make up columns, the first one of ones."""
    of_z, of_t, of_shared = jax.random.split(key, 3)
    z = jax.random.normal(of_z, (size, WIDTH - 1))
    z = np.sqrt(1 - correlation) * z + np.sqrt(correlation) * jax.random.normal(of_shared, (size, 1))
    z = jax.random.t(of_t, 3.0, z.shape) / np.sqrt(3) if heavy else z
    return jnp.concatenate([jnp.ones((size, 1)), scale * z], 1)


TRUTH = np.asarray([-0.3, 0.5, -0.5, 0.3, 0.0, 0.2, -0.2, 0.4], np.float32)
DESIGNS = {
    "plain": (logistic, {}, TRUTH),
    "wide": (logistic, {"scale": 0.2}, TRUTH),
    "heavy": (logistic, {"heavy": True}, TRUTH),
    "strong": (logistic, {}, 3 * TRUTH),
    "rare": (logistic, {}, TRUTH - 3.0 * np.eye(WIDTH, dtype=np.float32)[0]),
    "correlated": (logistic, {"correlation": 0.9}, TRUTH),
    "counts": (poisson, {}, TRUTH),
}


def study(name: str, size: int, epsilon: float, replicates: int, seed: int = 0) -> dict[str, float]:
    """Return coverage, that of the worst coefficient, and widths in units of the non-private ones."""
    model, facts, truth = DESIGNS[name]
    placeholder = {"x": jnp.zeros(WIDTH), "y": jnp.int32(0)}
    method = pairs(model)(Plan(placeholder, size))
    steps = method.suggests.steps
    assert steps is not None
    std = float(noise_multiplier(epsilon, 1e-6, rate=1.0, steps=steps))

    def one(key):
        of_x, of_y, of_run, of_draws = jax.random.split(key, 4)
        x = columns(of_x, size, **facts)
        along = x @ truth
        y = (
            jax.random.poisson(of_y, jnp.exp(along))
            if model is poisson
            else jax.random.bernoulli(of_y, jax.nn.sigmoid(along))
        )
        records = {"x": x, "y": y.astype(jnp.int32)}

        def step(t, state):
            of_step, of_records, of_noise = jax.random.split(jax.random.fold_in(of_run, t), 3)
            keys = jax.random.split(of_records, size)
            made = jax.vmap(lambda record, mine: method.contribute(state, record, of_step, mine))(records, keys)
            total = jax.tree.map(lambda leaf: leaf.sum(0), made)
            noise = dict(zip(total, jax.random.split(of_noise, len(total)), strict=True))
            total = {k: leaf + std * jax.random.normal(noise[k], leaf.shape) for k, leaf in total.items()}
            release = Release(total, {k: jnp.float32(std) for k in total}, jnp.float32(1), total)
            return method.update(state, release, of_step)

        state = jax.lax.fori_loop(0, steps, step, method.init(of_run))
        draws = jax.vmap(method.draw, (None, 0))(state, jax.random.split(of_draws, DRAWS))["w"]

        def loss(w):
            along = x @ w
            likelihood = y * along - (jnp.exp(along) if model is poisson else jax.nn.softplus(along))
            return jnp.sum(w**2) / 12.5 - jnp.sum(likelihood)

        mode = jax.lax.fori_loop(
            0, 12, lambda _, w: w - jnp.linalg.solve(jax.hessian(loss)(w), jax.grad(loss)(w)), jnp.zeros(WIDTH)
        )
        std_public = jnp.sqrt(jnp.diag(jnp.linalg.inv(jax.hessian(loss)(mode))))
        low, high = jnp.quantile(draws, jnp.asarray([0.05, 0.95]), axis=0)
        return low, high, mode, std_public

    keys = jax.random.split(jax.random.key(seed), replicates)
    low, high, mode, public = jax.tree.map(np.asarray, jax.jit(lambda keys: jax.lax.map(one, keys))(keys))
    covered = np.mean((low <= truth) & (truth <= high), 0)
    public_covered = np.mean(np.abs(mode - truth) <= Z90 * public, 0)
    width = np.median((high - low) / (2 * Z90 * public))
    return {"coverage": covered.mean(), "worst": covered.min(), "width": width, "public": public_covered.mean()}


def main() -> None:
    """Print a line for each design and epsilon."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--designs", nargs="*", default=list(DESIGNS), choices=list(DESIGNS))
    parser.add_argument("--epsilons", nargs="*", type=float, default=[1.0])
    parser.add_argument("--size", type=int, default=5000)
    parser.add_argument("--replicates", type=int, default=40)
    given = parser.parse_args()
    print("| design | epsilon | coverage | worst coefficient | width over non-private | non-private coverage | s |")
    print("|---|---|---|---|---|---|---|")
    for name in given.designs:
        for epsilon in given.epsilons:
            began = time.perf_counter()
            found = study(name, given.size, epsilon, given.replicates)
            cells = (f"{found[k]:.2f}" for k in ("coverage", "worst", "width", "public"))
            print(f"| {name} | {epsilon:g} | {' | '.join(cells)} | {time.perf_counter() - began:.0f} |", flush=True)


if __name__ == "__main__":
    main()
