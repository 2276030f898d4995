"""The posterior of a regression's whitened weights u: a Newton step on its way there, and draws from it.

What the releases say of u is a normal likelihood, so that priors are a matter of the draw. The standard deviations of
groups are drawn from their posterior with the weights summed out, on a grid, and then the weights.

A place has u and, where the likelihood has noise, one more number: the log of the noise.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.scipy.linalg import block_diag, solve_triangular

from tacit.methods.likelihoods import INSIDE_SQUARE
from tacit.methods.regression_model import RegressionModel
from tacit.methods.regressors import Stds
from tacit.methods.whitening import TINY
from tacit.types import Array, Key, Release

DAMPING, LIMIT = 1.5, 1.5
"""How noise damps a step, and how long it is at most."""


class WhitenedWeights:
    """The prior of a place under a whitening W, and what follows from it and the releases.

    Privacy: public.
    """

    def __init__(self, model: RegressionModel, size: float) -> None:
        self.regressors, self.columns, self.noise_std = model.regressors, model.regressors.count, model.noise_std
        self.extra = int(model.family.noisy)  # numbers in a place beside u
        self.precisely = 2 * INSIDE_SQUARE * size  # the information about the log of the noise

    @property
    def known(self) -> Array:
        """The information about what is in a place beside u, which no release shows.

        Privacy: public.
        """
        return jnp.full(self.extra, self.precisely)

    def start(self) -> Array:
        """Return the first place: no effects, and the noise that was guessed.

        Privacy: public.
        """
        return jnp.append(jnp.zeros(self.columns), jnp.full(self.extra, math.log(self.noise_std)))

    def predictor(self, place: Array, z: Array) -> Array:
        """Return the predictor of a whitened record at a place.

        Privacy: of the record.
        """
        return z @ place[: self.columns]

    def noise(self, place: Array) -> Array:
        """Return the noise's standard deviation at a place, 1 where there is none.

        Privacy: post-processing.
        """
        return jnp.exp(jnp.sum(place[self.columns :]))

    def newton_step(self, matrix: Array, place: Array, score: Release, curvature: Array, pace: Array) -> Array:
        """Return pace (H + P)^-1 (g - P u), damped by the noise of g and cut to a length.

        Privacy: post-processing.
        """
        columns, middling = self.columns, self.regressors.middling
        damping = DAMPING * pace * score.noise_std / score.rate
        values, vectors = jnp.linalg.eigh(curvature + self._precision(matrix, middling))
        values = jnp.maximum(values, jnp.min(jnp.sum(matrix**2, 1)) / self.regressors.widest**2) + damping[0]
        slope = score.full - self._pull(matrix, place, middling)
        change = vectors @ (vectors.T @ slope[:columns] / values)
        change = jnp.append(change, slope[columns:] / (self.precisely + 1 + damping[columns:]))
        return change * pace * jnp.minimum(1, LIMIT / (pace * jnp.linalg.norm(change) + TINY))

    def draw(
        self,
        matrix: Array,
        place: Array,
        precision: Array,
        slope: Array,
        key_groups: Key,
        key_place: Key,
        key_share: Key,
    ) -> dict[str, Array]:
        """Draw groups' standard deviations, then the weights w = W'u and the noise, where the likelihood is normal.

        Privacy: post-processing.

        Parameters
        ----------
        matrix
            The whitening W.
        place
            Where the log likelihood is expanded.
        precision, slope
            Of the log likelihood there.
        key_groups, key_place, key_share
            For the standard deviations, the place given these, and what the intercept shares out among groups.
        """

        def solved(stds: Stds) -> tuple[Array, Array]:
            """Return the root of the posterior's precision, and the mode's way from the place, times it."""
            root = jnp.linalg.cholesky(precision + block_diag(self._precision(matrix, stds), jnp.eye(self.extra)))
            return root, solve_triangular(root, slope - self._pull(matrix, place, stds), lower=True)

        def evidence(stds: Stds) -> Array:
            root, along = solved(stds)
            weights, variances = matrix.T @ place[: self.columns], self.regressors.variances(stds)
            outside = jnp.sum(jnp.square(weights) / variances + jnp.log(variances)) / 2
            return along @ along / 2 - jnp.sum(jnp.log(jnp.diag(root))) - outside

        stds = self.regressors.draw_stds(evidence, key_groups)
        root, along = solved(stds)
        drawn = place + solve_triangular(root.T, along + jax.random.normal(key_place, along.shape), lower=False)
        found = self.regressors.shared(matrix.T @ drawn[: self.columns], stds, key_share)
        return {**found, "noise": self.noise(drawn)} if self.extra else found

    def _precision(self, matrix: Array, stds: Stds) -> Array:
        """Return P."""
        return (matrix / self.regressors.variances(stds)) @ matrix.T

    def _pull(self, matrix: Array, place: Array, stds: Stds) -> Array:
        """Return minus the slope of the log prior."""
        columns = self.columns
        return jnp.append(self._precision(matrix, stds) @ place[:columns], place[columns:] - math.log(self.noise_std))
