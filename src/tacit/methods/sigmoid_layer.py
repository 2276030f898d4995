"""One hidden layer of sigmoid units over binary pixels: the E-step of an image, the hidden biases, what noise hides.

p(y_j = 1 | z) = sigmoid(w_j'z + c_j),  p(z_k = 1) = sigmoid(b_k),  c the weight of a unit that is always on
q(z_k = 1) = pi_k and the Pólya-Gamma means xi_j of the pixels are updated in turn, from pi = sigmoid(E b)
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float32

from tacit.methods.polya_gamma import polya_gamma_mean
from tacit.methods.running import Running
from tacit.types import Array, PyTree, Record, Requirement

DAMPING = 0.5
"""All hidden units of a record move at once, by this share of the way."""
BINARY = Requirement(
    "A belief net models pixels that are 0 or 1; write PrivateData(images > 127), with a public threshold.",
    lambda record: _is_binary(record),
    fixed=True,
)


class Net(NamedTuple):
    """Means and variances of weights (column 0: visible biases), means and variances of hidden biases."""

    mean: Array
    variance: Array
    bias: Array
    bias_variance: Array


class Averaged(NamedTuple):
    """Statistics that are averaged over steps."""

    number: Array
    active: Array
    slope: Array
    curvature: Array
    spread: Array


class Contribution(NamedTuple):
    """What one record gives, or a sum of it."""

    averaged: Averaged
    residual: Array


def reconstruct(net: dict[str, Array], images: PyTree, sweeps: int = 5) -> Array:
    """Return every pixel's probability of being on, given the pixels of its image that are not missing.

    Privacy: post-processing. The images are public or your own.

    Parameters
    ----------
    net
        ``W``, ``b`` and ``c`` of one draw, or their posterior means.
    images
        Binary images along a leading axis, as an array or a dictionary with one; NaN is a missing pixel.
    sweeps
        Rounds of the E-step.
    """
    given = only_array(images)
    flat = given.reshape(len(given), -1).astype(jnp.float32)
    mean = jnp.concatenate([net["c"][:, None], net["W"]], 1)
    if flat.shape[1] != len(mean):
        raise ValueError(
            f"The images have {flat.shape[1]} pixels, the network has {len(mean)}. Pass images of that size."
        )
    point = Net(mean, jnp.zeros_like(mean), jnp.asarray(net["b"]), jnp.zeros_like(net["b"]))
    there = jnp.isfinite(flat)
    psi = jax.vmap(lambda seen, there: infer(point, seen, there, sweeps)[2])(jnp.where(there, flat, 0), 1.0 * there)
    return jax.nn.sigmoid(psi).reshape(given.shape)


def pixel_accuracy(probability: PyTree, images: PyTree) -> Array:
    """Return the share of pixels whose probability is on the right side of 1/2.

    Privacy: post-processing. The images are public or your own.
    """
    return jnp.mean((jnp.asarray(probability) > 0.5) == (jnp.asarray(images) > 0.5))


def infer(
    net: Net, seen: Float32[Array, "pixels"], there: Float32[Array, "pixels"], sweeps: int
) -> tuple[Array, Array, Array]:
    """Take the E-step of one record: probabilities of hidden units, Pólya-Gamma means and E[psi] of its pixels."""

    squares = jnp.concatenate([net.mean**2, net.variance], 1)

    def visible(active: Array) -> tuple[Array, Array]:
        on = jnp.concatenate([jnp.ones(1), active])
        psi = net.mean @ on
        return psi, there * polya_gamma_mean(psi**2 + squares @ jnp.concatenate([on * (1 - on), on]))

    def sweep(_: Array, active: Array) -> Array:
        psi, slope = visible(active)
        odds = _odds(net, squares, there * (seen - 0.5) - slope * psi, slope, active)
        return active + DAMPING * (jax.nn.sigmoid(odds) - active)

    active = jax.lax.fori_loop(0, sweeps, sweep, jax.nn.sigmoid(net.bias))
    psi, slope = visible(active)
    return active, slope, psi


def _odds(net: Net, squares: Array, residual: Array, slope: Array, active: Array) -> Array:
    """Return the log odds at which each hidden unit's probability is optimal, given the others."""
    _, alone, _, spread = jnp.split(slope @ squares, (1, active.size + 1, active.size + 2))
    return net.bias + (residual @ net.mean)[1:] + (active - 0.5) * alone - 0.5 * spread


def hidden_bias(net: Net, number: Array, active: Array, variance: float) -> tuple[Array, Array]:
    """Update q(b) and its Pólya-Gamma factors in turn, both public."""

    def once(_: Array, bias: tuple[Array, Array]) -> tuple[Array, Array]:
        spread = 1 / (1 / variance + number * polya_gamma_mean(bias[0] ** 2 + bias[1]))
        return (active - number / 2) * spread, spread

    return jax.lax.fori_loop(0, 10, once, (net.bias, net.bias_variance))


def repaired(running: Running) -> tuple[Array, Array, Array, Array]:
    """Move a copy of the averages back to where sums over records lie; without noise nothing changes.

    A unit's column goes towards the product of its margins, as far as what sticks out is explained by noise.
    """
    averages, noise = running.statistics, running.noise_std
    number = jnp.maximum(averages.number, 1)
    least = jnp.clip(noise.active, 1e-5 * number, 0.1 * number)
    active = jnp.clip(averages.active + number / 2, least, number - least)
    slope = jnp.clip(averages.slope, 0.01 * number, number / 4)
    curvature = _towards(averages.curvature, jnp.outer(slope, active / number), noise.curvature)
    curvature = jnp.clip(curvature, 0.01 * active, active / 4)
    share = jnp.maximum(jnp.sum(averages.spread, 0) / jnp.sum(slope), 0)
    spread = jnp.clip(_towards(averages.spread, jnp.outer(slope, share), noise.spread), 0, curvature)
    return number, active, jnp.concatenate([slope[:, None], curvature], 1), spread


def _towards(average: Array, plain: Array, noise: Array) -> Array:
    apart = average - plain
    return plain + jnp.maximum(0, 1 - noise**2 / jnp.maximum(jnp.mean(apart**2, 0), 1e-12)) * apart


def only_array(tree: PyTree) -> Array:
    """Return the one array that a record, or a batch of them, is made of."""
    leaves = jax.tree.leaves(tree)
    if len(leaves) != 1:
        raise ValueError(
            f"A record has {len(leaves)} columns. A belief net models one array of pixels; pass only that."
        )
    return jnp.asarray(leaves[0])


def _is_binary(record: Record) -> Array:
    pixels = only_array(record)
    return jnp.all((pixels == 0) | (pixels == 1))
