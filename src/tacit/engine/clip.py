"""Clipping: contributions become integer vectors whose norm provably never exceeds the lattice radius.

One joint norm over the whole contribution, computed in float32 and rounded to integers; the bound is drawn in by what
rounding and float32 arithmetic can add (docs/proofs/clipping.md), so the integer norm is at most M for every input,
NaN, infinities and denormals included.

Leaves that are outer products (``outer.py``) are not written out. Their factors are scaled, and a chunk of records is
summed by one float32 matrix product, which is rounded to a finer lattice. What this can add to the distance between
neighbours is taken off the clip in advance (``Factoring``).

Leaves that are sparse (``SparseRows``) are clipped like any other by the values they hold, after whatever would be
added to the same line twice was dropped (``places``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from tacit.engine import lattice
from tacit.engine.outer import Factors
from tacit.wall.clip import LARGEST_LOSS as LARGEST_LOSS
from tacit.wall.clip import UNIT_ROUNDOFF, additions, check_clip, stages
from tacit.wall.clip import shrink as shrink

LARGEST_SCALE = 2.0**80
"""Leaves whose weight over clip is beyond it, or below its inverse, are not taken apart."""
LIGHT_LOSS, FACTORED_LOSS = 0.01, 0.1
"""The share of the clip that float32 sums should not, and that all of factoring must not, take."""
LARGEST_CHUNK = 288
"""Records in one matrix product, at most: its error in float32 grows with them."""
SINGLE_COLUMN_BLOCK = 96
"""Records in one float32 sum where all products have a single column: several sums take no longer, and err less."""
SMALLEST_SINGLE_COLUMN = 64
"""Contributions of fewer numbers are written out: there is next to nothing to write."""
CACHED_CHUNK = 64
"""Records in one matrix product where most of a contribution is written out: what they hold stays in the cache."""
SMALLEST_TAIL = 64
"""A last chunk of fewer records is filled up: matrix products of few rows are computed in another way."""
FAINT = 2.0**-80
"""A leaf whose factor has a smaller squared norm counts as zero: its norm is below what float32 resolves."""


class Factoring(NamedTuple):
    """The public numbers by which leaves that are outer products are summed.

    Attributes
    ----------
    plain
        How many numbers of a contribution are not taken apart.
    pairs
        The lengths of the two factors of each leaf that is.
    chunk
        Records in one matrix product.
    block
        Records in one sum in float32: all of a chunk or, where all products have a single column, a part of it.
    tail
        Records in the last matrix product of a step where so few are left; zero where all have a chunk's.
    chunks
        Matrix products of one step; records beyond them are added one at a time.
    fine
        A sum of a chunk is rounded to multiples of 2**-fine of the lattice's unit.
    group
        How many chunks can be added to the low limb of a sum before it is carried over.
    narrow
        Whether a low limb is all there is: it holds every subset of the declared size, six deviations more included.
    """

    plain: int
    pairs: tuple[tuple[int, int], ...]
    chunk: int
    block: int
    tail: int
    chunks: int
    fine: int
    group: int
    narrow: bool

    def shrink(self, radius: int) -> float:
        """Return the share of the radius to which contributions are scaled, as ``clip.shrink`` does; not refused.

        Privacy: public. With it neighbours' sums differ by at most the radius (docs/proofs/clipping.md).
        """
        size = sum(rows * columns for rows, columns in self.pairs)
        roundings, sums = self.block + 2, self.chunks * math.ceil(self.chunk / self.block)
        relative = roundings * UNIT_ROUNDOFF / (1 - roundings * UNIT_ROUNDOFF)
        products = radius * (2 * relative * self.chunk * self.chunks + UNIT_ROUNDOFF)
        rounding = math.sqrt(size) * (1 + (sums + 0.5) * 2.0**-self.fine)
        pairs = (*self.pairs, (self.plain, 0))
        of_norm = max(additions(n) + additions(m) + 1 for n, m in pairs) + len(self.pairs)
        apart = math.hypot(products + rounding, math.sqrt(self.plain) / 2)
        return (1 - apart / radius) / (1 + (of_norm + 16) * UNIT_ROUNDOFF)


def factoring(plain: int, pairs: tuple[tuple[int, int], ...], radius: int, expected: float | None) -> Factoring | None:
    """Choose how outer products are summed, or return nothing where too much of the clip would be lost.

    Privacy: public; ``expected``, the size of a subset by the declared number of records, is a public number or None.
    """
    usual = 128.0 if expected is None else expected
    products = sum(rows * columns for rows, columns in pairs)
    written = plain + sum(rows for rows, columns in pairs if columns == 1)
    single_column = all(columns == 1 for _, columns in pairs)
    # Either passes over the sum of products are what takes time, or what a chunk's records hold beside them.
    largest = LARGEST_CHUNK if single_column or products > CACHED_CHUNK * written else CACHED_CHUNK
    pieces = 0
    while True:
        pieces = 2 * pieces or math.ceil((usual + 2 * math.sqrt(usual)) / largest)
        chunk = full_chunk(usual, pieces)
        block = math.ceil(chunk / math.ceil(chunk / SINGLE_COLUMN_BLOCK)) if single_column else chunk
        loss = 2 * (block + 3) * chunk * UNIT_ROUNDOFF
        if expected is None:
            chunks = max(1, math.floor(LIGHT_LOSS / loss))
        else:
            chunks = math.ceil((usual + 6 * math.sqrt(usual)) / chunk)
        if single_column or chunk <= 32 or chunks * loss <= 2 * LIGHT_LOSS:
            break
    # What is written out and rounded one by one loses next to nothing, and records beyond the chunks take no longer.
    if single_column and (expected is None or plain + products < SMALLEST_SINGLE_COLUMN or chunks * loss > LIGHT_LOSS):
        return None
    # About half of all subsets are no larger than expected, and need not be filled up to what most are.
    tail = math.ceil(usual % chunk / 8) * 8
    tail = tail if expected is not None and not single_column and SMALLEST_TAIL <= tail < chunk else 0
    # int32 holds the sum of a group beside a low limb or the noise, the bound on float32's error included.
    for fine in reversed(range(lattice.LIMB + 1)):
        room = lattice.LOW_ROOM / 2**fine - lattice.LARGEST_NOISE
        group = math.floor(room / (1.01 * chunk * (radius + 1)))
        if group >= min(4, chunks):
            narrow = expected is not None and group >= chunks
            found = Factoring(plain, pairs, chunk, block, tail, chunks, fine, group, narrow)
            return found if found.shrink(radius) >= 1 - (2 * LIGHT_LOSS if single_column else FACTORED_LOSS) else None
    return None


def full_chunk(expected: float, pieces: int = 1) -> int:
    """Return a number of records such that most subsets fill ``pieces`` chunks of them, and fill them well.

    Privacy: public.
    """
    return max(32, math.ceil((expected + 2 * math.sqrt(expected)) / pieces / 8) * 8)


class Scaled(NamedTuple):
    """Clipped contributions: lattice vectors of the plain part, and factors of products in units of 2**-fine.

    The vectors hold the values of sparse leaves too; ``places`` are the lines of the table that they are added to, the
    number of lines (which is none of them) where nothing is to be added.
    """

    plain: Int32[Array, "n d"]
    factors: list[Factors]
    places: list[Int32[Array, "n _"]]


def places(index: Int32[Array, "lines"], count: int) -> Int32[Array, "lines"]:
    """Return the line of the table that each line of a record's sparse leaf is added to; ``count`` where it is dropped.

    Privacy: no two lines that are kept have the same place, so the norm of the kept values is that of the record's
    whole table. Dropped are lines outside the table, and lines whose index occurs earlier in the record.
    """
    inside = jnp.where((index >= 0) & (index < count), index, count)
    order = jnp.argsort(inside, stable=True)
    ordered = inside[order]
    first = jnp.concatenate([jnp.ones(min(1, len(index)), bool), ordered[1:] != ordered[:-1]])
    return jnp.full_like(inside, count).at[order].set(jnp.where(first, ordered, count), unique_indices=True)


def to_integers(
    vectors: Float32[Array, "n d"], clip: float, radius: int, fits: Bool[Array, "n"] | None = None
) -> Int32[Array, "n d"]:
    """Clip each row to norm ``clip`` and express it in units of clip / radius.

    Rows that are not finite, or not what the method needs (``fits``), become zero.

    Privacy: the integer norm of every row is at most ``radius``, whatever the row holds.
    """
    check_clip(clip)
    scaled = vectors * jnp.float32(1 / clip)
    squares = _sum_of_squares(scaled)
    finite = squares < jnp.inf  # false for NaN too; a norm beyond float32 counts as infinite
    finite = finite if fits is None else finite & fits
    return _round(scaled, finite, _factor(squares, shrink(vectors.shape[1], radius), radius), radius)


def to_factors(
    vectors: Float32[Array, "n d"],
    factors: Sequence[Factors],
    weights: Sequence[float],
    clip: float,
    radius: int,
    factoring: Factoring,
    fits: Bool[Array, "n"] | None = None,
) -> Scaled:
    """Clip each record to norm ``clip``: its plain numbers become integers, its factors are scaled.

    Privacy: with the products of the scaled factors in units of 2**-fine, and ``factoring``'s share, the norm of every
    record is at most ``radius``, and records that are not finite are zero.
    """
    check_clip(clip)
    scaled = vectors * jnp.float32(1 / clip)
    squares = _sum_of_squares(scaled)
    finite = squares < jnp.inf
    sides = []
    # Behind the barrier the numbers whose norm is taken and those that are multiplied are the same ones in memory; a
    # compiler that computed them twice, in two ways, could make them differ.
    for (left, right), weight in zip(jax.lax.optimization_barrier(list(factors)), weights, strict=True):
        right = right * jnp.float32(weight / clip)
        left_square, right_square = _sum_of_squares(left), _sum_of_squares(right)
        # A faint leaf is dropped, not the record; whatever is infinite or NaN drops the record.
        seen = (left_square >= FAINT) & (right_square >= FAINT)
        finite &= (left_square < jnp.inf) & (right_square < jnp.inf)
        squares = squares + jnp.where(seen, left_square * right_square, 0)
        sides.append((left, right, seen))
    finite &= squares < jnp.inf
    finite = finite if fits is None else finite & fits
    factor = _factor(squares, factoring.shrink(radius), radius)
    steps = factor * (1 << factoring.fine)
    return Scaled(
        _round(scaled, finite, factor, radius),
        [
            # Zeroed on both sides: zero times infinity would spoil the sum of all records.
            Factors(_without_infinite(finite, left), _rows_or_zero(finite & seen, right * steps[:, None]))
            for left, right, seen in sides
        ],
        [],
    )


def product(factors: Factors, block: int) -> Int32[Array, "rows columns"]:
    """Sum the outer products of a chunk of records, in float32 within a block of them, and round sums to integers.

    Privacy: not private; off the exact sum by what ``Factoring.shrink`` allows for.
    """
    left, right = factors
    blocks = -(-len(right) // block)
    if blocks == 1:
        return jnp.rint(_summed(left, right)).astype(jnp.int32)
    # Of a single-column product: a row for each block, in which the records of the others are zeros, and round nothing.
    here = (jnp.arange(len(right)) // block)[:, None] == jnp.arange(blocks)
    sums = jnp.rint(_summed(jnp.where(here, right, 0), left)).astype(jnp.int32)
    return jnp.sum(sums, axis=0)[:, None]


def _summed(left: Float32[Array, "n p"], right: Float32[Array, "n q"]) -> Float32[Array, "p q"]:
    return jax.lax.dot_general(
        left, right, (((0,), (0,)), ((), ())), precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )


def _factor(squares: Float32[Array, "n"], share: float, radius: int) -> Float32[Array, "n"]:
    # A zero vector gives 0/0 nowhere: share / 0 is infinite, and the minimum is 1.
    return radius * jnp.minimum(1, jnp.float32(share) / jnp.sqrt(squares))


def _rows_or_zero(keep: Bool[Array, "n"], rows: Float32[Array, "n d"]) -> Float32[Array, "n d"]:
    return jnp.where(keep[:, None], rows, 0)


def _without_infinite(finite: Bool[Array, "n"], rows: Float32[Array, "n d"]) -> Float32[Array, "n d"]:
    # A loop that runs once or not at all: nearly always all is finite, and nothing is copied.
    spoilt = jnp.any(~finite).astype(jnp.int32)
    return jax.lax.fori_loop(0, spoilt, lambda _, rows: _rows_or_zero(finite, rows), rows)


def _round(
    scaled: Float32[Array, "n d"], finite: Bool[Array, "n"], factor: Float32[Array, "n"], radius: int
) -> Int32[Array, "n d"]:
    numbers = scaled * factor[:, None]
    # The compiler may multiply constants (1 / clip, the radius, block weights) together first; should that overflow,
    # the product is infinite or NaN in every coordinate, and the row is zero like any other non-finite one.
    valid = finite[:, None] & (jnp.abs(numbers) <= radius)
    return jnp.rint(jnp.where(valid, numbers, 0)).astype(jnp.int32)


def _sum_of_squares(rows: Float32[Array, "n d"]) -> Float32[Array, "n"]:
    count, dimension = rows.shape
    sums, squares = stages(dimension)
    if sums == 1:
        return jnp.sum(rows * rows, axis=1)
    parts = jnp.pad(rows, ((0, 0), (0, sums * squares - dimension))).reshape(count, sums, squares)
    # The barrier keeps the compiler from merging the two sums into one long one with a larger error.
    partial = jax.lax.optimization_barrier(jnp.sum(parts * parts, axis=2))
    return jnp.sum(partial, axis=1)
