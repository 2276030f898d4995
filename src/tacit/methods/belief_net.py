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
unit that is always on, column 0 of ``mean``; xi is ``slope``, pi ``active``, r ``residual``. Of the paper's blocks, C
and F enter through r only, and the K x K matrices G_j are not needed: the diagonal of G_j is block E, and its product
with mu_j is in r and V. Bounds: |r| <= 1, 0 < xi <= 1/4, so the blocks have norms up to 1, sqrt(K)/2, sqrt(J)/4,
sqrt(JK)/4, sqrt(JK)/16 and sqrt(J(K+1)); typical ones are a tenth of that, hence the clip. One joint clip shortens all
blocks of a record alike, so that a clipped record counts as a part of a record.

A residual belongs to the means that it was computed at, so it is not averaged: it is the gradient of the ELBO, and the
step is the natural gradient's. For a Gaussian factor that IS the recursion of ``running.py`` on natural parameters:
h <- (1 - s) h + s h*, Lambda <- (1 - s) Lambda + s Lambda* is mu <- mu + s gradient / Lambda. It rests only where the
gradient is zero, the fixed point of exact coordinate ascent, and at stride 1 with one unit it is that ascent's update.
All units move at once: with stride up to 1 / (K + 1) the bound cannot fall; larger strides are faster and usually fine.
Where noise exceeds the precision the step is shortened, which changes how fast it comes to rest but not where.

