"""The clipped contributions of a chunk of records: traced once for each size, and proved to keep records apart."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Int32

from tacit.accounting.mechanism import Mechanism
from tacit.engine import clip, independence, outer, random, rewrite
from tacit.engine.rules import Along
from tacit.types import Key, Method, PyTree, Record, State, is_sparse
from tacit.wall import trace
from tacit.wall.layout import Layout


class Contributions:
    """What records contribute to a step, a chunk at a time.

    Attributes
    ----------
    shape, layout
        The public shape of a contribution.
    outers, factoring
        For each leaf the outer product that it is, or None; and the public numbers by which those are summed, or None.
    slot_invariant
        Whether a contribution is the same wherever its record stands in a chunk. Where that is not proved, or was seen
        to be false, records are evaluated one at a time.
    """

    def __init__(
        self,
        method: Method,
        mechanism: Mechanism,
        radius: int,
        state: State,
        stand_in: PyTree,
        expected: float | None,
    ) -> None:
        self.method, self.mechanism, self.radius = method, mechanism, radius
        self.slot_invariant = True
        self._traced: dict[tuple[int, bool], tuple[Any, Any]] = {}
        self._function = rewrite.rewritten(method.contribution)
        self.shape = jax.eval_shape(self._function, state, stand_in, jax.random.key(0), random.fixed(0))
        self.layout = Layout.of(self.shape, mechanism.weights)
        self.sparse = [leaf for leaf in self.layout.leaves if is_sparse(leaf)]
        self.outers, self.factoring = self._factoring(state, stand_in, expected)
        if self.factoring is None:
            clip.shrink(self.layout.length, radius)  # refuses what rounding would spoil

    def _factoring(
        self, state: State, stand_in: PyTree, expected: float | None
    ) -> tuple[list[outer.Outer | None], clip.Factoring | None]:
        """Find the leaves that are outer products, and the public numbers by which they are summed."""
        two = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *np.shape(leaf)), np.asarray(leaf).dtype), stand_in)
        record_key = jax.random.split(random.fixed(0)) if self.method.per_record_key else None
        leaves = self.layout.leaves
        scales = [weight / self.mechanism.clip for weight in self.layout.weights]
        may = [
            not is_sparse(leaf) and 1 / clip.LARGEST_SCALE <= scale <= clip.LARGEST_SCALE
            for leaf, scale in zip(leaves, scales, strict=True)
        ]
        # Leaves that are no outer products are single-column ones beside those that are, or beside one another.
        found = outer.find(self._unclipped, state, two, jax.random.key(0), record_key, single_column=True)
        found = [product if mine else None for product, mine in zip(found, may, strict=False)]
        pairs = tuple((product.rows, product.columns) for product in found if product)
        plain = self.layout.length - sum(rows * columns for rows, columns in pairs)
        # With all records there are few steps, and what they say in full should not be shortened.
        single_column = self.mechanism.rate < 1 or any(columns > 1 for _, columns in pairs)
        factoring = clip.factoring(plain, pairs, self.radius, expected) if pairs and single_column else None
        return (found, factoring) if factoring else ([None] * len(leaves), None)

    def _unclipped(self, state: State, rows: PyTree, key: Key, record_key: Key | None) -> list[Array]:
        """Return the leaves of every record's contribution, places of the lines of sparse leaves, and whether it fits.

        The last only where the method needs anything of a record.
        """

        def one(mine: tuple[Record, Key | None]) -> list[Array]:
            leaves = jax.tree.leaves(self._function(state, mine[0], key, mine[1]), is_leaf=is_sparse)
            places = [clip.places(leaf.index.astype(jnp.int32), leaf.count) for leaf in leaves if is_sparse(leaf)]
            kept = iter(places)
            lines = [
                jnp.where((next(kept) < leaf.count)[:, None], leaf.values, 0) if is_sparse(leaf) else leaf
                for leaf in leaves
            ]
            fits = (
                [jnp.all(jnp.stack([need.predicate(mine[0]) for need in self.method.requirements]))]
                if self.method.requirements
                else []
            )
            return [*lines, *places, *fits]

        return jax.vmap(one)((rows, record_key))

    def integers(self, state: State, rows: PyTree, key: Key, record_key: Key | None = None) -> Int32[Array, "chunk d"]:
        """Return the part of ``clipped`` that is lattice vectors: all of it where nothing is an outer product."""
        return self.clipped(state, rows, key, record_key).plain

    def clipped(self, state: State, rows: PyTree, key: Key, record_key: Key | None = None) -> clip.Scaled:
        """Return the clipped contributions of a chunk of records: lattice vectors, and factors of outer products.

        A method is traced once for each size of chunk, and what was checked is what is compiled.
        """
        size = len(jax.tree.leaves(rows)[0])
        given = state, rows, key, record_key
        if (size, record_key is None) not in self._traced:
            self._traced[size, record_key is None] = self._trace(size, *given)
        closed, structure = self._traced[size, record_key is None]
        return self._scaled(jax.tree.unflatten(structure, jaxpr_as_fun(closed)(*jax.tree.leaves(given))), size)

    def one_at_a_time(self) -> None:
        """Evaluate records one at a time from here on."""
        self.slot_invariant = False
        self._traced.clear()

    def _trace(self, size: int, *given: Any) -> tuple[Any, Any]:
        """Trace the contributions of a chunk; records that the program may mix are evaluated one at a time."""
        leaves, structure = jax.tree.flatten(given)
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]

        def flat(*leaves: Any) -> list[Any]:
            return self._evaluated(*jax.tree.unflatten(structure, leaves))

        closed, shape = jax.make_jaxpr(flat, return_shape=True)(*shapes)
        if calls := trace.contents(closed)[1]:
            raise ValueError(
                f"The method's contribute calls out of the compiled program ({', '.join(sorted(calls))}). A record "
                "could leave that way; remove the print or callback."
            )
        public, rows, _, record_key = (len(jax.tree.leaves(part)) for part in given)
        along = Along(0)
        kinds = [*[None] * public, *[along] * rows, None, *[along] * record_key]
        if self.slot_invariant and not independence.apart(closed, kinds, size):
            self.slot_invariant = False
            return self._trace(size, *given)
        return closed, jax.tree.structure(shape)

    def _evaluated(self, state: State, rows: PyTree, key: Key, record_key: Key | None) -> list[Any]:
        """Return ``_unclipped``, outer products taken apart; where places matter, of one record at a time."""

        def evaluate(mine: tuple[PyTree, Key | None]) -> list[Any]:
            apart = [product is not None for product in self.outers]
            apart += [False] * (len(self.sparse) + bool(self.method.requirements))
            if not any(apart):
                return self._unclipped(state, mine[0], key, mine[1])
            return outer.split(self._unclipped, state, mine[0], key, mine[1], apart=apart, single_column=True).values

        if self.slot_invariant:
            return evaluate((rows, record_key))
        # A record beside itself: what is done for one alone is not recognised as an outer product.
        times = 2 if self.factoring else 1
        alone = jax.tree.map(lambda leaf: jnp.stack([leaf] * times, 1), (rows, record_key))
        return jax.tree.map(lambda leaf: leaf[:, 0], jax.lax.map(evaluate, alone))

    def _scaled(self, values: list[Any], size: int) -> clip.Scaled:
        """Clip the contributions of a chunk."""
        leaves, places = values[: len(self.outers)], values[len(self.outers) :]
        fits = places.pop() if self.method.requirements else None
        weights = self.layout.weights
        flat = [
            value.reshape(size, -1).astype(jnp.float32) * weight
            for value, weight in zip(leaves, weights, strict=True)
            if not isinstance(value, outer.Factors)
        ]
        plain = jnp.concatenate([*flat, jnp.zeros((size, 0))], axis=1)
        if self.factoring is None:
            return clip.Scaled(clip.to_integers(plain, self.mechanism.clip, self.radius, fits), [], places)
        factors = [value for value in leaves if isinstance(value, outer.Factors)]
        theirs = [weight for product, weight in zip(self.outers, weights, strict=True) if product]
        scaled = clip.to_factors(plain, factors, theirs, self.mechanism.clip, self.radius, self.factoring, fits)
        return scaled._replace(places=places)
