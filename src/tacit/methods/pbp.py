"""Private probabilistic backpropagation (Hernández-Lobato and Adams 2015; DP-SEP, Vinaroz and Park 2021, section 6.2).

    network  z_0 = x,  a_l = W_l (z_l, 1) / sqrt(d_l + 1),  z_l+1 = relu(a_l),  f = the last a;  y | f by the head
    q(w) = product of N(m, v);  w ~ N(m_0, 1/lambda),  lambda ~ Gamma(6, 6);  noise precision gamma ~ Gamma(6, 6)
    for t = 1..T
        cavity   theta - theta_f                                     as in sep.py: one for all records
        each record of the subset:
            forward    mean and variance of every a_l and z_l, by the moments of a rectified Gaussian
            log Z    = log E[p(y | f)],  f ~ N(its mean, its variance)
            backward   g, k = derivatives of log Z by m and v,  s = g^2 - 2 k       contribution: through the wall
            e = (1, (y - E f)^2 + Var f) / 2                         contribution, if the noise precision is learnt
        G, S = (sums of the clipped g, s + noise) / rate
        tau  <- (1 - pace) tau + pace S                              precision of all sites together
        nu   <- (1 - pace) nu + pace (G + S m)                       their linear part
        theta = theta_0 + (nu, tau);  lambda, gamma from q and the averaged e     free post-processing

g, s are ``slope``, ``curvature``; nu, tau ``total``, as used ``sites``; tau as it came is in ``running``; m_0
``centre``, lambda ``decay``, 1/gamma ``noise``. Any site of one or several predictors is a head: regression, robust
regression, counts, classes.

Where it leaves the papers (docs/errata.md#probabilistic-backpropagation): DP-SEP's own code adds no noise to a network,
so there is nothing to compare private figures with. A record's site, precision s / (1 - v s) and linear part (g + s m)
/ (1 - v s), is taken to first order in v s, which is about 1/N: the recursion of sep.py for S and G + S m. So a record
need not give s m, which is public but for s, and does not get smaller with the residuals as g does; and in the first
layer g and s are outer products of two short vectors. S in S m is what tau has changed by, after a floor: so its noise
changes the length of a step but not its aim. The prior's means m_0 are one public random draw instead of zero: with all
means equal the hidden units would stay alike, and where noise hides what a weight has learnt, a random feature is left
of it. The precisions lambda and gamma have variational updates: the moment matching of PBP subtracts reciprocals that
differ in their eighth digit. lambda is refreshed after every step instead of every epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from tacit.methods.arguments import moved, records_of
from tacit.methods.gaussians import TINY, Moments, Natural, drawn, floored, moments, plus
from tacit.methods.running import Pace, Running, blend, block_weights, polynomial_decay, start
from tacit.methods.sites import Site
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Suggestions

SHAPE, RATE = 6.0, 6.0
"""Of the Gamma priors of both precisions."""
FAR = 30.0
"""A unit whose input is so many standard deviations from zero is on or off for certain."""
BEYOND = (
    *(0.083513604, -0.45701968, 0.98772862, -0.97246474, 0.32476747),
    *(-0.078776072, 0.23222251, 0.33316677, 0.40018041, 0.39999528),
)
"""Mass of a standard normal beyond t over its density at t, a polynomial in u = 1 / (1 + 0.4 t), from u^10 on down.

Through 10 Chebyshev points of t in (0, FAR); 6e-8 of the value off at most.
"""
LEAST = 0.01
"""The least curvature of all records together, as a share of what is usual: with less steps would be too long."""
FLOOR = 5.0
"""A curvature counts for at least so many standard deviations of its noise: lost in noise, it makes steps short."""


class PBPState(NamedTuple):
    """The prior's means and precision, averaged releases, all sites, these as used, the cavity, the noise variance."""

    centre: list[Array]
    decay: Array
    running: Running
    total: Natural
    sites: Natural
    cavity: Moments
    noise: Array


class Contribution(NamedTuple):
    """What one record gives: slopes and curvatures of its log Z; one half, and half its squared error.

    In units of the noise, so that one clip suits all steps: slopes times its deviation, curvatures times its variance,
    squared errors over its variance. Of the last two there is nothing where the noise is public.
    """

    slope: list[Array]
    curvature: list[Array]
    noise: tuple[Array, ...]


