"""Exact samplers, in Python integers: the rounded Gaussian, and Poisson subsets.

A table holds integer weights that sum to 2**128. One 32-bit word draws from it by Walker's alias method, and 96 more
bits decide in the rare case in which the word does not. The noise is 256 X1 + X2, with X1 a discrete Gaussian and X2 a
rounded one (docs/proofs/lattice.md). A subset is drawn by the gaps between its records, whose digits in base 4096 are
independent (docs/proofs/poisson.md).

The engine draws from the same tables, many words at once (``tacit.engine.alias``, ``lattice`` and ``sample``).
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt32

BITS = 128
WORD, REST = 32, 96
"""Bits of a weight that a word decides on, and those below."""

STRIDE = 256
SPREAD = 512
HALF = 8192
"""Table values run from -HALF to HALF - 1, sixteen standard deviations either way."""
LARGEST_NOISE = (STRIDE + 1) * HALF
"""No noise value is further from 0."""
RHO_SQUARED = SPREAD**2 * (STRIDE**2 + 1)
RHO = math.sqrt(RHO_SQUARED)
NOISE_DISTANCE = 2.0**-111
"""Total variation between one drawn noise value and floor(Z + 1/2), Z ~ N(0, RHO**2) (docs/proofs/lattice.md)."""
LARGEST_RADIUS = 1 << 22
"""Above it float32 could no longer hold the rounded values of a contribution exactly."""
_NOISE_PRECISION = 256

DIGIT_BITS = 12
BASE = 1 << DIGIT_BITS
LARGEST = (1 << 30) - 2
"""The most records for which two saturated positions can be added in int32."""
OVERFULL = 2.0**-128
"""Probability that a subset is larger than the room kept for it; it counts as numerical slack."""
_GAP_PRECISION = 320

Words = UInt32[np.ndarray, "n"]
More = Callable[[int], tuple[int, int, int]]
"""Three more words for the word at a place, where that one does not decide."""


class Table(NamedTuple):
    """An alias table of K columns: docs/proofs/lattice.md, section 3.

    A word is a column and a fraction. It stands for the column if the fraction is below the threshold, else for the
    column's alias. ``sums`` are the running sums of what the leading 32 bits of the weights leave; words below ``cut``,
    the last of them over 2**96, stand for these.
    """

    threshold: tuple[int, ...]
    alias: tuple[int, ...]
    sums: tuple[int, ...]
    cut: int


def integer_weights(masses: Sequence[int]) -> list[int]:
    """Round masses (any common unit) to integers that sum to 2**128; the remainder goes to the heaviest.

    Each of the K weights is rounded down by less than one unit, so the rounded law is within K / 2**128 in total
    variation of the masses' law (docs/proofs/lattice.md, section 3).
    """
    total = sum(masses)
    weights = [(mass << BITS) // total for mass in masses]
    weights[weights.index(max(weights))] += (1 << BITS) - sum(weights)
    return weights


def thresholds(weights: Sequence[int], cut: int) -> tuple[list[int], list[int]]:
    """Return the threshold and the alias of every column (Walker's method, Vose's order), in exact integers.

    The weights and ``cut`` sum to 2**32; the first ``cut`` units of column 0 are kept for what was cut off
    (docs/proofs/lattice.md, section 3).
    """
    columns = len(weights)
    capacity = (1 << WORD) // columns
    if sum(weights) + cut != 1 << WORD or capacity * columns != 1 << WORD or not 0 <= cut < columns <= capacity:
        raise ValueError("An alias table needs a power of two of columns, at most 2**16, and weights that fill it.")
    left, room = list(weights), [capacity - cut] + [capacity] * (columns - 1)
    # A column that keeps all of its mass points at itself with threshold 0, which fits the bits that are left.
    threshold, alias = [0] * columns, list(range(columns))
    small = [i for i in range(columns) if left[i] < room[i]]
    large = [i for i in range(columns) if left[i] > room[i]]
    while small:
        i, j = small.pop(), large[-1]
        threshold[i], alias[i] = left[i] + (capacity - room[i]), j
        left[j] -= room[i] - left[i]
        if left[j] <= room[j]:
            large.pop()
            if left[j] < room[j]:
                small.append(j)
    return threshold, alias


def table(masses: Sequence[int]) -> Table:
    """Return the alias table of the given masses; there must be a power of two of them, at most 2**16."""
    weights = integer_weights(masses)
    sums = tuple(itertools.accumulate(weight & ((1 << REST) - 1) for weight in weights))
    cut = sums[-1] >> REST
    threshold, alias = thresholds([weight >> REST for weight in weights], cut)
    return Table(tuple(threshold), tuple(alias), sums, cut)


def draw(table: Table, words: Words, first: int, more: More) -> Int64[np.ndarray, "n"]:
    """Return the column that each word stands for; ``first`` is the place of the first word.

    Privacy: depends on no record (docs/proofs/lattice.md, section 3: the law is that of the integer weights).
    """
    fraction_bits = WORD - (len(table.alias).bit_length() - 1)
    columns, fractions = words >> fraction_bits, words & ((1 << fraction_bits) - 1)
    kept = fractions < np.asarray(table.threshold)[columns]
    drawn = np.where(kept, columns, np.asarray(table.alias)[columns]).astype(np.int64)
    for i in np.flatnonzero(words < table.cut).tolist():
        high, middle, low = more(first + i)
        bits = (int(words[i]) << 96) | (high << 64) | (middle << 32) | low
        drawn[i] = bisect.bisect_right(table.sums, bits)
    return drawn


def radius(noise_multiplier: float, shares: int = 1) -> int:
    """Return M, the largest integer norm for which RHO sqrt(shares) / M is at least the noise multiplier.

    Privacy: public. Rounded to the safe side, in exact arithmetic (docs/proofs/lattice.md, section 1). ``shares``
    independent draws of noise are added up.
    """
    sigma = Fraction(noise_multiplier)
    largest = math.isqrt(math.floor(shares * Fraction(RHO_SQUARED) / sigma**2))
    if not 1 <= largest <= LARGEST_RADIUS:
        most = math.sqrt(shares) * RHO
        raise ValueError(
            f"A noise multiplier of {noise_multiplier:g} is outside the lattice's range "
            f"({most / LARGEST_RADIUS:.2g} to {most:.6g}). Ask for another epsilon, rate or number of steps."
        )
    return largest


def noise(dimension: int, words: Words, more: More) -> Int64[np.ndarray, "d"]:
    """Return independent rounded Gaussians of standard deviation RHO, from the first two words for each of them.

    Privacy: depends on no record (docs/proofs/lattice.md, sections 2 and 4).
    """
    coarse, fine = noise_tables()
    first = draw(coarse, words[:dimension], 0, more) - HALF
    second = draw(fine, words[dimension : 2 * dimension], dimension, more) - HALF
    return STRIDE * first + second


@functools.cache
def noise_tables() -> tuple[Table, Table]:
    """Return the tables of X1 (discrete Gaussian) and X2 (rounded Gaussian), both of parameter SPREAD."""
    coarse, fine = noise_masses()
    return table(coarse), table(fine)


def noise_masses() -> tuple[list[int], list[int]]:
    """Return the masses of X1 and X2 on -HALF..HALF - 1 (docs/proofs/lattice.md, section 3)."""
    heights = gaussian_heights()
    cells = [height * cell(k) >> _NOISE_PRECISION for k, height in enumerate(heights)]
    coarse, fine = ([masses[abs(k)] for k in range(-HALF, HALF)] for masses in (heights, cells))
    return coarse, fine


def gaussian_heights() -> list[int]:
    """Return exp(-k**2 / (2 SPREAD**2)) for k = 0..HALF, in units of 2**-256 (docs/proofs/lattice.md, section 3)."""
    one = 1 << _NOISE_PRECISION
    # exp(-1/(2 s**2)) by its series; then each ratio of neighbours is the last one times its square.
    ratio, term, n = one, one, 0
    while term:
        n += 1
        term //= 2 * SPREAD**2 * n
        ratio += -term if n % 2 else term
    square = ratio * ratio >> _NOISE_PRECISION
    heights = [one]
    for _ in range(HALF):
        heights.append(heights[-1] * ratio >> _NOISE_PRECISION)
        ratio = ratio * square >> _NOISE_PRECISION
    return heights


def cell(k: int) -> int:
    """Return the integral over |x| <= 1/2 of exp(-(k x + x**2 / 2) / SPREAD**2), in units of 2**-256."""
    # The integrand f obeys SPREAD**2 f' = -(k + x) f, a recurrence for its power series; odd powers integrate to 0.
    before, now, total = 0, 1 << _NOISE_PRECISION, 0
    for power in range(40):
        if power % 2 == 0:
            total += now // ((power + 1) << power)
        before, now = now, -(k * now + before) // (SPREAD**2 * (power + 1))
    return total


def subset(count: int, room: int, tables: Sequence[Table], words: Words, first: int, more: More) -> list[int]:
    """Return the places of the records that are in a Poisson subset, in order.

    ``room`` words from the place ``first`` on draw the lowest digit of so many gaps, the next ones the digit above.

    Privacy: secret (docs/proofs/poisson.md, sections 1 to 3).
    """
    gaps = [0] * room
    for place, digit in enumerate(tables):
        start = first + place * room
        for i, value in enumerate(draw(digit, words[start : start + room], start, more).tolist()):
            gaps[i] += value << (DIGIT_BITS * place)
    places = itertools.accumulate((gap + 1 for gap in gaps), initial=-1)
    return [place for place in itertools.islice(places, 1, None) if place < count]


@functools.lru_cache(maxsize=64)
def gap_tables(rate: float, digits: int) -> tuple[Table, ...]:
    """Return one table for each base-4096 digit of a geometric gap, the least significant first."""
    return tuple(map(table, gap_masses(rate, digits)))


def gap_masses(rate: float, digits: int) -> list[list[int]]:
    """Return the masses of each base-4096 digit of a geometric gap (docs/proofs/poisson.md, sections 2 and 5)."""
    one = 1 << _GAP_PRECISION
    stay = Fraction(1) - Fraction(rate)
    ratio = stay.numerator * one // stay.denominator
    built = []
    for digit in range(digits):
        masses = [one]
        while len(masses) < BASE:
            masses.append(masses[-1] * ratio >> _GAP_PRECISION)
        following = masses[-1] * ratio >> _GAP_PRECISION
        if digit == digits - 1:
            # The top digit is not bounded: its last value stands for itself and everything above.
            masses[-1] = masses[-1] * one // max(one - ratio, 1)
        built.append(masses)
        ratio = following
    return built


def digits_for(records: int) -> int:
    """Return the number of digits with which a gap can pass over all records (docs/proofs/poisson.md, section 2)."""
    if records > LARGEST:
        raise ValueError(f"More than {LARGEST} records in one process are not supported; split them.")
    digits = 1
    while (BASE - 1) * BASE ** (digits - 1) < records:
        digits += 1
    return digits


def room(records: int, rate: float) -> int:
    """Return the smallest size that a subset exceeds with probability at most OVERFULL, at most N.

    By Chernoff's bound (docs/proofs/poisson.md, section 4).
    """
    wanted = -math.log(OVERFULL)

    def exponent(size: int) -> float:
        if size > records:
            return math.inf
        share, rest = size / records, 1 - size / records
        return records * (
            share * math.log(share / rate) + (rest * math.log(rest / (1 - rate)) if size < records else 0.0)
        )

    low, high = math.ceil(rate * records), records
    while low < high:
        middle = (low + high) // 2
        # The thousandth covers the rounding of the logarithms.
        if middle > rate * records and exponent(middle + 1) >= 1.001 * wanted:
            high = middle
        else:
            low = middle + 1
    return low


def subset_distance() -> float:
    """Bound the total variation between one drawn subset and N coin flips, for any N (a public number)."""
    # At most LARGEST + 1 gaps of three digits, each within BASE / 2**128 of its law, and the overfull subset
    # (docs/proofs/poisson.md, section 5).
    return (LARGEST + 1) * 3 * BASE * 2.0**-BITS + OVERFULL
