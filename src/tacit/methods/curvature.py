"""Moments and curvatures of whitened columns, as noisy releases show them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from tacit.methods.running import Running, blend, shrink_off_diagonal, uniform_average
from tacit.types import Array, Release

DOUBT = 2.0
"""By how many deviations of its noise the trace is believed to be less than released."""
FAR = 4.0
"""What records may reach in the trace, in units of what they may in the curvature."""
FLOOR, LEAST = 0.7, 0.1
"""The least eigenvalue of M to whiten by, in units of what noise alone makes; the part of it to believe in at least."""
TINY = 1e-20


class Path(NamedTuple):
    """Averages over the path: places, scores, curvatures; the noise's variances in them; the part due to sampling.

    Later places and scores weigh more, in proportion to their number: the path comes from afar.
    The last number of a place and of a score is for the log of the noise, if the family has one.
    """

    place: Array
    score: Array
    score_variance: Array
    curvature: Array
    curvature_variance: Array
    trace: Array
    trace_variance: Array
    sampling: Array
    number: Array


class GLMState(NamedTuple):
    """Of x: the averaged M, the whitening W, the moments of z that are believed (``spread``) and their variances.

    Then u (``place``), the usual h there, and the path.
    """

    step: Array
    moments: Running
    whitening: Array
    spread: Array
    spread_variance: Array
    place: Array
    usual: Array
    path: Path


def whitened(state: GLMState, release: Release, size: float) -> GLMState:
    """Average a release of M into its moments, and whiten by what is believed of them.

    Privacy: post-processing.
    """
    moments = blend(state.moments, release, uniform_average)
    matrix, variance = shrink_off_diagonal(symmetrize(moments.statistics), jnp.square(moments.noise_std))
    values, vectors = jnp.linalg.eigh(matrix)
    values = _debias_eigenvalues(values, variance)
    floor = jnp.maximum(FLOOR * jnp.sqrt(jnp.max(jnp.sum(variance, 1))), 1e-3 * size)
    raised = jnp.maximum(values, floor)
    return state._replace(
        moments=moments,
        whitening=(vectors * jnp.sqrt(size / raised)).T,
        spread=jnp.maximum(values, LEAST * floor) / raised,
        spread_variance=vectors.T**2 @ variance @ vectors**2 / jnp.outer(raised, raised),
    )


def averaged(old: Path, place: Array, score: Release, matrix: Release, trace: Release, counts: Array) -> Path:
    """Average a step's place and releases into the path; ``counts`` says whether it is one of those averaged.

    Privacy: post-processing.
    """
    rate, share, late = score.rate, 1 / (old.number + 1), 2 / (old.number + 2)

    def variance(old: Array, std: Array, share: Array = share) -> Array:
        return jnp.square(1 - share) * old + jnp.square(share * std / rate)

    return Path(
        old.place + late * (place - old.place),
        old.score + late * (score.full - old.score),
        variance(old.score_variance, score.noise_std, late),
        old.curvature + share * (symmetrize(matrix.full) - old.curvature),
        variance(old.curvature_variance, matrix.noise_std),
        old.trace + share * (trace.full - old.trace),
        variance(old.trace_variance, trace.noise_std),
        variance(old.sampling, jnp.sqrt(rate * (1 - rate)), late),
        old.number + counts,
    )


def believed(state: GLMState, path: Path, u: Array, size: float) -> tuple[Array, Array, Array]:
    """Return the usual h as released, and H given the releases, at a place u: mean and variances.

    Privacy: post-processing.
    """
    spread, released = state.spread, path.curvature / size
    cut = jnp.maximum(jnp.trace(released) / jnp.sum(spread), 0.02 * state.usual)
    trace = path.trace - DOUBT * jnp.sqrt(path.trace_variance)
    raised = jnp.clip(trace / (size * jnp.sum(spread) * cut), 1, FAR)
    released, usual = raised * released, raised * cut
    along = spread * u
    square = u @ along + 1e-6
    tilt = jnp.clip((u @ released @ u + 1e-6 * usual) / square - usual, -0.9 * usual, 3 * usual)
    expected = usual * jnp.diag(spread) + tilt * jnp.outer(along, along) / square
    noise = path.curvature_variance * jnp.square(raised / size)
    noise = noise * (1 + np.eye(len(u), dtype=np.float32)) / 2  # mirrored: off the diagonal half as much
    before = usual**2 * state.spread_variance
    before = before + jnp.maximum(jnp.mean(jnp.square(released - expected) - noise - before), 0)
    gain = before / (before + noise + TINY)
    return cut, size * (expected + gain * (released - expected)), size**2 * gain * noise


def noiseless(state: GLMState) -> GLMState:
    """Return the state as if what was released had been exact.

    Privacy: post-processing.
    """
    path = state.path
    exact = path._replace(
        score_variance=jnp.zeros_like(path.score_variance),
        curvature_variance=jnp.zeros_like(path.curvature_variance),
        trace_variance=jnp.zeros_like(path.trace_variance),
    )
    return state._replace(spread_variance=jnp.zeros_like(state.spread_variance), path=exact)


def symmetrize(matrix: Array) -> Array:
    """Return the mean of a matrix and its transpose."""
    return (matrix + matrix.T) / 2


def _debias_eigenvalues(values: Array, variance: Array) -> Array:
    """Take off what noise adds to eigenvalues by pushing them apart: their vectors' own quadratic forms are nearer."""
    apart = values[:, None] - values
    noise = 2 * jnp.square(variance[0, -1]) / (jnp.max(variance) + TINY)
    return values - noise * jnp.sum(apart / (apart**2 + noise + TINY), 1)
