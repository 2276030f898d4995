"""A regression as a model of records: residuals within the wall, predictions and draws from the prior outside of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tacit.methods.likelihoods import Family
from tacit.methods.regressors import Regressors, offset
from tacit.types import Array, Key, Model, PyTree, Record


class RegressionModel:
    """A likelihood, the columns and groups of its predictor, and the prior of the noise where it has any.

    Privacy: public.
    """

    def __init__(self, family: Family, regressors: Regressors, noise_std: float) -> None:
        self.family, self.regressors, self.noise_std = family, regressors, noise_std

    def usual(self) -> Array:
        """Return h of a usual record before anything is known.

        Privacy: public.
        """
        return self.family.information(jnp.float32(0), jnp.float32(self.noise_std))

    def residual(self, record: Record, along: Array, noise: Array) -> tuple[Array, Array, Array]:
        """Return a record's r, the largest |r|, and h, at a predictor to which the record's offset is added.

        Privacy: of the record.
        """
        along = along + offset(record)
        r, largest = self.family.residual(record["y"].astype(jnp.float32), along, noise)
        return r, largest, self.family.information(along, noise)

    def known(self) -> dict[str, Any]:
        """Return what a ``Method`` needs of records and knows of the model.

        Privacy: public.
        """
        return {
            "requirements": (self.family.need, *self.regressors.requirements()),
            "model": Model(self.predict, self.log_likelihood, self.simulate, self.prior),
        }

    def predict(self, draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
        """Predict means and outcomes for new records, by one draw.

        Privacy: post-processing.
        """
        along = self.regressors.predictor(draw, inputs)
        return {"mean": self.family.mean(along), "y": self.family.draw(key, along, _noise(draw))}

    def log_likelihood(self, draw: dict[str, Array], record: Record) -> Array:
        """Return the log density of a record's outcome, at one draw.

        Privacy: of the record.
        """
        y, along = record["y"].astype(jnp.float32), self.regressors.predictor(draw, record)
        return self.family.log_density(y, along, _noise(draw))

    def simulate(self, key: Key, records: PyTree) -> tuple[PyTree, dict[str, Array]]:
        """Return the records with outcomes of a draw from the prior, and that draw.

        Privacy: public.
        """
        *of_draw, of_y = jax.random.split(key, 5)
        draw = self._prior_draw(*of_draw)
        y = self.family.draw(of_y, self.regressors.predictor(draw, records), _noise(draw))
        return {**records, "y": y.astype(jnp.asarray(records["y"]).dtype)}, draw

    def prior(self, key: Key) -> dict[str, Array]:
        """Draw weights, effects and the noise from their prior.

        Privacy: public.
        """
        return self._prior_draw(*jax.random.split(key, 4))

    def _prior_draw(self, of_noise: Key, of_stds: Key, of_weights: Key, of_means: Key) -> dict[str, Array]:
        draw = self.regressors.prior_draw(of_weights, of_stds, of_means)
        return draw | ({"noise": self.noise_std * jnp.exp(jax.random.normal(of_noise))} if self.family.noisy else {})


def _noise(draw: dict[str, Array]) -> Array:
    """Return the noise's standard deviation, 1 where there is none."""
    return draw.get("noise", jnp.ones(()))
