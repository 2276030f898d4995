"""Adaptive clipping (Andrew et al. 2021): the clip follows a quantile of the norms, asked for within the same release.

    for t = 1..T
        v_i = clip_s(u_i) / s                           the inner method's contribution, in units of the current scale
        b_i = BLOCK (1[norm(u_i) <= s] - quantile)      one more number a record
        G, B = sums over the subset of (v_i, b_i) + noise
        inner method: update with s G
        s   = s exp(-SPEED (B / (BLOCK rate n)))        n public

u_i is the inner contribution, s ``scale``. One joint Gaussian mechanism: the norm of (v_i, b_i) is at most
``ADAPTIVE_CLIP``, so the question costs 3% more noise and nothing else; there is no second accountant.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.types import Array, Key, Method, PyTree, Record, Release, State, is_sparse, times

QUANTILE = 0.5
BLOCK = 0.5
SPEED = 0.2
ADAPTIVE_CLIP = math.sqrt(1 + (BLOCK * QUANTILE) ** 2)


class AdaptiveState(NamedTuple):
    """The inner method's state, and the logarithm of the scale to which its contributions are clipped."""

    inner: State
    log_scale: Array


def adaptive(method: Method, size: int, start: float) -> Method:
    """Wrap a method so that its clip follows the median norm of its contributions.

    Privacy: public. The wall clips to ``ADAPTIVE_CLIP`` whatever this function computes.

    Parameters
    ----------
    method
        The method whose contributions are clipped.
    size
        A public number of records, about right.
    start
        The scale to begin with.
    """

    def init(key: Key) -> AdaptiveState:
        return AdaptiveState(method.init(key), jnp.log(jnp.float32(start)))

    def contribute(state: AdaptiveState, record: Record, key: Key, record_key: Key | None = None) -> PyTree:
        inner = method.contribution(state.inner, record, key, record_key)
        scale = jnp.exp(state.log_scale)
        numbers = [leaf.values if is_sparse(leaf) else leaf for leaf in jax.tree.leaves(inner, is_leaf=is_sparse)]
        weights = method.suggests.weights or (1.0,) * len(numbers)
        norm = jnp.sqrt(sum(jnp.sum((weight * leaf) ** 2) for weight, leaf in zip(weights, numbers, strict=True)))
        factor = 1 / jnp.maximum(norm, scale)
        return {
            "inner": jax.tree.map(lambda leaf: times(leaf, factor), inner, is_leaf=is_sparse),
            "within": BLOCK * (jnp.where(norm <= scale, 1.0, 0.0) - QUANTILE),
        }

    def update(state: AdaptiveState, release: Release, key: Key) -> AdaptiveState:
        scale = jnp.exp(state.log_scale)

        def unscaled(part: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf * scale, part["inner"])

        inner = Release(unscaled(release.total), unscaled(release.noise_std), release.rate, unscaled(release.full))
        share = jnp.clip(release.full["within"] / (BLOCK * size), -1, 1)
        return AdaptiveState(method.update(state.inner, inner, key), state.log_scale - SPEED * share)

    weights = method.suggests.weights
    return method.wrapping(
        init=init,
        contribute=contribute,
        update=update,
        suggests=method.suggests._replace(clip=ADAPTIVE_CLIP, weights=weights and (*weights, 1.0)),
    )