def pbp(
    hidden: Sequence[int] = (50,),
    *,
    noise: float | None = None,
    head: Site | None = None,
    spread: float = 0.5,
    pace: Pace | None = None,
    size: int | None = None,
) -> MethodFor:
    """Fit a Bayesian neural network with rectified units by private probabilistic backpropagation.

    The number of records must be declared, and about right is enough.

    Privacy: public. Sees the placeholder record only.

    Parameters
    ----------
    hidden
        Number of units of each hidden layer.
    noise
        Public variance of the noise in y, for y of about unit size; by default it is learnt, through the wall.
    head
        Likelihood of y given the network's output: ``tacit.sites.probit()``, ``tacit.sites.softmax(10)``, ...; by
        default y is normal.
    spread
        Standard deviation of the hidden weights' prior means around zero.
    pace
        Weight of a step's release in the average; by default ``0.04 / (1 + step / 1000)``. Under independent weights
        all of them move at once, and by much more than 0.05 they would overshoot. Where the number of steps is fixed, a
        pace that falls to nothing by the last of them does better.
    size
        Deprecated: the plan has it.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. A record is ``{"x": columns, "y": ...}``, with columns of about unit size. Draws
        have the weights, ``w0``, ``w1``, ...; predictions have ``mean`` and ``y``.

    Examples
    --------
    >>> import jax, numpy as np, tacit
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(200, 2))
    >>> data = tacit.PrivateData({"x": x, "y": (x[:, 0] > 0).astype(int)}, size=200)
    >>> method = tacit.pbp((4,), head=tacit.sites.probit())
    >>> posterior = tacit.fit(method, data, tacit.Budget(1.0, 1e-6), steps=20, progress=False)
    >>> posterior.draws["w0"].shape
    (1000, 4, 3)
    """
    share = pace or (lambda step: 0.04 * polynomial_decay(1000.0, 1.0)(step))
    _check(hidden, noise, head, spread)
    moved(size)

    def build(plan: Plan) -> Method:
        columns, records = _columns(plan.placeholder), records_of(plan, "pbp", size)
        outputs = (head and head.predictors) or 1
        shapes = [(out, into + 1) for into, out in zip((columns, *hidden), (*hidden, outputs), strict=True)]
        network = _Network(shapes, head, noise, spread, records)
        return Method(
            network.init,
            network.contribute,
            partial(network.update, share=share),  # apart from what a contribution can reach
            network.draw,
            network.points,
            requirements=head.requirements if head else (),
            for_size=records,
            suggests=Suggestions(clip=1.5, steps=4000, weights=_weights(shapes, network.learnt)),
            model=Model(network.predict),
        )

    return MethodFor(build)


