"""Private stochastic gradient Langevin dynamics (Welling and Teh 2011; Zhang, Bu, Chen, Long 2021, DP-SGLD).

    for t = 1..T
        u_i = grad_w log p(y_i | x_i, w)                    contribution: through the wall
        G   = (sum over the subset of clip(u_i) + noise) / rate
        v   = (1 - f) v + eta (G + grad log p(w)) + xi,  xi ~ N(0, 2 f eta tau - (eta noise)^2)      f friction
        w   = w + v                                         f = 1: Langevin; below 1: with momentum (SGHMC)

xi is what the wall's noise lacks of the Langevin noise: nothing once that is larger, and the chain is then hotter than
asked for, which a smaller ``step_size`` mends. At temperature tau = 1 the stationary law is the posterior, up to the
step's length, the noise of subsets and the clip. The paper's own convention, noise of variance eta, is tau = 1/2, whose
law is the posterior squared (docs/errata.md#langevin-dynamics).

A thermostat moves f after the chain's temperature, and preconditioning eta by layer (chain_heat.py); in xi f is fixed.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.arguments import check_positive, moved, records_of
from tacit.methods.chain_heat import Heat, Heating
from tacit.methods.chain_memory import Memory, Places
from tacit.methods.networks import Network, Weights, model_of, score
from tacit.types import Array, Key, Method, MethodFor, Plan, PyTree, Record, Release, Suggestions


class SGLDState(NamedTuple):
    """The chain's place, velocity and heat, what is remembered of it, the number of steps."""

    weights: Weights
    velocity: Weights
    heat: Heat
    memory: Memory
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
        eta above, for the sum over all records; by default 0.1 over their declared number. Times that number and the
        curvature of a record's loss it must stay well below 1, or the chain is too wide, or diverges.
    temperature
        1 for the posterior; the DP-SGLD paper has 1/2.
    friction
        1 for Langevin dynamics; smaller ones keep a velocity (SGHMC).
    thermostat
        Whether friction takes out the noise beyond what was asked for, which widens the posterior. Begin with 0.1.
    precondition
        Whether layers with smaller gradients take longer steps, up to eleven times ``step_size``, with the noise that
        belongs to them. It makes the choice of ``step_size`` matter less.
    keep, thin
        The last ``keep`` of every ``thin``-th place are remembered, to draw from; by default 50, in large networks 10.
    burn_in
        Steps before places are remembered and predictions for ``watch`` averaged.
    watch
        PUBLIC inputs, records with a leading axis. Their mean predictions over the chain are in the posterior's points.
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
    >>> posterior = tacit.fit(tacit.sgld(net), data, tacit.Budget(1.0, 1e-6), steps=20, progress=False)
    >>> posterior.draws["layers.0.weight"].shape
    (1000, 4, 2)
    """
    moved(size)
    check_positive(temperature=temperature, step_size=1.0 if step_size is None else step_size)
    heating = Heating(temperature, friction, thermostat, precondition)
    places = Places(net, keep, thin, burn_in, watch)

    def build(plan: Plan) -> Method:
        records = None if step_size is not None and size is None else records_of(plan, "sgld", size)
        eta = step_size if step_size is not None else 0.1 / records  # type: ignore[operator]

        def init(key: Key) -> SGLDState:
            weights = net.start(key)
            still = jax.tree.map(jnp.zeros_like, weights)
            return SGLDState(weights, still, heating.start(weights), places.start(weights, key), jnp.int32(0))

        def contribute(state: SGLDState, record: Record, key: Key) -> PyTree:
            return score(net, state.weights, record)

        def update(state: SGLDState, release: Release, key: Key) -> SGLDState:
            prior = jax.grad(net.log_prior)(state.weights)
            keys = dict(zip(state.weights, jax.random.split(key, len(state.weights)), strict=True))
            noise = {name: std / release.rate for name, std in release.noise_std.items()}
            etas = heating.steps(state.heat, noise, eta)

            def velocity_of(name: str) -> Array:
                missing = jnp.maximum(2 * friction * etas[name] * temperature - (etas[name] * noise[name]) ** 2, 0)
                push = etas[name] * (release.full[name] + prior[name])
                xi = jnp.sqrt(missing) * jax.random.normal(keys[name], push.shape)
                return (1 - state.heat.friction) * state.velocity[name] + push + xi

            velocity = {name: velocity_of(name) for name in state.weights}
            weights = jax.tree.map(jnp.add, state.weights, velocity)
            heat = heating.update(state.heat, velocity, etas, release.full, noise, state.step)
            memory = places.update(state.memory, weights, state.step, key)
            return SGLDState(weights, velocity, heat, memory, state.step + 1)

        def draw(state: SGLDState, key: Key) -> dict[str, Array]:
            return places.draw(state.memory, state.step, key)

        return Method(
            init,
            contribute,
            update,
            draw,
            None if watch is None else lambda state: places.points(state.memory),
            min_steps=burn_in + 1,
            requirements=net.requirements(plan.placeholder),
            for_size=records,
            suggests=Suggestions(clip=1.0),
            model=model_of(net),
        )

    return MethodFor(build)
