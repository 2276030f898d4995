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

g, s are ``slope``, ``curvature``; nu, tau ``total``, as used ``sites``; m_0 ``centre``, lambda ``decay``, 1/gamma
``noise``. Where it leaves the papers, and why: docs/errata.md#probabilistic-backpropagation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.arguments import columns_of, moved, records_of
from tacit.methods.gaussians import Moments, Natural, drawn, floored, moments
from tacit.methods.network_sites import RATE, SHAPE, Contribution, NetworkSites, check_network, decay_given, posterior
from tacit.methods.rectifiers import derivatives, no_nudges, through
from tacit.methods.running import Pace, Running, blend, polynomial_decay
from tacit.methods.sites import Site
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Suggestions


class PBPState(NamedTuple):
    """The prior's means and precision, averaged releases, all sites, these as used, the cavity, the noise variance."""

    centre: list[Array]
    decay: Array
    running: Running
    total: Natural
    sites: Natural
    cavity: Moments
    noise: Array


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

    Privacy: public. Sees the placeholder record only. The number of records must be declared; about right is enough.

    Parameters
    ----------
    hidden
        Number of units of each hidden layer.
    noise
        Public variance of the noise in y, for y of about unit size; by default it is learnt, through the wall.
    head
        A site of predictors, for y given the output: ``tacit.sites.probit()``, ...; by default y is normal.
    spread
        Standard deviation of the hidden weights' prior means around zero.
    pace
        Weight of a step's release in the average; by default ``0.04 / (1 + step / 1000)``. By much more than 0.05 the
        weights overshoot, which all move at once. For fixed steps, one that falls to nothing by the last does better.
    size
        Deprecated: the plan has it.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. A record is ``{"x": columns, "y": ...}``, with columns of about unit size. Draws
        have the weights, ``w0``, ``w1``, ...; predictions have ``mean`` and ``y``.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> data = tacit.PrivateData({"x": x, "y": (x[:, 0] > 0).astype(int)}, size=200)
    >>> method = tacit.pbp((4,), head=tacit.sites.probit())
    >>> posterior = tacit.fit(method, data, tacit.Budget(1.0, 1e-6), steps=20, progress=False)
    >>> posterior.draws["w0"].shape
    (1000, 4, 3)
    """
    check_network(hidden, noise, head, spread)
    moved(size)
    share = pace or (lambda step: 0.04 * polynomial_decay(1000.0, 1.0)(step))

    def build(plan: Plan) -> Method:
        columns, records = columns_of(plan, "pbp"), records_of(plan, "pbp", size)
        network = NetworkSites(columns, hidden, head, noise, records)

        def init(key: Key) -> PBPState:
            decay, variance = jnp.float32(SHAPE / RATE), jnp.float32(1.0 if noise is None else noise)
            centre, running, sites = network.start(spread, variance, key)
            cavity = moments(posterior(centre, decay, sites), False)
            return PBPState(centre, decay, running, sites, sites, cavity, variance)

        def contribute(state: PBPState, record: Record, key: Key) -> Contribution:
            def log_z(nudges: list[Moments]) -> tuple[Array, tuple[Moments, list[Moments]]]:
                f, inputs = through(state.cavity, record["x"].astype(jnp.float32), nudges)
                return network.log_z(record, f, state.noise), (f, inputs)

            back, (f, inputs) = jax.grad(log_z, has_aux=True)(no_nudges(state.cavity.mean))
            layers = [derivatives(network.alpha, *each) for each in zip(back, inputs, state.cavity.mean, strict=True)]
            return network.contribution(layers, record, f, state.noise)

        def update(state: PBPState, release: Release, key: Key) -> PBPState:
            given = network.unscaled(release, state.noise)
            running, weight = blend(state.running, given, share), share(state.running.step)
            precision = network.precision(running, state.noise)
            layers = zip(*state.total, given.full.slope, state.cavity.mean, precision, strict=True)
            linear = [nu + weight * (g + tau * m - nu) + (new - tau) * m for nu, tau, g, m, new in layers]
            total, noisy = Natural(linear, precision), Natural(running.noise_std.slope, running.noise_std.curvature)
            sites = floored(Running(total, noisy, running.step), False)
            decay = decay_given(state.centre, moments(posterior(state.centre, state.decay, sites), False))
            cavity = moments(posterior(state.centre, decay, sites, 1 - network.alpha / records), False)
            return PBPState(state.centre, decay, running, total, sites, cavity, network.noise(running, state.noise))

        def draw(state: PBPState, key: Key) -> dict[str, Array]:
            weights = drawn(posterior(state.centre, state.decay, state.sites), False, key)
            return {f"w{i}": w for i, w in enumerate(weights)}

        def points(state: PBPState) -> dict[str, PyTree]:
            mean, variance = moments(posterior(state.centre, state.decay, state.sites), False)
            return {"mean": mean, "variance": variance, "decay": state.decay, "noise": state.noise}

        return Method(
            init,
            contribute,
            update,
            draw,
            points,
            requirements=head.requirements if head else (),
            for_size=records,
            suggests=Suggestions(clip=1.5, steps=4000, weights=network.noise_shares()),
            model=Model(network.predict),
        )

    return MethodFor(build)
