"""Draws of an exponential family's parameters given noisy sums of its statistics, by Hamiltonian Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular

from tacit.types import Array, Key

CLIMB, WARM, KEPT, LEAPS = 20, 200, 500, 8
"""Newton steps to the mode; transitions of the chain before draws are kept, draws kept, steps of each transition."""


def draws_given(
    mean: Callable[[Array], Array],
    prior: Array,
    number: Array,
    statistics: Array,
    noise: Array,
    sampling: Array,
    key: Key,
) -> Array:
    """Draw theta ~ N(0, 1 / prior) given noisy sums t of statistics: t | theta ~ N(n mu, n sampling Sigma + V).

    Privacy: post-processing.

    Parameters
    ----------
    mean
        mu, a record's expected statistics by theta; its derivative is Sigma.
    prior
        The precision of each parameter.
    number, statistics, noise
        n and t as released, and the variances of their noise, that of n first.
    sampling
        What subsets do to the variance of a sample: 1 if all records took part.
    key
        For the chain.
    """
    number = jnp.maximum(number, 1.0)
    length = len(prior)

    def believed(theta: Array) -> tuple[Array, Array, Array]:
        """Return the slope and the curvature at theta, with the precision of the statistics there."""
        mu, sigma = mean(theta), jax.jacfwd(mean)(theta)
        # An error in the number of records is one in all statistics, in proportion to mu.
        spread = number * sampling * sigma + jnp.diag(noise[1:]) + noise[0] * jnp.outer(mu, mu)
        factor = cho_factor(spread + jnp.eye(length) * 1e-3, lower=True)
        along = number * sigma
        slope = along @ cho_solve(factor, statistics - number * mu) - prior * theta
        curvature = along @ cho_solve(factor, along) + jnp.diag(prior)
        return slope, (curvature + curvature.T) / 2, factor[0]

    def climb(_: Array, found: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        theta, _, _ = found
        slope, curvature, root = believed(theta)
        change = cho_solve(cho_factor(curvature), slope)
        return theta + change * jnp.minimum(1, 2 / (jnp.max(jnp.abs(change)) + 1e-30)), curvature, root

    nothing = jnp.zeros(length), jnp.eye(length), jnp.eye(length)
    mode, curvature, root = jax.lax.fori_loop(0, CLIMB, climb, nothing)
    whiten = solve_triangular(root, jnp.eye(length), lower=True)
    axes = solve_triangular(jnp.linalg.cholesky(curvature), jnp.eye(length), lower=True)

    def energy(z: Array) -> tuple[Array, Array]:
        """Return minus the log posterior at a place in units of the curvature, and its slope."""
        theta = mode + z @ axes
        mu, differential = jax.linearize(mean, theta)
        rest = whiten @ (statistics - number * mu)
        slope = prior * theta - number * differential(rest @ whiten)
        return (rest @ rest + theta @ (prior * theta)) / 2, axes @ slope

    return mode + hamiltonian(energy, jnp.zeros(length), key) @ axes


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
