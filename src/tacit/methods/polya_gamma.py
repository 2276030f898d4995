"""Outcomes that are Gaussian in the predictor psi, given a Pólya-Gamma variable (Polson, Scott, Windle 2013).

exp(psi)^a / (1 + exp(psi))^b  ~  exp(kappa psi) E[exp(-xi psi^2 / 2)],  xi ~ PG(b, 0),  kappa = a - b/2
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tacit.methods.arguments import check_choice, check_positive
from tacit.methods.running import block_weights
from tacit.types import Array, Key, PyTree, Record, Requirement, Suggestions

LARGE = 64
"""Columns above which the suggested recipe takes subsets."""


def polya_gamma_mean(square: Array) -> Array:
    """Return the mean of a PG(1, c) variable, tanh(c/2) / (2c), from c squared; at most 1/4."""
    c = jnp.sqrt(jnp.maximum(square, 1e-4))
    return jnp.where(square < 1e-2, 0.25 - square / 48 + square**2 / 480, jnp.tanh(c / 2) / (2 * c))


class Outcome(NamedTuple):
    """What y is, given the predictor."""

    likelihood: str
    most: float
    dispersion: float

    @classmethod
    def of(cls, likelihood: str, most: float, dispersion: float) -> Outcome:
        """Return the outcome of these arguments, or say which of them is wrong."""
        check_choice(("bernoulli", "binomial", "negative-binomial"), likelihood=likelihood)
        check_positive(most=most, dispersion=dispersion)
        return cls(likelihood, most, dispersion)

    def terms(self, record: Record) -> tuple[Array, Array]:
        """Return kappa and the first argument of the record's Pólya-Gamma variable."""
        y = record["y"].astype(jnp.float32)
        if self.likelihood == "negative-binomial":
            return (y - self.dispersion) / 2, y + self.dispersion
        trials = record["trials"].astype(jnp.float32) if self.likelihood == "binomial" else jnp.float32(1)
        return y - trials / 2, trials

    def predict(self, draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
        """Predict the outcomes of new inputs at one draw."""
        psi = jnp.asarray(inputs["x"]) @ draw["w"]
        if self.likelihood == "negative-binomial":
            key_rate, key_y = jax.random.split(key)
            mean = self.dispersion * jnp.exp(psi)
            return {
                "mean": mean,
                "y": jax.random.poisson(key_y, jax.random.gamma(key_rate, self.dispersion, psi.shape) * jnp.exp(psi)),
            }
        trials = jnp.asarray(inputs["trials"]) if self.likelihood == "binomial" else jnp.ones_like(psi)
        chance = jax.nn.sigmoid(psi)
        return {"mean": trials * chance, "y": jax.random.binomial(key, trials, chance)}

    def log_likelihood(self, draw: dict[str, Array], record: Record) -> Array:
        """Return the log probability of one outcome at one draw."""
        psi = record["x"] @ draw["w"]
        if self.likelihood == "bernoulli":
            return dist.Bernoulli(logits=psi).log_prob(record["y"])
        if self.likelihood == "binomial":
            return dist.Binomial(record["trials"], logits=psi).log_prob(record["y"])
        return dist.NegativeBinomial2(self.dispersion * jnp.exp(psi), self.dispersion).log_prob(record["y"])

    def suggestions(self, bound: float, size: int) -> Suggestions:
        """Return the recipe for so many columns of norm ``bound``, with weights of least noise: curvature, score."""
        # All records in few steps are best; a large matrix takes subsets, whose outer products sum up faster.
        rate, steps = (1.0, 5) if size <= LARGE else (None, 50)
        most, dispersion = self.most, self.dispersion
        score, trials = {
            "bernoulli": (0.5, 1.0),
            "binomial": (most / 2, most),
            "negative-binomial": (max(dispersion, most - dispersion) / 2, most + dispersion),
        }[self.likelihood]
        return Suggestions(1.0, rate, steps, block_weights((trials / 4 * bound**2, score * bound), (size * size, size)))

    def columns(self, placeholder: Any) -> int:
        """Return the number of columns of the records, if they have what the likelihood asks for."""
        names = ("x", "y", "trials") if self.likelihood == "binomial" else ("x", "y")
        wanted = "{" + ", ".join(f'"{name}": ...' for name in names) + "}"
        given = sorted(placeholder) if isinstance(placeholder, dict) else type(placeholder).__name__
        if not isinstance(placeholder, dict) or not set(names) <= set(placeholder):
            raise ValueError(f"A {self.likelihood} regression takes records {wanted}; these are {given}.")
        if np.ndim(placeholder["x"]) != 1 or any(np.ndim(placeholder[name]) for name in names[1:]):
            shapes = {name: np.shape(placeholder[name]) for name in names}
            raise ValueError(
                f"A record of a regression has a vector x and scalars beside it; the shapes are {shapes}. Put all "
                "columns into one array x with a line for each record: numpy.stack([...], axis=1)."
            )
        return int(placeholder["x"].shape[0])

    def requirements(self) -> tuple[Requirement, ...]:
        """Return what must be true of every record."""
        most = self.most

        def whole(value: Array) -> Array:
            return value == jnp.round(value)

        if self.likelihood == "bernoulli":
            return (
                Requirement(
                    "y must be 0 or 1. Write y = (label == positive).astype(int).",
                    lambda record: (record["y"] == 0) | (record["y"] == 1),
                    fixed=True,
                ),
            )
        if self.likelihood == "binomial":
            return (
                Requirement(
                    f"trials must be a whole number from 0 to most={most:g} and y one from 0 to trials. Set most=... "
                    "to the largest number of trials that there can be.",
                    lambda record: (
                        whole(record["y"])
                        & whole(record["trials"])
                        & (record["y"] >= 0)
                        & (record["y"] <= record["trials"])
                        & (record["trials"] <= most)
                    ),
                ),
            )
        return (
            Requirement(
                f"y must be a whole number from 0 to most={most:g}. Set most=... to the largest count that there can "
                "be, or cut off larger ones: y = numpy.minimum(y, most).",
                lambda record: whole(record["y"]) & (record["y"] >= 0) & (record["y"] <= most),
            ),
        )
