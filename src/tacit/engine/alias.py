"""Exact draws from a finite distribution: alias tables whose weights are integers that sum to 2**128.

A weight is cut into its leading 32 bits and the 96 below them. The leading parts, in units of 2**96, fill an alias
table of K = 2**m columns: a uniform 32-bit word is a column (m bits) and a fraction (32 - m bits), and the column gives
its own value when the fraction is below its threshold, else the value of its alias. What the cut took off is a whole
number R of units together, R < K. Words below R stand for it: there 96 more bits are drawn, and the value is found in
the running sums of what was cut off.

So the law of a draw is exactly the integer weights over 2**128; its distance from the wanted law is what rounding the
weights cost. Whether more bits are needed is seen from the word alone, and happens once in 2**32 / R draws.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from tacit.types import Key
from tacit.wall import samplers
from tacit.wall.samplers import BITS as BITS
from tacit.wall.samplers import REST as REST
from tacit.wall.samplers import WORD as WORD
from tacit.wall.samplers import integer_weights as integer_weights
from tacit.wall.samplers import thresholds as thresholds

GROUP = 1024
"""Words that are asked together whether one of them needs more bits."""


class Table(NamedTuple):
    """An alias table; ``packed`` holds the alias column in its leading m bits, the threshold below.

    ``sums`` are the running sums of what was cut off, of 128 bits each; ``cut`` is R, the last of them over 2**96.
    """

    packed: UInt32[Array, "K"]
    sums: UInt32[Array, "4 K"]
    cut: UInt32[Array, ""]


def build(masses: Sequence[int]) -> Table:
    """Make the alias table of the given masses; there must be a power of two of them, at most 2**16."""
    threshold, alias, sums, cut = samplers.table(masses)
    fraction_bits = WORD - (len(masses).bit_length() - 1)
    packed = [(a << fraction_bits) | t for a, t in zip(alias, threshold, strict=True)]
    words = [[(total >> shift) & 0xFFFFFFFF for total in sums] for shift in (96, 64, 32, 0)]
    # NumPy, not JAX: a table may be first asked for while a function is being traced.
    return Table(np.asarray(packed, np.uint32), np.asarray(words, np.uint32), np.uint32(cut))  # type: ignore[arg-type]


class Words(NamedTuple):
    """Uniform random words, a row for each step; or, where ``row`` is given, that one row for a single step.

    ``least`` is the least word of each group of GROUP words of a row, if it is known already.
    """

    rows: UInt32[Array, "_ words"]
    row: Int32[Array, ""] | None = None
    least: UInt32[Array, "_ groups"] | None = None

    def part(self, start: int, size: int) -> UInt32[Array, "steps {size}"]:
        """Return ``size`` words of each step from a place on."""
        if self.row is None:
            return self.rows[:, start : start + size]
        # At once: from a row that was taken before, a part is read three times as slowly.
        return jax.lax.dynamic_slice(self.rows, (self.row, start), (1, size))

    def at(self, step: Array, places: Array) -> UInt32[Array, "..."]:
        """Return single words. No row is copied for it, as it would be for a loop."""
        return self.rows[step if self.row is None else self.row, places]

    def groups_below(self, cut: UInt32[Array, ""]) -> Bool[Array, "steps groups"]:
        """Return which groups have a random word below a number."""
        if self.least is not None:
            return Words(self.least, self.row).part(0, self.least.shape[1]) < cut
        below = self.part(0, self.rows.shape[1]) < cut
        padded = jnp.pad(below, ((0, 0), (0, -below.shape[1] % GROUP)))
        return jnp.any(padded.reshape(len(below), -1, GROUP), axis=2)


def draw(
    tables: Sequence[Table], size: int, words: Words, keys: Key, start: int = 0
) -> list[Int32[Array, "steps {size}"]]:
    """Return columns: each table takes ``size`` words of every step, one table after the other, from ``start`` on.

    Privacy: depends on no record. ``keys``, one a step, supply more bits where needed, by the place of the word. They
    must not be those that the words came from.
    """
    return [combine([table], [1], [size], words, keys, start + i * size)[0] for i, table in enumerate(tables)]


def combine(
    tables: Sequence[Table],
    strides: Sequence[int],
    sizes: Sequence[int],
    words: Words,
    keys: Key,
    start: int = 0,
    middle: int = 0,
    scales: Sequence[int] | None = None,
) -> list[Int32[Array, "steps _"]]:
    """Return the sums of the columns that ``draw`` gives, each table's times its stride, less ``middle``.

    They are given in blocks of the stated sizes, each times its scale: drawn where they are needed, in one pass.

    Privacy: as ``draw``.
    """
    size, scales = sum(sizes), scales or [1] * len(sizes)
    offsets = list(itertools.accumulate(sizes, initial=0))[:-1]
    blocks = []
    for offset, width, scale in zip(offsets, sizes, scales, strict=True):
        firsts = (start + i * size + offset for i in range(len(tables)))
        columns = [_column(table, words.part(first, width)) for table, first in zip(tables, firsts, strict=True)]
        blocks.append(scale * (functools.reduce(operator.add, map(operator.mul, strides, columns)) - middle))
    # Words that need more bits are rare among very many: they are looked for in groups, and one by one only where there
    # are some.
    cuts = jnp.stack([jnp.asarray(table.cut) for table in tables])
    first, stop = start // GROUP, -(-(start + len(tables) * size) // GROUP)
    groups = words.groups_below(jnp.max(cuts))[:, first:stop]

    def settle(carry: tuple[list[Array], Array, Array]) -> tuple[list[Array], Array, Array]:
        blocks, groups, done = carry
        step, group = jnp.divmod(jnp.argmax(groups), stop - first)
        places = (first + group) * GROUP + jnp.arange(GROUP)
        # Those of the group that are ours, below their table's cut and not settled yet, in order.
        table, i = jnp.divmod(places - start, size)
        mine = (places >= start) & (table < len(tables)) & (places >= done)
        found = mine & (words.at(step, jnp.where(mine, places, 0)) < cuts[jnp.where(mine, table, 0)])
        member = jnp.argmax(found)
        place, table, i = places[member], table[member], i[member]
        # The bits belong to the step and the word's place: drawing steps in other groups gives the same values.
        more = jax.random.key_data(jax.random.fold_in(keys[step], place))[:3]
        bits = jnp.append(words.at(step, place), more)
        # The column of a word below the cut was 0.
        rest = jnp.stack([stride * _rest(one, bits) for one, stride in zip(tables, strides, strict=True)])[table]
        hit = jnp.any(found)
        for k, (offset, width, scale) in enumerate(zip(offsets, sizes, scales, strict=True)):
            if width:
                where = jnp.where(hit & (i >= offset) & (i < offset + width), i - offset, width)
                blocks[k] = blocks[k].at[step, where].add(scale * rest, mode="drop")
        left = jnp.sum(found) > 1
        return blocks, groups.at[step, group].set(left), jnp.where(left, place + 1, 0)

    carry = (blocks, groups, jnp.int32(0))
    return jax.lax.while_loop(lambda carry: jnp.any(carry[1]), settle, carry)[0]


def _column(table: Table, words: UInt32[Array, "steps n"]) -> Int32[Array, "steps n"]:
    """Look words up in the alias table; those below the cut give column 0."""
    fraction_bits = WORD - (table.packed.shape[0].bit_length() - 1)
    low = jnp.uint32((1 << fraction_bits) - 1)
    entry = jnp.asarray(table.packed).at[words >> fraction_bits].get(mode="promise_in_bounds")
    return (jnp.where((words & low) < (entry & low), words, entry) >> fraction_bits).astype(jnp.int32)


def _rest(table: Table, bits: UInt32[Array, "4"]) -> Int32[Array, ""]:
    """Return the column to which 128 bits below the last running sum belong: how many sums are not above them."""
    reached = jnp.ones(table.sums.shape[1], bool)
    for sums, word in zip(jnp.asarray(table.sums)[::-1], bits[::-1], strict=True):
        reached = (sums < word) | ((sums == word) & reached)
    return jnp.sum(reached, dtype=jnp.int32)
