"""Clipping: contributions become integer vectors whose norm provably never exceeds the lattice radius.

One joint norm over the whole contribution, computed in float32 and rounded to integers; the bound is drawn in by what
rounding and float32 arithmetic can add (docs/proofs/clipping.md), so the integer norm is at most M for every input,
NaN, infinities and denormals included.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

UNIT_ROUNDOFF = 2.0**-24
ONE_STAGE = 4096
"""Up to this dimension squares are added in one stage: d roundings cost less than a pass over memory."""
SMALLEST_CLIP, LARGEST_CLIP = 2.0**-60, 2.0**60
"""Between them neither 1 / clip nor what underflows beside it leaves the range of float32."""
LARGEST_LOSS = 0.2
"""The share of the clip that rounding may take before a recipe is refused."""


def shrink(dimension: int, radius: int) -> float:
    """Give the share of the radius to which contributions are scaled before they are rounded.

    Privacy: public. Rounding adds at most sqrt(d)/2 to a norm, float32 a relative (additions + 16) / 2**24.
    """
    additions = dimension if dimension <= ONE_STAGE else 2 * math.isqrt(dimension - 1) + 2
    share = (1 - math.sqrt(dimension) / (2 * radius)) / (1 + (additions + 16) * UNIT_ROUNDOFF)
    if share < 1 - LARGEST_LOSS:
        raise ValueError(
            f"A contribution of {dimension} numbers is too long for this noise: rounding to the lattice would take "
            f"{1 - share:.0%} of the clip. Use fewer steps, a smaller rate or a larger epsilon (less noise a step)."
        )
    return share


def to_integers(vectors: Float32[Array, "n d"], clip: float, radius: int) -> Int32[Array, "n d"]:
    """Clip each row to norm ``clip`` and express it in units of clip / radius; non-finite rows become zero.

    Privacy: the integer norm of every row is at most ``radius``, whatever the row holds.
    """
    if not SMALLEST_CLIP <= clip <= LARGEST_CLIP:
        raise ValueError(
            f"A clip of {clip:g} is outside {SMALLEST_CLIP:.1g} to {LARGEST_CLIP:.1g}, where float32 keeps the norm "
            "bound. Express the contributions in other units."
        )
    scaled = vectors * jnp.float32(1 / clip)
    squares = _sum_of_squares(scaled)
    finite = squares < jnp.inf  # false for NaN too; a norm beyond float32 counts as infinite
    share = jnp.float32(shrink(vectors.shape[1], radius))
    factor = radius * jnp.minimum(1, share / jnp.sqrt(squares))
    # A zero vector gives 0/0 nowhere: share / 0 is infinite, and the minimum is 1.
    numbers = scaled * factor[:, None]
    # The compiler may multiply constants (1 / clip, the radius, block weights) together first; should that overflow,
    # the product is infinite or NaN in every coordinate, and the row is zero like any other non-finite one.
    valid = finite[:, None] & (jnp.abs(numbers) <= radius)
    return jnp.rint(jnp.where(valid, numbers, 0)).astype(jnp.int32)


def _sum_of_squares(rows: Float32[Array, "n d"]) -> Float32[Array, "n"]:
    count, dimension = rows.shape
    if dimension <= ONE_STAGE:
        return jnp.sum(rows * rows, axis=1)
    width = math.isqrt(dimension - 1) + 1
    padded = jnp.pad(rows, ((0, 0), (0, width * width - dimension))).reshape(count, width, width)
    # The barrier keeps the compiler from merging the two sums into one long one with a larger error.
    partial = jax.lax.optimization_barrier(jnp.sum(padded * padded, axis=2))
    return jnp.sum(partial, axis=1)
