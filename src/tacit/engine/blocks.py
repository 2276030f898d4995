"""How a sum is kept: a block for all plain leaves, one for each outer product and for each sparse leaf."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from tacit.engine import lattice, outer
from tacit.engine.clip import Factoring
from tacit.types import PyTree, Release, is_sparse
from tacit.wall.layout import Layout


class Blocks:
    """The blocks of a sum, their units, and what is released of them.

    Parameters
    ----------
    shape, layout
        The shape of a contribution, as a tree and as a list of leaves.
    outers, factoring
        For each leaf the outer product that it is, or None; and how those are summed.
    narrow
        Whether the sums of outer products are kept in one limb.
    """

    def __init__(
        self,
        shape: PyTree,
        layout: Layout,
        outers: Sequence[outer.Outer | None],
        factoring: Factoring | None,
        *,
        narrow: bool,
    ) -> None:
        self.shape, self.leaves, self.weights, self.outers = shape, layout.leaves, layout.weights, outers
        self.fine, self.narrow = (factoring.fine if factoring else 0), narrow
        products = [rows * columns for rows, columns in (factoring.pairs if factoring else ())]
        tables = [leaf.count * leaf.values.shape[1] for leaf in layout.leaves if is_sparse(leaf)]
        self.tables = len(tables)
        self.sizes = [layout.dimension - sum(products) - sum(tables), *products, *tables]
        """The lengths of the blocks."""

    def kinds(self, blocks: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        """Split a list with an entry for each block by what those are of: plain leaves, outer products, tables."""
        end = len(blocks) - self.tables
        return blocks[0], blocks[1:end], blocks[end:]

    @property
    def fines(self) -> list[int]:
        """The bits below the unit in which each block is summed."""
        plain, products, tables = self.kinds([0] * len(self.sizes))
        return [plain, *(self.fine for _ in products), *tables]

    def zero(self) -> list[lattice.Sum]:
        """Return the empty sum."""
        plain, products, tables = self.kinds(self.sizes)
        whole = [lattice.zero(size) for size in (plain, *tables)]
        return [whole[0], *(lattice.zero(size, self.narrow) for size in products), *whole[1:]]

    def whole(self, totals: list[lattice.Sum]) -> list[lattice.Sum]:
        """Round sums in units of ``fines`` to whole units of the lattice."""
        return [
            lattice.wrap(lattice.coarsen(total, fine), fine) for total, fine in zip(totals, self.fines, strict=True)
        ]

    def per_leaf(self, blocks: list[Array]) -> Iterator[Array]:
        """Yield the numbers of each leaf of a contribution, in its shape, from those of the blocks."""
        whole = [
            product is None and not is_sparse(leaf) for leaf, product in zip(self.leaves, self.outers, strict=True)
        ]
        ends = np.cumsum([leaf.size for leaf, plain in zip(self.leaves, whole, strict=True) if plain])
        first, *others = self.kinds(blocks)
        plain, products, tables = map(iter, (jnp.split(first, ends[:-1]), *others))
        for leaf, product in zip(self.leaves, self.outers, strict=True):
            if is_sparse(leaf):
                yield next(tables).reshape(leaf.count, -1)
            elif product:
                table = next(products).reshape(product.rows, product.columns)
                yield product.leaf(table).reshape(leaf.shape)
            else:
                yield next(plain).reshape(leaf.shape)

    def release(self, totals: list[lattice.Sum], unit: float, rate: float, shares: int) -> Release:
        """Return what is released of a noisy sum, whose noise came in so many shares."""
        structure = jax.tree.structure(self.shape, is_leaf=is_sparse)
        numbers = self.per_leaf([lattice.to_float(total, unit) for total in totals])
        parts = [part / jnp.float32(weight) for part, weight in zip(numbers, self.weights, strict=True)]
        # The barrier: without it the compiler computes the sums again for every array that the update changes.
        parts = jax.lax.optimization_barrier(parts)
        std = [jnp.float32(math.sqrt(shares) * lattice.RHO * unit / weight) for weight in self.weights]
        included = jnp.float32(rate)
        return Release(
            total=jax.tree.unflatten(structure, parts),
            noise_std=jax.tree.unflatten(structure, std),
            rate=included,
            full=jax.tree.unflatten(structure, [part / included for part in parts]),
        )
