"""Exact Poisson subsets at the cost of the subset, not of the data.

Each record is in the subset independently with probability ``rate``. The gaps between included records are independent
geometric variables; the base-4096 digits of a geometric variable are independent; each digit comes from an exact alias
table. Single inclusions, pairs and sizes are therefore those of N coin flips (docs/proofs/poisson.md).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from tacit.engine import alias
from tacit.wall import samplers
from tacit.wall.samplers import BASE as BASE
from tacit.wall.samplers import DIGIT_BITS as DIGIT_BITS
from tacit.wall.samplers import LARGEST as LARGEST
from tacit.wall.samplers import OVERFULL as OVERFULL
from tacit.wall.samplers import digits_for as digits_for
from tacit.wall.samplers import room as room

distance = samplers.subset_distance


@functools.lru_cache(maxsize=64)
def gap_tables(rate: float, digits: int) -> tuple[alias.Table, ...]:
    """Build one alias table for each base-4096 digit of a geometric gap, the least significant first."""
    return tuple(map(alias.build, samplers.gap_masses(rate, digits)))


def subsets(digits: Sequence[Int32[Array, "steps size"]], records: int) -> Int32[Array, "steps size"]:
    """Return one Poisson subset a step: sorted positions, filled up with the number of records.

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
