"""The lattice: exact integer sums, and Gaussian noise rounded to the same integers.

A contribution of norm at most C becomes an integer vector of norm at most M, in units of C / M. Noise is floor(Z + 1/2)
with Z ~ N(0, RHO**2). Rounding commutes with adding an integer, so the noisy sum is the rounded output of the ideal
Gaussian mechanism with multiplier RHO / M, and every theorem about that mechanism holds (docs/proofs/lattice.md).

The rounded Gaussian is drawn as 256 X1 + X2, X1 a discrete Gaussian and X2 a rounded Gaussian of parameter 512 each,
from alias tables computed in integers. ``NOISE_DISTANCE`` bounds the distance from the wanted law.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from tacit.types import Key
from tacit.wall import alias

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
LIMB = 16
"""A sum is kept as high * 2**16 + low in two int32, exact to 2**47."""
LARGEST_RADIUS = 1 << 22
"""Above it float32 could no longer hold the rounded values of a contribution exactly."""
LOW_ROOM = (1 << 31) - (1 << LIMB)
"""What may be added to a low limb, which is below 2**16 before it, and stay within int32."""
_PRECISION = 256


class Sum(NamedTuple):
    """An exact integer vector ``high * 2**16 + low`` with 0 <= low < 2**16; without a high limb, low modulo 2**32."""

    high: Int32[Array, "d"] | None
    low: Int32[Array, "d"]


def radius(noise_multiplier: float, shares: int = 1) -> int:
    """Give M, the largest integer norm for which RHO sqrt(shares) / M is at least the noise multiplier.

    Privacy: public. Rounded to the safe side, in exact arithmetic. ``shares`` independent draws of noise are added up.
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


def zero(dimension: int, narrow: bool = False) -> Sum:
    """Give the empty sum; ``narrow`` for one without a high limb."""
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
    """Give how many chunks of records can be added to a low limb, a coordinate at most once each, before ``carry``."""
    return max(1, LOW_ROOM // (chunk * (radius + 1)))


def carry(total: Sum) -> Sum:
    """Bring a sum whose low part is any int32 back into the form that all else expects."""
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
    """Give rounded Gaussians of standard deviation RHO, in blocks, from the first two words for each of every step.

    A block is given in units of 2**-fine, if ``fines`` says so.

    Privacy: depends on no record; the words and keys (see ``alias.draw``) are secret, and used for nothing else.
    """
    scales = [1 << fine for fine in fines or [0] * len(sizes)]
    return alias.combine(tables(), [STRIDE, 1], sizes, words, keys, middle=LARGEST_NOISE, scales=scales)


@functools.cache
def tables() -> tuple[alias.Table, alias.Table]:
    """Build the tables of X1 (discrete Gaussian) and X2 (rounded Gaussian), both of parameter SPREAD."""
    heights = gaussian_heights()
    cells = [height * cell(k) >> _PRECISION for k, height in enumerate(heights)]
    return alias.build(_both_sides(heights)), alias.build(_both_sides(cells))


def gaussian_heights() -> list[int]:
    """Give exp(-k**2 / (2 SPREAD**2)) for k = 0..HALF, in units of 2**-256."""
    one = 1 << _PRECISION
    # exp(-1/(2 s**2)) by its series; then each ratio of neighbours is the last one times its square.
    ratio, term, n = one, one, 0
    while term:
        n += 1
        term //= 2 * SPREAD**2 * n
        ratio += -term if n % 2 else term
    square = ratio * ratio >> _PRECISION
    heights = [one]
    for _ in range(HALF):
        heights.append(heights[-1] * ratio >> _PRECISION)
        ratio = ratio * square >> _PRECISION
    return heights


def cell(k: int) -> int:
    """Give the integral over |x| <= 1/2 of exp(-(k x + x**2 / 2) / SPREAD**2), in units of 2**-256."""
    # The integrand f obeys SPREAD**2 f' = -(k + x) f, a recurrence for its power series; odd powers integrate to 0.
    before, now, total = 0, 1 << _PRECISION, 0
    for power in range(40):
        if power % 2 == 0:
            total += now // ((power + 1) << power)
        before, now = now, -(k * now + before) // (SPREAD**2 * (power + 1))
    return total


def _both_sides(masses: list[int]) -> list[int]:
    return [masses[abs(k)] for k in range(-HALF, HALF)]