class _Network:
    """The method's functions, for a network's shapes, a head or the noise in y, and a number of records."""

    def __init__(
        self,
        shapes: list[tuple[int, int]],
        head: Site | None,
        noise: float | None,
        spread: float,
        records: int,
    ) -> None:
        self.shapes, self.head, self.noise, self.spread = shapes, head, noise, spread
        self.records = records
        self.number = sum(math.prod(shape) for shape in shapes)
        self.learnt = head is None and noise is None
        self.alpha = head.alpha if head else 1.0

    def init(self, key: Key) -> PBPState:
        keys = jax.random.split(key, len(self.shapes))
        centre = [self.spread * jax.random.normal(k, shape) for k, shape in zip(keys, self.shapes, strict=True)]
        centre[-1] = jnp.zeros(self.shapes[-1])
        decay = jnp.float32(SHAPE / RATE)
        # A guess at what all records will say of the width, so that the first steps are no longer than the later.
        variance = jnp.float32(1.0 if self.noise is None else self.noise)
        usual = [self.records * each / variance for each in _precisions(self.shapes)]
        guess = [jnp.full(shape, precision) for shape, precision in zip(self.shapes, usual, strict=True)]
        running = start(
            Contribution(
                jax.tree.map(jnp.zeros_like, centre), guess, (jnp.float32(self.records / 2),) * 2 * self.learnt
            )
        )
        sites = Natural(jax.tree.map(jnp.multiply, guess, centre), guess)
        cavity = moments(plus(_prior(centre, decay), sites), False)
        return PBPState(centre, decay, running, sites, sites, cavity, variance)

    def contribute(self, state: PBPState, record: Record, key: Key) -> Contribution:
        def log_z(nudges: list[Moments]) -> tuple[Array, tuple[Moments, list[Moments]]]:
            f, inputs = _through(state.cavity, record["x"].astype(jnp.float32), nudges)
            if self.head is not None:
                predictors = f if self.head.predictors else (f.mean[0], f.variance[0])
                return self.head.log_z(record, *predictors), (f, inputs)
            return norm.logpdf(record["y"], f.mean[0], jnp.sqrt(f.variance[0] + state.noise)), (f, inputs)

        nothing = [Moments(jnp.zeros(shape[0]), jnp.zeros(shape[0])) for shape in self.shapes]
        back, (f, inputs) = jax.grad(log_z, has_aux=True)(nothing)
        layers = list(map(partial(_derivatives, self.alpha), back, inputs, state.cavity.mean))
        slope = [jnp.sqrt(state.noise) * g for g, _ in layers]
        curvature = [state.noise * s for _, s in layers]
        if not self.learnt:
            return Contribution(slope, curvature, ())
        error = jnp.square(record["y"] - f.mean[0]) + f.variance[0]
        return Contribution(slope, curvature, (jnp.float32(0.5), error / state.noise / 2))

    def update(self, state: PBPState, release: Release, key: Key, share: Pace) -> PBPState:
        given = _unscaled(release, state.noise)
        running = blend(state.running, given, share)
        weight, noisy = share(state.running.step), running.noise_std
        least = [LEAST * self.records * each / state.noise for each in _precisions(self.shapes)]
        precision = jax.tree.map(
            lambda s, std, least: jnp.maximum(s, jnp.maximum(FLOOR * std, least)),
            running.statistics.curvature,
            noisy.curvature,
            least,
        )
        linear = jax.tree.map(
            lambda nu, g, m, tau, new: nu + weight * (g + tau * m - nu) + (new - tau) * m,
            state.total.linear,
            given.full.slope,
            state.cavity.mean,
            state.total.precision,
            precision,
        )
        total = Natural(linear, precision)
        sites = floored(Running(total, Natural(noisy.slope, noisy.curvature), running.step), False)
        m, v = moments(plus(_prior(state.centre, state.decay), sites), False)
        squares = jax.tree.map(lambda m, c, v: jnp.sum(jnp.square(m - c) + v), m, state.centre, v)
        decay = (SHAPE + self.number / 2) / (RATE + sum(squares) / 2)
        cavity = moments(plus(_prior(state.centre, decay), sites, 1 - self.alpha / self.records), False)
        after = _noise(running) if self.learnt else state.noise
        return PBPState(state.centre, decay, running, total, sites, cavity, after)

    def draw(self, state: PBPState, key: Key) -> dict[str, Array]:
        weights = drawn(plus(_prior(state.centre, state.decay), state.sites), False, key)
        return {f"w{i}": w for i, w in enumerate(weights)}

    def predict(self, draw: dict[str, Array], inputs: PyTree, key: Key) -> PyTree:
        weights = [draw[f"w{i}"] for i in range(len(self.shapes))]
        f = jax.vmap(lambda x: output(weights, x), out_axes=-1)(jnp.asarray(inputs["x"], jnp.float32))
        if self.head is None:
            return {"mean": f[0], "y": f[0] + jnp.sqrt(draw["noise"]) * jax.random.normal(key, f[0].shape)}
        assert self.head.predict is not None
        return self.head.predict(f if self.head.predictors else f[0], key)

    def points(self, state: PBPState) -> dict[str, PyTree]:
        mean, variance = moments(plus(_prior(state.centre, state.decay), state.sites), False)
        return {"mean": mean, "variance": variance, "decay": state.decay, "noise": state.noise}


def _check(hidden: Sequence[int], noise: float | None, head: Site | None, spread: float) -> None:
    if head is not None and noise is not None:
        raise ValueError("Both noise and head are given; the noise is part of the head. Leave one of them out.")
    if any(units < 1 for units in hidden) or not spread > 0 or (noise is not None and not noise > 0):
        raise ValueError(
            f"hidden is {tuple(hidden)}, noise is {noise}, spread is {spread:g}; all must be positive. "
            "Write pbp((50,))."
        )
    if head is not None and head.form != "predictors":
        raise ValueError(
            f"The head's form is {head.form!r}; a network's output is a predictor. Use sites.probit() etc."
        )


def forward(weights: Moments, x: Array) -> Moments:
    """Return mean and variance of a network's output for one input, layer by layer.

    Privacy: of one record; public for a public one.
    """
    return _through(weights, x, [Moments(0.0, 0.0)] * len(weights.mean))[0]


@jax.custom_jvp
def rectified(mean: Array, variance: Array) -> Moments:
    """Return mean and variance of max(a, 0) for Gaussian a.

    Privacy: as its inputs.
    """
    return _rectified(mean, variance)[0]


@rectified.defjvp
def _rectified_slopes(values: tuple[Array, Array], by: tuple[Array, Array]) -> tuple[Moments, Moments]:
    z, std, on, density = _rectified(*values)
    first = on * by[0] + density / (2 * std) * by[1]
    second = 2 * z.mean * (1 - on) * by[0] + (on - z.mean * density / std) * by[1]
    return z, Moments(first, second)


