"""Where a sum over records passes zero, by private bisection: a quantile, or the best value of one parameter.

    for t = 1..T, on a logarithmic scale
        m = middle of (low, high)                               public
        u_i = term(record, m)                                   contribution: one number, rising with m
        high = m  if  sum of u_i + noise >= shift + margin noise_std,  else  low = m

The sum must rise with m. With a ``margin`` of z the probability that a middle is taken for large enough, and is not,
is at most that of a normal variable above z, in each of T steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from tacit.types import Array, Key, Method, PyTree, Record, Release, Suggestions

STEPS = 8


class RootState(NamedTuple):
    """Logarithms of the bracket's ends, and whether the upper one was ever found to be large enough."""

    low: Array
    high: Array
    found: Array


def root(
    term: Callable[[Record, Array], Array],
    low: float,
    high: float,
    *,
    clip: float,
    shift: float = 0.0,
    margin: float = 0.0,
    otherwise: float | None = None,
) -> Method:
    """Find where the sum of ``term(record, m)`` passes ``shift``, between two public numbers.

    A step halves the distance of their logarithms.

    Privacy: public.

    Parameters
    ----------
    term
        One number of a record at a public m; it must not fall as m grows.
    low, high
        Where to look, both above 0.
    clip
        Largest size of a term.
    shift, margin
        A middle is large enough where the noisy sum is at least ``shift`` and ``margin`` standard deviations of noise.
    otherwise
        What to draw if no middle was large enough; by default ``high``.
    """

    def init(key: Key) -> RootState:
        return RootState(jnp.float32(math.log(low)), jnp.float32(math.log(high)), jnp.bool_(False))

    def contribute(state: RootState, record: Record, key: Key) -> PyTree:
        return term(record, jnp.exp((state.low + state.high) / 2))

    def update(state: RootState, release: Release, key: Key) -> RootState:
        middle = (state.low + state.high) / 2
        enough = release.full >= shift + margin * release.noise_std / release.rate
        return RootState(
            jnp.where(enough, state.low, middle), jnp.where(enough, middle, state.high), state.found | enough
        )

    def draw(state: RootState, key: Key) -> dict[str, Array]:
        last = jnp.float32(high if otherwise is None else otherwise)
        return {"root": jnp.where(state.found, jnp.exp(state.high), last)}

    return Method(init, contribute, update, draw, suggests=Suggestions(clip=clip, rate=1.0, steps=STEPS))
