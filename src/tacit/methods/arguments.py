"""Arguments of factories and facts of plans: their checks, and what deprecated ones stand for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import jax.numpy as jnp

from tacit.types import Plan


def check_positive(**values: float) -> None:
    """Refuse public numbers that are not positive, by their names."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value:g}, but must be a positive number, chosen without reading the data.")


def check_choice(allowed: Sequence[str], **values: str) -> None:
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
