"""Private probabilistic backpropagation (Hernández-Lobato and Adams 2015; DP-SEP, Vinaroz and Park 2021, section 6.2).

    network  z_0 = x,  a_l = W_l (z_l, 1) / sqrt(d_l + 1),  z_l+1 = relu(a_l),  f = the last a;  y | f by the head
    q(w) = product of N(m, v);  w ~ N(m_0, 1/lambda),  lambda ~ Gamma(6, 6);  noise precision gamma ~ Gamma(6, 6)
    for t = 1..T
        cavity   theta - theta_f                                     as in sep.py: one for all records
        each record of the subset:
            forward    mean and variance of every a_l and z_l, by the moments of a rectified Gaussian
            log Z    = log E[p(y | f)],  f ~ N(its mean, its variance)
            backward   g, k = derivatives of log Z by m and v,  s = g^2 - 2 k
            tau = s / (1 - v s),  nu = (g + s m) / (1 - v s)         contribution: through the wall
            e = (1, (y - E f)^2 + Var f) / 2                         contribution, if the noise precision is learnt
        theta  <- (1 - pace) theta + pace (theta_0 + G)              the recursion of sep.py
        lambda, gamma from q and the averaged e                      free post-processing

nu, tau are ``linear``, ``precision``; theta - theta_0 ``running``, as used ``sites``; m_0 ``centre``, lambda ``decay``,
1/gamma ``noise``. Any site of one or several predictors is a head: regression, robust regression, counts, classes.

Where it leaves the papers (METHODS 6): DP-SEP's own code adds no noise to a network, so there is nothing to compare
private figures with. The prior's means m_0 are one public random draw instead of zero: with all means equal the hidden
units would stay alike, and where noise hides what a weight has learnt, a random feature is left of it. The precisions
lambda and gamma have variational updates: the moment matching of PBP subtracts reciprocals that differ in their eighth
digit. lambda is refreshed after every step instead of every epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc
from jax.scipy.stats import norm

from tacit.methods.natural import TINY, Moments, Natural, drawn, floored, moments, plus, scalar_site
from tacit.methods.running import Pace, Running, blend, block_weights, slowing, start
from tacit.methods.sites import Site
from tacit.types import Array, Key, Method, MethodFor, PyTree, Record, Release

SHAPE, RATE = 6.0, 6.0
"""Of the Gamma priors of both precisions."""
FAR = 30.0
"""A unit whose input is so many standard deviations from zero is on or off for certain."""


class PBPState(NamedTuple):
    """The prior's means and precision, the averaged releases, the sites in use, the cavity, the noise variance."""

    centre: list[Array]
    decay: Array
    running: Running
    sites: Natural
    cavity: Moments
    noise: Array


class Contribution(NamedTuple):
    """What one record gives: its sites, and one half and half its squared error (nothing if the noise is public)."""

    sites: Natural
    noise: tuple[Array, ...]


