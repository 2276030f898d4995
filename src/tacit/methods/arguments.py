"""Arguments of factories and facts of plans: their checks, and what deprecated ones stand for."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, ParamSpec

import jax.numpy as jnp
import numpy as np

from tacit.types import MethodFor, Plan, Suggestions

P = ParamSpec("P")


def check_positive(**values: float | Sequence[float] | None) -> None:
    """Refuse public numbers, one or several to a name, that are not positive; None stands for a default."""
    for name, given in values.items():
        for value in () if given is None else np.ravel(given):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(
                    f"{name} is {value:g}, but must be a positive number, chosen without reading the data."
                )


def check_choice(allowed: Collection[str], **values: str) -> None:
    """Refuse texts that are none of those allowed, by their names."""
    for name, value in values.items():
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}. Write one of {', '.join(map(repr, allowed))}.")


def check_draws(draws: int, of: str) -> None:
    """Refuse a step without a draw of the guide, or of the weights."""
    if draws < 1:
        raise ValueError(f"draws is {draws}; a step needs at least one draw of the {of}. Write draws=1.")


def columns_of(plan: Plan, name: str) -> int:
    """Return the number of columns in the vector ``x`` of the plan's records, which the method of that name needs."""
    record = plan.placeholder
    if not isinstance(record, dict) or "x" not in record or jnp.ndim(record["x"]) != 1:
        shapes = {name: jnp.shape(value) for name, value in record.items()} if isinstance(record, dict) else None
        raise ValueError(
            f'{name} takes records with a vector x, {{"x": columns, "y": ...}}; these are '
            f"{type(record).__name__ if shapes is None else shapes}. "
            "Put all columns into one array x with a line for each record: numpy.stack([...], axis=1)."
        )
    return int(record["x"].shape[0])


def records_of(plan: Plan, name: str, given: int | None = None) -> int:
    """Return the number of records that a method computes with: the plan's.

    Privacy: public.

    Parameters
    ----------
    plan
        The method's plan.
    name
        Of the method.
    given
        The method's own argument ``size``, of the release before; refused where the plan has another number.
    """
    if given is not None and plan.agrees(given):
        return given
    if given is not None:
        raise ValueError(
            f"size={given} was given to {name}, and the records are declared with size={plan.size}. One of them is "
            f"wrong; leave size out of {name}, which takes that of the records."
        )
    if plan.size is None:
        raise ValueError(
            f"{name} computes with the number of records, and it is not declared, nor may it be counted. Write "
            "tacit.PrivateData(records, schema, size=1000) with a public figure, about right is enough."
        )
    _check_size(plan.size)
    return plan.size * plan.max_records


def check_single(plan: Plan, name: str) -> None:
    """Refuse units of several records, for a method that bounds single ones.

    Privacy: public.
    """
    if plan.max_records > 1:
        raise ValueError(
            f"A {plan.unit} has up to {plan.max_records} records, and {name} bounds single ones. Use tacit.vi."
        )


def steps_of(plan: Plan, name: str, usual: int, least: int) -> int:
    """Return the number of steps of a method whose phases are parts of them: the plan's, or the usual one.

    Privacy: public.
    """
    steps = usual if plan.steps is None else plan.steps
    if steps < least:
        raise ValueError(f"steps is {steps}; the phases of {name} need at least {least}. Write steps={usual}.")
    return steps


def full_batches(size: int, steps: int) -> dict[str, Any]:
    """Return what suits a ``Method`` that takes all records in each step and fits its contributions to a clip of 1.

    Privacy: public.
    """
    suggests = Suggestions(clip=1.0, rate=1.0, steps=steps)
    return {"bounded": True, "for_size": size, "for_steps": steps, "suggests": suggests}


def with_deprecated(*names: str) -> Callable[[Callable[P, MethodFor]], Callable[P, MethodFor]]:
    """Take deprecated arguments of a factory, ``size`` or ``steps``, with a warning, and hand them to it in its plan.

    Privacy: public.
    """

    def taking(factory: Callable[P, MethodFor]) -> Callable[P, MethodFor]:
        @functools.wraps(factory)
        def made(*args: P.args, **options: P.kwargs) -> MethodFor:
            given: dict[str, Any] = {name: options.pop(name) for name in names if name in options}
            moved(**given)
            method = factory(*args, **options)
            return (
                MethodFor(lambda plan: method.build(_plan_with(plan, factory.__name__, **given))) if given else method
            )

        return made

    return taking


def _plan_with(plan: Plan, name: str, size: int | None = None, steps: int | None = None) -> Plan:
    """Return a plan with the numbers that were given to a method; refuse one that has others."""
    if size is not None:
        plan = replace(plan, size=records_of(plan, name, size), max_records=1)  # it was the number of records
    if steps is not None and plan.steps not in (None, steps):
        raise ValueError(
            f"steps={steps} was given to {name}, and steps={plan.steps} to the fit. Leave it out of {name}, whose "
            "phases are parts of the steps of the fit."
        )
    return plan if steps is None else replace(plan, steps=steps)


def moved(size: int | None = None, steps: int | None = None) -> None:
    """Warn of a factory's arguments that a method takes from its plan now.

    Privacy: public.
    """
    if size is not None:
        warnings.warn(
            "size= of a method is deprecated: it takes the size of the records. Leave it out, and write "
            "tacit.PrivateData(records, schema, size=...).",
            DeprecationWarning,
            stacklevel=3,
        )
        _check_size(size)
    if steps is not None:
        warnings.warn(
            "steps= of a method is deprecated: it takes the steps of the fit. Leave it out, and write "
            "tacit.fit(method, data, budget, steps=...).",
            DeprecationWarning,
            stacklevel=3,
        )


def deviation(prior_std: float, name: str, older: float | None, power: float) -> float:
    """Return a prior's standard deviation, which a deprecated argument may state by another measure.

    Privacy: public.

    Parameters
    ----------
    prior_std
        The standard deviation, as it is given now.
    name, older
        The older argument, and its value if it was given.
    power
        The standard deviation is the older value to this power.
    """
    if older is None:
        check_positive(prior_std=prior_std)
        return prior_std
    check_positive(**{name: older})
    warnings.warn(
        f"{name}={older:g} is deprecated: priors are given by their standard deviations. "
        f"Write prior_std={older**power:g}.",
        DeprecationWarning,
        stacklevel=3,
    )
    return float(older**power)


def _check_size(size: int) -> None:
    """Refuse a number of records that cannot be."""
    if size < 1:
        raise ValueError(f"size is {size}; it is the public number of records. Write size=1000 for about a thousand.")
