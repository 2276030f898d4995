"""Networks of rectified units under independent normal weights: moments of what they compute, and derivatives by them.

z_0 = x,  a_l = W_l (z_l, 1) / sqrt(d_l + 1),  z_l+1 = relu(a_l),  f = the last a
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tacit.methods.gaussians import TINY, Moments
from tacit.types import Array

FAR = 30.0
"""A unit whose input is so many standard deviations from zero is on or off for certain."""
BEYOND = (
    *(0.083513604, -0.45701968, 0.98772862, -0.97246474, 0.32476747),
    *(-0.078776072, 0.23222251, 0.33316677, 0.40018041, 0.39999528),
)
"""Mass of a standard normal beyond t over its density at t, a polynomial in u = 1 / (1 + 0.4 t), from u^10 on down.

Through 10 Chebyshev points of t in (0, FAR); 6e-8 of the value off at most.
"""


def forward(weights: Moments, x: Array) -> Moments:
    """Return mean and variance of a network's output for one input, layer by layer.

    Privacy: of one record; public for a public one.
    """
    return through(weights, x, [Moments(0.0, 0.0)] * len(weights.mean))[0]


@jax.custom_jvp
def rectified(mean: Array, variance: Array) -> Moments:
    """Return mean and variance of max(a, 0) for Gaussian a.

    Privacy: as its inputs.
    """
    return _rectified(mean, variance)[0]


@rectified.defjvp
def _rectified_slopes(values: tuple[Array, Array], by: tuple[Array, Array]) -> tuple[Moments, Moments]:
    z, std, on, density = _rectified(*values)
    first = on * by[0] + density / (2 * std) * by[1]
    second = 2 * z.mean * (1 - on) * by[0] + (on - z.mean * density / std) * by[1]
    return z, Moments(first, second)


def _rectified(mean: Array, variance: Array) -> tuple[Moments, Array, Array, Array]:
    std = jnp.sqrt(jnp.maximum(variance, TINY))
    alpha = jnp.clip(mean / std, -FAR, FAR)
    density = jnp.exp(-jnp.square(alpha) / 2) / math.sqrt(2 * math.pi)
    # The mass beyond |alpha| as a polynomial times the density: half the time of erfc, and no worse in the tail.
    near = 1 / (1 + 0.4 * jnp.abs(alpha))
    ratio = jnp.zeros_like(near)
    for term in BEYOND:
        ratio = (ratio + term) * near
    beyond = density * ratio
    on = jnp.where(alpha < 0, beyond, 1 - beyond)
    # E[max(a, 0)^2] - E[max(a, 0)]^2, without a difference of large numbers.
    spread = on + alpha**2 * on * (1 - on) + alpha * density * (1 - 2 * on) - density**2
    z = Moments(mean * on + std * density, jnp.square(std) * jnp.maximum(spread, 0))
    return z, std, on, density


def output(weights: Sequence[Array], x: Array) -> Array:
    """Return the network's output for one input and given weights.

    Privacy: as its inputs.
    """
    for w in weights[:-1]:
        x = jnp.maximum(w @ jnp.append(x, 1.0) / math.sqrt(w.shape[1]), 0)
    return weights[-1] @ jnp.append(x, 1.0) / math.sqrt(weights[-1].shape[1])


def through(weights: Moments, x: Array, nudges: list[Moments]) -> tuple[Moments, list[Moments]]:
    """Return a network's output and each layer's input; what is before a rectifier or the head may be nudged."""
    z, inputs = Moments(jnp.append(x, 1.0), None), []
    for m, v, nudge in zip(*weights, nudges, strict=True):
        width = m.shape[1]
        # The record's vector first: over many records the other order makes matrices that lie across.
        a, spread = z.mean @ m.T / math.sqrt(width) + nudge.mean, _square(z) @ v.T / width + nudge.variance
        if z.variance is not None:
            spread += z.variance @ jnp.square(m).T / width
        inputs.append(z)
        on = rectified(a, spread)
        z = Moments(jnp.append(on.mean, 1.0), jnp.append(on.variance, 0.0))
    return Moments(a, spread), inputs


def no_nudges(mean: Sequence[Array]) -> list[Moments]:
    """Return nudges of nothing: derivatives by them are derivatives by what is before a rectifier or the head."""
    return [Moments(jnp.zeros(len(m)), jnp.zeros(len(m))) for m in mean]


def _square(z: Moments) -> Array:
    """Return E[z^2]; x itself has no variance."""
    return jnp.square(z.mean) if z.variance is None else jnp.square(z.mean) + z.variance


def derivatives(alpha: float, back: Moments, z: Moments, m: Array) -> tuple[Array, Array]:
    """Return slope and curvature by a layer's weights from those by mean and variance of what it passes on."""
    width = m.shape[1]
    slope = jnp.outer(back.mean / math.sqrt(width), z.mean)
    if z.variance is None:
        return slope, jnp.outer((alpha * jnp.square(back.mean) - 2 * back.variance) / width, _square(z))
    slope += 2 * m * jnp.outer(back.variance / width, z.variance)
    return slope, alpha * jnp.square(slope) - jnp.outer(2 * back.variance / width, _square(z))


def usual_precisions(shapes: Sequence[tuple[int, int]]) -> list[float]:
    """Return the usual precision of a record's site, by layer, for a noise variance of 1 and half of the units on."""
    widths = [into for _, into in shapes]
    return [0.5 / math.prod(widths[i:]) for i in range(len(widths))]
