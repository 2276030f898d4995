"""A script written for d3p, of which only the import lines were changed: Poisson batches and logistic regression.

Before, they were ``from d3p.svi import DPSVI`` and so on, and ``import d3p.random``. Simulated records.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal

import tacit.adapters.d3p as d3p
from tacit.adapters.d3p.dputil import approximate_sigma_remove_relation
from tacit.adapters.d3p.minibatch import poisson_batchify_data
from tacit.adapters.d3p.modelling import sample_multi_posterior_predictive
from tacit.adapters.d3p.svi import DPSVI

N, q, epochs, delta = 4000, 0.02, 10, 1e-5


def model(x, y=None, N=N):
    """Logistic regression; a plate over the records of a batch, of which there are N in all."""
    weight = numpyro.sample("weight", dist.Normal(0, 2).expand([3]).to_event(1))
    with numpyro.plate("records", N, x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weight), obs=y)


generator = np.random.default_rng(0)
x = generator.normal(size=(N, 3)).astype(np.float32)
y = (generator.uniform(size=N) < 1 / (1 + np.exp(-x @ [1.0, -0.5, 0.0]))).astype(np.int32)

batch_key, fit_key = d3p.random.split(d3p.random.PRNGKey())
start_epoch, get_batch = poisson_batchify_data((x, y), q, 0.99)
batches, batch_state = start_epoch(batch_key)

sigma, epsilon, _ = approximate_sigma_remove_relation(1.0, delta, q, epochs * batches)
guide = AutoDiagonalNormal(model)
svi = DPSVI(model, guide, numpyro.optim.Adam(0.02), Trace_ELBO(), clipping_threshold=2.0, dp_scale=sigma, N=N)
state = svi.init(fit_key, *get_batch(0, batch_state)[0])


@jax.jit
def train(state, batch_state, first):
    """Take the updates of one epoch, each on a batch of its own."""

    def step(i, state):
        batch, mask = get_batch(i, batch_state)
        return svi.update(state, *batch, mask=mask)[0]

    return jax.lax.fori_loop(first, first + batches, step, state)


for epoch in range(epochs):
    state = train(state, batch_state, epoch * batches)

params = svi.get_params(state)
again = svi.get_epsilon(delta, q, num_epochs=epochs, adjacency="add-remove")
print(f"noise {sigma:.3f}, epsilon {again:.4f} by add-remove if the batches were as said; no certificate")
print("weight, mean:", np.round(params["auto_loc"], 2), " standard deviation:", np.round(params["auto_scale"], 2))

key = d3p.random.convert_to_jax_rng_key(d3p.random.PRNGKey())
new = jnp.asarray([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
draws = sample_multi_posterior_predictive(key, 200, model, (new,), guide, (new,), params)
print("share of ones at x = (1, 0, 0) and (-1, 0, 0):", np.round(draws["y"].mean(0), 2))
