"""Hamiltonian Monte Carlo for post-processing: one chain, whose step is tuned before draws are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tacit.types import Array, Key

WARM, KEPT, LEAPS = 200, 500, 8
"""Transitions of the chain before draws are kept, draws kept, steps of each transition."""


def hamiltonian(energy: Callable[[Array], tuple[Array, Array]], z: Array, key: Key) -> Array:
    """Draw from exp(-energy) by Hamiltonian Monte Carlo in coordinates of about unit scale; the step is tuned first."""

    def transition(carry: tuple[Array, Array, Array, Array], step: Array) -> tuple[Any, Array]:
        z, value, slope, size = carry
        key_momentum, key_size, key_accept = jax.random.split(jax.random.fold_in(key, step), 3)
        momentum = jax.random.normal(key_momentum, z.shape)
        stride = size * jax.random.uniform(key_size, minval=0.6, maxval=1.0)

        def leap(_: Array, moving: Any) -> Any:
            z, momentum, _, slope = moving
            momentum = momentum - stride / 2 * slope
            z = z + stride * momentum
            value, slope = energy(z)
            return z, momentum - stride / 2 * slope, value, slope

        end, final, after, slope_after = jax.lax.fori_loop(0, LEAPS, leap, (z, momentum, value, slope))
        change = value + momentum @ momentum / 2 - after - final @ final / 2
        chance = jnp.nan_to_num(jnp.exp(jnp.minimum(change, 0)))
        accepted = jax.random.uniform(key_accept) < chance
        z, value, slope = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old), (end, after, slope_after), (z, value, slope)
        )
        pace = jnp.where(step < WARM, 2 / jnp.sqrt(step + 10.0), 0)
        size = jnp.clip(size * jnp.exp(pace * (chance - 0.8)), 1e-3, 1.5)
        return (z, value, slope, size), z

    value, slope = energy(z)
    begun = (z, value, slope, jnp.float32(1.6 * len(z) ** -0.25))
    return jax.lax.scan(transition, begun, jnp.arange(WARM + KEPT))[1][WARM:]
