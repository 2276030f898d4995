"""What records weigh in the sums of a regression, and how these sums share the releases.

A score weighs k = min(1, C / (|z| largest |r|)), so that none is beyond the clip. For H a record weighs less sooner,
since a matrix takes more noise. Where many do (on Adult nine in ten) what is released falls short by half, much alike
in all directions; so the trace, one number that can reach further, is released too, for ``curvature`` to raise H to.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from tacit.methods.likelihoods import CUT, CUT_SQUARE
from tacit.methods.regression_model import RegressionModel
from tacit.methods.whitening import TINY
from tacit.types import Array, PyTree, Release

MOMENTS, SETTLE = 0.1, 0.15
"""The part of the releases for M; the part after that from which on the path is averaged."""
CURVATURE, TRACE, NOISE = 0.2, 0.02, 0.05
"""Shares of the later releases: for H, for its trace, and for the noise of normal outcomes. The rest is for g."""
REACH, LEVER = 2.6, 1.3
"""What the scores, and the curvatures, of records may reach before these weigh less, in units of usual ones."""
FAR = 4.0
"""What records may reach in the trace, in units of what they may in the curvature."""


def phases(steps: int) -> tuple[int, int]:
    """Return the first step that is not for M, and the first of those that are averaged.

    Privacy: public.
    """
    first = max(1, round(MOMENTS * steps))
    return first, first + max(1, round(SETTLE * steps) - 1)


class Reach(NamedTuple):
    """What records may reach where z has that ``spread``, and h is usually as large as ``usual``."""

    spread: Array
    usual: Array

    @property
    def score(self) -> Array:
        """C: about the norm of a whitened record times the largest residual of a usual one.

        Privacy: public.
        """
        return REACH * jnp.sqrt(jnp.sum(self.spread) * self.usual)

    @property
    def curvature(self) -> Array:
        """The like for H: about h |z|^2 of a usual record.

        Privacy: public.
        """
        return LEVER * jnp.sum(self.spread) * self.usual


def weights_of(z: Array, largest: Array, h: Array, reach: Reach) -> tuple[Array, Array]:
    """Return what a record weighs in g and in H.

    Privacy: of the record.
    """
    length = _length(z)
    k = jnp.minimum(1, reach.score / (length * largest))
    return k, jnp.minimum(k, reach.curvature / (h * length**2 + TINY))


class Shares:
    """The sums in units of their shares of a release: each part of a contribution is at most the root of its share.

    Privacy: public.
    """

    def __init__(self, model: RegressionModel, bound: float | None) -> None:
        self.columns, self.noisy = model.regressors.count, model.family.noisy
        self.longest = model.regressors.usual_norm if bound is None else bound
        self.scores = 1 - CURVATURE - TRACE - NOISE * self.noisy

    def contribution(
        self, early: Array, x: Array, z: Array, reach: Reach, score: Array, curvature: Array, trace: Array, error: Array
    ) -> PyTree:
        """Return a record's part of M in early steps, and else of g, H and tr H by their factors at z.

        ``error`` is the residual in standard deviations; its square is released where outcomes have noise.

        Privacy: of the record; its norm is 1 at most, whatever the record is.
        """
        short = x / jnp.maximum(jnp.linalg.norm(x), self.longest)
        of_score = z * (score * self.scores**0.5 / reach.score)
        if self.noisy:
            of_score = jnp.append(of_score, NOISE**0.5 * (error**2 - CUT_SQUARE) / (CUT**2 - CUT_SQUARE))
        factor = curvature * CURVATURE**0.5 / reach.curvature
        matrix = jnp.outer(jnp.where(early, short, factor * z), jnp.where(early, short, z))
        of_trace = TRACE**0.5 * jnp.clip(trace * _length(z) ** 2 / (FAR * reach.curvature), 0, 1)
        return {"matrix": matrix, "score": jnp.where(early, 0, of_score), "trace": jnp.where(early, 0, of_trace)}

    def moments(self, release: Release) -> Release:
        """Return M as an early step released it.

        Privacy: post-processing.
        """
        return _scaled(release.part("matrix"), self.longest**2)

    def sums(self, release: Release, reach: Reach) -> tuple[Release, Release, Release]:
        """Return g, H and tr H as a later step released them; with g the square of the error, in units of its own.

        Privacy: post-processing.
        """
        scores = jnp.full(self.columns, reach.score / self.scores**0.5)
        errors = jnp.full(int(self.noisy), (CUT**2 - CUT_SQUARE) / NOISE**0.5)
        return (
            _scaled(release.part("score"), jnp.append(scores, errors)),
            _scaled(release.part("matrix"), reach.curvature / CURVATURE**0.5),
            _scaled(release.part("trace"), FAR * reach.curvature / TRACE**0.5),
        )


def _length(z: Array) -> Array:
    return jnp.linalg.norm(z) + TINY


def _scaled(release: Release, scale: Array | float) -> Release:
    return release._replace(full=release.full * scale, noise_std=release.noise_std * scale)
