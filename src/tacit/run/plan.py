"""The plan of a run: what is public about the records and the settings, the method built for it, and its recipe.

    plan      from the data and the arguments of ``tacit.fit``
    method    built for the plan, once; or as it was given
    recipe    the plan's settings, what the method suggests for the others, and the noise that the budget asks for

What a method is follows from its type: a `Method`, a `MethodFor`, else a formula or a NumPyro model, for which
``tacit.auto`` chooses. Nothing is called to find it out, so that an error in a user's function is shown as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp

from tacit.accounting.checks import check_steps
from tacit.accounting.mechanism import Budget, Mechanism, calibrate
from tacit.methods.adaptive import ADAPTIVE_CLIP, adaptive
from tacit.models.formula import Formula
from tacit.run.auto import auto
from tacit.types import Key, Method, MethodFor, Plan, PyTree, is_sparse
from tacit.wall.data import PrivateData

STEPS = 1000
"""Where neither the user nor the method says a number of steps."""


class Planned(NamedTuple):
    """A method as it will be run, its recipe, and the name that the ledger gives it."""

    method: Method
    mechanism: Mechanism
    title: str


class Settings(TypedDict, total=False):
    """The arguments of ``fit`` that a plan is made from."""

    rate: float | None
    steps: int | None
    clip: float | Literal["adaptive"] | None
    weights: tuple[float, ...] | None
    adjacency: str
    engine: str


def planned(
    method: Method | MethodFor | Callable[..., Any],
    data: PrivateData,
    budget: Budget,
    **settings: Unpack[Settings],
) -> Planned:
    """Build a method for the data and the settings of ``fit``, and fill in what these leave open.

    Privacy: public.
    """
    plan = plan_for(data, budget, **settings)
    built = built_for(method, plan)
    _refuse_other_facts(built.model.source, data)
    refuse_unsuited(built, plan)
    title, suggests, clip = title_of(built), built.suggests, settings.get("clip")
    if clip == "adaptive":
        built, clip = _adaptive(built, plan), ADAPTIVE_CLIP
    mechanism = calibrate(
        budget,
        rate=_first(plan.rate, suggests.rate, default_rate(data.size)),
        steps=_first(plan.steps, suggests.steps, STEPS),
        clip=suited_clip(built, plan) if clip is None else clip,
        adjacency=plan.adjacency,
        weights=_first(plan.weights, built.suggests.weights),
    )
    return Planned(built, mechanism, title)


def check_types(data: PrivateData, budget: Budget, key: Key | None = None) -> None:
    """Refuse what is not sealed, budgeted and keyed as it must be.

    Privacy: public.
    """
    if key is not None and not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise TypeError(f"The key is given as {key!r}. It must be a typed JAX key; write key=jax.random.key(0).")
    if not isinstance(data, PrivateData):
        raise TypeError(
            f"The records are given as {type(data).__name__}. Only sealed records go through the wall; "
            "write data = tacit.PrivateData(records, schema)."
        )
    if not isinstance(budget, Budget):
        raise TypeError(
            f"The budget is given as {type(budget).__name__}. It must say epsilon, delta and the unit; "
            "write tacit.Budget(epsilon=1.0, delta=1e-6)."
        )
    if data.unit != budget.unit:
        raise ValueError(
            f"The budget protects each {budget.unit!r}, but a unit of the data is a {data.unit!r}. "
            f"Write tacit.Budget({budget.epsilon:g}, {budget.delta:g}, unit={data.unit!r}), "
            "or declare the data's unit in its schema."
        )


def plan_for(data: PrivateData, budget: Budget | None = None, **settings: Any) -> Plan:
    """Return the plan of a fit to sealed records; the settings are those of ``fit``.

    Privacy: public.
    """
    if settings.get("steps") is not None:
        settings["steps"] = check_steps("fit", settings["steps"], 1)
    return Plan(data.placeholder, data.size, unit=data.unit, max_records=data.max_records, budget=budget, **settings)


def public_plan(records: PyTree, **settings: Any) -> Plan:
    """Return the plan of a method for public records, whose number is known.

    Privacy: none for the records: their number, and the shape of one.
    """
    leaves = jax.tree.leaves(records)
    return Plan(jax.tree.map(lambda leaf: leaf[0], records), len(leaves[0]), **settings)


def built_for(method: Method | MethodFor | Callable[..., Any], plan: Plan) -> Method:
    """Return the method, built for the plan; for a formula or a NumPyro model, the one that ``tacit.auto`` chooses.

    Privacy: public.
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, MethodFor):
        return method(plan)
    if not callable(method):
        raise TypeError(
            f"fit was given a {type(method).__name__}. Pass a formula, a NumPyro model, or a method such as "
            "tacit.vi(model)."
        )
    if getattr(method, "__annotations__", {}).get("return") in ("Method", "tacit.Method", Method):
        raise TypeError(
            f"The function {getattr(method, '__name__', 'given')} returns a Method, and a bare function is taken for a "
            "NumPyro model. Write tacit.MethodFor(build), where build(plan) returns the method."
        )
    # Without a budget there is no noise for intervals to count.
    chosen = auto(method, size=plan.size if plan.budget else None, budget=plan.budget)
    built = chosen.method(plan)
    return built._replace(model=built.model._replace(reason=chosen.why))


