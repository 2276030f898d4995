"""What methods of the EP family share: Gaussians by natural parameters, the site of a record, the repair of noisy sums.

    A(m, V) = 1/alpha log E[p(record | w) ** alpha],  w ~ N(m, V) the cavity      alpha 1: EP;  0: E[log p]
    g = dA/dm,  K = dA/dV,  S = alpha g g' - 2 K
    site:  precision  Lambda = (I - alpha S V)^-1 S,    linear  h = (I - alpha S V)^-1 (g + S m)

No reciprocals are subtracted, so nothing cancels. Where V is diagonal it is the same for each weight alone. A site may
have negative precision (outliers, points between two clusters): that is legal, only their sum must not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.running import Running
from tacit.types import Array, Key, PyTree

ROOM = 1e-3
"""A site leaves its weight at least this share of the cavity's variance: what float32 can still tell from none."""
TINY = 1e-12
NOISE_EIGENVALUE = math.sqrt(0.5)
"""Eigenvalues of a mirrored d x d matrix of unit noise reach 2 sqrt(d) times this."""


class Natural(NamedTuple):
    """Natural parameters of a Gaussian: precision times mean, and precision.

    ``precision`` has one more axis than ``linear`` where it is a matrix, and else the same shapes.
    """

    linear: PyTree
    precision: PyTree


class Moments(NamedTuple):
    """Mean and variance (a covariance where precisions are matrices) of a Gaussian."""

    mean: PyTree
    variance: PyTree


def isotropic(mean: PyTree, precision: Array | float, matrices: bool) -> Natural:
    """Return independent Gaussians of one precision; as ``matrices``, one for each line of the means."""

    def spread(leaf: Array) -> Array:
        if not matrices:
            return jnp.full_like(leaf, precision)
        return jnp.broadcast_to(precision * jnp.eye(leaf.shape[-1]), (*leaf.shape, leaf.shape[-1]))

    return Natural(jax.tree.map(lambda leaf: precision * leaf, mean), jax.tree.map(spread, mean))


def scalar_site(log_z: Callable[[PyTree, PyTree], Array], cavity: Moments, alpha: float) -> Natural:
    """Return the site of a record for each number of ``cavity`` alone."""
    slopes = jax.grad(log_z, (0, 1))(cavity.mean, cavity.variance)

    def curvature(g: Array, k: Array, v: Array) -> Array:
        return jnp.minimum(alpha * g * g - 2 * k, (1 - ROOM) / jnp.maximum(alpha * v, TINY))

    s = jax.tree.map(curvature, *slopes, cavity.variance)
    room = jax.tree.map(lambda s, v: 1 / (1 - alpha * v * s), s, cavity.variance)
    linear = jax.tree.map(lambda g, s, m, r: (g + s * m) * r, slopes[0], s, cavity.mean, room)
    return Natural(linear, jax.tree.map(jnp.multiply, s, room))


def matrix_site(log_z: Callable[[Array, Array], Array], cavity: Moments, alpha: float) -> Natural:
    """Return the site of a record for blocks of weights, each with a covariance of its own."""
    g, k = jax.grad(log_z, (0, 1))(cavity.mean, cavity.variance)
    s = alpha * g[..., :, None] * g[..., None, :] - k - jnp.swapaxes(k, -1, -2)
    room = jnp.eye(g.shape[-1]) - alpha * s @ cavity.variance
    linear = jnp.linalg.solve(room, g[..., None] + s @ cavity.mean[..., None])[..., 0]
    return Natural(linear, jnp.linalg.solve(room, s))


def plus(one: Natural, two: Natural, factor: float = 1.0) -> Natural:
    """Multiply Gaussians, the second to a power: natural parameters add."""
    return jax.tree.map(lambda a, b: a + factor * b, one, two)


def moments(natural: Natural, matrices: bool) -> Moments:
    """Return mean and variance; ``matrices`` says that precisions are matrices."""
    if not matrices:
        variance = jax.tree.map(lambda p: 1 / p, natural.precision)
        return Moments(jax.tree.map(jnp.multiply, natural.linear, variance), variance)
    covariance = jnp.linalg.inv(mirrored(natural.precision))
    covariance = mirrored(covariance)
    return Moments(jnp.einsum("...ij,...j->...i", covariance, natural.linear), covariance)


def drawn(natural: Natural, matrices: bool, key: Key) -> PyTree:
    """Draw once from a Gaussian."""
    leaves, structure = jax.tree.flatten(natural.linear)
    keys = jax.random.split(key, len(leaves))
    normal = [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    mean, variance = moments(natural, matrices)
    if not matrices:
        return jax.tree.map(lambda m, v, z: m + jnp.sqrt(v) * z, mean, variance, jax.tree.unflatten(structure, normal))
    return mean + jnp.einsum("...ij,...j->...i", jnp.linalg.cholesky(variance), normal[0])


def mirrored(matrix: Array) -> Array:
    """Return the symmetric part."""
    return (matrix + jnp.swapaxes(matrix, -1, -2)) / 2


def floored(sites: Running, matrices: bool) -> Natural:
    """Return a sum of sites that can be used from the noisy one.

    Precisions that noise alone would make are raised to its size, which is 0 without noise: the posterior's are then at
    least the prior's. And the linear part is taken for what it is, a sum that has, beside its own spread, which equals
    the precision H, noise of variance S: the sites count H (H + S)^-1 H, shrunk by H (H + S)^-1.
    """

    def kept(precision: Array, noise: Array) -> Array:
        return 1 - noise**2 / (precision + noise**2 + TINY)

    noise = sites.noise_std
    if not matrices:
        raised = jax.tree.map(jnp.maximum, sites.statistics.precision, noise.precision)
        share = jax.tree.map(kept, raised, noise.linear)
        return Natural(*(jax.tree.map(jnp.multiply, share, part) for part in (sites.statistics.linear, raised)))
    values, vectors = jnp.linalg.eigh(mirrored(sites.statistics.precision))
    values = jnp.maximum(values, noise.precision * NOISE_EIGENVALUE * math.sqrt(values.shape[-1]))
    share = kept(values, noise.linear)
    along = share * jnp.einsum("...ji,...j->...i", vectors, sites.statistics.linear)
    precision = (vectors * (share * values)[..., None, :]) @ jnp.swapaxes(vectors, -1, -2)
    return Natural(jnp.einsum("...ij,...j->...i", vectors, along), precision)


def retracted(old: PyTree, new: PyTree, matrices: bool) -> PyTree:
    """Move from one precision to another that may be indefinite, along a curve that stays above half the old one.

    With D = new - old it is old + D + D old^-1 D / 2 = (old + new old^-1 new) / 2.
    """

    def move(old: Array, new: Array) -> Array:
        if not matrices:
            return (old + new / old * new) / 2
        new = mirrored(new)
        return mirrored((old + new @ jnp.linalg.solve(old, new)) / 2)

    return jax.tree.map(move, old, new)


def bent(prior: Natural, sites: Natural, full: Natural, weight: Array, matrices: bool) -> PyTree:
    """Return the sites' precision after a step that is bent so that the posterior's falls by half at most."""
    old = plus(prior, sites).precision
    towards = jax.tree.map(
        lambda old, prior, full: old + weight * (prior + full - old), old, prior.precision, full.precision
    )
    return jax.tree.map(jnp.subtract, retracted(old, towards, matrices), prior.precision)
