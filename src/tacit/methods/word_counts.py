"""Counts of words in topics, from noisy ones: a prior that knows the noise, fitted to the whole table."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from tacit.methods.running import Running
from tacit.types import Array

MARGIN = 0.3
"""How strongly a word's count enters a contribution, next to its shares in the topics."""
SHARES = (0.0, *(10 ** (3 * (i / 14 - 1)) for i in range(15)))
"""The shares of a word's occurrences in a topic among which the prior of ``repaired`` chooses: 0, and 0.001 to 1."""
WIDE = 0.25
"""The standard deviation around each of the shares, as a part of it."""
LOWEST = 1e-15
"""The share whose logarithm stands for that of 0 in a geometric mean."""
COMMON = 5.0
"""As so many words the prior of all words counts in the prior of each kind of words."""
ROUNDS = 15
TINY = 1e-30


def repaired(running: Running, geometric: bool = False) -> Array:
    """Return expected counts that are not negative (V x K) from the noisy average.

    A word's frequency is estimated first, from its column and its cells. Each cell is then replaced by its mean given
    the word's noisy values, under a prior on the shares of words in topics, which is fitted to the whole table. What is
    lost in the noise becomes a small share of every word, not zero and not noise. Without noise nothing changes.

    Documents of the next step take the mean. What is published is the concentration of topics of which the mean of log
    beta is asked for, and there a cell that may as well be empty counts for less than its mean: with ``geometric`` the
    mean is that of the logarithms. In the steps themselves that would sharpen what is noise, more with every step.

    Privacy: post-processing.
    """
    cells, margin = running.statistics[:, :-1], running.statistics[:, -1] / MARGIN
    noise = running.noise_std[:, 0]

    def estimate() -> Array:
        precisions = 1 / cells.shape[1], MARGIN**2
        both = (precisions[0] * jnp.sum(cells, 1) + precisions[1] * margin) / sum(precisions)
        frequency = _nonnegative(both, noise / math.sqrt(sum(precisions)))
        return frequency[:, None] * _normalised(_counts(cells, frequency, noise, geometric))

    return jax.lax.cond(jnp.max(noise) > 0, estimate, lambda: jnp.maximum(cells, 0))


def _counts(cells: Array, frequency: Array, noise: Array, geometric: bool = False) -> Array:
    """Return the mean of every word's count in every topic, given the noisy ones, under a prior fitted to all of them.

    Words are of several kinds, one for each topic to begin with and one for none. A kind has a prior on a word's share
    in each topic: a mixture of normals around the ``SHARES``, wide enough to meet, so that where there is little noise
    the noisy value stays as it is. Kinds and priors are fitted by EM; a kind of few words has the prior of all words.
    """
    values = frequency[:, None] * jnp.asarray(SHARES)
    spread, noise = jnp.square(WIDE * values), jnp.square(noise)[:, None]

    def density(column: Array) -> Array:
        log = -0.5 * (jnp.square(column[:, None] - values) / (spread + noise) + jnp.log(spread + noise))
        return jnp.exp(log - jnp.max(log, 1, keepdims=True))

    def fitted(kinds: Array, prior: Array, common: Array) -> Array:
        def topic(given: tuple[Array, Array, Array]) -> Array:
            each, (_, prior, common) = density(given[0]), given
            found = COMMON * common + prior * ((kinds / (each @ prior.T + TINY)).T @ each)
            return found / jnp.sum(found, 1, keepdims=True)

        return jax.lax.map(topic, (cells.T, prior, common))

    def likely(prior: Array) -> Array:
        def topic(k: Array, total: Array) -> Array:
            return total + jnp.log(density(cells[:, k]) @ prior[k].T + TINY)

        return jax.lax.fori_loop(0, len(prior), topic, jnp.zeros((len(cells), prior.shape[1])))

    def means(kinds: Array, prior: Array, geometric: bool) -> Array:
        def topic(given: tuple[Array, Array]) -> Array:
            column, prior = given
            each = density(column)
            mean = values + (column[:, None] - values) * spread / (spread + noise)
            weight = (kinds / (each @ prior.T + TINY)) @ prior * each
            if geometric:
                return jnp.exp(jnp.sum(weight * jnp.log(jnp.maximum(mean, LOWEST * frequency[:, None] + TINY)), 1))
            return jnp.maximum(jnp.sum(weight * mean, 1), 0)

        return jax.lax.map(topic, (cells.T, prior)).T

    def again(_: Any, given: tuple[Array, Array]) -> tuple[Array, Array]:
        kinds, prior = given
        kinds = jax.nn.softmax(likely(prior) + jnp.log(jnp.mean(kinds, 0) + TINY), 1)
        return kinds, fitted(kinds, prior, common)

    topics = cells.shape[1]
    even = jnp.full((topics, 1, len(SHARES)), 1 / len(SHARES))
    alike = jnp.ones((len(cells), 1))
    common = jax.lax.fori_loop(0, ROUNDS, lambda _, prior: fitted(alike, prior, even), even)
    kinds = jnp.concatenate([_normalised(means(alike, common, False)), jnp.full_like(alike, 1 / topics)], 1)
    kinds = _normalised(kinds)
    prior = fitted(kinds, jnp.repeat(common, topics + 1, 1), common)
    kinds, prior = jax.lax.fori_loop(0, ROUNDS, again, (kinds, prior))
    return means(kinds, prior, geometric)


def _normalised(lines: Array) -> Array:
    return lines / (jnp.sum(lines, 1, keepdims=True) + TINY)


def _nonnegative(noisy: Array, noise: Array) -> Array:
    """Return the means of numbers that are not negative, with an exponential prior, given noisy ones."""
    usual = jnp.maximum(jnp.mean(noisy), jnp.mean(noise) / math.sqrt(len(noisy)))
    shifted = (noisy - jnp.square(noise) / usual) / noise
    return jnp.maximum(noise * (shifted + jnp.exp(norm.logpdf(shifted) - norm.logcdf(shifted))), 0)