def pbp(
    hidden: Sequence[int] = (50,),
    *,
    size: int,
    noise: float | None = None,
    head: Site | None = None,
    spread: float = 1.0,
    pace: Pace | None = None,
) -> MethodFor:
    """Fit a Bayesian neural network with rectified units by private probabilistic backpropagation.

    Privacy: public. Sees the placeholder record only.

    Parameters
    ----------
    hidden
        Number of units of each hidden layer.
    size
        Number of records, public; about right is enough.
    noise
        Public variance of the noise in y, for y of about unit size; by default it is learnt, through the wall.
    head
        Likelihood of y given the network's output: ``tacit.sites.probit()``, ``tacit.sites.softmax(10)``, ...; by
        default y is normal.
    spread
        Standard deviation of the hidden weights' prior means around zero.
    pace
        Weight of a step's release in the average; by default ``0.05 (1 + step / 100) ** -0.7``. Hidden units are alike
        at first, so that all of them moved together by much more than 0.05 would overshoot.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. A record is ``{"x": columns, "y": ...}``, with columns of about unit size. Draws
        have the weights, ``w0``, ``w1``, ...; predictions have ``mean`` and ``y``.
    """
    share = pace or (lambda step: 0.05 * slowing(100.0)(step))
    if head is not None and noise is not None:
        raise ValueError("Both noise and head are given; the noise is part of the head. Leave one of them out.")
    if any(units < 1 for units in hidden) or size < 1 or not spread > 0 or (noise is not None and not noise > 0):
        raise ValueError(
            f"hidden is {tuple(hidden)}, size is {size}, noise is {noise}, spread is {spread:g}; all must be positive. "
            "Write pbp((50,), size=1000)."
        )
    if head is not None and head.form != "predictors":
        raise ValueError(
            f"The head's form is {head.form!r}; a network's output is a predictor. Use sites.probit() etc."
        )
    learnt = head is None and noise is None

    def build(placeholder: Record) -> Method:
        columns = _columns(placeholder)
        outputs = (head and head.predictors) or 1
        shapes = [(out, into + 1) for into, out in zip((columns, *hidden), (*hidden, outputs), strict=True)]

        number = sum(math.prod(shape) for shape in shapes)

        def init(key: Key) -> PBPState:
            keys = jax.random.split(key, len(shapes))
            centre = [spread * jax.random.normal(k, shape) for k, shape in zip(keys, shapes, strict=True)]
            centre[-1] = jnp.zeros(shapes[-1])
            decay = jnp.float32(SHAPE / RATE)
            # A guess at what all records will say of the width, so that the first steps are no longer than the later.
            guess = [jnp.full(shape, size * usual) for shape, usual in zip(shapes, _precisions(shapes), strict=True)]
            sites = Natural([c * g for c, g in zip(centre, guess, strict=True)], guess)
            running = start(Contribution(sites, (jnp.float32(size / 2),) * 2 * learnt))
            cavity = moments(plus(_prior(centre, decay), sites), False)
            return PBPState(centre, decay, running, sites, cavity, _variance(1.0, noise))

        def contribute(state: PBPState, record: Record, key: Key) -> Contribution:
            x = record["x"].astype(jnp.float32)

            def log_z(mean: list[Array], variance: list[Array]) -> Array:
                f = forward(Moments(mean, variance), x)
                if head is not None:
                    return head.log_z(record, *(f if head.predictors else (f.mean[0], f.variance[0])))
                return norm.logpdf(record["y"], f.mean[0], jnp.sqrt(f.variance[0] + state.noise))

            sites = scalar_site(log_z, state.cavity, head.alpha if head else 1.0)
            # In units of the noise, so that one clip suits all steps.
            sites = jax.tree.map(lambda leaf: state.noise * leaf, sites)
            if not learnt:
                return Contribution(sites, ())
            f = forward(state.cavity, x)
            error = jnp.square(record["y"] - f.mean[0]) + f.variance[0]
            return Contribution(sites, (jnp.float32(0.5), error / state.noise / 2))

        def update(state: PBPState, release: Release, key: Key) -> PBPState:
            running = blend(state.running, _unscaled(release, state.noise), share)
            released = Running(running.statistics.sites, running.noise_std.sites, running.step)
            sites = floored(released, False)
            mean, variance = moments(plus(_prior(state.centre, state.decay), sites), False)
            squares = jax.tree.map(lambda m, c, v: jnp.sum(jnp.square(m - c) + v), mean, state.centre, variance)
            decay = (SHAPE + number / 2) / (RATE + sum(squares) / 2)
            cavity = moments(plus(_prior(state.centre, decay), sites, 1 - 1 / size), False)
            after = _noise(running) if learnt else state.noise
            return PBPState(state.centre, decay, running, sites, cavity, after)

        def draw(state: PBPState, key: Key) -> dict[str, Array]:
            weights = drawn(plus(_prior(state.centre, state.decay), state.sites), False, key)
            return {f"w{i}": w for i, w in enumerate(weights)}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> PyTree:
            weights = [draw[f"w{i}"] for i in range(len(shapes))]
            f = jax.vmap(lambda x: output(weights, x), out_axes=-1)(jnp.asarray(inputs["x"], jnp.float32))
            if head is None:
                return {"mean": f[0], "y": f[0] + jnp.sqrt(draw["noise"]) * jax.random.normal(key, f[0].shape)}
            assert head.predict is not None
            return head.predict(f if head.predictors else f[0], key)

        def points(state: PBPState) -> dict[str, PyTree]:
            mean, variance = moments(plus(_prior(state.centre, state.decay), state.sites), False)
            return {"mean": mean, "variance": variance, "decay": state.decay, "noise": state.noise}

        return Method(
            init,
            contribute,
            update,
            draw,
            predict,
            points,
            clip=1.0,
            weights=_weights(shapes, learnt),
            needs=head.needs if head else (),
        )

    return build


