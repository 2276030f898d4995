"""Exact sums over a subset, in chunks: the engine's part of ``tacit.wall.step.Summation``.

Where nothing is factored these are the integers of the reference, bit for bit; where sums are factored they are within
the proved radius of its exact sum (docs/proofs/clipping.md). Where the records are is the caller's: it gives those of a
chunk when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from tacit.engine import clip, lattice, outer, random
from tacit.engine.blocks import Blocks
from tacit.engine.contributions import Contributions
from tacit.engine.sizes import Sizes
from tacit.types import Key, PyTree, State, is_sparse

RowsAt = Callable[[Array, Any, Array], PyTree]
"""The records of a chunk: a function of their positions, the step's row among subsets, and the chunk's first place."""


class Sums:
    """The sums of the steps of a run.

    Parameters
    ----------
    contributions, blocks, sizes
        Of a chunk of records; how a sum is kept; and the shapes of chunks.
    """

    def __init__(self, contributions: Contributions, blocks: Blocks, sizes: Sizes) -> None:
        self.contributions, self.blocks, self.sizes = contributions, blocks, sizes
        self.factoring, self.sparse = contributions.factoring, contributions.sparse

    def sum(
        self,
        state: State,
        rows_at: RowsAt,
        subsets: Int32[Array, "steps width"],
        i: Array,
        key: Key,
        record_key: Key | None,
        count: int | Int32[Array, ""],
        begin: int | Int32[Array, ""] = 0,
        noise: list[Int32[Array, "_"]] | None = None,
    ) -> list[lattice.Sum]:
        """Add up the subset in chunks of one or two fixed shapes, to the noise; an empty subset is an empty sum.

        It begins with the noise, in units of ``fines``: the same integers as if that came last, in fewer passes.
        Positions from ``count`` on are of no record. Where a subset is handed over in parts, ``begin`` chunks came
        before.
        """
        row, full, tail = i if subsets.shape[0] > 1 else 0, self.sizes.chunk, self.sizes.tail
        included = jnp.sum(subsets[row] < count)

        def add_chunk(j: Array, totals: list[lattice.Sum], size: int = full) -> list[lattice.Sum]:
            positions = jax.lax.dynamic_slice(subsets, (row, j * full), (1, size))[0]
            rows = rows_at(positions, row, j * full)
            mine = None if record_key is None else random.fold_in(record_key, (begin + j) * full + jnp.arange(size))
            clipped = self.contributions.clipped(state, rows, key, mine)
            present = positions < count
            plain, values = self._apart(clipped.plain)
            total, products, tables = self.blocks.kinds(totals)
            return [
                lattice.add(total, self._exact_sum(plain, present)),
                *self._add_products(products, clipped.factors, present, begin + j),
                *self._add_rows(tables, values, clipped.places, present),
            ]

        chunks = (jnp.maximum(included - tail, 0) + full - 1) // full
        start = self._start(noise)
        if self.factoring is None and not self.sparse:
            return jax.lax.fori_loop(0, chunks, add_chunk, start)
        group = self.sizes.group

        def carry(totals: list[lattice.Sum]) -> list[lattice.Sum]:
            return [totals[0], *(lattice.carry(total) for total in totals[1:])]

        def add_group(g: Array, totals: list[lattice.Sum]) -> list[lattice.Sum]:
            # A loop that runs once or not at all: most steps have one group, and nothing to carry before it.
            totals = jax.lax.fori_loop(0, jnp.minimum(g, 1), lambda _, totals: carry(totals), totals)
            return jax.lax.fori_loop(g * group, jnp.minimum((g + 1) * group, chunks), add_chunk, totals)

        totals = jax.lax.fori_loop(0, (chunks + group - 1) // group, add_group, start)
        if tail:
            totals = jax.lax.fori_loop(0, jnp.minimum(chunks, 1), lambda _, totals: carry(totals), totals)
            # By the loop's own number: what does not depend on it is computed whether the loop runs or not.
            stop = chunks + (included > chunks * full)
            totals = jax.lax.fori_loop(chunks, stop, lambda j, totals: add_chunk(j, totals, tail), totals)
        return carry(totals)

    def _start(self, noise: list[Int32[Array, "_"]] | None) -> list[lattice.Sum]:
        """Return the sum to which contributions are added: the noise, if it is given."""
        start = self.blocks.zero()
        if noise is None:
            return start
        both = list(map(lattice.Sum, (total.high for total in start), noise))
        plain, products, tables = self.blocks.kinds(both)
        return [lattice.carry(plain), *products, *map(lattice.carry, tables)]

    def _exact_sum(self, integers: Int32[Array, "chunk d"], present: Bool[Array, "chunk"]) -> Int32[Array, "d"]:
        return jnp.sum(jnp.where(present[:, None], integers, 0), axis=0)

    def _apart(
        self, integers: Int32[Array, "chunk d"]
    ) -> tuple[Int32[Array, "chunk _"], list[Int32[Array, "chunk _"]]]:
        """Part the integers of a chunk of records: those of all plain leaves, and those of each sparse one."""
        if not self.sparse:
            return integers, []
        both = zip(self.blocks.leaves, self.blocks.outers, strict=True)
        here = [leaf for leaf, product in both if not product]
        sizes = [leaf.values.size if is_sparse(leaf) else leaf.size for leaf in here]
        parts = list(zip(here, jnp.split(integers, np.cumsum(sizes)[:-1], axis=1), strict=True))
        plain = jnp.concatenate([integers[:, :0], *(part for leaf, part in parts if not is_sparse(leaf))], axis=1)
        return plain, [part for leaf, part in parts if is_sparse(leaf)]

    def _add_rows(
        self,
        totals: list[lattice.Sum],
        values: list[Int32[Array, "chunk _"]],
        places: list[Int32[Array, "chunk _"]],
        present: Bool[Array, "chunk"],
    ) -> list[lattice.Sum]:
        """Add a chunk's sparse leaves to the low limbs of their tables, which are wide enough for a group of chunks."""
        lows = []
        for leaf, total, integers, lines in zip(self.sparse, totals, values, places, strict=True):
            width = leaf.values.shape[1]
            lines = jnp.where(present[:, None], lines, leaf.count).reshape(-1)
            table = total.low.reshape(leaf.count, width).at[lines].add(integers.reshape(-1, width), mode="drop")
            lows.append(table.reshape(-1))
        return [lattice.Sum(total.high, low) for total, low in zip(totals, lows, strict=True)]

    def _add_products(
        self, totals: list[lattice.Sum], factors: list[outer.Factors], present: Bool[Array, "chunk"], j: Array
    ) -> list[lattice.Sum]:
        """Add a chunk's outer products, by one matrix product a leaf; beyond the public number of them, one by one.

        They are added to the low limbs, which are wide enough for a group of chunks.
        """
        if self.factoring is None:
            return totals
        factors = [outer.Factors(left, jnp.where(present[:, None], right, 0)) for left, right in factors]
        fast, block = j < self.factoring.chunks, self.factoring.block

        def add(lows: list[Array], factors: list[outer.Factors], wanted: Any = True) -> list[Array]:
            products = [jnp.where(wanted, jnp.ravel(clip.product(both, block)), 0) for both in factors]
            return [low + product for low, product in zip(lows, products, strict=True)]

        def add_one(k: Array, lows: list[Array]) -> list[Array]:
            return add(lows, [outer.Factors(left[k][None], right[k][None]) for left, right in factors])

        # A product that is not wanted is computed all the same: chosen before, all factors would be written twice.
        lows = add([total.low for total in totals], factors, fast)
        lows = jax.lax.fori_loop(0, jnp.where(fast, 0, len(present)), add_one, lows)
        return [lattice.Sum(total.high, low) for total, low in zip(totals, lows, strict=True)]
