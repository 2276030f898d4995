"""The lattice: exact integer sums, and Gaussian noise rounded to the same integers.

A contribution of norm at most C becomes an integer vector of norm at most M, in units of C / M. Noise is floor(Z + 1/2)
with Z ~ N(0, RHO**2). Rounding commutes with adding an integer, so the noisy sum is the rounded output of the ideal
Gaussian mechanism with multiplier RHO / M, and every theorem about that mechanism holds (docs/proofs/lattice.md).

The rounded Gaussian is drawn as 256 X1 + X2, X1 a discrete Gaussian and X2 a rounded Gaussian of parameter 512 each,
from alias tables computed in integers. ``NOISE_DISTANCE`` bounds the distance from the wanted law.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from tacit.engine import alias
from tacit.types import Key
from tacit.wall import samplers
from tacit.wall.samplers import HALF as HALF
from tacit.wall.samplers import LARGEST_NOISE as LARGEST_NOISE
from tacit.wall.samplers import LARGEST_RADIUS as LARGEST_RADIUS
from tacit.wall.samplers import NOISE_DISTANCE as NOISE_DISTANCE
from tacit.wall.samplers import RHO as RHO
from tacit.wall.samplers import RHO_SQUARED as RHO_SQUARED
from tacit.wall.samplers import SPREAD as SPREAD
from tacit.wall.samplers import STRIDE as STRIDE
from tacit.wall.samplers import cell as cell
from tacit.wall.samplers import gaussian_heights as gaussian_heights
from tacit.wall.samplers import radius as radius

LIMB = 16
"""A sum is kept as high * 2**16 + low in two int32, exact to 2**47."""
LOW_ROOM = (1 << 31) - (1 << LIMB)
"""What may be added to a low limb, which is below 2**16 before it, and stay within int32."""


class Sum(NamedTuple):
    """An exact integer vector ``high * 2**16 + low`` with 0 <= low < 2**16; without a high limb, low modulo 2**32."""

    high: Int32[Array, "d"] | None
    low: Int32[Array, "d"]


def zero(dimension: int, narrow: bool = False) -> Sum:
    """Return the empty sum; ``narrow`` for one without a high limb."""
    return Sum(None if narrow else jnp.zeros(dimension, jnp.int32), jnp.zeros(dimension, jnp.int32))


def add(total: Sum, values: Int32[Array, "d"]) -> Sum:
    """Add int32 values to a sum, exactly."""
    if total.high is None:
        return Sum(None, total.low + values)
    low = total.low + (values & ((1 << LIMB) - 1))
    return Sum(total.high + (values >> LIMB) + (low >> LIMB), low & ((1 << LIMB) - 1))


def plus(one: Sum, other: Sum) -> Sum:
    """Add two sums of one form, exactly."""
    if one.high is None or other.high is None:
        return Sum(None, one.low + other.low)
    return carry(Sum(one.high + other.high, one.low + other.low))


def group(chunk: int, radius: int) -> int:
    """Return how many chunks of records can be added to a low limb, once a coordinate, before ``carry``."""
    return max(1, LOW_ROOM // (chunk * (radius + 1)))


def carry(total: Sum) -> Sum:
    """Normalize a sum whose low part is any int32 to the form that all else expects."""
    if total.high is None:
        return total
    return Sum(total.high + (total.low >> LIMB), total.low & ((1 << LIMB) - 1))


def coarsen(total: Sum, fine: int) -> Sum:
    """Round a sum in units of 2**-fine to whole units, halves up; ``fine`` is at most LIMB."""
    if not fine:
        return total
    low = total.low + (1 << fine >> 1)
    if total.high is None:
        return Sum(None, low >> fine)
    high, low = total.high + (low >> LIMB), low & ((1 << LIMB) - 1)
    return Sum(high >> fine, ((high & ((1 << fine) - 1)) << (LIMB - fine)) | (low >> fine))


def wrap(total: Sum, fine: int) -> Sum:
    """Reduce modulo 2**(48 - fine), or 2**(32 - fine): what a sum wrapped before ``coarsen`` is known up to."""
    return total if total.high is None else Sum((total.high << fine) >> fine, total.low)


def to_float(total: Sum, unit: float) -> Float32[Array, "d"]:
    """Turn a noisy sum into numbers: post-processing, so its rounding is harmless."""
    if total.high is None:
        return total.low.astype(jnp.float32) * jnp.float32(unit)
    return (total.high.astype(jnp.float32) * (1 << LIMB) + total.low.astype(jnp.float32)) * jnp.float32(unit)


def noise(
    sizes: Sequence[int], words: alias.Words, keys: Key, fines: Sequence[int] | None = None
) -> list[Int32[Array, "steps _"]]:
    """Return rounded Gaussians of standard deviation RHO, in blocks, from the first two words for each of every step.

    A block is given in units of 2**-fine, if ``fines`` says so.

    Privacy: depends on no record; the words and keys (see ``alias.draw``) are secret, and used for nothing else.
    """
    scales = [1 << fine for fine in fines or [0] * len(sizes)]
    return alias.combine(tables(), [STRIDE, 1], sizes, words, keys, middle=LARGEST_NOISE, scales=scales)


@functools.cache
def tables() -> tuple[alias.Table, alias.Table]:
    """Build the tables of X1 (discrete Gaussian) and X2 (rounded Gaussian), both of parameter SPREAD."""
    coarse, fine = samplers.noise_masses()
    return alias.build(coarse), alias.build(fine)
