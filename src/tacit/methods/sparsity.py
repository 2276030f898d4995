"""The three-parameter-beta-normal prior of weights, a horseshoe for each (Gan et al. 2015; Park et al. 2020).

    w_jk ~ N(0, zeta_jk),  zeta_jk ~ Gamma(1/2, x_jk),  x_jk ~ Gamma(1/2, phi_k),  phi_k ~ Gamma(1/2, omega)
    omega ~ Gamma(1/2, 1)                                  the second number of each is a rate
    q(zeta) = GIG(0, 2 E[x], E[w^2])                       E[1/zeta] is the prior precision of w
    q(x)    = Gamma(1, E[zeta] + E[phi])                   the paper leaves out E[phi]
    q(phi)  = Gamma((J + 1) / 2, E[omega] + sum_j E[x])
    q(omega) = Gamma((K + 1) / 2, 1 + sum_k E[phi])

All of it is post-processing: it sees the weights' posterior, no record. What the paper leaves out is S2 in
docs/errata.md#sigmoid-belief-networks.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.types import Array


class Sparsity(NamedTuple):
    """Means of the prior's factors: 1/zeta and x of every weight, phi of a unit, omega."""

    precision: Array
    x: Array
    phi: Array
    omega: Array


def unshrunk(pixels: int, units: int) -> Sparsity:
    """Return the start: a prior precision of 1 for every weight."""
    ones = jnp.ones((pixels, units))
    return Sparsity(ones, 0.5 * ones, jnp.ones(units), jnp.float32(0.5))


def shrunk(old: Sparsity, square: Array) -> Sparsity:
    """Update the factors in turn, given the weights' E[w^2]."""
    pixels, units = square.shape
    rate = 2 * old.x
    ratio = bessel_ratio(jnp.sqrt(rate * square))
    zeta = jnp.sqrt(square / rate) * ratio
    x = 1 / (zeta + old.phi)
    phi = (pixels + 1) / 2 / (old.omega + jnp.sum(x, 0))
    return Sparsity(jnp.sqrt(rate / square) * ratio, x, phi, (units + 1) / 2 / (1 + jnp.sum(phi)))


def bessel_ratio(r: Array, nodes: int = 32) -> Array:
    """Return K1(r) / K0(r), by the trapezoidal rule on K_n(r) = integral of exp(-r cosh t) cosh(n t) over t > 0."""
    # Where r (cosh t - 1) is 20 the integrand has gone; the rule's error falls exponentially in the nodes.
    end = 2 * jnp.arcsinh(jnp.sqrt(10 / r))

    def add(i: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        rise = 2 * jnp.sinh(end * i / nodes / 2) ** 2
        value = jnp.exp(-r * rise)
        return sums[0] + value, sums[1] + value * (1 + rise)

    zero, one = jax.lax.fori_loop(1, nodes + 1, add, (jnp.full_like(r, 0.5), jnp.full_like(r, 0.5)))
    return one / zero
