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
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.document_topics import TINY, lines_of, swept, tables
from tacit.methods.running import Pace, Running, blend, polynomial_decay, start
from tacit.methods.word_counts import MARGIN, repaired
from tacit.types import Array, Key, Method, MethodFor, Plan, Record, Release, SparseRows, Suggestions

OWN_WORDS, OWN_WEIGHT = 2, 100.0
"""At the start each topic has so many words of its own, so much more probable than the others."""
SMALLEST_SCALE = 0.1
RATE, STEPS = 0.2, 5
"""One pass in few steps with large subsets: a cell gets its noise in every step, however few the documents."""


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
        likelihood, count = lines_of(state.likelihood, record)
        weight, share = swept(likelihood, count, alpha, sweeps)
        occurrences = likelihood * weight * (count / share)[:, None]
        scale, _ = lines_of(state.scale, record)
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
