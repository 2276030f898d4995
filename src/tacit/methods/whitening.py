"""Whitening of a regression's columns by noisy releases of their moments M.

M is drawn towards its diagonal as far as noise explains the rest, and its eigenvalues are raised to a floor where noise
hides them.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from tacit.methods.running import Running, blend, shrink_off_diagonal, start, uniform_average
from tacit.types import Array, Release

FLOOR, LEAST = 0.7, 0.1
"""The least eigenvalue of M to whiten by, in units of what noise alone makes; the part of it to believe in at least."""
TINY = 1e-20


class Whitening(NamedTuple):
    """The averaged M, the whitening W (``matrix``), the believed moments of z (``spread``), and their variances."""

    moments: Running
    matrix: Array
    spread: Array
    spread_variance: Array


def start_whitening(columns: int) -> Whitening:
    """Return what is known of the columns before the first release: nothing.

    Privacy: public.
    """
    square = jnp.zeros((columns, columns))
    return Whitening(start(square), jnp.eye(columns), jnp.ones(columns), square)


def whitened(old: Whitening, release: Release, size: float) -> Whitening:
    """Average a release of M into the moments, and whiten by what is believed of them.

    Privacy: post-processing.
    """
    moments = blend(old.moments, release, uniform_average)
    matrix, variance = shrink_off_diagonal(symmetrize(moments.statistics), jnp.square(moments.noise_std))
    values, vectors = jnp.linalg.eigh(matrix)
    values = _debias_eigenvalues(values, variance)
    floor = jnp.maximum(FLOOR * jnp.sqrt(jnp.max(jnp.sum(variance, 1))), 1e-3 * size)
    raised = jnp.maximum(values, floor)
    return Whitening(
        moments,
        matrix=(vectors * jnp.sqrt(size / raised)).T,
        spread=jnp.maximum(values, LEAST * floor) / raised,
        spread_variance=vectors.T**2 @ variance @ vectors**2 / jnp.outer(raised, raised),
    )


def symmetrize(matrix: Array) -> Array:
    """Return the mean of a matrix and its transpose."""
    return (matrix + matrix.T) / 2


def _debias_eigenvalues(values: Array, variance: Array) -> Array:
    """Take off what noise adds to eigenvalues by pushing them apart: their vectors' own quadratic forms are nearer."""
    apart = values[:, None] - values
    noise = 2 * jnp.square(variance[0, -1]) / (jnp.max(variance) + TINY)
    return values - noise * jnp.sum(apart / (apart**2 + noise + TINY), 1)
