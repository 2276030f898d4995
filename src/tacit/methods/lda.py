"""Latent Dirichlet allocation by private variational Bayes (Park et al. 2020, Algorithm 3; Hoffman et al. 2010).

    for t = 1..T
        for each document n of the subset                          contribution: through the wall
            repeat   gamma_k = alpha + sum_v n_v phi_vk
                     phi_vk  ~ exp(E log theta_k + E log beta_kv)
            u_v = c_v (n_v phi_v1, ..., n_v phi_vK, w n_v)         a line of a V x (K + 1) table for each of its words
        G = (sum over the subset of clip(u) + noise) / rate / c
        S = (1 - rho_t) S + rho_t G                                the average, as it came
        lambda = eta + repaired(S)                                 q(beta_k) = Dirichlet(lambda_k)

n_v is ``count``, v ``word``, exp(E log beta) up to a factor for each word ``likelihood`` (V x K), S ``running``, rho_t
``pace``, c ``scale``, w ``MARGIN``, lambda ``concentration``.

Followed instead of the paper (docs/errata.md#topics): the sensitivity is the clip of one document's contribution, of
the sum and not of a mean over all documents; the number of sweeps is fixed and their start constant, so that a
document's local variables come from it and public numbers alone; negative cells are not set to zero in the average,
where each empty cell would gain 0.4 standard deviations of noise. A copy is repaired, by a prior that knows the noise
(``repaired``).

Not in the paper: the column w n_v, since the sum of a word's K noisy cells says little about how frequent it is; the
factors c_v, which take room from frequent words, far above the noise, for rare ones; and a start where each topic has
a few words of its own, since topics that differ by a few per cent are lost in the noise of the first step.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln
from jax.scipy.stats import norm

from tacit.methods.running import Pace, Running, blend, polynomial_decay, start
from tacit.types import Array, Key, Method, MethodFor, Plan, Record, Release, SparseRows, Suggestions

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
OWN_WORDS, OWN_WEIGHT = 2, 100.0
"""At the start each topic has so many words of its own, so much more probable than the others."""
SMALLEST_SCALE = 0.1
RATE, STEPS = 0.2, 5
"""One pass in few steps with large subsets: a cell gets its noise in every step, however few the documents."""
TINY = 1e-30


class LDAState(NamedTuple):
    """The average of what was released (V x (K + 1)) with its noise (V x 1), and what documents need of it."""

    running: Running
    likelihood: Array
    scale: Array


def lda(
    topics: int,
    vocabulary: int,
    *,
    alpha: float | None = None,
    eta: float | None = None,
    sweeps: int = 20,
    pace: Pace | None = None,
) -> MethodFor:
    """Find topics in documents by latent Dirichlet allocation.

    A record is a document as ``tacit.topics.documents`` makes it: ``word`` (numbers of distinct words, filled up with
    the size of the vocabulary) and ``count`` (how often each occurs, filled up with 0).

    Privacy: public.

    Parameters
    ----------
    topics
        How many topics there are.
    vocabulary
        How many words there are; the list of words is public, and must not be taken from private documents.
    alpha, eta
        Concentration of the topics of a document, and of the words of a topic; by default one over the topics.
    sweeps
        How often a document's topics are revised in a step.
    pace
        Weight of each step's release in the average; by default it falls like ``(1 + step) ** -0.7``.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. Few steps with large subsets serve it best. It draws ``topics``, a distribution
        over words each; its points are the ``concentration`` of their posterior.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> words = np.tile(np.arange(4, dtype=np.int32), (200, 1))
    >>> data = tacit.PrivateData({"word": words, "count": np.ones((200, 4), np.float32)}, size=200)
    >>> method = tacit.lda(2, vocabulary=6)
    >>> posterior = tacit.fit(method, data, tacit.Budget(1.0, 1e-6), steps=5, progress=False)
    >>> posterior.draws["topics"].shape
    (1000, 2, 6)
    """
    for name, size in (("topics", topics), ("vocabulary", vocabulary), ("sweeps", sweeps)):
        if size < 1:
            raise ValueError(f"{name} is {size}; nothing could be learnt. Write a whole number of at least 1.")
    alpha, eta = (1 / topics if value is None else value for value in (alpha, eta))
    for name, value in (("alpha", alpha), ("eta", eta)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}; a concentration is positive. Write {name}={1 / topics:g}.")
    rho = polynomial_decay() if pace is None else pace

    def init(key: Key) -> LDAState:
        words, jitter = jax.random.split(key)
        chosen = jax.random.permutation(words, vocabulary)[: min(OWN_WORDS, vocabulary // topics) * topics]
        cells = jax.random.gamma(jitter, 2500.0, (vocabulary, topics)) / 2500
        cells = cells.at[chosen, jnp.arange(len(chosen)) % topics].mul(OWN_WEIGHT)
        statistics = jnp.concatenate([cells, MARGIN * jnp.sum(cells, 1, keepdims=True)], 1)
        running = start(statistics)._replace(noise_std=jnp.zeros((vocabulary, 1)))
        return LDAState(running, tables(cells.T).likelihood, jnp.ones(vocabulary))

    def contribute(state: LDAState, record: Record, key: Key) -> SparseRows:
        likelihood, count = _lines(state.likelihood, record)
        weight, share = _sweep(likelihood, count, alpha, sweeps)
        occurrences = likelihood * weight * (count / share)[:, None]
        scale, _ = _lines(state.scale, record)
        lines = jnp.concatenate([occurrences, MARGIN * count[:, None]], 1) * scale[:, None]
        return SparseRows(record["word"], lines, vocabulary)

    def update(state: LDAState, release: Release, key: Key) -> LDAState:
        scale = state.scale[:, None]
        unscaled = release._replace(full=release.full / scale, noise_std=release.noise_std / scale)
        running = blend(state.running, unscaled, rho)
        cells = repaired(running)
        frequency = jnp.sum(cells, 1)
        scale = jnp.clip((frequency / (jnp.median(frequency) + TINY)) ** -0.25, SMALLEST_SCALE, 1)
        return LDAState(running, tables(eta + cells.T).likelihood, scale)

    def points(state: LDAState) -> dict[str, Array]:
        return {"concentration": eta + repaired(state.running, geometric=True).T}

    def draw(state: LDAState, key: Key) -> dict[str, Array]:
        return {"topics": jax.random.dirichlet(key, points(state)["concentration"])}

    def build(plan: Plan) -> Method:
        return Method(init, contribute, update, draw, points, suggests=Suggestions(clip=5.0, rate=RATE, steps=STEPS))

    return MethodFor(build)


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


class Tables(NamedTuple):
    """What documents need of published topics, both V x K: exp(E log beta) up to a factor for each word, E log beta."""

    likelihood: Array
    log_beta: Array


def tables(concentration: Array) -> Tables:
    """Return the tables of topics with a Dirichlet posterior.

    Privacy: post-processing.
    """
    log_beta = digamma(concentration.T) - digamma(jnp.sum(concentration, 1))
    # The factor cancels in phi; with it float32 never loses all topics of a word.
    return Tables(jnp.exp(log_beta - jnp.max(log_beta, 1, keepdims=True)), log_beta)


def proportions(known: Tables, record: Record, alpha: float, sweeps: int = 100) -> Array:
    """Return the concentration of the posterior of one document's topics (gamma), under topics that are published.

    Privacy: public for public documents; for private ones the answer is as private as the document.
    """
    likelihood, count = _lines(known.likelihood, record)
    weight, share = _sweep(likelihood, count, alpha, sweeps)
    return alpha + weight * ((count / share) @ likelihood)


def bound(known: Tables, record: Record, alpha: float, sweeps: int = 100) -> Array:
    """Return one document's part of the evidence lower bound.

    Privacy: as ``proportions``.
    """
    gamma = proportions(known, record, alpha, sweeps)
    log_theta = digamma(gamma) - digamma(jnp.sum(gamma))
    log_beta, count = _lines(known.log_beta, record)
    words = jnp.sum(count * jax.nn.logsumexp(log_theta + log_beta, axis=1))
    return words + _dirichlet(alpha, gamma, log_theta)


def topic_bound(concentration: Array, eta: float) -> Array:
    """Return the topics' part of the evidence lower bound.

    Privacy: post-processing.
    """
    return jnp.sum(jax.vmap(_dirichlet, (None, 0, 0))(eta, concentration, tables(concentration).log_beta.T))


def _lines(table: Array, record: Record) -> tuple[Array, Array]:
    """Return the lines of a table for the words of a document, and its counts: nothing for words outside of it."""
    word, count = record["word"], jnp.asarray(record["count"], jnp.float32)
    real = (word >= 0) & (word < table.shape[0]) & (count > 0)
    return table.at[jnp.where(real, word, 0)].get(mode="clip"), jnp.where(real, count, 0)


def _sweep(likelihood: Array, count: Array, alpha: float, sweeps: int) -> tuple[Array, Array]:
    """Revise a document's topics; return exp(E log theta) up to a factor, and each word's sum of it over the topics."""

    def revise(_: Any, gamma: Array) -> Array:
        weight = jnp.exp(digamma(gamma))
        return alpha + weight * ((count / (likelihood @ weight + TINY)) @ likelihood)

    topics = likelihood.shape[1]
    first = jnp.full(topics, alpha + jnp.sum(count) / topics)
    weight = jnp.exp(digamma(jax.lax.fori_loop(0, sweeps - 1, revise, first)))
    return weight, likelihood @ weight + TINY


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


def _dirichlet(prior: float, concentration: Array, expected_log: Array) -> Array:
    """Return E log p - E log q for a Dirichlet prior with equal concentrations and a Dirichlet posterior."""
    cells = (prior - concentration) * expected_log + gammaln(concentration) - gammaln(prior)
    return jnp.sum(cells) + gammaln(len(concentration) * prior) - gammaln(jnp.sum(concentration))
