"""Latent Dirichlet allocation by private variational Bayes (Park et al. 2020, Algorithm 3; Hoffman et al. 2010).

    for t = 1..T
        for each document n of the subset                          contribution: through the wall
            repeat   gamma_k = alpha + sum_v n_v phi_vk
                     phi_vk  ~ exp(E log theta_k + E log beta_kv)
            u_vk = n_v phi_vk                                      lines v of a V x K table, for the document's words
        G = (sum over the subset of clip(u) + noise) / rate
        S = (1 - rho_t) S + rho_t G                                the average, as it came
        lambda = eta + repaired(S)                                 q(beta_k) = Dirichlet(lambda_k)

n_v is ``count``, v ``word``, exp(E log beta) up to a factor for each word ``likelihood`` (V x K), S ``running``, rho_t
``pace``, the noise in S ``noise``, lambda ``concentration``.

Followed instead of the paper (METHODS 8, 9): the sensitivity is the clip of one document's contribution, of the sum and
not of a mean over all documents; the number of sweeps is fixed and their start constant, so that a document's local
variables come from it and public numbers alone; negative cells are not set to zero in the average, where each empty
cell would gain 0.4 standard deviations of noise. A copy is repaired, by a threshold that knows them (``repaired``).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln

from tacit.methods.running import Pace, Running, blend, slowing, start
from tacit.types import Array, Key, Method, Record, Release, Rows

CLEAR = 2.5
"""A cell counts as seen if it is so many standard deviations of the noise above zero."""
TINY = 1e-30


class LDAState(NamedTuple):
    """The average of what was released (V x K), the variance of the noise in it, and what documents need of them."""

    running: Running
    variance: Array
    likelihood: Array


def lda(
    topics: int,
    vocabulary: int,
    *,
    alpha: float | None = None,
    eta: float | None = None,
    sweeps: int = 20,
    pace: Pace | None = None,
) -> Method:
    """Find topics in documents by latent Dirichlet allocation.

    A record is a document as ``tacit.documents`` makes it: ``word`` (numbers of distinct words, filled up with the size
    of the vocabulary) and ``count`` (how often each occurs, filled up with 0).

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
    Method
        To be handed to ``tacit.fit``. Few steps with large subsets serve it best. It draws ``topics``, a distribution
        over words each; its points are the ``concentration`` of their posterior.
    """
    for name, size in (("topics", topics), ("vocabulary", vocabulary), ("sweeps", sweeps)):
        if size < 1:
            raise ValueError(f"{name} is {size}; nothing could be learnt. Write a whole number of at least 1.")
    alpha, eta = (1 / topics if value is None else value for value in (alpha, eta))
    for name, value in (("alpha", alpha), ("eta", eta)):
        if not 0 < value < math.inf:
            raise ValueError(
                f"{name} is {value}; a Dirichlet needs a positive concentration. Write {name}={1 / topics:g}."
            )
    rho = slowing() if pace is None else pace

    def init(key: Key) -> LDAState:
        running = start(jax.random.gamma(key, 100.0, (vocabulary, topics)) / 100)
        return LDAState(running, jnp.float32(0), _likelihood(running.statistics))

    def contribute(state: LDAState, record: Record, key: Key) -> Rows:
        likelihood, count = _lines(state.likelihood, record)
        weight, share = _sweep(likelihood, count, alpha, sweeps)
        return Rows(record["word"], likelihood * weight * (count / share)[:, None], vocabulary)

    def update(state: LDAState, release: Release, key: Key) -> LDAState:
        weight = rho(state.running.step)
        running = blend(state.running, release, rho)
        fresh = jnp.square(release.noise_std / release.rate)
        variance = (1 - weight) ** 2 * state.variance + weight**2 * fresh
        return LDAState(running, variance, _likelihood(eta + repaired(running.statistics, jnp.sqrt(variance))))

    def concentration(state: LDAState) -> Array:
        # Before the first release the statistics are the random start.
        return (eta + repaired(state.running.statistics, jnp.sqrt(state.variance))).T

    def draw(state: LDAState, key: Key) -> dict[str, Array]:
        return {"topics": jax.random.dirichlet(key, concentration(state))}

    def points(state: LDAState) -> dict[str, Array]:
        return {"concentration": concentration(state)}

    return Method(init, contribute, update, draw, points=points, clip=10.0)


def repaired(statistics: Array, noise: Array) -> Array:
    """Give expected counts that are not negative from noisy ones (V x K): cells that are seen, and the rest of a word.

    Cells clearly above the noise stay. What a word has beyond them, by the sum of its line, is spread over its other
    cells in proportion to the sizes of the topics. Without noise nothing changes.

    Privacy: post-processing.
    """
    seen = statistics > CLEAR * noise
    kept = jnp.where(seen, statistics, 0)
    sizes = jnp.maximum(jnp.sum(statistics, 0), 0) + TINY
    others = jnp.where(seen, 0, sizes)
    word = _nonnegative(jnp.sum(statistics, 1), noise * math.sqrt(statistics.shape[1]))
    rest = jnp.maximum(word - jnp.sum(kept, 1), 0)
    return kept + rest[:, None] * others / (jnp.sum(others, 1, keepdims=True) + TINY)


def proportions(concentration: Array, record: Record, alpha: float, sweeps: int = 100) -> Array:
    """Give the concentration of the posterior of one document's topics (gamma), under topics that are published.

    Privacy: public for public documents; for private ones the answer is as private as the document.
    """
    likelihood, count = _lines(_likelihood(concentration.T), record)
    weight, share = _sweep(likelihood, count, alpha, sweeps)
    return alpha + weight * ((count / share) @ likelihood)


def bound(concentration: Array, record: Record, alpha: float, sweeps: int = 100) -> Array:
    """Give one document's part of the evidence lower bound, its topics' proportions integrated out.

    Privacy: as ``proportions``.
    """
    gamma = proportions(concentration, record, alpha, sweeps)
    log_theta = digamma(gamma) - digamma(jnp.sum(gamma))
    log_beta, count = _lines(_expected_log(concentration.T), record)
    words = jnp.sum(count * jax.nn.logsumexp(log_theta + log_beta, axis=1))
    return words + _dirichlet(alpha, gamma, log_theta)


def topic_bound(concentration: Array, eta: float) -> Array:
    """Give the topics' part of the evidence lower bound.

    Privacy: post-processing.
    """
    log_beta = _expected_log(concentration.T).T
    return jnp.sum(jax.vmap(_dirichlet, (None, 0, 0))(eta, concentration, log_beta))


def _lines(table: Array, record: Record) -> tuple[Array, Array]:
    """Give the lines of a table for the words of a document, and its counts: nothing for words outside of it."""
    word, count = record["word"], jnp.asarray(record["count"], jnp.float32)
    real = (word >= 0) & (word < table.shape[0]) & (count > 0)
    return table.at[jnp.where(real, word, 0)].get(mode="clip"), jnp.where(real, count, 0)


def _sweep(likelihood: Array, count: Array, alpha: float, sweeps: int) -> tuple[Array, Array]:
    """Revise a document's topics; give exp(E log theta) up to a factor, and each word's sum of it over the topics."""

    def revise(_: Any, gamma: Array) -> Array:
        weight = jnp.exp(digamma(gamma))
        return alpha + weight * ((count / (likelihood @ weight + TINY)) @ likelihood)

    topics = likelihood.shape[1]
    first = jnp.full(topics, alpha + jnp.sum(count) / topics)
    weight = jnp.exp(digamma(jax.lax.fori_loop(0, sweeps - 1, revise, first)))
    return weight, likelihood @ weight + TINY


def _expected_log(concentration: Array) -> Array:
    return digamma(concentration) - digamma(jnp.sum(concentration, 0))


def _likelihood(concentration: Array) -> Array:
    # A factor for each word cancels in phi; with it float32 never loses all topics of a word.
    log_beta = _expected_log(concentration)
    return jnp.exp(log_beta - jnp.max(log_beta, 1, keepdims=True))


def _dirichlet(prior: float, concentration: Array, expected_log: Array) -> Array:
    """Give E log p - E log q for a Dirichlet prior with equal concentrations and a Dirichlet posterior."""
    size = len(concentration)
    cells = (prior - concentration) * expected_log + gammaln(concentration) - gammaln(prior)
    return jnp.sum(cells) + gammaln(size * prior) - gammaln(jnp.sum(concentration))


def _nonnegative(noisy: Array, noise: Array) -> Array:
    """Give the mean of what is not negative given a noisy value; without noise, the value itself or 0."""
    safe = jnp.maximum(noise, TINY)
    z = noisy / safe
    ratio = jnp.exp(jax.scipy.stats.norm.logpdf(z) - jax.scipy.stats.norm.logcdf(z))
    return jnp.where(noise > 0, jnp.maximum(noisy + safe * ratio, 0), jnp.maximum(noisy, 0))
