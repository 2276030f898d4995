"""One private step: a subset, one contribution after the other, a clip, an integer sum, noise.

draw which records take part                  docs/proofs/poisson.md
for each of them, alone:
    contribute(state, record)                 docs/proofs/clipping.md, "depends on its record only"
    clip to the norm C, round to integers     docs/proofs/clipping.md
    add them to the sum
add a rounded Gaussian for each coordinate    docs/proofs/lattice.md
hand the noisy sum to update(state, release)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, Int64

from tacit.accounting.mechanism import Mechanism
from tacit.types import Key, Method, Record, Release, SparseRows, State, is_sparse
from tacit.wall import clip, keys, samplers, streams
from tacit.wall.layout import Layout, released_size


class Summation(Protocol):
    """The integers of a step, by the reference or an engine: one flat array a leaf, of sparse ones for the table.

    An engine gives the integers of the reference, bit for bit, where nothing is factored; where sums are factored, it
    stays within the proved radius of the exact sum (docs/proofs/clipping.md). tests/test_engine.py holds it to that.
    """

    def total(self, state: State, secret: bytes, step: int) -> list[Int64[np.ndarray, "_"]]:
        """Return the sum of the clipped contributions of a step's subset, without noise."""

    def noise(self, secret: bytes, step: int) -> list[Int64[np.ndarray, "_"]]:
        """Return the noise of a step."""


