"""Private stochastic expectation propagation (Vinaroz and Park 2021, DP-SEP; Li, Hernández-Lobato, Turner 2015).

    q = p0 f^N: one site f, the average of all records' sites.  theta = theta_0 + N theta_f
    for t = 1..T
        cavity  theta - alpha theta_f                    one copy of the site is taken out, the same for all records
        each record of the subset:
            tilted   cavity times p(record | w) ** alpha
            theta_n = (natural parameters of the tilted moments - cavity) / alpha      contribution: through the wall
        G = (sum over the subset of clip(theta_n) + noise) / rate
        theta <- (1 - pace) theta + pace (theta_0 + G)

theta_0 is ``prior``, N ``size``, N theta_f as released ``running``, as used ``sites``; h, Lambda are ``linear``,
``precision``; theta_n is ``Site.natural``. With ``pace = rate`` this is Li et al.'s SEP with subsets; with ``pace = 1``
and rate 1, averaged EP; all rest where theta = theta_0 + sum of theta_n, as EP does on average.

Two readings (docs/sep.md). Algorithm 3 puts the new site into ONE of the N places, so equation 4 moves theta by gamma/N
of the way, and theta_f by gamma/N^2; SEP moves theta_f by gamma/N and with it all N places. ``reading="paper"`` is the
former: the pace divided by N. Signal and noise of a step shrink alike, and N times as many steps are needed.

Where else it leaves the paper (docs/errata.md#expectation-propagation): subsets of a fixed rate; one joint clip of both
parts, which tempers a site but keeps its mean; noise on the sum of theta_n alone; nothing is skipped before the noise.
The average of releases is kept as it came; what is used is a repaired copy (``floored``), whose width accounts for the
noise.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.methods.gaussians import Moments, Natural, drawn, floored, moments, plus, retracted
from tacit.methods.running import (
    Pace,
    Running,
    blend,
    block_weights,
    check_positive,
    deviation,
    moved,
    polynomial_decay,
    records_of,
    start,
)
from tacit.methods.sites import Site
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Suggestions

LARGE = 64
"""Columns above which the suggested recipe takes subsets."""


class SEPState(NamedTuple):
    """The prior, the average of released sums of sites, the copy of it that is used, and the cavity."""

    prior: Natural
    running: Running
    sites: Natural
    cavity: Moments


def sep(
    site: Site,
    *,
    prior_std: float = 1.0,
    bound: float = 1.0,
    pace: Pace | None = None,
    reading: Literal["consistent", "paper"] = "consistent",
    repair: Literal["floor", "retraction"] = "floor",
    prior: float | None = None,
    size: int | None = None,
) -> MethodFor:
    """Fit a Gaussian posterior by private stochastic expectation propagation.

    The number of records must be declared, and about right is enough.

    Privacy: public. Sees the placeholder record only.

    Parameters
    ----------
    site
        The likelihood: one of ``tacit.sites``, or one of your own, ``tacit.sites.Site(log_z)``. A record is
        ``{"x": columns, "y": ...}``; a column of ones gives the intercept.
    prior_std
        Standard deviation of the independent normal prior of the weights.
    bound
        Norm of ``x`` that few records exceed, public. It shares the noise between the two parts of a site.
    pace
        Weight of a step's release in the average; by default what suits the site, else ``(1 + step) ** -0.7``.
    reading
        "consistent": all copies of the site are updated. "paper": equation 4 of DP-SEP as printed, which divides the
        pace by the number of records.
    repair
        What makes a noisy precision positive. "floor": directions lost in the noise fall back to the prior, and the
        posterior's width accounts for the noise. "retraction": a step is bent so that a precision falls by half at
        most.
    prior, size
        Deprecated: the prior's precision, which follows from ``prior_std``, and what the plan has.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``. Draws have ``w``: a vector, for several predictors or components a line each; for
        sites of all weights, what those are called.

    Examples
    --------
    >>> import jax, numpy as np, tacit
    >>> random = np.random.default_rng(0)
    >>> x = random.normal(size=(200, 2))
    >>> data = tacit.PrivateData({"x": x, "y": (x[:, 0] > 0).astype(int)}, size=200)
    >>> method = tacit.sep(tacit.sites.probit(), bound=3.0)
    >>> posterior = tacit.fit(method, data, tacit.Budget(1.0, 1e-6), steps=20, progress=False)
    >>> posterior.draws["w"].shape
    (1000, 2)
    """
    _check_choices(bound, reading, repair)
    precision = deviation(prior_std, "prior", prior, -0.5) ** -2
    moved(size)
    share = pace or site.pace or polynomial_decay()

    def build(plan: Plan) -> Method:
        placeholder, number = plan.placeholder, records_of(plan, "sep", size)
        step_of = share if reading == "consistent" else (lambda step: share(step) / number)
        _check_record(site, placeholder)
        blocks = jax.eval_shape(lambda key: site.start(placeholder, key), jax.random.key(0))

        def init(key: Key) -> SEPState:
            centre = site.start(placeholder, key)
            spread = jax.tree.map(lambda leaf: _spread(precision, leaf, site.matrices), centre)
            at = Natural(jax.tree.map(lambda leaf: precision * leaf, centre), spread)
            nothing = jax.tree.map(jnp.zeros_like, at)
            return SEPState(at, start(nothing), nothing, moments(at, site.matrices))

        def contribute(state: SEPState, record: Record, key: Key) -> Natural:
            return site.natural(state.cavity, record)

        def update(state: SEPState, release: Release, key: Key) -> SEPState:
            running = blend(state.running, release, step_of)
            if repair == "floor":
                sites = floored(running, site.matrices)
            else:
                old = plus(state.prior, state.sites).precision
                weight = step_of(state.running.step)
                towards = jax.tree.map(
                    lambda old, prior, full: old + weight * (prior + full - old),
                    old,
                    state.prior.precision,
                    release.full.precision,
                )
                new = retracted(old, towards, site.matrices)
                sites = Natural(running.statistics.linear, jax.tree.map(jnp.subtract, new, state.prior.precision))
            cavity = moments(plus(state.prior, sites, 1 - site.alpha / number), site.matrices)
            return SEPState(state.prior, running, sites, cavity)

        def draw(state: SEPState, key: Key) -> dict[str, Array]:
            w = drawn(plus(state.prior, state.sites), site.matrices, key)
            if site.form == "weights":
                return w
            return {"w": w[0] if site.form == "predictors" and site.predictors is None else w}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> PyTree:
            assert site.predict is not None
            if site.form == "weights":
                return site.predict(draw, inputs, key)
            if site.form == "blocks":
                return site.predict(draw["w"], inputs, key)
            return site.predict(draw["w"] @ jnp.asarray(inputs["x"]).T, key)

        columns = placeholder["x"].shape[-1] if site.matrices else 0
        small = columns <= LARGE
        return Method(
            init,
            contribute,
            update,
            draw,
            requirements=site.requirements,
            for_size=number,
            suggests=Suggestions(
                clip=1.0 if site.matrices else None,
                rate=1.0 if site.matrices and small else None,
                steps=site.steps or ((10 if small else 50) if site.matrices else None),
                weights=_weights(site, bound, columns, blocks) if site.matrices else None,
            ),
            model=Model(predict if site.predict else None),
        )

    return MethodFor(build)


def _spread(prior: float, leaf: Array, matrices: bool) -> Array:
    """Return the prior's precision for weights of this shape: a matrix for each line, or a number for each weight."""
    if not matrices:
        return jnp.full_like(leaf, prior)
    return jnp.broadcast_to(prior * jnp.eye(leaf.shape[-1]), (*leaf.shape, leaf.shape[-1]))


def _weights(site: Site, bound: float, columns: int, blocks: Any) -> tuple[float, ...]:
    size = math.prod(blocks.shape)
    return block_weights(site.usual(bound, columns), (size, size * columns))


def _check_record(site: Site, placeholder: Any) -> None:
    if not site.matrices:
        return
    if not isinstance(placeholder, dict) or np.ndim(placeholder.get("x", 0.0)) != 1:
        given = (
            {name: np.shape(value) for name, value in placeholder.items()}
            if isinstance(placeholder, dict)
            else type(placeholder).__name__
        )
        raise ValueError(
            f'sep takes records with a vector x, {{"x": columns, "y": ...}}; these are {given}. '
            "Put all columns into one array x with a line for each record: numpy.stack([...], axis=1)."
        )


def _check_choices(bound: float, reading: str, repair: str) -> None:
    check_positive(bound=bound)
    if reading not in ("consistent", "paper"):
        raise ValueError(f'reading is {reading!r}. Write "consistent", or "paper" for equation 4 as printed.')
    if repair not in ("floor", "retraction"):
        raise ValueError(f'repair is {repair!r}. Write "floor" or "retraction".')