def forward(weights: Moments, x: Array) -> Moments:
    """Give mean and variance of a network's output for one input, layer by layer.

    Privacy: of one record; public for a public one.
    """
    last = len(weights.mean) - 1
    mean, square, variance = jnp.append(x, 1.0), jnp.square(jnp.append(x, 1.0)), None
    for i, (m, v) in enumerate(zip(*weights, strict=True)):
        width = m.shape[1]
        a, spread = m @ mean / math.sqrt(width), v @ square / width
        if variance is not None:  # the input has none
            spread += jnp.square(m) @ variance / width
        if i == last:
            return Moments(a, spread)
        mean, variance = rectified(a, spread)
        mean, variance = jnp.append(mean, 1.0), jnp.append(variance, 0.0)
        square = jnp.square(mean) + variance
    raise AssertionError("a network has a last layer")


def rectified(mean: Array, variance: Array) -> Moments:
    """Give mean and variance of max(a, 0) for Gaussian a.

    Privacy: as its inputs.
    """
    std = jnp.sqrt(jnp.maximum(variance, TINY))
    alpha = jnp.clip(mean / std, -FAR, FAR)
    on, density = erfc(-alpha / math.sqrt(2)) / 2, jnp.exp(-jnp.square(alpha) / 2) / math.sqrt(2 * math.pi)
    # E[max(a, 0)^2] - E[max(a, 0)]^2, without a difference of large numbers.
    spread = on + alpha**2 * on * (1 - on) + alpha * density * (1 - 2 * on) - density**2
    return Moments(mean * on + std * density, jnp.square(std) * jnp.maximum(spread, 0))


def output(weights: Sequence[Array], x: Array) -> Array:
    """Give the network's output for one input and given weights.

    Privacy: as its inputs.
    """
    for w in weights[:-1]:
        x = jnp.maximum(w @ jnp.append(x, 1.0) / math.sqrt(w.shape[1]), 0)
    return weights[-1] @ jnp.append(x, 1.0) / math.sqrt(weights[-1].shape[1])


def _prior(centre: list[Array], decay: Array) -> Natural:
    precision = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1.0) * decay, centre)
    return Natural(jax.tree.map(jnp.multiply, centre, precision), precision)


def _noise(running: Running) -> Array:
    """Give b / (a - 1) of the noise precision's posterior Gamma(a, b)."""
    a, b = map(jnp.maximum, running.statistics.noise, running.noise_std.noise)
    return (RATE + b) / (SHAPE - 1 + a)


def _unscaled(release: Release, noise: Array) -> Release:
    def both(given: Contribution) -> Contribution:
        sites = jax.tree.map(lambda leaf: leaf / noise, given.sites)
        return Contribution(sites, given.noise and (given.noise[0], given.noise[1] * noise))

    return release._replace(full=both(release.full), noise_std=both(release.noise_std))


def _weights(shapes: Sequence[tuple[int, int]], learnt: bool) -> tuple[float, ...]:
    """Share the noise among the layers' linear parts, their precisions, and the noise site, by their usual norms."""
    sizes = [math.prod(shape) for shape in shapes]
    bounds = [0.5] * (len(shapes) - 1) + [0.6] + [0.2] * (len(shapes) - 1) + [0.4]
    return block_weights((*bounds, *(0.5, 0.5) * learnt), (*sizes, *sizes, *(1, 1) * learnt))


def _precisions(shapes: Sequence[tuple[int, int]]) -> list[float]:
    """Give the usual precision of a record's site, by layer, for a noise variance of 1 and half of the units on."""
    widths = [into for _, into in shapes]
    return [0.5 / math.prod(widths[i:]) for i in range(len(widths))]


def _variance(learnt: Array | float, public: float | None) -> Array:
    return jnp.asarray(learnt if public is None else public, jnp.float32)


def _columns(placeholder: Any) -> int:
    if not isinstance(placeholder, dict) or "x" not in placeholder or np.ndim(placeholder["x"]) != 1:
        raise ValueError(
            'pbp takes records with a vector x, {"x": columns, "y": ...}. Put all columns into one array x with a line '
            "for each record: numpy.stack([...], axis=1)."
        )
    return int(placeholder["x"].shape[0])
