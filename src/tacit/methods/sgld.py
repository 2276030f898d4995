"""Private stochastic gradient Langevin dynamics (Welling and Teh 2011; Zhang, Bu, Chen, Long 2021, DP-SGLD).

    for t = 1..T
        u_i = grad_w log p(y_i | x_i, w)                    contribution: through the wall
        G   = (sum over the subset of clip(u_i) + noise) / rate
        v   = (1 - f) v + eta (G + grad log p(w)) + xi,  xi ~ N(0, 2 f eta tau - (eta noise)^2)      f friction
        w   = w + v                                         f = 1: Langevin; below 1: with momentum (SGHMC)

The wall's noise is part of the Langevin noise, and xi only what is missing (nothing, once the wall's is larger).
At temperature tau = 1 the stationary law is the posterior, up to the step's length and the noise of subsets. The
paper's own convention, noise of variance eta, is tau = 1/2, whose law is the posterior squared (METHODS 12). Where the
wall's noise alone exceeds 2 f eta tau the chain is hotter than asked for; a smaller ``step_size`` mends that. Clipping
changes the posterior that is sampled.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.networks import Network, Weights, score
from tacit.methods.running import check_positive, check_size
from tacit.types import Array, Key, Method, MethodFor, PyTree, Record, Release

KEPT_NUMBERS = 1 << 24
"""All remembered places together hold at most so many numbers by default, but there are ten places at least."""


class SGLDState(NamedTuple):
    """The chain's place and velocity, a memory of its last places, the predictions watched, and the step."""

    weights: Weights
    velocity: Weights
    kept: Weights
    watched: PyTree
    step: Array


def sgld(
    net: Network,
    *,
    size: int,
    step_size: float | None = None,
    temperature: float = 1.0,
    friction: float = 1.0,
    keep: int | None = None,
    thin: int = 5,
    burn_in: int = 0,
    watch: PyTree = None,
) -> MethodFor:
    """Sample a network's weights by private Langevin dynamics.

    Privacy: public.

    Parameters
    ----------
    net
        From ``tacit.network``.
    size
        Number of records, public; about right is enough.
    step_size
        eta above, for the sum over all records; by default 0.1 over ``size``. Times ``size`` and the curvature of a
        record's loss it must stay well below 1, or the chain is too wide, or diverges.
    temperature
        1 for the posterior; the DP-SGLD paper has 1/2.
    friction
        1 for Langevin dynamics; smaller ones keep a velocity (SGHMC).
    keep, thin
        The last ``keep`` of every ``thin``-th place are remembered, to draw from; 1 remembers only the last. By default
        50 of the last 250 steps, or fewer in a network of more than 300000 weights, but 10.
    burn_in
        Steps before places are remembered and predictions for ``watch`` averaged.
    watch
        PUBLIC inputs, records with a leading axis: their mean predictions over all of the chain after the burn-in are
        in the posterior's points, at no memory for draws.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. Its draws are places of one chain.
    """
    check_size(size)
    eta = 0.1 / size if step_size is None else step_size
    check_positive(temperature=temperature, step_size=eta)
    if not 0 < friction <= 1:
        raise ValueError(f"friction is {friction:g}, but must be above 0 and at most 1.")
    if (keep is not None and keep < 1) or thin < 1:
        raise ValueError(f"keep is {keep} and thin is {thin}; both must be at least 1.")
    numbers = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(net.start, jax.random.key(0))))
    kept_places = max(10, min(50, KEPT_NUMBERS // numbers)) if keep is None else keep

    def init(key: Key) -> SGLDState:
        weights = net.start(key)
        still = jax.tree.map(jnp.zeros_like, weights)
        kept = jax.tree.map(lambda leaf: jnp.zeros((kept_places, *leaf.shape), leaf.dtype), weights)
        return SGLDState(weights, still, kept, jax.tree.map(jnp.zeros_like, seen(weights, key)), jnp.int32(0))

    def seen(weights: Weights, key: Key) -> PyTree:
        if watch is None:
            return {}
        means = net.predict(weights, watch, key, None)
        return {name: value for name, value in means.items() if name != "y"}

    def contribute(state: SGLDState, record: Record, key: Key) -> PyTree:
        return score(net, state.weights, record)

    def update(state: SGLDState, release: Release, key: Key) -> SGLDState:
        prior = jax.grad(net.log_prior)(state.weights)
        keys = dict(zip(state.weights, jax.random.split(key, len(state.weights)), strict=True))

        def moved(name: str) -> Array:
            there = (eta * release.noise_std[name] / release.rate) ** 2
            missing = jnp.maximum(2 * friction * eta * temperature - there, 0)
            push = eta * (release.full[name] + prior[name])
            added = jnp.sqrt(missing) * jax.random.normal(keys[name], push.shape)
            return (1 - friction) * state.velocity[name] + push + added

        velocity = {name: moved(name) for name in state.weights}
        weights = jax.tree.map(jnp.add, state.weights, velocity)
        place = (jnp.maximum(state.step - burn_in, 0) // thin) % kept_places
        kept = jax.tree.map(lambda memory, leaf: memory.at[place].set(leaf), state.kept, weights)
        share = 1 / jnp.maximum(state.step - burn_in + 1, 1)
        watched = jax.tree.map(lambda mean, new: mean + share * (new - mean), state.watched, seen(weights, key))
        return SGLDState(weights, velocity, kept, watched, state.step + 1)

    def draw(state: SGLDState, key: Key) -> dict[str, Array]:
        filled = jnp.clip((state.step - burn_in - 1) // thin + 1, 1, kept_places)
        place = jax.random.randint(key, (), 0, filled)
        return jax.tree.map(lambda memory: memory[place], state.kept)

    def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
        return net.predict(draw, inputs, key, None)

    def points(state: SGLDState) -> dict[str, PyTree]:
        return {f"watched {name}": value for name, value in state.watched.items()}

    def build(placeholder: Record) -> Method:
        shown = points if watch is not None else None
        return Method(init, contribute, update, draw, predict, shown, clip=1.0, needs=net.needs(placeholder))

    return build
