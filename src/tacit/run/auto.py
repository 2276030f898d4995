"""Which method suits a model, by a public rule: the model's form, the declared size and the budget, never a record.

    a regression (bernoulli, poisson or gaussian; normal priors; groups by (1 | g)), large enough    glm
    anything else                                                                                   vi

``glm`` accounts for the privacy noise in its intervals. It asks for the curvature of the likelihood, D (D + 1) / 2
numbers for D columns, which must stand out of the noise: size >= ENOUGH * noise * D^1.5, where noise is the multiplier
of one release of all records within the budget. Below that ``vi`` is taken to predict better; ENOUGH is a guess from
docs/errata.md#when-curvature-can-be-released, not tuned (papers/coverage/auto.py shows how it fares). The prior of a
gaussian ``sigma`` is log-normal there, not the formula's half-normal. To ``vi`` a formula without groups brings a
Laplace guide, which accounts for the noise too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial, wraps
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from tacit.accounting import noise_multiplier
from tacit.accounting.mechanism import Budget
from tacit.methods.glm import glm
from tacit.methods.vi import vi
from tacit.models.formula import Formula
from tacit.models.priors import bare
from tacit.models.traced import TracedModel
from tacit.types import Array, Key, Method, MethodFor, Plan, PyTree, Record, Requirement, State

ENOUGH = 3.0
LIKELIHOODS = {"bernoulli": "bernoulli", "poisson": "poisson", "gaussian": "normal"}


class Chosen(NamedTuple):
    """A method, and why it was chosen."""

    method: MethodFor
    why: str


def auto(model: Callable[..., Any], *, size: int | None = None, budget: Budget | None = None) -> Chosen:
    """Choose a method for a formula or a NumPyro model, by public facts alone; ``tacit.fit(model, ...)`` does so.

    Privacy: public.

    Parameters
    ----------
    model
        What ``tacit.formula`` gave, or a NumPyro model.
    size, budget
        About how many records there are, if that is public, and what may be spent.

    Returns
    -------
    Chosen
        The ``method``, and in ``why`` the reason.

    Examples
    --------
    >>> import tacit
    >>> schema = tacit.Schema({"age": {"low": 20, "high": 80}, "ill": {"levels": ["no", "yes"]}})
    >>> model = tacit.formula("ill ~ age", schema, family="bernoulli")
    >>> chosen = tacit.auto(model, size=100000, budget=tacit.Budget(1.0, 1e-6))
    >>> chosen.why.startswith("glm")
    True
    """
    against = _against(model, size, budget)
    if against:
        guide = getattr(model, "guide", None)
        counted = "account for the noise as far as the curvature is known" if guide else "account for the noise in part"
        return Chosen(vi(model, guide), f"vi, since {against}: intervals {counted}")
    assert isinstance(model, Formula)
    return Chosen(by_glm(model), f"glm, since this is a {model.family} regression: intervals account for the noise")


def _against(model: Any, size: int | None, budget: Budget | None) -> str:
    """Say what speaks against ``glm``, or nothing."""
    if not isinstance(model, Formula):
        return "the model is not a formula"
    if model.family not in LIKELIHOODS:
        return f"the family is {model.family}"
    if "Intercept" not in model.names:
        return "there is no intercept"
    if any(term.labels != ("1",) for term in model.group_terms):
        return "slopes differ by group"
    if len({term.name.split("|")[-1] for term in model.group_terms}) < len(model.group_terms):
        return "groups are named twice"
    if model.schema.max_records > 1:
        return f"a {model.schema.unit} has several records"
    if _priors(model) is None:
        return "a prior is not normal"
    if size is None:
        return "the number of records is not declared"
    if budget is not None:
        columns = len(model.names) + sum(len(groups) - 1 for groups in model.groups.values())
        noise = noise_multiplier(budget.epsilon, budget.delta, rate=1.0, steps=1)
        needed = ENOUGH * noise * columns**1.5
        if size < needed:
            return f"{columns} columns ask for about {needed:.0f} records at this budget"
    return ""


def by_glm(model: Formula) -> MethodFor:
    """Return ``tacit.glm`` for a formula: it works on the scaled design, and draws what the formula names.

    Privacy: public.
    """
    priors = _priors(model)
    assert priors is not None
    # Numbers are modelled in units of the response.
    factor = model.unit if model.family == "gaussian" else 1.0
    centre, scale = jnp.asarray(model.centre, jnp.float32), jnp.asarray(model.scale, jnp.float32)
    groups = {f"group {term.name}": len(term.groups) for term in model.group_terms}

    def inside(record: Record) -> dict[str, Array]:
        columns = {name: jnp.asarray(value)[None] for name, value in record.items()}
        return {
            "x": ((model.design(columns) - centre) / scale)[0],
            "y": model.outcome(columns)[0] / factor,
            "offset": (model.offset(columns)[0] + priors.at) / factor,
            **{f"group {term.name}": term.index(columns)[0] for term in model.group_terms},
        }

    def named(draw: Mapping[str, Array]) -> dict[str, Array]:
        ends = np.cumsum([len(term.labels) for term in model.terms])[:-1]
        weights = jnp.split(draw["w"] * factor / scale, ends)
        found = {term.name: one for term, one in zip(model.terms, weights, strict=True)}
        found["Intercept"] += priors.at
        for term in model.group_terms:
            std = draw[f"group {term.name}_std"]
            found |= {f"{term.name}_sigma": std * factor, f"{term.name}_offset": draw[f"group {term.name}"] / std}
        found |= {"sigma": draw["noise"] * factor} if model.family == "gaussian" else {}
        return {name: found[name].reshape(prior.event_shape) for name, prior in model.priors.items()}

    def build(plan: Plan) -> Method:
        inner = glm(
            LIKELIHOODS[model.family],
            prior_std=list(priors.std * model.scale / factor),
            groups=groups,
            group_std=float(priors.group_std / factor),
            noise_std=0.5,
        )(replace(plan, placeholder=inside(plan.placeholder)))

        @wraps(inner.contribute)
        def contribute(state: State, record: Record, key: Key) -> PyTree:
            return inner.contribute(state, inside(record), key)

        def holds(record: Record, need: Requirement) -> Array:
            return need.predicate(inside(record))

        return inner._replace(
            contribute=contribute,
            draw=lambda state, key: named(inner.draw(state, key)),
            requirements=tuple(need._replace(predicate=partial(holds, need=need)) for need in inner.requirements),
            model=TracedModel(model, plan.placeholder).known(),
        )

    return MethodFor(build)


class _Priors(NamedTuple):
    """The intercept's mean, the standard deviations of all coefficients, and the scale of the groups' own."""

    at: float
    std: np.ndarray
    group_std: float


def _priors(model: Formula) -> _Priors | None:
    """Return the priors of a formula if ``glm`` can have them: normal ones, around 0 but for the intercept."""
    at, stds = 0.0, []
    for term in model.terms:
        prior = bare(model.priors[term.name])
        if not isinstance(prior, dist.Normal):
            return None
        if term.name == "Intercept":
            at = float(np.ravel(prior.loc)[0])
        elif np.any(np.asarray(prior.loc)):
            return None
        stds.append(np.broadcast_to(prior.scale, (len(term.labels),)))
    spreads = [bare(model.priors[f"{term.name}_sigma"]) for term in model.group_terms]
    scales = {float(scale) for prior in spreads for scale in np.ravel(getattr(prior, "scale", np.nan))}
    if any(not isinstance(prior, dist.HalfNormal) for prior in spreads) or len(scales) > 1:
        return None
    offsets = [bare(model.priors[f"{term.name}_offset"]) for term in model.group_terms]
    if any(not isinstance(prior, dist.Normal) or np.any(prior.loc) or np.any(prior.scale != 1) for prior in offsets):
        return None
    return _Priors(at, np.concatenate(stds), scales.pop() if scales else model.unit)
