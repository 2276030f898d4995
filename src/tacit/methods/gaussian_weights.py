"""Independent normal weights: their parameters, draws made anew from a seed, and passes over many of them kept few.

Draws at the end of a fit count what the noise did to the means. Averages over batches of their path differ by it, and
so V, the variance of mubar, follows from the variance of these (batch means, as in ``tacit.vi``). Few batches span few
directions, so half of V goes without its correlations, into all of them (as in SWAG, Maddox et al. 2019, which takes
single iterates).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from tacit.methods.networks import Weights
from tacit.methods.running import BatchMeans, inner, many, normals, perturbed_average, sample_average_error, when
from tacit.types import Array, Key, PyTree

EVERY_WIDTH = 4
"""Of many weights, widths are moved in one step of so many: it takes passes over memory."""


class Gaussian(NamedTuple):
    """Independent normal weights: means, and logarithms of standard deviations."""

    mean: Weights
    rho: Weights


def at(mean: Weights, std: Weights, noise: Weights) -> Weights:
    """Return the weights that standard normal numbers stand for.

    Privacy: public.
    """
    return jax.tree.map(lambda mean, std, z: mean + std * z, mean, std, noise)


def inner_at(gradient: Weights, mean: Weights, std: Weights, noise: Weights) -> Array:
    """Return the inner product with the weights that standard normal numbers stand for."""
    # In the order of fewest passes over memory.
    return inner(gradient, mean) + inner(jax.tree.map(jnp.multiply, gradient, noise), std)


def seeded(key: Key) -> Array:
    """Return the seed of a step's draws: kept in place of eps, which is as large as the weights."""
    return jax.random.bits(key, (2,), jnp.uint32)


def noise_of(seed: Array, like: Weights, draws: int) -> list[Weights]:
    """Return eps for each of a step's draws."""
    key, shapes = jax.random.wrap_key_data(seed, impl="threefry2x32"), jax.eval_shape(lambda: like)
    return [normals(shapes, one) for one in jax.random.split(key, draws)]


def drawn(mean: Weights, std: Weights, seed: Array, draws: int) -> list[Weights]:
    """Return a step's draws of the weights."""
    return [at(mean, std, noise) for noise in noise_of(seed, mean, draws)]


class Widths:
    """How standard deviations move: by Adam along the gradient of rho, of many weights in every fourth step."""

    def __init__(self, shapes: PyTree) -> None:
        self.every = EVERY_WIDTH if many(shapes) else 1
        # Gradients of rho are smaller by orders of magnitude than those of means; Adam moves it all the same. The fewer
        # the moves the longer, by the root: noise then takes widths as far as it would in all steps.
        self.adam = optax.adam(0.02 * math.sqrt(self.every))

    def start(self, mean: Weights, std: float) -> tuple[Weights, Weights, Any]:
        """Return the first rho, standard deviations and Adam's memory."""
        rho = jax.tree.map(lambda leaf: jnp.full_like(leaf, math.log(std)), mean)
        return rho, _deviations(rho), self.adam.init(rho)

    def update(
        self, gradient: Callable[[Array, Weights], Weights], step: Array, widths: tuple[Array, Weights, Weights, Any]
    ) -> tuple[Weights, Weights, Any]:
        """Return rho, standard deviations and Adam's memory after a step.

        Privacy: post-processing.

        Parameters
        ----------
        gradient
            ``gradient(seed, std)``: that of rho.
        step
            The number of steps so far.
        widths
            The seed of eps, rho, standard deviations and Adam's memory.
        """

        def moved(widths: tuple[Array, Weights, Weights, Any]) -> tuple[Array, Weights, Weights, Any]:
            # The seed is among them, and changes, lest the compiler draws eps by it in every step.
            seed, rho, std, memory = widths
            # The barrier: both of Adam's averages take it, and each would compute it again.
            change, memory = self.adam.update(jax.lax.optimization_barrier(gradient(seed, std)), memory, rho)
            rho = optax.apply_updates(rho, change)
            return seed + 1, rho, _deviations(rho), memory

        return (when(step % self.every == 0, moved, widths) if self.every > 1 else moved(widths))[1:]


def _deviations(rho: Weights) -> Weights:
    # The barrier: without it they are computed again wherever they are used.
    return jax.lax.optimization_barrier(jax.tree.map(jnp.exp, rho))


def draw_around(average: Gaussian, path: BatchMeans, step: Array, key: Key) -> Weights:
    """Draw weights from an average, and count what the path of the means shows of its error.

    Privacy: post-processing.
    """
    leaves, structure = jax.tree.flatten(average.mean)
    keys = list(jax.random.split(key, len(leaves)))
    half = jax.tree.map(lambda leaf: leaf / 2, perturbed_average(path, step))
    wider = jax.tree.map(lambda rho, more: jnp.sqrt(jnp.exp(2 * rho) + more), average.rho, half)
    error = sample_average_error(path, step, jax.random.fold_in(key, 1))
    mean = jax.tree.map(lambda mean, error: mean + error / math.sqrt(2), average.mean, error)
    noise = [jax.random.normal(one, leaf.shape) for one, leaf in zip(keys, leaves, strict=True)]
    return at(mean, wider, jax.tree.unflatten(structure, noise))
