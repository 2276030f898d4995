"""Private stochastic gradient Langevin dynamics (Welling and Teh 2011; Zhang, Bu, Chen, Long 2021, DP-SGLD).

    for t = 1..T
        u_i = grad_w log p(y_i | x_i, w)                    contribution: through the wall
        G   = (sum over the subset of clip(u_i) + noise) / rate
        v   = (1 - f) v + eta (G + grad log p(w)) + xi,  xi ~ N(0, 2 f eta tau - (eta noise)^2)      f friction
        w   = w + v                                         f = 1: Langevin; below 1: with momentum (SGHMC)

The wall's noise is part of the Langevin noise, and xi only what is missing (nothing, once the wall's is larger). At
temperature tau = 1 the stationary law is the posterior, up to the step's length and the noise of subsets. The paper's
own convention, noise of variance eta, is tau = 1/2, whose law is the posterior squared
(docs/errata.md#langevin-dynamics). Where the wall's noise alone exceeds 2 f eta tau the chain is hotter than asked for;
a smaller ``step_size`` mends that. Clipping changes the posterior that is sampled.

With a thermostat (Ding et al. 2014, SGNHT) f is not fixed: f <- f + THERMAL (mean of v^2 / (eta tau) - 1), over all
weights, so that the chain takes out whatever heat the wall's noise and that of subsets bring in. f stays below 1: noise
of more than 2 eta tau a step is too hot for any friction.

Preconditioned (Li et al. 2016, by layers): a layer's eta is multiplied by M, which falls with the root mean square of
its released gradients, the wall's noise taken off. For single weights that would be noise alone; a layer has enough of
them. The term for the change of M along the chain is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.arguments import check_positive, moved, records_of
from tacit.methods.networks import Network, Weights, score
from tacit.methods.running import total
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Suggestions

KEPT_NUMBERS = 1 << 24
"""All remembered places together hold at most so many numbers by default, but there are ten places at least."""


THERMAL = 0.01
"""How quickly the thermostat follows the chain's temperature."""


class SGLDState(NamedTuple):
    """The chain's place, velocity and friction, layers' mean squared gradients, last places, what is watched, step."""

    weights: Weights
    velocity: Weights
    friction: Array
    squares: dict[str, Array]
    kept: Weights
    watched: PyTree
    step: Array


def sgld(
    net: Network,
    *,
    step_size: float | None = None,
    temperature: float = 1.0,
    friction: float = 1.0,
    thermostat: bool = False,
    precondition: bool = False,
    keep: int | None = None,
    thin: int = 5,
    burn_in: int = 0,
    watch: PyTree = None,
    size: int | None = None,
) -> MethodFor:
    """Sample a network's weights by private Langevin dynamics.

    Privacy: public.

    Parameters
    ----------
    net
        From ``tacit.network``.
    step_size
        eta above, for the sum over all records; by default 0.1 over the number of records, which must then be declared.
        Times that number and the curvature of a record's loss it must stay well below 1, or the chain is too wide, or
        diverges.
    temperature
        1 for the posterior; the DP-SGLD paper has 1/2.
    friction
        1 for Langevin dynamics; smaller ones keep a velocity (SGHMC).
    thermostat
        Whether the friction follows the chain's temperature from there on, so that noise beyond what was asked for
        (of the wall, of subsets) does not widen the posterior. Begin with a friction of 0.1 or so.
    precondition
        Whether layers with smaller gradients take longer steps, up to eleven times as long, with the noise that belongs
        to them; ``step_size`` is then that of the layer with the largest ones. It makes the choice of ``step_size``
        matter less.
    keep, thin
        The last ``keep`` of every ``thin``-th place are remembered, to draw from; 1 remembers only the last. By default
        50 of the last 250 steps, or fewer in a network of more than 300000 weights, but 10.
    burn_in
        Steps before places are remembered and predictions for ``watch`` averaged.
    watch
        PUBLIC inputs, records with a leading axis: their mean predictions over every ``thin``-th place of the chain
        after the burn-in are in the posterior's points, at no memory for draws.
    size
        Deprecated: the plan has it.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. Its draws are places of one chain.

    Examples
    --------
    >>> import equinox as eqx, jax, numpy as np, tacit
    >>> x = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    >>> data = tacit.PrivateData({"x": x, "y": (x[:, 0] > 0).astype(int)}, size=200)
    >>> net = tacit.network(eqx.nn.MLP(2, "scalar", 4, 1, key=jax.random.key(0)), "bernoulli")
    >>> method = tacit.sgld(net)
    >>> posterior = tacit.fit(method, data, tacit.Budget(1.0, 1e-6), steps=20, progress=False)
    >>> posterior.draws["layers.0.weight"].shape
    (1000, 4, 2)
    """
    moved(size)
    check_positive(temperature=temperature, step_size=1.0 if step_size is None else step_size)
    if not 0 < friction <= 1:
        raise ValueError(f"friction is {friction:g}, but must be above 0 and at most 1.")
    if (keep is not None and keep < 1) or thin < 1:
        raise ValueError(f"keep is {keep} and thin is {thin}; both must be at least 1.")
    chain = _Chain(temperature, friction, thermostat, precondition, keep, thin, burn_in, watch)

    def build(plan: Plan) -> Method:
        records = None if step_size is not None and size is None else records_of(plan, "sgld", size)
        eta = step_size if step_size is not None else 0.1 / records  # type: ignore[operator]
        return _dynamics(net, eta, chain)._replace(requirements=net.requirements(plan.placeholder), for_size=records)

    return MethodFor(build)


