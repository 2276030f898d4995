"""Sigmoid belief networks by variational Bayes on private statistics (VIPS; Park, Foulds, Chaudhuri, Welling 2020).

    p(y_j = 1 | z) = sigmoid(w_j'z + c_j),  p(z_k = 1) = sigmoid(b_k),  w_jk ~ N(0, zeta_jk),  zeta by the TPBN prior

    for t = 1..T
        pi_n, xi_n = E-step of record n at the public q(W, c, b)         behind the wall, from pi = sigmoid(E b)
        r_n   = y_n - 1/2 - xi_n (mu pi_n + E c)
        u_n   = (1, pi_n - 1/2, xi_n, xi_n pi_n', xi_n (pi_n (1 - pi_n))', r_n (1, pi_n)')     contribution
        averages <- (1 - pace) averages + pace release.full              all but the block of r
        Lambda = E[1/zeta] + average of xi pi'                           precision of the factorised q(w_jk)
        mu    = mu + stride (full of r (1, pi)' - mu V - mu E[1/zeta]) / (Lambda + noise of a step)
        b, zeta, x, phi, omega = their coordinate optima                 free post-processing

mu, Lambda are ``mean``, ``precision``; V, the average of xi (pi (1 - pi))', is ``spread``; c is the weight of a hidden
unit that is always on, column 0 of ``mean``; xi is ``slope``, pi ``active``, r ``residual``. One joint clip shortens
all blocks of a record alike, so that a clipped record counts as a part of a record. Why r is not averaged, which blocks
of the paper are not needed, and its errata S1 to S5: docs/errata.md#sigmoid-belief-networks. The posterior is that of
the statistics as released: it does not account for their noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods import sigmoid_layer as layer
from tacit.methods.arguments import deviation
from tacit.methods.running import Pace, Running, blend, polynomial_decay, start
from tacit.methods.sparsity import Sparsity, shrunk, unshrunk
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Suggestions

WEIGHTS = (1.0, 1.0, 1.0, 0.25, 0.25, 1.0)
"""The two matrices that are averaged need less care than the residual, of which every step uses its own."""
STEPS = 100
"""On Fashion-MNIST, large subsets in 75 steps were as good as in 300."""


class BeliefNetState(NamedTuple):
    """The network, the average of its means, the averaged statistics, and the sparsity of its weights."""

    net: layer.Net
    average: Array
    running: Running
    sparsity: Sparsity


def belief_net(
    units: int,
    sweeps: int = 5,
    variance: float | None = None,
    pace: Pace | None = None,
    stride: Pace | None = None,
    *,
    prior_std: float = 1.0,
) -> MethodFor:
    """Fit a sigmoid belief network with one hidden layer to binary images.

    Privacy: public. Sees the placeholder record only.

    Parameters
    ----------
    units
        Number of hidden units.
    sweeps
        Rounds of the E-step for each record.
    variance
        Deprecated: the square of ``prior_std``.
    pace
        Weight of a step's release in the averaged statistics; by default ``(1 + t) ** -0.7``.
    stride
        Step size of the weights; by default ``0.3 (1 + t / 20) ** -0.6``.
    prior_std
        Standard deviation of the prior of hidden and visible biases.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. A record is one array of 0 and 1, or a dictionary with one. Draws are ``W``
        (pixels by units), ``b`` (hidden biases) and ``c`` (visible biases); predictions are ``reconstruct``'s.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> images = np.random.default_rng(0).integers(0, 2, (200, 6)).astype(np.float32)
    >>> data = tacit.PrivateData(images, size=200)
    >>> posterior = tacit.fit(tacit.belief_net(2), data, tacit.Budget(1.0, 1e-6), steps=5, progress=False)
    >>> posterior.draws["W"].shape
    (1000, 6, 2)
    """
    if units < 1 or sweeps < 1:
        raise ValueError(
            f"units is {units}, sweeps is {sweeps}. A network needs at least one hidden unit and one sweep; write "
            "belief_net(units=50)."
        )
    prior_variance = deviation(prior_std, "variance", variance, 0.5) ** 2
    pace = polynomial_decay() if pace is None else pace
    stride = (lambda step: 0.3 * polynomial_decay(20.0, 0.6)(step)) if stride is None else stride

    def build(plan: Plan) -> Method:
        pixels = layer.only_array(plan.placeholder).size

        def init(key: Key) -> BeliefNetState:
            mean = 0.1 * jax.random.normal(key, (pixels, units + 1)) * (jnp.arange(units + 1) > 0)
            net = layer.Net(mean, jnp.full_like(mean, 0.01), jnp.zeros(units), jnp.full(units, 0.01))
            shapes = ((), units, pixels, (pixels, units), (pixels, units))
            zeros = layer.Averaged(*map(jnp.zeros, shapes))
            return BeliefNetState(net, mean, start(zeros), unshrunk(pixels, units))

        def contribute(state: BeliefNetState, record: Record, key: Key) -> layer.Contribution:
            seen = layer.only_array(record).ravel().astype(jnp.float32)
            active, slope, psi = layer.infer(state.net, seen, jnp.ones(pixels), sweeps)
            on = jnp.concatenate([jnp.ones(1), active])
            crossed = jnp.outer(slope, active), jnp.outer(slope, active * (1 - active))
            statistics = layer.Averaged(jnp.ones(()), active - 0.5, slope, *crossed)
            return layer.Contribution(statistics, jnp.outer(seen - 0.5 - slope * psi, on))

        def update(state: BeliefNetState, release: Release, key: Key) -> BeliefNetState:
            step, std = state.running.step, release.noise_std
            averaged = release._replace(full=release.full.averaged, noise_std=std.averaged)
            running = blend(state.running, averaged, pace)
            number, active, curvature, spread = layer.repaired(running)
            prior = jnp.pad(state.sparsity.precision, ((0, 0), (1, 0)), constant_values=1 / prior_variance)
            precision = prior + curvature
            mean = state.net.mean
            gradient = release.full.residual - mean * (jnp.pad(spread, ((0, 0), (1, 0))) + prior)
            mean = mean + stride(step) * gradient / (precision + std.residual / release.rate)
            bias = layer.hidden_bias(state.net, number, active, prior_variance)
            net = layer.Net(mean, 1 / precision, *bias)
            sparsity = shrunk(state.sparsity, mean[:, 1:] ** 2 + 1 / precision[:, 1:])
            share = 4 / (step + 4)
            return BeliefNetState(net, state.average + share * (mean - state.average), running, sparsity)

        def draw(state: BeliefNetState, key: Key) -> dict[str, Array]:
            one, two = jax.random.split(key)
            weights = state.average + jnp.sqrt(state.net.variance) * jax.random.normal(one, (pixels, units + 1))
            bias = state.net.bias + jnp.sqrt(state.net.bias_variance) * jax.random.normal(two, (units,))
            return {"W": weights[:, 1:], "b": bias, "c": weights[:, 0]}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> Array:
            return layer.reconstruct(draw, inputs, sweeps)

        suggests = Suggestions(clip=0.1 * math.sqrt(pixels * (units + 1)), steps=STEPS, weights=WEIGHTS)
        return Method(
            init, contribute, update, draw, requirements=(layer.BINARY,), suggests=suggests, model=Model(predict)
        )

    return MethodFor(build)
