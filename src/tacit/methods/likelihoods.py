"""Likelihoods of a regression's outcome, with residuals that are cut and centred again.

Residuals of counts and of normal outcomes, which have no largest one, are cut at some standard deviations and centred
(Cantoni and Ronchetti 2001; Huber 1964), so that their mean at the truth is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaincc, gammaln
from jax.scipy.stats import norm

from tacit.types import Array, Key, Requirement

CUT = 2.5
"""Residuals of counts and of normal outcomes are cut at so many standard deviations."""
INSIDE = math.erf(CUT / math.sqrt(2))
INSIDE_SQUARE = INSIDE - 2 * CUT * math.exp(-(CUT**2) / 2) / math.sqrt(2 * math.pi)
CUT_SQUARE = INSIDE_SQUARE + CUT**2 * (1 - INSIDE)
"""For a standard normal e: the probability that |e| is below the cut, E[e^2] over these, and E[min(e^2, cut^2)]."""


class Family(NamedTuple):
    """A likelihood with its usual link, by the predictor and the noise's standard deviation (1 where there is none).

    ``residual(y, predictor, noise)`` gives r and the largest |r|. ``information(predictor, noise)`` is h, minus the
    slope of the mean of r by the predictor; the variance of r is at most that.
    """

    residual: Callable[[Array, Array, Array], tuple[Array, Array]]
    information: Callable[[Array, Array], Array]
    mean: Callable[[Array], Array]
    draw: Callable[[Key, Array, Array], Array]
    log_density: Callable[[Array, Array, Array], Array]
    need: Requirement
    noisy: bool = False


def _logistic_residual(y: Array, predictor: Array, noise: Array) -> tuple[Array, Array]:
    chance = jax.nn.sigmoid(predictor)
    return y - chance, jnp.maximum(chance, 1 - chance)


def _logistic_information(predictor: Array, noise: Array) -> Array:
    return jax.nn.sigmoid(predictor) * jax.nn.sigmoid(-predictor)


def _normal_residual(y: Array, predictor: Array, noise: Array) -> tuple[Array, Array]:
    return jnp.clip((y - predictor) / noise, -CUT, CUT) / noise, CUT / noise


def _normal_information(predictor: Array, noise: Array) -> Array:
    return INSIDE / noise**2


def _poisson_mean(predictor: Array) -> Array:
    return jnp.exp(jnp.clip(predictor, -15, 15))


class _Counts(NamedTuple):
    """A Poisson variable between the cuts: the last count below, the last within, distribution function, chances."""

    low: Array
    high: Array
    below: Callable[[Array], Array]
    chance: Callable[[Array], Array]


def _poisson(mean: Array) -> _Counts:
    def below(count: Array) -> Array:
        return jnp.where(count >= 0, gammaincc(jnp.maximum(count, 0) + 1, mean), 0)

    def chance(count: Array) -> Array:
        there = jnp.maximum(count, 0)
        return jnp.where(count >= 0, jnp.exp(there * jnp.log(mean) - mean - gammaln(there + 1)), 0)

    reach = CUT * jnp.sqrt(mean)
    return _Counts(jnp.floor(mean - reach), jnp.floor(mean + reach), below, chance)


def _poisson_residual(y: Array, predictor: Array, noise: Array) -> tuple[Array, Array]:
    """Return the residual, cut and centred."""
    mean = _poisson_mean(predictor)
    low, high, below, chance = _poisson(mean)
    std = jnp.sqrt(mean)
    usual = CUT * (1 - below(high) - below(low)) + std * (chance(low) - chance(high))
    cut = jnp.clip((y - mean) / std, -CUT, CUT)
    return std * (cut - usual), std * (CUT + jnp.abs(usual))


def _poisson_information(predictor: Array, noise: Array) -> Array:
    mean = _poisson_mean(predictor)
    low, high, below, chance = _poisson(mean)

    def squares(count: Array) -> Array:
        """E (y - mean)^2 over y up to a count."""
        return mean * (below(count - 1) - mean * chance(count - 1) + mean * chance(count))

    return jnp.sqrt(mean) * CUT * mean * (chance(high) + chance(low)) + squares(high) - squares(low)


FAMILIES = {
    "bernoulli": Family(
        _logistic_residual,
        _logistic_information,
        jax.nn.sigmoid,
        lambda key, predictor, noise: jax.random.bernoulli(key, jax.nn.sigmoid(predictor)).astype(jnp.int32),
        lambda y, predictor, noise: jax.nn.log_sigmoid((2 * y - 1) * predictor),
        Requirement(
            "y must be 0 or 1. Write y = (label == positive).astype(int).",
            lambda record: (record["y"] == 0) | (record["y"] == 1),
            fixed=True,
        ),
    ),
    "poisson": Family(
        _poisson_residual,
        _poisson_information,
        _poisson_mean,
        lambda key, predictor, noise: jax.random.poisson(key, _poisson_mean(predictor)),
        lambda y, predictor, noise: y * jnp.log(_poisson_mean(predictor)) - _poisson_mean(predictor) - gammaln(y + 1),
        Requirement(
            "y must be a whole number from 0 on: a count.",
            lambda record: (record["y"] >= 0) & (record["y"] == jnp.round(record["y"])) & jnp.isfinite(record["y"]),
            fixed=True,
        ),
    ),
    "normal": Family(
        _normal_residual,
        _normal_information,
        lambda predictor: predictor,
        lambda key, predictor, noise: predictor + noise * jax.random.normal(key, predictor.shape),
        lambda y, predictor, noise: norm.logpdf(y, predictor, noise),
        Requirement("y must be a finite number.", lambda record: jnp.isfinite(record["y"]), fixed=True),
        noisy=True,
    ),
}
