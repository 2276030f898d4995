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

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.arguments import check_choice, check_positive, columns_of, deviation, moved, records_of
from tacit.methods.gaussians import Moments, Natural, bent, drawn, floored, isotropic, moments, plus
from tacit.methods.running import Pace, Running, blend, polynomial_decay, start
from tacit.methods.sites import Site
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, Record, Release


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
    check_positive(bound=bound)
    check_choice(("consistent", "paper"), reading=reading)
    check_choice(("floor", "retraction"), repair=repair)
    precision = deviation(prior_std, "prior", prior, -0.5) ** -2
    moved(size)
    share = pace or site.pace or polynomial_decay()

    def build(plan: Plan) -> Method:
        number = records_of(plan, "sep", size)
        if site.matrices:
            columns_of(plan, "sep")
        step_of = share if reading == "consistent" else (lambda step: share(step) / number)

        def init(key: Key) -> SEPState:
            at = isotropic(site.start(plan.placeholder, key), precision, site.matrices)
            nothing = jax.tree.map(jnp.zeros_like, at)
            return SEPState(at, start(nothing), nothing, moments(at, site.matrices))

        def contribute(state: SEPState, record: Record, key: Key) -> Natural:
            return site.natural(state.cavity, record)

        def update(state: SEPState, release: Release, key: Key) -> SEPState:
            running = blend(state.running, release, step_of)
            if repair == "floor":
                sites = floored(running, site.matrices)
            else:
                weight = step_of(state.running.step)
                bend = bent(state.prior, state.sites, release.full, weight, site.matrices)
                sites = Natural(running.statistics.linear, bend)
            cavity = moments(plus(state.prior, sites, 1 - site.alpha / number), site.matrices)
            return SEPState(state.prior, running, sites, cavity)

        def draw(state: SEPState, key: Key) -> dict[str, Array]:
            return site.named(drawn(plus(state.prior, state.sites), site.matrices, key))

        return Method(
            init,
            contribute,
            update,
            draw,
            requirements=site.requirements,
            for_size=number,
            suggests=site.suggestions(bound, plan.placeholder),
            model=Model(site.predictions if site.predict else None),
        )

    return MethodFor(build)
