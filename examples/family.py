"""A conjugate family of your own: Poisson counts with a Gamma prior on their mean, in one private step.

Run it with ``python examples/family.py``. The records are made up, so that the truth is known.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

import tacit


def poisson(most: float) -> tacit.families.Family:
    """A record ``{"y": count}`` has log p(y | m) = y log(m) - m + ..., so its statistics are y and 1."""

    def statistics(record: dict[str, jax.Array]) -> dict[str, jax.Array]:
        return {"total": jnp.minimum(record["y"], most), "number": jnp.float32(1)}

    def log_normaliser(given: dict[str, jax.Array]) -> jax.Array:
        """Log of the mean of m**total exp(-m number) under the prior Gamma(1, 1/10)."""
        return gammaln(1 + given["total"]) - (1 + given["total"]) * jnp.log(0.1 + given["number"])

    def evidence(expected: dict[str, jax.Array], record: dict[str, jax.Array]) -> jax.Array:
        given = statistics(record)
        return expected["total"] * given["total"] + expected["number"] * given["number"]

    return tacit.families.Family(
        log_normaliser,
        evidence,
        begin=lambda key: {"total": jnp.float32(0), "number": jnp.float32(0)},
        repair=lambda given, noise_std: jax.tree.map(lambda value: jnp.maximum(value, 0), given),
        draw=lambda given, key: {"mean": jax.random.gamma(key, 1 + given["total"]) / (0.1 + given["number"])},
        bounds={"total": most, "number": 1.0},
        latent=False,
    )


visits = np.random.default_rng(0).poisson(2.7, 3000).astype(np.float32)
data = tacit.PrivateData({"y": visits}, size=3000)
posterior = tacit.fit(tacit.conjugate(poisson(most=12.0)), data, tacit.Budget(1.0, 1e-6), progress=False)
draws = np.asarray(posterior.draws["mean"])
print(f"mean {draws.mean():.3f}, 90% interval {np.quantile(draws, 0.05):.3f} to {np.quantile(draws, 0.95):.3f}")
print(f"mean of the records {visits.mean():.3f}, known to us alone; the truth is 2.7")
