"""Terms of a formula: from the columns of a record to its columns of the design, in JAX.

The terms have been set up by ``formulae`` on a public frame. What comes out equals formulae's own design.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from tacit.facts.parsing import CODINGS, FUNCTIONS, Used, walk
from tacit.facts.schema import Schema
from tacit.types import Array

Columns = Mapping[str, Any]
"""Columns of records as they are stored: numbers, and codes of levels."""


@dataclass(frozen=True)
class Term:
    """A population-level term: its columns of the design, what they are called, and their public centre and scale."""

    name: str
    labels: tuple[str, ...]
    values: Callable[[Columns], Array]
    centre: np.ndarray
    scale: np.ndarray


@dataclass(frozen=True)
class Group(Term):
    """A group effect: as a term, and the group of a record."""

    groups: tuple[str, ...]
    index: Callable[[Columns], Array]


def read_term(term: Any, schema: Schema, frame: Columns, centred: bool) -> Term:
    """Translate a term of formulae."""
    if term.kind == "intercept":
        return Term("Intercept", ("Intercept",), _ones, np.zeros(1), np.ones(1))
    parts = [_component(component, schema) for component in term.components]

    def values(columns: Columns) -> Array:
        found = parts[0](columns)
        for part in parts[1:]:
            found = (found[:, :, None] * part(columns)[:, None, :]).reshape(len(found), -1)
        return found

    shown = np.asarray(values(frame), float)
    if not np.isfinite(shown).all():
        raise ValueError(
            f"The term {term.name} is not finite for all that the schema allows. Change the bounds, or the term: "
            "log(x + 1) is finite at 0."
        )
    low, high = shown.min(0), shown.max(0)
    counted = all(component.kind == "categoric" for component in term.components)
    # An indicator is of unit size. A number is where its bounds are two units from its centre. Splines and polynomials,
    # several columns for one number, have been centred together.
    centre = (low + high) / 2 if centred and not counted and len(low) == 1 else np.zeros(len(low))
    scale = np.ones(len(low)) if counted else np.maximum(np.abs(low - centre), np.abs(high - centre)) / 2
    return Term(term.name, tuple(term.labels), values, centre, np.where(scale > 0, scale, 1.0))


def read_group_term(term: Any, schema: Schema, frame: Columns) -> Group:
    """Translate a group effect of formulae."""
    for component in term.factor.components:
        if hasattr(component, "call") or schema.columns[component.name].levels is None:
            raise ValueError(
                f"The groups of ({term.name}) are {component.name}, which is not a category. Declare its levels in the "
                f"schema: {component.name} = {{levels = [...]}}."
            )
    expr = term.expr
    effect = read_term(expr, schema, frame, centred=True)
    label = ("1",) if expr.kind == "intercept" else effect.labels
    names = [component.name for component in term.factor.components]
    counts = [len(schema.columns[name].levels or ()) for name in names]

    def index(columns: Columns) -> Array:
        place = jnp.zeros((), jnp.int32)
        for name, count in zip(names, counts, strict=True):
            place = place * count + columns[name]
        return place

    return Group(term.name, label, effect.values, effect.centre, effect.scale, tuple(term.groups), index)


def _component(component: Any, schema: Schema) -> Callable[[Columns], Array]:
    """Translate a variable or a call: from columns to a matrix with one line for each record."""
    if component.kind == "categoric":
        name = _coded(component, schema)
        declared = schema.columns[name].levels or ()
        rows = [component.levels.index(level) for level in declared]
        matrix = jnp.asarray(np.asarray(component.contrast_matrix.matrix, np.float32)[rows])
        return lambda columns: matrix[columns[name]]
    if not hasattr(component, "call"):
        return lambda columns: _number(columns[component.name])[:, None]
    return read_values(component.call, schema)


def _coded(component: Any, schema: Schema) -> str:
    """Return the name of the column that a categorical component codes."""
    if not hasattr(component, "call"):
        return str(component.name)
    inner = component.call
    while hasattr(inner, "args"):
        if inner.callee not in CODINGS or not inner.args:
            raise ValueError(f"The term {component.name} is not understood. Write T(g), S(g) or g for a category g.")
        inner = inner.args[0]
    if schema.columns[inner.name].levels is None:
        raise ValueError(
            f"The term {component.name} makes a category of the number {inner.name!r}, whose levels nobody declared. "
            f"Write {inner.name} = {{levels = [...]}} in the schema."
        )
    return str(inner.name)


def read_values(node: Any, schema: Schema) -> Callable[[Columns], Array]:
    """Translate an expression of formulae, whose stateful parts are set up, to a matrix of numbers."""
    for used in walk(node):
        if isinstance(used, Used) and schema.columns[used.name].levels is not None:
            raise ValueError(
                f"The formula computes with {used.name!r}, which is a category. Use it as a term of its own, or "
                "declare it as a number."
            )

    def matrix(columns: Columns) -> Array:
        found = _computed(node, columns)
        found = (
            jnp.broadcast_to(jnp.asarray(found, jnp.float32), (length_of(columns),)) if jnp.ndim(found) == 0 else found
        )
        return found if found.ndim == 2 else found[:, None]

    return matrix


def _computed(node: Any, columns: Columns) -> Any:
    if hasattr(node, "op"):
        found = node.op(*(_computed(arg, columns) for arg in node.args))
        return found.astype(jnp.float32) if hasattr(found, "astype") else found
    if hasattr(node, "value"):
        return node.value
    if not hasattr(node, "callee"):
        return _number(columns[node.name])
    name, state = node.callee.removeprefix("np."), node.stateful_transform
    given = _computed(node.args[0], columns)
    if name in FUNCTIONS:
        return FUNCTIONS[name][1](given)
    if name == "center":
        return given - np.float32(state.mean)
    if name in ("scale", "standardize"):
        return (given - np.float32(state.mean)) / np.float32(state.std)
    if name == "bs":
        basis = _splines(given, np.asarray(state._knots, float), state._degree)
        return basis @ np.asarray(state._centering_matrix, np.float32) if state._center else basis
    if name == "poly":
        return _polynomials(given, state)
    return given  # I(...)


def _splines(x: Array, knots: np.ndarray, degree: int) -> Array:
    """Return the B-spline basis by its recursion; beyond the knots the outer polynomials go on."""
    count = len(knots) - degree - 1
    inner = knots[degree + 1 : count]
    interval = degree + jnp.sum(x[:, None] >= jnp.asarray(inner, jnp.float32), 1)
    basis = (interval[:, None] == np.arange(len(knots) - 1)).astype(jnp.float32)
    for order in range(1, degree + 1):
        width = knots[order:] - knots[:-order]
        inverse = np.divide(1.0, width, out=np.zeros_like(width), where=width > 0).astype(np.float32)
        share = (x[:, None] - knots[:-order].astype(np.float32)) * inverse
        rest = (knots[order:].astype(np.float32) - x[:, None]) * inverse
        basis = share[:, :-1] * basis[:, :-1] + rest[:, 1:] * basis[:, 1:]
    return basis


def _polynomials(x: Array, state: Any) -> Array:
    if state.raw:
        return jnp.stack([x**k for k in range(1, state.degree + 1)], 1)
    powers = [jnp.ones_like(x)]
    for k in range(1, state.degree + 1):
        power = (x - np.float32(state.alpha[k - 1])) * powers[-1]
        if k >= 2:
            power -= np.float32(state.norms2[k - 1] / state.norms2[k - 2]) * powers[-2]
        powers.append(power)
    return jnp.stack([power / math.sqrt(state.norms2[k]) for k, power in enumerate(powers)][1:], 1)


def _number(values: Any) -> Array:
    return jnp.asarray(values, jnp.float32)


def _ones(columns: Columns) -> Array:
    return jnp.ones((length_of(columns), 1))


def length_of(columns: Columns) -> int:
    """Return how many records the columns hold."""
    given = [values for values in columns.values() if values is not None]
    if not given:
        raise ValueError("No columns are given, so that nothing says how many records there are.")
    return int(jnp.shape(given[0])[0])


def side_by_side(parts: list[Array], length: int) -> Array:
    """Join matrices of so many lines, perhaps none, to one."""
    return jnp.concatenate([jnp.zeros((length, 0)), *parts], 1)
