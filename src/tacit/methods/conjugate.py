"""Private variational Bayes for conjugate exponential families (Park et al. 2020, Algorithm 1).

    p(m) conjugate to  p(x, l | m) = f(x, l) exp(n(m)' s(x, l))        m parameters, l latent variables of a record
    for t = 1..T
        nbar = E_q[n(m)]                                                     public
        each record:  q(l) ~ f exp(nbar' s),  u = E_q(l)[s]                  contribution: through the wall
        S = (1 - pace) S + pace G / rate                                     the average, as it came
        q(m) ~ p(m) exp(n(m)' repaired(S))                                   prior plus statistics

Two functions say all of it, and what they are differentiated by is the algorithm:

    log_normaliser(S) = log of the prior's mean of exp(n(m)' S)       its gradient is nbar
    evidence(nbar, x) = log sum over l of f(x, l) exp(nbar' s(x, l))  its gradient is u: the E-step

So a hidden Markov model is given by the forward pass alone. Where it leaves the paper
(docs/errata.md#variational-bayes-on-private-statistics): all statistics are one release with the block scaling of least
noise in place of a composition per coordinate, sensitivities are those of sums, and the average is kept unrepaired. And
where a family can tell how statistics scatter given the parameters (``refill``), a draw goes in turns between the
parameters given statistics and the statistics given parameters and what was released (Bernstein and Sheldon 2018): its
intervals then account for the privacy noise, if all records took part (rate 1).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.families._family import Family, FamilyFor
from tacit.methods.running import Pace, Running, blend, inner, normals, start, uniform_average
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Suggestions

ROUNDS = 50
"""Turns between parameters and statistics in a draw, from statistics that scatter as the noise does."""
STEPS = 50
"""Suggested where records have latent variables: half of them to find the place, half to average the noise away."""


def halfway(step: Array) -> Array:
    """Return the default pace: 1 for the first half of the suggested steps, an even average over those after it."""
    return 1 / (1 + jnp.maximum(step - STEPS // 2, 0))


class ConjugateState(NamedTuple):
    """The average of what was released, a repaired copy (q is prior plus ``statistics``), and E_q of n."""

    running: Running
    statistics: PyTree
    expected: PyTree


def conjugate(family: Family | FamilyFor, *, pace: Pace | None = None) -> MethodFor:
    """Fit a conjugate exponential family by private variational Bayes.

    Privacy: public. Sees the placeholder record only.

    Parameters
    ----------
    family
        One of ``tacit.families``, or your own ``tacit.families.Family``.
    pace
        Weight of each step's release in the average; by default 1 for 25 steps, and after them an even average. Without
        latent variables all are averaged evenly.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. All records in few steps suit it best, so that is what it suggests.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    >>> method = tacit.conjugate(tacit.families.mixture(2, bound=3.0))
    >>> data = tacit.PrivateData({"x": x}, size=200)
    >>> posterior = tacit.fit(method, data, tacit.Budget(1.0, 1e-6), steps=5, progress=False)
    >>> posterior.draws["mean"].shape
    (1000, 2, 2)
    """

    def build(plan: Plan) -> Method:
        model = family if isinstance(family, Family) else family(plan.placeholder)
        rho = pace or (halfway if model.latent else uniform_average)

        def believe(running: Running) -> ConjugateState:
            statistics = model.repair(running.statistics, running.noise_std)
            return ConjugateState(running, statistics, jax.grad(model.log_normaliser)(statistics))

        def init(key: Key) -> ConjugateState:
            return believe(start(model.begin(key)))

        def contribute(state: ConjugateState, record: Record, key: Key) -> PyTree:
            return jax.grad(model.evidence)(state.expected, record)

        def update(state: ConjugateState, release: Release, key: Key) -> ConjugateState:
            return believe(blend(state.running, release, rho))

        def draw(state: ConjugateState, key: Key) -> dict[str, Array]:
            refill, (_, noise_std, _) = model.refill, state.running
            if refill is None:
                return model.draw(state.statistics, key)

            def turn(statistics: PyTree, key: Key) -> tuple[PyTree, None]:
                of_draw, of_statistics = jax.random.split(key)
                found = model.draw(statistics, of_draw)
                return refill(found, state.running.statistics, noise_std, of_statistics), None

            last, first, *turns = jax.random.split(key, ROUNDS + 2)
            noise = normals(state.statistics, first)
            scattered = jax.tree.map(lambda leaf, std, z: leaf + std * z, state.running.statistics, noise_std, noise)
            begin = model.repair(scattered, noise_std)
            return model.draw(jax.lax.scan(turn, begin, jnp.stack(turns))[0], last)

        steps, weights = STEPS if model.latent else 1, model.weights()
        return Method(
            init,
            contribute,
            update,
            draw,
            requirements=model.requirements,
            validated="papers/coverage" if model.refill else "",
            suggests=Suggestions(clip=1.0, rate=1.0, steps=steps, weights=weights),
            model=Model(model.predict, synthesize=model.synthesize),
        )

    return MethodFor(build)


def elbo(family: Family, statistics: PyTree, records: PyTree) -> Array:
    """Return the evidence lower bound of q = prior plus ``statistics``, with the best q(l), on PUBLIC records.

    Privacy: none; for records that are public, or held by whoever asks.
    """
    normaliser, expected = jax.value_and_grad(family.log_normaliser)(statistics)
    divergence = inner(expected, statistics) - normaliser + family.log_normaliser(nothing(statistics))
    return jnp.sum(jax.vmap(family.evidence, (None, 0))(expected, records)) - divergence


def nothing(statistics: PyTree) -> PyTree:
    """Return the statistics of no records."""
    return jax.tree.map(jnp.zeros_like, statistics)
