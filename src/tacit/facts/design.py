"""The design of a formula: what a formula over a schema computes of a record, without any distribution.

The text is read by ``formulae``; its terms are set up on a public frame, and what they make of a record is computed
from that record alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tacit.facts.column import Column
from tacit.facts.parsing import (
    CODINGS,
    FUNCTIONS,
    OTHERS,
    STATEFUL,
    Used,
    evaluate,
    frame_of,
    instead,
    nodes,
    scattered,
)
from tacit.facts.schema import Schema
from tacit.facts.terms import Columns, Group, Term, length_of, read_group_term, read_term, read_values, side_by_side
from tacit.types import Array


class Response(NamedTuple):
    """The column that a formula models.

    Attributes
    ----------
    name
        Of the column.
    trials
        Of a binomial response, the column or the number of trials.
    success
        The code of the level that is counted, where it is not the second of two.
    """

    name: str
    trials: str | int | None
    success: int | None


@dataclass(frozen=True)
class Design:
    """The response and the terms of a formula, as functions of columns.

    Privacy: public. Holds no record.
    """

    schema: Schema
    response: Response
    columns: tuple[str, ...]
    terms: tuple[Term, ...]
    group_terms: tuple[Group, ...]
    offsets: tuple[Callable[[Columns], Array], ...]

    @property
    def facts(self) -> Column:
        """What is declared about the response."""
        return self.schema.columns[self.response.name]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the population-level coefficients."""
        return tuple(label for term in self.terms for label in term.labels)

    @cached_property
    def centre(self) -> np.ndarray:
        """Of each column of the matrix, what is taken off inside a model."""
        return np.concatenate([np.zeros(0), *(term.centre for term in self.terms)])

    @cached_property
    def scale(self) -> np.ndarray:
        """Of each column of the matrix, what it is divided by inside a model."""
        return np.concatenate([np.zeros(0), *(term.scale for term in self.terms)])

    def matrix(self, columns: Columns) -> Array:
        """Return the population-level design matrix, which equals that of formulae.

        Privacy: of one record where it is given one; public where the columns are.
        """
        return side_by_side([term.values(columns) for term in self.terms], length_of(columns))

    def offset(self, columns: Columns) -> Array:
        """Return what is added to each record's predictor as it is.

        Privacy: as ``matrix``.
        """
        return sum((jnp.ravel(offset(columns)) for offset in self.offsets), jnp.zeros(length_of(columns)))

    def outcome(self, columns: Columns) -> Array:
        """Return the response as it is modelled: 1 for the level of two that is counted, else as it is stored.

        Privacy: as ``matrix``.
        """
        observed = jnp.asarray(columns[self.response.name])
        success = self.response.success
        return observed if success is None else jnp.asarray(observed == success, jnp.int32)


def set_up(description: Any, schema: Schema, response: Response, intercepts: bool = True) -> Design:
    """Set formulae's terms up on the public frame, and translate them.

    Without ``intercepts`` the response has cut points instead.
    """
    evaluate(description, frame_of(schema))
    centred = any(term.kind == "intercept" for term in description.common_terms)
    if not intercepts:
        description.common_terms = [term for term in description.common_terms if term.kind != "intercept"]
    offsets = tuple(
        read_values(term.components[0].call.args[0], schema)
        for term in description.common_terms
        if term.kind == "offset"
    )
    frame = scattered(schema)
    common = [term for term in description.common_terms if term.kind != "offset"]
    terms = tuple(read_term(term, schema, frame, centred=centred) for term in common)
    group_terms = tuple(read_group_term(term, schema, frame) for term in description.group_terms)
    used = {node.name for node in nodes(description) if isinstance(node, Used)}
    columns = tuple(name for name in schema.columns if name in used - {response.name})
    named = [name for term in (*description.common_terms, *description.group_terms) for name in term.var_names]
    if response.name in named:
        raise ValueError(f"The formula explains {response.name!r} by itself. Take it out after ~.")
    return Design(schema, response, columns, terms, group_terms, offsets)


def check_names(description: Any, schema: Schema) -> None:
    """Refuse functions that are not known, and columns that are not declared or are arrays."""
    for node in nodes(description):
        if isinstance(node, Used):
            _check_column(node.name, schema)
        elif node not in (*FUNCTIONS, *(f"np.{name}" for name in FUNCTIONS), *STATEFUL, *CODINGS, *OTHERS):
            known = (*STATEFUL, *FUNCTIONS, *CODINGS, "offset", "I")
            spaced = [name for name in schema.columns if name.startswith(node) and not name.isidentifier()]
            raise ValueError(
                f"The formula uses the function {node!r}, which is not one of {', '.join(known)}."
                + (f" A column of that name is written in backquotes: `{spaced[0]}`." if spaced else "")
            )


def _check_column(name: str, schema: Schema) -> None:
    if name not in schema.columns:
        raise ValueError(f"The formula uses {name!r}, which is no column; {instead(name, schema.columns)}")
    if schema.columns[name].shape:
        raise ValueError(
            f"The formula uses {name!r}, an array of shape {schema.columns[name].shape}. A formula takes "
            "columns of single values; write a NumPyro model for arrays."
        )


def read_response(description: Any, text: str, schema: Schema, family: str) -> Response:
    """Return the response of a formula; what it may be depends on the family."""
    if description.response is None:
        raise ValueError(f"The formula {text!r} has no response. Write what is modelled before ~, as in y ~ x.")
    (component,) = description.response.term.components
    if hasattr(component, "call"):
        call = component.call
        if call.callee not in ("p", "prop", "proportion"):
            raise ValueError(
                f"The response is {component.name}. A formula models a column as it is stored: transform it before "
                "the records are sealed, and declare the bounds of what comes out."
            )
        name, trials = (getattr(part, "name", getattr(part, "value", None)) for part in call.args)
        if not isinstance(name, str) or not isinstance(trials, str | int):
            raise ValueError(f"The response is {component.name}. Write p(successes, trials): columns, or a number.")
        if family != "binomial":
            raise ValueError(f"The response is {component.name}: write family='binomial' for successes in trials.")
        return Response(name, trials, None)
    if family == "binomial":
        raise ValueError(f"A binomial response needs its trials: write p({component.name}, trials) ~ ...")
    if component.reference is None:
        return Response(component.name, None, None)
    levels = schema.columns[component.name].levels or ()
    texts = [str(level) for level in levels]
    if family != "bernoulli" or str(component.reference) not in texts:
        raise ValueError(
            f"The response is {component.name}[{component.reference}]. A level in brackets is the one that a "
            f"bernoulli response counts; {instead(str(component.reference), texts)}"
        )
    place = texts.index(str(component.reference))
    return Response(component.name, None, None if place == 1 else place)