def _rectified(mean: Array, variance: Array) -> tuple[Moments, Array, Array, Array]:
    std = jnp.sqrt(jnp.maximum(variance, TINY))
    alpha = jnp.clip(mean / std, -FAR, FAR)
    density = jnp.exp(-jnp.square(alpha) / 2) / math.sqrt(2 * math.pi)
    # The mass beyond |alpha| as a polynomial times the density: half the time of erfc, and no worse in the tail.
    near = 1 / (1 + 0.4 * jnp.abs(alpha))
    ratio = jnp.zeros_like(near)
    for term in BEYOND:
        ratio = (ratio + term) * near
    beyond = density * ratio
    on = jnp.where(alpha < 0, beyond, 1 - beyond)
    # E[max(a, 0)^2] - E[max(a, 0)]^2, without a difference of large numbers.
    spread = on + alpha**2 * on * (1 - on) + alpha * density * (1 - 2 * on) - density**2
    z = Moments(mean * on + std * density, jnp.square(std) * jnp.maximum(spread, 0))
    return z, std, on, density


def output(weights: Sequence[Array], x: Array) -> Array:
    """Return the network's output for one input and given weights.

    Privacy: as its inputs.
    """
    for w in weights[:-1]:
        x = jnp.maximum(w @ jnp.append(x, 1.0) / math.sqrt(w.shape[1]), 0)
    return weights[-1] @ jnp.append(x, 1.0) / math.sqrt(weights[-1].shape[1])


def _prior(centre: list[Array], decay: Array) -> Natural:
    precision = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1.0) * decay, centre)
    return Natural(jax.tree.map(jnp.multiply, centre, precision), precision)


def _noise(running: Running) -> Array:
    """Return b / (a - 1) of the noise precision's posterior Gamma(a, b)."""
    a, b = map(jnp.maximum, running.statistics.noise, running.noise_std.noise)
    return (RATE + b) / (SHAPE - 1 + a)


def _through(weights: Moments, x: Array, nudges: list[Moments]) -> tuple[Moments, list[Moments]]:
    """Return a network's output and each layer's input; what is before a rectifier or the head may be nudged."""
    z, inputs = Moments(jnp.append(x, 1.0), None), []
    for m, v, nudge in zip(*weights, nudges, strict=True):
        width = m.shape[1]
        # The record's vector first: over many records the other order makes matrices that lie across.
        a, spread = z.mean @ m.T / math.sqrt(width) + nudge.mean, _square(z) @ v.T / width + nudge.variance
        if z.variance is not None:
            spread += z.variance @ jnp.square(m).T / width
        inputs.append(z)
        on = rectified(a, spread)
        z = Moments(jnp.append(on.mean, 1.0), jnp.append(on.variance, 0.0))
    return Moments(a, spread), inputs


def _square(z: Moments) -> Array:
    """Return E[z^2]; x itself has no variance."""
    return jnp.square(z.mean) if z.variance is None else jnp.square(z.mean) + z.variance


def _derivatives(alpha: float, back: Moments, z: Moments, m: Array) -> tuple[Array, Array]:
    """Return slope and curvature by a layer's weights from those by mean and variance of what it passes on."""
    width = m.shape[1]
    slope = jnp.outer(back.mean / math.sqrt(width), z.mean)
    if z.variance is None:
        return slope, jnp.outer((alpha * jnp.square(back.mean) - 2 * back.variance) / width, _square(z))
    slope += 2 * m * jnp.outer(back.variance / width, z.variance)
    return slope, alpha * jnp.square(slope) - jnp.outer(2 * back.variance / width, _square(z))


def _unscaled(release: Release, noise: Array) -> Release:
    def each(given: Contribution) -> Contribution:
        slope = jax.tree.map(lambda leaf: leaf / jnp.sqrt(noise), given.slope)
        curvature = jax.tree.map(lambda leaf: leaf / noise, given.curvature)
        return Contribution(slope, curvature, given.noise and (given.noise[0], given.noise[1] * noise))

    return release._replace(full=each(release.full), noise_std=each(release.noise_std))


def _weights(shapes: Sequence[tuple[int, int]], learnt: bool) -> tuple[float, ...]:
    """Share the noise among the layers' slopes, their curvatures, and the noise site, by their usual norms."""
    sizes = [math.prod(shape) for shape in shapes]
    bounds = [0.4] * (len(shapes) - 1) + [0.7] + [0.1] * (len(shapes) - 1) + [0.3]
    return block_weights((*bounds, *(0.5, 0.5) * learnt), (*sizes, *sizes, *(1, 1) * learnt))


def _precisions(shapes: Sequence[tuple[int, int]]) -> list[float]:
    """Return the usual precision of a record's site, by layer, for a noise variance of 1 and half of the units on."""
    widths = [into for _, into in shapes]
    return [0.5 / math.prod(widths[i:]) for i in range(len(widths))]


def _columns(placeholder: Any) -> int:
    if not isinstance(placeholder, dict) or "x" not in placeholder or np.ndim(placeholder["x"]) != 1:
        raise ValueError(
            'pbp takes records with a vector x, {"x": columns, "y": ...}. Put all columns into one array x with a line '
            "for each record: numpy.stack([...], axis=1)."
        )
    return int(placeholder["x"].shape[0])
