"""A method whose last steps ask how good it is: one recipe for the fit and its score, as a selection needs it.

    for t = 1..T
        u_i = clip-normalised contribution of the method        in the first T - S steps
        u_i = (log mean_s p(record_i | draw_s)) / bound         in the last S, within [-1, 1]
        the method's update, or: score += released sum / S

Every step is one Gaussian release of contributions of norm at most 1, so candidates with different clips have one and
the same recipe and cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.types import Array, Key, Method, PyTree, Record, Release, State, is_sparse, times

DRAWS = 97
"""Draws that predict a record. The wall refuses an array as long as there are records; few have 97."""


class ScoredState(NamedTuple):
    """The method's state, the score so far, and the number of steps."""

    inner: State
    score: Array
    step: Array


def scored(
    method: Method,
    log_likelihood: Callable[[dict[str, Array], Record], Array],
    *,
    fitting: int,
    asking: int,
    clip: float,
    weights: tuple[float, ...] | None,
    bound: float,
) -> Method:
    """Wrap a method so that the last of its steps estimate the sum over records of their log predictive density.

    Privacy: public. The wall clips to 1 whatever this function computes.

    Parameters
    ----------
    method
        What is fitted.
    log_likelihood
        Of one record at one draw, which holds the points too.
    fitting, asking
        How many steps go to the fit, and how many to the score after it.
    clip, weights
        Of the method's contributions.
    bound
        Largest size of a record's log predictive density; larger ones are moved to it, and what is no number counts as
        the worst.
    """

    def factors(tree: PyTree) -> list[float]:
        count = len(jax.tree.leaves(tree, is_leaf=is_sparse))
        return [weight / clip for weight in weights or (1.0,) * count]

    def init(key: Key) -> ScoredState:
        return ScoredState(method.init(key), jnp.float32(0), jnp.int32(0))

    def contribute(state: ScoredState, record: Record, key: Key, record_key: Key | None = None) -> PyTree:
        def fit() -> PyTree:
            return {
                "fit": _scale(method.contribution(state.inner, record, key, record_key), factors),
                "score": jnp.float32(0),
            }

        def ask() -> PyTree:
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(fit)["fit"])
            points = method.point_estimates(state.inner) if method.point_estimates else {}
            draws = jax.vmap(method.draw, (None, 0))(state.inner, jax.random.split(key, DRAWS))
            terms = jax.vmap(lambda draw: log_likelihood({**draw, **points}, record))(draws)
            density = jax.nn.logsumexp(terms) - jnp.log(jnp.float32(DRAWS))
            density = jnp.where(jnp.isnan(density), -bound, jnp.clip(density, -bound, bound))
            return {"fit": nothing, "score": (density / bound).astype(jnp.float32)}

        return jax.lax.cond(state.step < fitting, fit, ask)

    def update(state: ScoredState, release: Release, key: Key) -> ScoredState:
        def fit() -> ScoredState:
            parts = (
                _scale(part["fit"], lambda tree: [1 / factor for factor in factors(tree)])
                for part in (release.total, release.noise_std, release.full)
            )
            total, noise_std, full = parts
            inner = method.update(state.inner, Release(total, noise_std, release.rate, full), key)
            return ScoredState(jax.tree.map(jnp.asarray, inner), state.score, state.step + 1)

        def ask() -> ScoredState:
            return ScoredState(state.inner, state.score + release.full["score"] * (bound / asking), state.step + 1)

        return jax.lax.cond(state.step < fitting, fit, ask)

    return method.wrapping(
        init=init,
        contribute=contribute,
        update=update,
        suggests=method.suggests._replace(clip=1.0, weights=None),
    )


def _scale(tree: PyTree, factors: Callable[[PyTree], list[float]]) -> PyTree:
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_sparse)
    return jax.tree.unflatten(
        structure, [times(leaf, jnp.float32(factor)) for leaf, factor in zip(leaves, factors(tree), strict=True)]
    )