Errata followed (docs/errata.md#sigmoid-belief-networks): no 1/2 before <xi><z>' in equation 72 (S1); the rate of q(x)
is E[zeta] + E[phi] (S2); all variances are in E[psi^2] and the moments are joint, which is exact for factorised q(w_jk)
(S3); xi of b is public (S4); one mechanism for all blocks (S5). The posterior is that of the statistics as released: it
does not account for their noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float32

from tacit.methods.arguments import deviation
from tacit.methods.polya_gamma import polya_gamma_mean
from tacit.methods.running import Pace, Running, blend, polynomial_decay, start
from tacit.methods.sparsity import Sparsity, shrunk, unshrunk
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Requirement, Suggestions

DAMPING = 0.5
"""All hidden units of a record move at once, by this share of the way."""
WEIGHTS = (1.0, 1.0, 1.0, 0.25, 0.25, 1.0)
"""The two matrices that are averaged need less care than the residual, of which every step uses its own."""
STEPS = 100
"""On Fashion-MNIST, large subsets in 75 steps were as good as in 300."""
BINARY = Requirement(
    "A belief net models pixels that are 0 or 1; write PrivateData(images > 127), with a public threshold.",
    lambda record: _is_binary(record),
    fixed=True,
)


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


class Net(NamedTuple):
    """Means and variances of weights (column 0: visible biases), means and variances of hidden biases."""

    mean: Array
    variance: Array
    bias: Array
    bias_variance: Array


class BeliefNetState(NamedTuple):
    """The network, the average of its means, the averaged statistics, and the sparsity of its weights."""

    net: Net
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
        pixels = _only(plan.placeholder).size

        def init(key: Key) -> BeliefNetState:
            mean = 0.1 * jax.random.normal(key, (pixels, units + 1)) * (jnp.arange(units + 1) > 0)
            net = Net(mean, jnp.full_like(mean, 0.01), jnp.zeros(units), jnp.full(units, 0.01))
            shapes = ((), units, pixels, (pixels, units), (pixels, units))
            zeros = Averaged(*map(jnp.zeros, shapes))
            return BeliefNetState(net, mean, start(zeros), unshrunk(pixels, units))

        def contribute(state: BeliefNetState, record: Record, key: Key) -> Contribution:
            seen = _only(record).ravel().astype(jnp.float32)
            active, slope, psi = _infer(state.net, seen, jnp.ones(pixels), sweeps)
            on = jnp.concatenate([jnp.ones(1), active])
            crossed = jnp.outer(slope, active), jnp.outer(slope, active * (1 - active))
            statistics = Averaged(jnp.ones(()), active - 0.5, slope, *crossed)
            return Contribution(statistics, jnp.outer(seen - 0.5 - slope * psi, on))

        def update(state: BeliefNetState, release: Release, key: Key) -> BeliefNetState:
            step, std = state.running.step, release.noise_std
            averaged = release._replace(full=release.full.averaged, noise_std=std.averaged)
            running = blend(state.running, averaged, pace)
            number, active, curvature, spread = _repaired(running)
            prior = jnp.pad(state.sparsity.precision, ((0, 0), (1, 0)), constant_values=1 / prior_variance)
            precision = prior + curvature
            mean = state.net.mean
            gradient = release.full.residual - mean * (jnp.pad(spread, ((0, 0), (1, 0))) + prior)
            mean = mean + stride(step) * gradient / (precision + std.residual / release.rate)
            bias = _hidden_bias(state.net, number, active, prior_variance)
            net = Net(mean, 1 / precision, *bias)
            sparsity = shrunk(state.sparsity, mean[:, 1:] ** 2 + 1 / precision[:, 1:])
            share = 4 / (step + 4)
            return BeliefNetState(net, state.average + share * (mean - state.average), running, sparsity)

        def draw(state: BeliefNetState, key: Key) -> dict[str, Array]:
            one, two = jax.random.split(key)
            weights = state.average + jnp.sqrt(state.net.variance) * jax.random.normal(one, (pixels, units + 1))
            bias = state.net.bias + jnp.sqrt(state.net.bias_variance) * jax.random.normal(two, (units,))
            return {"W": weights[:, 1:], "b": bias, "c": weights[:, 0]}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> Array:
            return reconstruct(draw, inputs, sweeps)

        suggests = Suggestions(clip=0.1 * math.sqrt(pixels * (units + 1)), steps=STEPS, weights=WEIGHTS)
        return Method(init, contribute, update, draw, requirements=(BINARY,), suggests=suggests, model=Model(predict))

    return MethodFor(build)


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
    given = _only(images)
    flat = given.reshape(len(given), -1).astype(jnp.float32)
    mean = jnp.concatenate([net["c"][:, None], net["W"]], 1)
    if flat.shape[1] != len(mean):
        raise ValueError(
            f"The images have {flat.shape[1]} pixels, the network has {len(mean)}. Pass images of that size."
        )
    point = Net(mean, jnp.zeros_like(mean), jnp.asarray(net["b"]), jnp.zeros_like(net["b"]))
    there = jnp.isfinite(flat)
    psi = jax.vmap(lambda seen, there: _infer(point, seen, there, sweeps)[2])(jnp.where(there, flat, 0), 1.0 * there)
    return jax.nn.sigmoid(psi).reshape(given.shape)


def pixel_accuracy(probability: PyTree, images: PyTree) -> Array:
    """Return the share of pixels whose probability is on the right side of 1/2.

    Privacy: post-processing. The images are public or your own.
    """
    return jnp.mean((jnp.asarray(probability) > 0.5) == (jnp.asarray(images) > 0.5))


def _infer(
    net: Net, seen: Float32[Array, "pixels"], there: Float32[Array, "pixels"], sweeps: int
) -> tuple[Array, Array, Array]:
    """Do the E-step of one record: probabilities of hidden units, Pólya-Gamma means and E[psi] of its pixels."""

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


def _hidden_bias(net: Net, number: Array, active: Array, variance: float) -> tuple[Array, Array]:
    """Alternate q(b) and its Pólya-Gamma factors, both public."""

    def once(_: Array, bias: tuple[Array, Array]) -> tuple[Array, Array]:
        spread = 1 / (1 / variance + number * polya_gamma_mean(bias[0] ** 2 + bias[1]))
        return (active - number / 2) * spread, spread

    return jax.lax.fori_loop(0, 10, once, (net.bias, net.bias_variance))


def _repaired(running: Running) -> tuple[Array, Array, Array, Array]:
    """Bring a copy of the averages back to where sums over records lie; without noise nothing changes.

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


def _only(tree: PyTree) -> Array:
    """Return the one array that a record, or a batch of them, is made of."""
    leaves = jax.tree.leaves(tree)
    if len(leaves) != 1:
        raise ValueError(
            f"A record has {len(leaves)} columns. A belief net models one array of pixels; pass only that."
        )
    return jnp.asarray(leaves[0])


def _is_binary(record: Record) -> Array:
    pixels = _only(record)
    return jnp.all((pixels == 0) | (pixels == 1))
