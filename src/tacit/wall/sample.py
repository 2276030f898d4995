"""Exact Poisson subsets at the cost of the subset, not of the data.

Each record is in the subset independently with probability ``rate``. The gaps between included records are independent
geometric variables; the base-4096 digits of a geometric variable are independent; each digit comes from an exact alias
table. Single inclusions, pairs and sizes are therefore those of N coin flips (docs/proofs/poisson.md).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from tacit.wall import alias

DIGIT_BITS = 12
BASE = 1 << DIGIT_BITS
LARGEST = (1 << 30) - 2
"""The most records for which two saturated positions can be added in int32."""
OVERFULL = 2.0**-128
"""Probability that a subset is larger than the room kept for it; it counts as numerical slack."""
_PRECISION = 320


def distance() -> float:
    """Bound the total variation between one drawn subset and N coin flips, for any N (a public number)."""
    # At most LARGEST + 1 gaps of three digits, each within BASE / 2**128 of its law, and the overfull subset.
    return (LARGEST + 1) * 3 * BASE * 2.0**-alias.BITS + OVERFULL


@functools.lru_cache(maxsize=64)
def gap_tables(rate: float, digits: int) -> tuple[alias.Table, ...]:
    """Build one alias table for each base-4096 digit of a geometric gap, the least significant first."""
    one = 1 << _PRECISION
    stay = Fraction(1) - Fraction(rate)
    ratio = stay.numerator * one // stay.denominator
    built = []
    for digit in range(digits):
        masses = [one]
        while len(masses) < BASE:
            masses.append(masses[-1] * ratio >> _PRECISION)
        following = masses[-1] * ratio >> _PRECISION
        if digit == digits - 1:
            # The top digit is not bounded: its last value stands for itself and everything above.
            masses[-1] = masses[-1] * one // max(one - ratio, 1)
        built.append(alias.build(masses))
        ratio = following
    return tuple(built)


def digits_for(records: int) -> int:
    """Give the number of digits with which a gap can pass over all records."""
    if records > LARGEST:
        raise ValueError(f"More than {LARGEST} records in one process are not supported; split them.")
    digits = 1
    while (BASE - 1) * BASE ** (digits - 1) < records:
        digits += 1
    return digits


def room(records: int, rate: float) -> int:
    """Give the smallest size that a subset exceeds with probability at most OVERFULL (Chernoff), at most N."""
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


def subsets(digits: Sequence[Int32[Array, "steps size"]], records: int) -> Int32[Array, "steps size"]:
    """Give one Poisson subset a step: sorted positions, filled up with the number of records.

    Privacy: the digits, drawn from ``gap_tables``, are secret; so are the subsets.
    """
    # A gap beyond all records is as good as any other such gap: saturate, so that nothing overflows.
    end = records + 1
    gap = jnp.zeros_like(digits[0])
    for place, digit in enumerate(digits):
        shift = DIGIT_BITS * place
        gap = jnp.minimum(gap + jnp.where(digit > end >> shift, end, digit << shift), end)
    ends = jax.lax.associative_scan(lambda a, b: jnp.minimum(a + b, end), jnp.minimum(gap + 1, end), axis=1)
    return jnp.minimum(ends - 1, records)
