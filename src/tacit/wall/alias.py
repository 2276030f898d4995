"""Exact draws from a finite distribution: alias tables whose weights are integers that sum to 2**128.

A table of K = 2**m columns splits 128 uniform bits into the column (m bits) and a fraction (128 - m bits). Column c
gives its own value when the fraction is below its threshold, else the value of its alias. Thresholds are integers, so
the law of a draw is exactly the integer weights over 2**128; its distance from the wanted law is what rounding the
weights cost.

The first 32-bit word settles the comparison unless the fraction's leading bits equal the threshold's, which happens
once in 2**(32 - m) draws; only then are the other 96 bits drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from tacit.types import Key

BITS = 128
GROUP = 1024
"""Draws that are asked together whether one of them is a tie."""


class Table(NamedTuple):
    """An alias table; ``packed`` holds the alias column in its leading m bits, the threshold's leading bits below."""

    packed: UInt32[Array, "K"]
    rest: UInt32[Array, "K 3"]


def integer_weights(masses: Sequence[int]) -> list[int]:
    """Round masses (any common unit) to integers that sum to 2**128; the remainder goes to the heaviest.

    Each of the K weights is rounded down by less than one unit, so the rounded law is within K / 2**128 in total
    variation of the masses' law.
    """
    total = sum(masses)
    weights = [(mass << BITS) // total for mass in masses]
    weights[weights.index(max(weights))] += (1 << BITS) - sum(weights)
    return weights


def thresholds(weights: Sequence[int]) -> tuple[list[int], list[int]]:
    """Give the threshold and the alias of every column, in exact integers (Walker's method, Vose's order)."""
    columns = len(weights)
    capacity = (1 << BITS) // columns
    if sum(weights) != 1 << BITS or capacity * columns != 1 << BITS:
        raise ValueError("An alias table needs a power of two of columns and weights that sum to 2**128.")
    left = list(weights)
    # A column that keeps all of its mass points at itself with threshold 0, which fits the bits that are left.
    threshold, alias = [0] * columns, list(range(columns))
    small = [i for i in range(columns) if left[i] < capacity]
    large = [i for i in range(columns) if left[i] > capacity]
    while small:
        i, j = small.pop(), large[-1]
        threshold[i], alias[i] = left[i], j
        left[j] -= capacity - left[i]
        if left[j] <= capacity:
            large.pop()
            if left[j] < capacity:
                small.append(j)
    return threshold, alias


def build(masses: Sequence[int]) -> Table:
    """Make the alias table of the given masses; there must be a power of two of them, at most 2**16."""
    threshold, alias = thresholds(integer_weights(masses))
    index_bits = len(masses).bit_length() - 1
    packed = [
        (a << (32 - index_bits)) | (t >> 96) if index_bits else t >> 96 for a, t in zip(alias, threshold, strict=True)
    ]
    rest = [[(t >> shift) & 0xFFFFFFFF for shift in (64, 32, 0)] for t in threshold]
    # NumPy, not JAX: a table may be first asked for while a function is being traced.
    return Table(np.asarray(packed, np.uint32), np.asarray(rest, np.uint32))  # type: ignore[arg-type]


def draw(
    tables: Sequence[Table], words: Sequence[UInt32[Array, "steps _"]], keys: Key
) -> list[Int32[Array, "steps _"]]:
    """Give one column for each uniform word of each table; ``keys``, one a step, supply the bits where a word ties.

    Privacy: depends on no record. The keys must not be those that the words came from.
    """
    starts = itertools.accumulate((drawn.shape[1] for drawn in words), initial=0)
    return [_draw(*one, keys) for one in zip(tables, words, starts, strict=False)]


def _draw(table: Table, words: UInt32[Array, "steps n"], start: int, keys: Key) -> Int32[Array, "steps n"]:
    fraction_bits = 32 - (table.packed.shape[0].bit_length() - 1)
    low = jnp.uint32((1 << fraction_bits) - 1)
    packed, rest = jnp.asarray(table.packed), jnp.asarray(table.rest)
    column, fraction = words >> fraction_bits, words & low
    entry = packed.at[column].get(mode="promise_in_bounds")
    # At a tie the value is the column so far.
    values = jnp.where(fraction <= (entry & low), column, entry >> fraction_bits).astype(jnp.int32)
    # Ties are rare among very many draws: they are looked for in groups, and one by one only where there are some.
    width = -(-words.shape[1] // GROUP)
    whole = GROUP * (words.shape[1] // GROUP)

    def ties(words: UInt32[Array, "..."], entry: UInt32[Array, "..."]) -> Bool[Array, "..."]:
        return (words & low) == (entry & low)

    def any_tie(words: UInt32[Array, "steps n"], entry: UInt32[Array, "steps n"]) -> Bool[Array, "steps _"]:
        return jnp.any(ties(words, entry).reshape(len(words), -1, min(GROUP, words.shape[1])), axis=2)

    parts = [slice(0, whole), slice(whole, None)]
    groups = jnp.concatenate([any_tie(words[:, part], entry[:, part]) for part in parts if words[:, part].size], axis=1)

    def settle(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        values, groups, done = carry
        step, group = jnp.divmod(jnp.argmax(groups), width)
        places = group * GROUP + jnp.arange(GROUP)
        # Those of the group that are not settled yet, in order.
        mine = jnp.minimum(places, words.shape[1] - 1)
        tied = ties(words[step, mine], entry[step, mine]) & (places < words.shape[1]) & (places >= done)
        i = mine[jnp.argmax(tied)]
        column = values[step, i]
        # The bits belong to the step and the place, so drawing steps in other groups gives the same values.
        more = jax.random.key_data(jax.random.fold_in(keys[step], start + i))[:3]
        below, same = more < rest[column], more == rest[column]
        lower = below[0] | (same[0] & (below[1] | (same[1] & below[2])))
        alias = (packed[column] >> fraction_bits).astype(jnp.int32)
        left = jnp.sum(tied) > 1
        return (
            values.at[step, i].set(jnp.where(lower, column, alias)),
            groups.at[step, group].set(left),
            jnp.where(left, i + 1, 0),
        )

    carry = (values, groups, jnp.int32(0))
    return jax.lax.while_loop(lambda carry: jnp.any(carry[1]), settle, carry)[0]
