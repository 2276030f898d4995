"""Friction and steps that follow a Langevin chain: a thermostat, and longer steps for layers of small gradients.

    f     <- f + THERMAL (mean of v^2 / (eta tau) - 1)          over all weights
    eta_l  = eta 1.1 / (r_l / max r + 0.1)                      r_l: root mean square of layer l's gradients

With a thermostat (Ding et al. 2014, SGNHT) the friction f is not fixed, so that the chain takes out whatever heat the
wall's noise and that of subsets bring in. f stays below 1: noise of more than 2 eta tau a step is too hot for any
friction.

Preconditioned (Li et al. 2016, by layers), a layer's eta falls with the size of its released gradients, the wall's
noise taken off. For single weights that would be noise alone; a layer has enough of them. The term for the change of
eta_l along the chain is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.networks import Weights
from tacit.methods.running import total
from tacit.types import Array

THERMAL = 0.01
"""How quickly the thermostat follows the chain's temperature."""


class Heat(NamedTuple):
    """The chain's friction, and the mean squared gradient of each layer."""

    friction: Array
    squares: dict[str, Array]


class Heating:
    """How warm a chain is kept: its temperature, its friction at first, and what follows the chain."""

    def __init__(self, temperature: float, friction: float, thermostat: bool, precondition: bool) -> None:
        if not 0 < friction <= 1:
            raise ValueError(f"friction is {friction:g}, but must be above 0 and at most 1.")
        self.temperature, self.friction = temperature, friction
        self.thermostat, self.precondition = thermostat, precondition

    def start(self, weights: Weights) -> Heat:
        """Return the friction at first, and no gradients."""
        return Heat(jnp.float32(self.friction), {name: jnp.float32(0) for name in weights})

    def steps(self, heat: Heat, noise: dict[str, Array], eta: float) -> dict[str, Array]:
        """Return the length of each layer's step, from the standard deviations of the noise in its gradient."""
        steps = _by_layer(heat.squares, eta) if self.precondition else dict.fromkeys(heat.squares, eta)
        # No layer's step is made so long that the wall's noise alone is too hot for it.
        coolest = {name: 2 * heat.friction * self.temperature / jnp.maximum(noise[name], 1e-30) ** 2 for name in noise}
        return {name: jnp.minimum(step, jnp.maximum(eta, coolest[name])) for name, step in steps.items()}

    def update(
        self,
        heat: Heat,
        velocity: Weights,
        steps: dict[str, Array],
        full: Weights,
        noise: dict[str, Array],
        step: Array,
    ) -> Heat:
        """Take a step's velocity and its released gradients into account."""
        friction = heat.friction
        if self.thermostat:
            size = sum(leaf.size for leaf in velocity.values())
            warmth = total({name: jnp.square(v) / (steps[name] * self.temperature) for name, v in velocity.items()})
            friction = jnp.clip(friction + THERMAL * (warmth / size - 1), 0, 1)
        now = {name: jnp.mean(jnp.square(leaf)) - noise[name] ** 2 for name, leaf in full.items()}
        recent = jnp.maximum(1 / (step + 1), 0.05)
        squares = jax.tree.map(lambda mean, new: mean + recent * (new - mean), heat.squares, now)
        return Heat(friction, squares)


def _by_layer(squares: dict[str, Array], eta: float) -> dict[str, Array]:
    """Return each layer's step: eta for the one with the largest gradients, more for the others."""
    sizes = {name: jnp.sqrt(jnp.maximum(square, 0)) for name, square in squares.items()}
    largest = jnp.maximum(jnp.max(jnp.stack(list(sizes.values()))), 1e-30)
    return {name: eta * 1.1 / (size / largest + 0.1) for name, size in sizes.items()}
