"""Documents under topics that are published: their topics, and the parts of the evidence lower bound."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln

from tacit.types import Array, Record

TINY = 1e-30


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
    likelihood, count = lines_of(known.likelihood, record)
    weight, share = swept(likelihood, count, alpha, sweeps)
    return alpha + weight * ((count / share) @ likelihood)


def bound(known: Tables, record: Record, alpha: float, sweeps: int = 100) -> Array:
    """Return one document's part of the evidence lower bound.

    Privacy: as ``proportions``.
    """
    gamma = proportions(known, record, alpha, sweeps)
    log_theta = digamma(gamma) - digamma(jnp.sum(gamma))
    log_beta, count = lines_of(known.log_beta, record)
    words = jnp.sum(count * jax.nn.logsumexp(log_theta + log_beta, axis=1))
    return words + _dirichlet(alpha, gamma, log_theta)


def topic_bound(concentration: Array, eta: float) -> Array:
    """Return the topics' part of the evidence lower bound.

    Privacy: post-processing.
    """
    return jnp.sum(jax.vmap(_dirichlet, (None, 0, 0))(eta, concentration, tables(concentration).log_beta.T))


def lines_of(table: Array, record: Record) -> tuple[Array, Array]:
    """Return the lines of a table for the words of a document, and its counts: nothing for words outside of it."""
    word, count = record["word"], jnp.asarray(record["count"], jnp.float32)
    real = (word >= 0) & (word < table.shape[0]) & (count > 0)
    return table.at[jnp.where(real, word, 0)].get(mode="clip"), jnp.where(real, count, 0)


def swept(likelihood: Array, count: Array, alpha: float, sweeps: int) -> tuple[Array, Array]:
    """Update a document's topics; return exp(E log theta) up to a factor, and each word's sum of it over the topics."""

    def revise(_: Any, gamma: Array) -> Array:
        weight = jnp.exp(digamma(gamma))
        return alpha + weight * ((count / (likelihood @ weight + TINY)) @ likelihood)

    topics = likelihood.shape[1]
    first = jnp.full(topics, alpha + jnp.sum(count) / topics)
    weight = jnp.exp(digamma(jax.lax.fori_loop(0, sweeps - 1, revise, first)))
    return weight, likelihood @ weight + TINY


def _dirichlet(prior: float, concentration: Array, expected_log: Array) -> Array:
    """Return E log p - E log q for a Dirichlet prior with equal concentrations and a Dirichlet posterior."""
    cells = (prior - concentration) * expected_log + gammaln(concentration) - gammaln(prior)
    return jnp.sum(cells) + gammaln(len(concentration) * prior) - gammaln(jnp.sum(concentration))
