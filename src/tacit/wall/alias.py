"""Exact draws from a finite distribution: alias tables whose weights are integers that sum to 2**128.

A table of K = 2**m columns splits 128 uniform bits into the column (m bits) and a fraction (128 - m bits). Column c
gives its own value when the fraction is below its threshold, else the value of its alias. Thresholds are integers, so
the law of a draw is exactly the integer weights over 2**128; its distance from the wanted law is what rounding the
weights cost.

The first 32-bit word settles the comparison unless the fraction's leading bits equal the threshold's, which happens
once in 2**(32 - m) draws; only then are the other 96 bits drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, UInt32

from tacit.types import Key

BITS = 128


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
    columns, aliases, own, ties = [], [], [], []
    for table, drawn in zip(tables, words, strict=True):
        fraction_bits = 32 - (table.packed.shape[0].bit_length() - 1)
        low = jnp.uint32((1 << fraction_bits) - 1)
        column, fraction = drawn >> fraction_bits, drawn & low
        entry = jnp.asarray(table.packed)[column]
        columns.append(column)
        aliases.append(entry >> fraction_bits)
        own.append(fraction < (entry & low))
        ties.append(fraction == (entry & low))
    # One loop settles the ties of all tables: the cipher is long, and every copy of it is compiled.
    rest = jnp.concatenate([jnp.asarray(table.rest) for table in tables])
    starts = np.cumsum([0, *(len(table.rest) for table in tables)])[:-1]
    places = jnp.concatenate([column + np.uint32(start) for column, start in zip(columns, starts, strict=True)], 1)

    def settle(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        decided, open_ = carry
        step, i = jnp.divmod(jnp.argmax(open_), places.shape[1])
        # The bits belong to the step and the place, so drawing steps in other groups gives the same values.
        more = jax.random.key_data(jax.random.fold_in(keys[step], i))[:3]
        below, same = more < rest[places[step, i]], more == rest[places[step, i]]
        lower = below[0] | (same[0] & (below[1] | (same[1] & below[2])))
        return decided.at[step, i].set(lower), open_.at[step, i].set(False)

    start = (jnp.concatenate(own, 1), jnp.concatenate(ties, 1))
    decided, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[1]), settle, start)
    ends = np.cumsum([drawn.shape[1] for drawn in words])[:-1]
    return [
        jnp.where(mine, column, alias).astype(jnp.int32)
        for mine, column, alias in zip(jnp.split(decided, ends, 1), columns, aliases, strict=True)
    ]
