"""How records differ from those that were made up, by second moments that were released beside pair scores.

    Q, J             released moments of pairs that are both drawn, and of psi;  Q*, J* of made-up records
    a A Q* A' = Q    covariates, and the number of records: drawn outcomes tell nothing of those shown
    phi B            what J is beside a A J* A': overdispersion, as a number and by direction

Both numbers are found by a norm each, which little noise is enough for. The matrices are judged by all their entries:
what may be noise is shrunk away.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr

from tacit.types import Array

FURTHER = 0.25
"""How far, in any entry of its information, the model of the covariates is wrong at most."""


class Second(NamedTuple):
    """Released squared norms and second moments, of psi and of drawn pairs, by record; with their noise."""

    norms: Array
    norms_std: Array
    moments: Array
    moments_std: Array


class Expected(NamedTuple):
    """The same of made-up records: moments of psi over all partners, and with one; their traces; partners."""

    common: Array
    single: Array
    squares: Array
    simulations: int


class Differences(NamedTuple):
    """a, A, the spread of psi, the part of it that each step's partners add, and that of psi with one partner."""

    number: Array
    shape: Array
    spread: Array
    partner: Array
    single: Array


def differences(found: Second, expected: Expected, final: Array, drawn: Array) -> Differences:
    """Return how records differ from those made up: by what is likely, or finally a draw from standard normal numbers.

    Privacy: post-processing.
    """
    size, squares = len(expected.common), expected.squares
    of_shape, of_spread = drawn[2:].reshape(2, size, size)
    ratio, std = found.norms[1] / squares[1], found.norms_std / squares[1]
    number = _number(ratio, std, final, ndtr(drawn[0]))
    shape = _between(found.moments[1], expected.single, found.moments_std, final, of_shape)
    common, single = shape @ expected.common @ shape.T, shape @ expected.single @ shape.T
    partner = (single - common) / expected.simulations
    own = squares[0] + (squares[1] - squares[0]) / expected.simulations
    doubt = found.norms_std / (number * squares[0])
    excess = 1 + (found.norms[0] / number - own) / squares[0] + doubt * drawn[1]
    excess = jnp.where(final, jnp.maximum(excess, 1), 1)
    wrong = _between(found.moments[0] / number - partner, common, found.moments_std / number, final, of_spread)
    return Differences(number, shape, excess * wrong @ common @ wrong.T, partner, single)


def _number(found: Array, std: Array, final: Array, uniform: Array) -> Array:
    """Return the factor by which there is more information than in the made-up records: its mean, or finally a draw.

    Beforehand its logarithm is around 0 by Student's distribution of two degrees.
    """
    logs = jnp.linspace(math.log(1e-3), math.log(4.0), 400)
    logits = -jnp.square((found - jnp.exp(logs)) / std) / 2 - 1.5 * jnp.log(2 + jnp.square(logs / 0.5))
    shares = jax.nn.softmax(logits)
    chosen = jnp.minimum(jnp.sum(jnp.cumsum(shares) < uniform), len(logs) - 1)
    return jnp.where(final, jnp.exp(logs[chosen]), shares @ jnp.exp(logs))


def _between(found: Array, expected: Array, std: Array, final: Array, normal: Array) -> Array:
    """Return A with A E A' about F but for their size; E was expected, and F is found with noise.

    How far F is from E is judged by all its entries, and what is noise is shrunk away; finally a draw.
    """
    size = len(expected)
    values, vectors = jnp.linalg.eigh((expected + expected.T) / 2)
    values = jnp.maximum(values, 1e-6 * values[-1] + 1e-20)
    root, inverse = vectors * jnp.sqrt(values), (vectors / jnp.sqrt(values)).T
    off = inverse @ (found + found.T) @ inverse.T / 2
    mean = jnp.trace(off) / size
    off = off / jnp.maximum(mean, 0.05) - jnp.eye(size)
    noise = std * jnp.mean(1 / values) / jnp.maximum(mean, 0.05)
    noise = noise * jnp.where(jnp.eye(size) > 0, 1, math.sqrt(0.5))
    # Twice the standard deviation of the sum is taken off, too: noise must not be taken for a difference.
    surplus = jnp.sum(jnp.square(off) - jnp.square(noise)) - 2 * jnp.square(noise[0, 0]) * math.sqrt(size * (size + 1))
    variance = jnp.clip(surplus / size**2, 0, FURTHER**2)
    kept = final * variance / (variance + jnp.square(noise) + 1e-12)
    drawn = normal * noise * jnp.sqrt(kept)
    drawn = jnp.tril(drawn) + jnp.tril(drawn, -1).T
    values, vectors = jnp.linalg.eigh(jnp.eye(size) + kept * off + drawn)
    return root @ (vectors * jnp.sqrt(jnp.clip(values, 0.2, 5))) @ vectors.T @ inverse
