"""Clipping: one contribution becomes an integer vector whose norm is at most the lattice's radius.

It is shortened in float32 to a little less than the clip, so that rounding cannot bring it above
(docs/proofs/clipping.md). The reference then takes the norm once more, of the integers, in Python: what is above the
radius for any reason counts as zero, so that here nothing hangs on how float32 rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int64

UNIT_ROUNDOFF = 2.0**-24
ONE_STAGE = 4096
"""Up to this dimension squares are added in one stage: d roundings cost less than a pass over memory."""
SMALLEST_CLIP, LARGEST_CLIP = 2.0**-60, 2.0**60
"""Between them neither 1 / clip nor what underflows beside it leaves the range of float32."""
LARGEST_LOSS = 0.2
"""The share of the clip that rounding may take before a recipe is refused."""


def shrink(dimension: int, radius: int) -> float:
    """Return the share of the radius to which contributions are scaled before they are rounded.

    Privacy: public. Rounding adds at most sqrt(d)/2 to a norm, float32 a relative (additions + 16) / 2**24
    (docs/proofs/clipping.md, "Rounding").
    """
    share = (1 - math.sqrt(dimension) / (2 * radius)) / (1 + (additions(dimension) + 16) * UNIT_ROUNDOFF)
    if share < 1 - LARGEST_LOSS:
        raise ValueError(
            f"A contribution of {dimension} numbers is too long for this noise: rounding to the lattice would take "
            f"{1 - share:.0%} of the clip. Use fewer steps, a smaller rate or a larger epsilon (less noise a step)."
        )
    return share


def additions(dimension: int) -> int:
    """Return how many roundings a square passes on its way into the norm (docs/proofs/clipping.md, "The sum")."""
    sums, squares = stages(dimension)
    return squares if sums == 1 else sums + squares


def stages(dimension: int) -> tuple[int, int]:
    """Return how many partial sums squares are added up in, and how many squares are in each of them."""
    if dimension <= ONE_STAGE:
        return 1, dimension
    root = math.isqrt(dimension - 1) + 1
    # Whole partial sums, if there are such of about the root: what is filled up with zeros is written anew.
    exact = [number for number in range(root // 2, root + 1) if dimension % number == 0]
    return (exact[-1], dimension // exact[-1]) if exact else (root, root)


def check_clip(clip: float) -> None:
    """Refuse a clip that is out of the range for which the bound on the norm is proved."""
    if not SMALLEST_CLIP <= clip <= LARGEST_CLIP:
        raise ValueError(
            f"A clip of {clip:g} is outside {SMALLEST_CLIP:.1g} to {LARGEST_CLIP:.1g}, where float32 keeps the norm "
            "bound. Express the contributions in other units."
        )


def clipped(
    vector: Float32[Array, "d"], clip: float, radius: int, share: float, fits: Bool[Array, ""]
) -> Float32[Array, "d"]:
    """Shorten a contribution to ``share`` of the clip, and express it in units of clip / radius; not rounded yet.

    What is not finite, or does not fit what the method needs of a record, becomes zero.

    Privacy: of norm at most share * radius up to float32's error (docs/proofs/clipping.md, "The factor").
    """
    check_clip(clip)
    scaled = vector * jnp.float32(1 / clip)
    sums, squares = stages(len(vector))
    parts = jnp.pad(scaled, (0, sums * squares - len(vector))).reshape(sums, squares)
    square = jnp.sum(jax.lax.optimization_barrier(jnp.sum(parts * parts, axis=1)))
    # A zero vector gives 0/0 nowhere: share / 0 is infinite, and the minimum is 1.
    numbers = scaled * (radius * jnp.minimum(1, jnp.float32(share) / jnp.sqrt(square)))
    finite = fits & (square < jnp.inf)  # false for NaN too; a norm beyond float32 counts as infinite
    return jnp.where(finite & (jnp.abs(numbers) <= radius), numbers, 0)


def to_integers(numbers: Float32[Array, "d"]) -> Int64[np.ndarray, "d"]:
    """Round to the nearest integer: exact, since float32 holds all numbers up to the largest radius to a half."""
    return np.rint(np.asarray(numbers)).astype(np.int64)


def within(integers: Sequence[int], radius: int) -> bool:
    """Return whether an integer vector is no longer than the radius, in exact arithmetic.

    Privacy: this is the sensitivity of a step, whatever came before.
    """
    return sum(value * value for value in integers) <= radius * radius
