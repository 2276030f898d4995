"""GuidedModel a formula with ``formulae``, and setting its terms up on a public frame.

The frame has all declared levels and numbers even between their bounds; no record is needed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.facts.placeholder import even_columns
from tacit.facts.schema import Schema
from tacit.types import Array

FRAME = 1001
"""Lines of the public frame."""

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    name: (getattr(np, name), getattr(jnp, name)) for name in ("log", "log1p", "log2", "log10", "exp", "sqrt", "abs")
}
STATEFUL = ("center", "scale", "standardize", "bs", "poly")
CODINGS = ("C", "T", "S")


@dataclass(frozen=True)
class Used:
    """A column that a formula uses."""

    name: str


OTHERS = ("I", "offset", "p", "prop", "proportion")


def parsed(text: str) -> Any:
    """Return formulae's description of a formula, not yet set up."""
    import formulae

    try:
        return formulae.model_description(text)
    except Exception as error:  # it raises many kinds
        raise ValueError(
            f"The formula {text!r} cannot be read: {error} Write it like y ~ age + sex + (1 | g)."
        ) from error


def nodes(description: Any) -> list[Any]:
    """Return the columns and the functions that a formula uses."""
    terms = [*description.common_terms, *(t.expr for t in description.group_terms)]
    terms += [term.factor for term in description.group_terms]
    terms += [description.response.term] if description.response else []
    components = [component for term in terms for component in getattr(term, "components", ())]
    found: list[Any] = []
    for component in components:
        found += walk(component.call) if hasattr(component, "call") else [Used(str(component.name))]
    return found


def walk(node: Any) -> list[Any]:
    """Return the columns and the functions of an expression."""
    if hasattr(node, "callee"):
        children = [*node.args, *node.kwargs.values()]
        return [node.callee, *(one for child in children for one in walk(child))]
    if hasattr(node, "op"):
        return [one for child in node.args for one in walk(child)]
    if hasattr(node, "value"):
        return []
    if node.name in ("True", "False", "None"):  # as in bs(x, df=5, center=False)
        return []
    return [Used(str(node.name))]


def evaluate(description: Any, frame: Any) -> None:
    """Evaluate the terms by formulae on the public frame: codings, centres, knots."""
    from formulae.environment import Environment

    functions = {name: both[0] for name, both in FUNCTIONS.items()}
    environment = Environment([{**functions, "np": np, "True": True, "False": False, "None": None}])
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused below
            description.eval(frame, environment)
    except Exception as error:
        raise ValueError(f"A term of the formula cannot be set up: {error}") from error


@lru_cache(8)
def frame_of(schema: Schema) -> Any:
    """Return the public frame: numbers even between their bounds, levels one after the other."""
    import pandas

    lines = max([FRAME, *(len(column.levels or ()) for column in schema.columns.values())])
    columns = {}
    for name, column in schema.columns.items():
        if column.levels is not None and not column.shape:
            codes = np.arange(lines) % len(column.levels)
            columns[name] = pandas.Categorical.from_codes(codes, categories=list(column.levels), ordered=True)
        elif not column.shape:
            columns[name] = np.linspace(float(column.low or 0), float(column.high or 0), lines)
    return pandas.DataFrame(columns)


@lru_cache(8)
def scattered(schema: Schema) -> dict[str, Array]:
    """Return public records that know nothing but the schema, both ends of all bounds among them."""
    known = Schema({name: column for name, column in schema.columns.items() if not column.shape})
    records = {}
    for name, values in even_columns(known, jax.random.key(0), FRAME - 2).items():
        column = known.columns[name]
        ends = [0, len(column.levels) - 1] if column.levels is not None else [column.low, column.high]
        records[name] = jnp.concatenate([values, jnp.asarray(ends, values.dtype)])
    return records


def instead(given: str, known: Any) -> str:
    """Return what may have been meant by an unknown name."""
    near = difflib.get_close_matches(given, list(known), 1)
    if near and not near[0].isidentifier():  # income (EUR)
        return f"did you mean {near[0]!r}? Such a name is written in backquotes: `{near[0]}`."
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(str, known))}."