def refuse_unsuited(built: Method, plan: Plan) -> None:
    """Refuse settings under which a method would give wrong answers without a warning.

    Privacy: public.
    """
    name, steps = title_of(built), _first(plan.steps, built.suggests.steps, STEPS)
    if built.for_steps not in (None, steps):
        raise ValueError(
            f"{name} was built for {built.for_steps} steps, and this run has {steps}: its phases would end too early "
            f"or too late. Hand over the method unbuilt, or build it for tacit.Plan(placeholder, steps={steps})."
        )
    if built.for_size is not None and not plan.agrees(built.for_size):
        raise ValueError(
            f"{name} was built for {built.for_size} records, and the data are declared with size={plan.size}. Hand "
            f"over the method unbuilt, or build it for tacit.Plan(placeholder, {plan.size})."
        )
    if steps < built.min_steps:
        raise ValueError(
            f"steps is {steps}, and {name} has nothing to draw from before step {built.min_steps}: its posterior would "
            f"leave out what was paid for. Write steps={max(STEPS, 2 * built.min_steps)}, or set up the method for "
            "fewer."
        )
    if built.bounded:
        _refuse_shortening(built, plan, name)


def _refuse_shortening(built: Method, plan: Plan, name: str) -> None:
    suited, given = built.suggests, None
    if plan.clip is not None and (isinstance(plan.clip, str) or plan.clip < (suited.clip or 0)):
        given = f"clip={plan.clip!r}"
    elif plan.weights is not None and tuple(plan.weights) != (suited.weights or (1.0,) * len(plan.weights)):
        given = f"weights={tuple(plan.weights)!r}"
    if given is not None:
        raise ValueError(
            f"{given} was given, and {name} makes every contribution fit its own clip, {suited.clip:g}, so that "
            "none is shortened: its intervals would be wrong, and nothing would say so. "
            f"Leave {given.split('=')[0]} out."
        )


def title_of(built: Method) -> str:
    """Name a method as the ledger does: by its file.

    Privacy: public.
    """
    return built.contribute.__module__.rsplit(".", 1)[-1]


def suited_clip(built: Method, plan: Plan) -> float:
    """Return the clip that suits a method where the user gives none.

    For units of several records it grows like the square root of their number, as a sum of unlike contributions does.

    Privacy: public.
    """
    several = math.sqrt(plan.max_records)
    if built.suggests.clip is not None:
        return several * built.suggests.clip
    key = jax.random.key(0)
    shape = jax.eval_shape(lambda key: built.contribution(built.init(key), plan.placeholder, key, key), key)
    leaves = jax.tree.leaves(shape, is_leaf=is_sparse)
    return several * 2 * math.sqrt(sum(leaf.values.size if is_sparse(leaf) else leaf.size for leaf in leaves))


def default_rate(size: int | None) -> float:
    """Return the rate where neither the user nor the method says one.

    Privacy: public.
    """
    return 0.1 if size is None else min(0.1, max(4000 / size, 1e-3))


def _refuse_other_facts(model: Any, data: PrivateData) -> None:
    """Refuse a formula whose schema is not that of the records: levels would have other codes, numbers other scales."""
    if isinstance(model, Formula) and data.schema is not None:
        ours, theirs = model.schema.columns, data.schema.columns
        other = [name for name in (*model.columns, model.response) if ours[name] != theirs.get(name)]
        if other:
            raise ValueError(
                f"The formula's schema and that of the records say different things about {other}, so that codes and "
                "scales would not fit. Use one schema for both."
            )


def _adaptive(built: Method, plan: Plan) -> Method:
    if plan.size is None:
        raise ValueError(
            'clip="adaptive" compares a noisy count with the number of records, and that is not declared. '
            "Write tacit.PrivateData(records, schema, size=...) with a public figure, about right is enough."
        )
    if plan.max_records > 1:
        raise ValueError(
            f'clip="adaptive" follows the norms of single records, and a {plan.unit} has up to {plan.max_records} here '
            "that are clipped together. Pass a number, or leave the clip out."
        )
    if plan.weights is not None:
        raise ValueError('clip="adaptive" and weights do not go together: leave one of them out.')
    return adaptive(built, plan.size, suited_clip(built, plan))


def _first(*choices: Any) -> Any:
    return next((choice for choice in choices if choice is not None), None)
