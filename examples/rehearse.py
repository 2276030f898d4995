"""What a private fit will give, before anything is spent: rehearse on made-up patients, then fit with the best setting.

    python examples/rehearse.py

The inputs are made up from what is publicly known of such patients, and what the model observes from its prior. Nothing
is saved; the last lines fit records that are made up too, so that the true coefficients can be printed beside.
"""

from __future__ import annotations

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import tacit

SCHEMA = tacit.Schema({"age": {"low": 18, "high": 100}, "ill": {"levels": ["no", "yes"]}}, unit="patient", size=1000)
BUDGET = tacit.Budget(epsilon=1.0, delta=1e-6, unit="patient")


def model(age, ill=None):
    """Logistic regression on age, in units of 15 years."""
    level = numpyro.sample("level", dist.Normal(0, 2))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("patients", age.shape[0]):
        numpyro.sample("ill", dist.Bernoulli(logits=level + slope * (age - 60) / 15), obs=ill)


def patients(key: jax.Array, size: int) -> dict[str, np.ndarray]:
    """Make up the inputs of patients; the model draws whether they are ill."""
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return {"age": random.normal(60, 15, size)}  # moved inside its bounds, as real records are


def main() -> None:
    """Rehearse, print, fit."""
    method = tacit.vi(model)
    rehearsal = tacit.rehearse(
        method, SCHEMA, BUDGET, clip=[1.0, 3.0], steps=100, simulate=patients, replicates=20, key=jax.random.key(0)
    )
    print(rehearsal)

    random = np.random.default_rng(1)
    age = random.normal(60, 15, 1000)
    ill = np.where(random.logistic(size=1000) < (age - 65) / 15, "yes", "no")
    posterior = tacit.fit(method, tacit.PrivateData({"age": age, "ill": ill}, SCHEMA), **rehearsal.best, progress=False)
    print(posterior)
    print(f"truth: level {-5 / 15:.3f}, slope 1")


if __name__ == "__main__":
    main()