class _Chain(NamedTuple):
    """The arguments of ``sgld`` other than the network and the step's length."""

    temperature: float
    friction: float
    thermostat: bool
    precondition: bool
    keep: int | None
    thin: int
    burn_in: int
    watch: PyTree


def _dynamics(net: Network, eta: float, chain: _Chain) -> Method:
    temperature, friction, thermostat, precondition, keep, thin, burn_in, watch = chain
    numbers = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(net.start, jax.random.key(0))))
    kept_places = max(10, min(50, KEPT_NUMBERS // numbers)) if keep is None else keep

    def init(key: Key) -> SGLDState:
        weights = net.start(key)
        still = jax.tree.map(jnp.zeros_like, weights)
        kept = jax.tree.map(lambda leaf: jnp.zeros((kept_places, *leaf.shape), leaf.dtype), weights)
        squares = {name: jnp.float32(0) for name in weights}
        watched = jax.tree.map(jnp.zeros_like, seen(weights, key))
        return SGLDState(weights, still, jnp.float32(friction), squares, kept, watched, jnp.int32(0))

    def seen(weights: Weights, key: Key) -> PyTree:
        if watch is None:
            return {}
        means = net.predict(weights, watch, key, None)
        return {name: value for name, value in means.items() if name != "y"}

    def averaged(mean: PyTree, new: PyTree, share: Array) -> PyTree:
        return jax.tree.map(lambda mean, new: mean + share * (new - mean), mean, new)

    def contribute(state: SGLDState, record: Record, key: Key) -> PyTree:
        return score(net, state.weights, record)

    def update(state: SGLDState, release: Release, key: Key) -> SGLDState:
        prior = jax.grad(net.log_prior)(state.weights)
        keys = dict(zip(state.weights, jax.random.split(key, len(state.weights)), strict=True))
        noise = {name: std / release.rate for name, std in release.noise_std.items()}
        paces = _paces(state.squares, eta) if precondition else dict.fromkeys(state.weights, eta)

        # No layer's step is made so long that the wall's noise alone is too hot for it.
        coolest = {name: 2 * state.friction * temperature / jnp.maximum(noise[name], 1e-30) ** 2 for name in noise}
        paces = {name: jnp.minimum(pace, jnp.maximum(eta, coolest[name])) for name, pace in paces.items()}

        def moved(name: str) -> Array:
            pace = paces[name]
            missing = jnp.maximum(2 * friction * pace * temperature - (pace * noise[name]) ** 2, 0)
            push = pace * (release.full[name] + prior[name])
            added = jnp.sqrt(missing) * jax.random.normal(keys[name], push.shape)
            return (1 - state.friction) * state.velocity[name] + push + added

        velocity = {name: moved(name) for name in state.weights}
        rub = state.friction
        if thermostat:
            heat = total({name: jnp.square(leaf) / (paces[name] * temperature) for name, leaf in velocity.items()})
            rub = jnp.clip(rub + THERMAL * (heat / numbers - 1), 0, 1)
        weights = jax.tree.map(jnp.add, state.weights, velocity)
        place = (jnp.maximum(state.step - burn_in, 0) // thin) % kept_places
        kept = jax.tree.map(lambda memory, leaf: memory.at[place].set(leaf), state.kept, weights)
        now = {name: jnp.mean(jnp.square(full)) - noise[name] ** 2 for name, full in release.full.items()}
        recent = jnp.maximum(1 / (state.step + 1), 0.05)
        squares = jax.tree.map(lambda mean, new: mean + recent * (new - mean), state.squares, now)
        last, share = (state.step - burn_in) % thin == thin - 1, 1 / jnp.maximum((state.step - burn_in) // thin + 1, 1)
        watched = jax.lax.cond(last, lambda: averaged(state.watched, seen(weights, key), share), lambda: state.watched)
        return SGLDState(weights, velocity, rub, squares, kept, watched, state.step + 1)

    def draw(state: SGLDState, key: Key) -> dict[str, Array]:
        filled = jnp.clip((state.step - burn_in - 1) // thin + 1, 1, kept_places)
        place = jax.random.randint(key, (), 0, filled)
        return jax.tree.map(lambda memory: memory[place], state.kept)

    def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
        return net.predict(draw, inputs, key, None)

    def points(state: SGLDState) -> dict[str, PyTree]:
        return {f"watched {name}": value for name, value in state.watched.items()}

    return Method(
        init,
        contribute,
        update,
        draw,
        points if watch is not None else None,
        min_steps=burn_in + 1,
        suggests=Suggestions(clip=1.0),
        model=Model(predict),
    )


def _paces(squares: dict[str, Array], eta: float) -> dict[str, Array]:
    """Return each layer's step: eta for the one with the largest gradients, more for the others."""
    sizes = {name: jnp.sqrt(jnp.maximum(square, 0)) for name, square in squares.items()}
    largest = jnp.maximum(jnp.max(jnp.stack(list(sizes.values()))), 1e-30)
    return {name: eta * 1.1 / (size / largest + 0.1) for name, size in sizes.items()}