@final
class Reference:
    """The sums of a run's steps, over records that are read one at a time.

    Parameters
    ----------
    method, mechanism
        What a record contributes, and the public recipe.
    stand_in, state
        A record and a state, of which only the shapes are looked at.
    count, record
        How many records there are, and a function that reads one. Both are private.
    key
        The public key of the run.
    share
        Of the radius, that contributions are shortened to; by default what rounding leaves.
    """

    def __init__(
        self,
        method: Method,
        mechanism: Mechanism,
        stand_in: Record,
        state: State,
        *,
        count: int,
        record: Callable[[int], Record],
        key: Key,
        share: float | None = None,
    ) -> None:
        self.method, self.mechanism, self.count, self.record, self.key = method, mechanism, count, record, key
        self.shape = jax.eval_shape(method.contribution, state, stand_in, key, keys.fixed(0))
        self.layout = Layout.of(self.shape, mechanism.weights)
        self.radius = samplers.radius(mechanism.noise_multiplier)
        self.unit = mechanism.clip / self.radius
        self.share = clip.shrink(self.layout.length, self.radius) if share is None else share
        self.everyone = mechanism.rate == 1 or not count
        self.room = 0 if self.everyone else samplers.room(count, mechanism.rate)
        self.gaps = () if self.everyone else samplers.gap_tables(mechanism.rate, samplers.digits_for(count))
        self.words = 2 * self.layout.dimension + self.room * len(self.gaps)
        self.distance = (
            self.layout.dimension * samplers.NOISE_DISTANCE + (mechanism.rate < 1) * samplers.subset_distance()
        )
        self.contributed = jax.jit(self.contribution)
        self.update = jax.jit(method.update)

    def advance(self, state: State, secret: bytes, step: int) -> State:
        """Take one step; what leaves it is the noisy sum.

        Privacy: reads records. The caller has charged the ledger.
        """
        both = zip(self.total(state, secret, step), self.noise(secret, step), strict=True)
        noisy = [total + noise for total, noise in both]
        return self.update(state, self.release(noisy), jax.random.fold_in(self.key, step))

    def total(self, state: State, secret: bytes, step: int) -> list[Int64[np.ndarray, "_"]]:
        """Return the exact sum of the clipped contributions of a step's subset.

        Privacy: reads records; secret. The sum of one record more is no further away than the radius.
        """
        # A coordinate of a record is at most 2**22 and there are fewer than 2**30 of them: 64 bits hold the sum.
        sums = [np.zeros(released_size(leaf), np.int64) for leaf in self.layout.leaves]
        for slot, place in enumerate(self.subset(secret, step)):
            for total, (lines, integers) in zip(sums, self.integers(state, secret, step, slot, place), strict=True):
                total[lines] += integers
        return sums

    def subset(self, secret: bytes, step: int) -> list[int]:
        """Return the places of the records that take part in a step: each by a coin flip of its own.

        Privacy: secret (docs/proofs/poisson.md).
        """
        if self.everyone:
            return list(range(self.count))
        first = 2 * self.layout.dimension
        words, more = streams.of_step(secret, step, self.words), functools.partial(streams.further, secret, step)
        return samplers.subset(self.count, self.room, self.gaps, words, first, more)

    def integers(
        self, state: State, secret: bytes, step: int, slot: int, place: int
    ) -> list[tuple[Int64[np.ndarray, "_"], Int64[np.ndarray, "_"]]]:
        """Return what one record adds to each leaf: the coordinates, each at most once, and an integer for each.

        Privacy: reads a record. The norm of all integers together is at most the radius, which is looked at here.
        """
        record_key = keys.from_bytes(streams.of_record(secret, step, slot)) if self.method.per_record_key else None
        numbers, lines = self.contributed(state, self.record(place), jax.random.fold_in(self.key, step), record_key)
        integers = clip.to_integers(numbers)
        if not clip.within(integers.tolist(), self.radius):
            integers = np.zeros_like(integers)
        return self.parted(integers, lines)

    def contribution(
        self, state: State, record: Record, key: Key, record_key: Key | None
    ) -> tuple[Float32[Array, "d"], list[Int32[Array, "_"]]]:
        """Return the clipped contribution of one record, not rounded yet, and the lines that sparse leaves go to.

        Privacy: a function of one record, public values and the record's own key.
        """
        leaves = jax.tree.leaves(self.method.contribution(state, record, key, record_key), is_leaf=is_sparse)
        lines = [kept_lines(leaf) for leaf in leaves if is_sparse(leaf)]
        kept = iter(lines)
        numbers = [
            jnp.where((next(kept) < leaf.count)[:, None], leaf.values, 0) if is_sparse(leaf) else leaf
            for leaf in leaves
        ]
        flat = [jnp.ravel(leaf).astype(jnp.float32) for leaf in numbers]
        vector = jnp.concatenate([one * weight for one, weight in zip(flat, self.layout.weights, strict=True)])
        fits = jnp.all(jnp.asarray([need.predicate(record) for need in self.method.requirements], bool))
        return clip.clipped(vector, self.mechanism.clip, self.radius, self.share, fits), lines

    def parted(self, numbers: Any, lines: list[Any]) -> list[tuple[Any, Any]]:
        """Split the numbers of a contribution into those of its leaves, each with the coordinates they are added to."""
        found, first, tables = [], 0, iter(lines)
        for leaf in self.layout.leaves:
            size = leaf.values.size if is_sparse(leaf) else leaf.size
            mine, first = numbers[first : first + size], first + size
            places = np.arange(size)
            if is_sparse(leaf):
                width = leaf.values.shape[1]
                rows = np.repeat(np.asarray(next(tables), np.int64), width)
                inside = rows < leaf.count
                places, mine = (rows * width + places % width)[inside], mine[inside]
            found.append((places, mine))
        return found

    def noise(self, secret: bytes, step: int) -> list[Int64[np.ndarray, "_"]]:
        """Return the noise of a step: a rounded Gaussian for each coordinate, those of sparse leaves last.

        Privacy: secret; depends on no record (docs/proofs/lattice.md).
        """
        words, more = streams.of_step(secret, step, self.words), functools.partial(streams.further, secret, step)
        drawn, first = samplers.noise(self.layout.dimension, words, more), 0
        found: list[Any] = [None] * len(self.layout.leaves)
        for i in sorted(range(len(found)), key=lambda i: is_sparse(self.layout.leaves[i])):
            size = released_size(self.layout.leaves[i])
            found[i], first = drawn[first : first + size], first + size
        return found

    def release(self, noisy: list[Int64[np.ndarray, "_"]]) -> Release:
        """Express noisy integers in the units of a contribution.

        Privacy: post-processing of the noisy integers.
        """
        rate, parts, stds = self.mechanism.rate, [], []
        for leaf, integers, weight in zip(self.layout.leaves, noisy, self.layout.weights, strict=True):
            shape = (leaf.count, leaf.values.shape[1]) if is_sparse(leaf) else leaf.shape
            parts.append((integers * (self.unit / weight)).reshape(shape))
            stds.append(jnp.float32(samplers.RHO * self.unit / weight))
        structure = jax.tree.structure(self.shape, is_leaf=is_sparse)
        return Release(
            total=jax.tree.unflatten(structure, [jnp.asarray(part, jnp.float32) for part in parts]),
            noise_std=jax.tree.unflatten(structure, stds),
            rate=jnp.float32(rate),
            full=jax.tree.unflatten(structure, [jnp.asarray(part / rate, jnp.float32) for part in parts]),
        )


def kept_lines(rows: SparseRows) -> Int32[Array, "lines"]:
    """Return the line of the table that each line of a sparse leaf is added to; ``count`` where it is dropped.

    Privacy: no two lines that are kept have the same place, so that the norm of the kept values is that of the whole
    table (docs/proofs/clipping.md, "Lines are dropped first").
    """
    index = rows.index.astype(jnp.int32)
    earlier = jnp.tril(index[:, None] == index, -1).any(axis=1)
    return jnp.where((index >= 0) & (index < rows.count) & ~earlier, index, rows.count)
