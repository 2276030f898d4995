"""Formulas: a line of text and a schema make a NumPyro model.

    readmitted ~ age + sex + (1 | clinic)

The text is read by ``formulae``. What formulae, Bambi and R take from the data (levels, centres, scales, knots, priors)
is taken from the schema here: terms are set up on a public frame with all levels, numbers even between their bounds.
The design of a record is then computed from that record alone, in JAX, and equals formulae's own.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import AffineTransform
from numpyro.infer.autoguide import AutoLaplaceApproximation

from tacit.likelihoods import FAMILIES, Family
from tacit.schema import Schema
from tacit.simulate import evenly
from tacit.types import Array

Columns = Mapping[str, Any]
"""Columns of records as they are stored: numbers, and codes of levels."""

WIDTH = 2.5
"""Standard deviation of a default prior, in units of the response for one unit of the column."""
FRAME = 1001
"""Lines of the public frame."""
OTHER_NAMES = {"logistic": "bernoulli", "binary": "bernoulli", "normal": "gaussian", "linear": "gaussian"}
"""What families are called elsewhere."""
LAPLACE = 50
"""The curvature of so many coefficients is asked for at most."""

_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    name: (getattr(np, name), getattr(jnp, name)) for name in ("log", "log1p", "log2", "log10", "exp", "sqrt", "abs")
}
_STATEFUL = ("center", "scale", "standardize", "bs", "poly")
_CODINGS = ("C", "T", "S")


def formula(
    text: str, schema: Schema, family: str = "gaussian", priors: Mapping[str, dist.Distribution] | None = None
) -> Formula:
    """Make a NumPyro model from a formula, as in R, Bambi or lme4; ``print`` says it in words.

    Terms: columns, interactions (``a:b``, ``a * b``), ``center(x)``, ``scale(x)``, ``bs(x, df=5)``, ``poly(x, 2)``,
    ``log(x)`` and other functions, ``{x**2}``, ``offset(x)``, codings ``T(g, ref="b")`` and ``S(g)``, group effects
    ``(1 | g)``, ``(x | g)``. Levels, centres, scales, knots and priors come from the schema, never from records.

    Privacy: public. No record is touched.

    Parameters
    ----------
    text
        The formula: ``"readmitted ~ age + sex + (1 | clinic)"``; for binomial counts ``"p(successes, trials) ~ ..."``.
    schema
        The public facts about the columns. The formula may use some of them.
    family
        One of "gaussian", "student", "bernoulli", "binomial", "poisson", "negative_binomial", "gamma", "ordinal" and
        "categorical".
    priors
        NumPyro distributions that take the place of the default ones, by the name that ``print`` shows. Those of
        coefficients are on the scale of the column; that of the intercept is where numbers are at their centres.

    Examples
    --------
    >>> facts = {"age": {"low": 20, "high": 100}, "sex": {"levels": ["f", "m"]}, "ill": {"levels": ["no", "yes"]}}
    >>> model = formula("ill ~ age + sex", Schema(facts), family="bernoulli")
    >>> model.names
    ('Intercept', 'age', 'sex[m]')
    """
    return Formula(text, schema, family, priors)


class Formula:
    """A regression model, written as a formula over a schema; a NumPyro model to be called with columns.

    Privacy: public. Holds no record.

    Attributes
    ----------
    text, schema, family
        As given.
    response
        The name of the column that is modelled.
    columns
        The names of the columns that it is modelled by.
    names
        The names of the population-level coefficients, in the order of the columns of ``design``.
    groups
        By name of a group effect, the names of its groups.
    priors
        By name of a latent site, its prior.
    labels
        By name of a latent site, what its numbers are called.
    axes
        By name of a latent site, the name and the coordinates of each of its axes.
    terms, group_terms, offsets
        What the predictor is made of.
    centre, scale
        Of each column of ``design``: what is taken off and divided by inside the model, from the schema.
    unit
        By how much the predictor usually changes, from the schema.
    clip, guide
        What suits the model where the user of ``tacit.fit`` gives none: a clip for its scores, and a guide for
        ``tacit.vi``. Without group effects that is Laplace's, whose spread follows the curvature.
    """

    def __init__(
        self, text: str, schema: Schema, family: str = "gaussian", priors: Mapping[str, dist.Distribution] | None = None
    ) -> None:
        if family not in FAMILIES:
            meant = OTHER_NAMES.get(family)
            raise ValueError(
                f"The family is {family!r}; "
                + (f"here that is {meant!r}." if meant is not None else _instead(family, FAMILIES))
            )
        if not isinstance(schema, Schema):
            raise TypeError(f"The schema is of type {type(schema).__name__}. Write tacit.Schema({{...}}).")
        self.text, self.schema, self.family = text, schema, family
        self._family: Family = FAMILIES[family]
        description = _parsed(text)
        self._check_names(description)
        self.response, self._trials, self._success = self._read_response(description)
        self._facts = schema.columns[self.response]
        if not self._family.suits(self._facts):
            others = [name for name, other in FAMILIES.items() if other.suits(self._facts) and name != "binomial"]
            raise ValueError(
                f"The response {self.response!r} does not fit the family {family!r}, which needs {self._family.needs}; "
                f"the schema has {self._facts}. Write family {' or '.join(map(repr, others))}, or change the schema's "
                f"line: {self._facts.to_toml()}."
            )
        _evaluate(description, _frame(schema))
        self._set_up(description)
        self.priors = self._with_priors(dict(priors or {}))

    # What a record's predictor is made of.

    def design(self, columns: Columns) -> Array:
        """Give the population-level design matrix: one line for each record, one column for each of ``names``.

        It equals that of formulae. Numbers are as declared, not centred or scaled; offsets and group effects are not in
        it.

        Privacy: of one record where it is given one; public where the columns are.
        """
        return _side_by_side([term.values(columns) for term in self.terms], _length(columns))

    def linear(self, draw: Mapping[str, Any], columns: Columns) -> Array:
        """Give the linear predictor of each record, at one draw of the latents.

        Privacy: as ``design``.
        """
        length, outputs = _length(columns), self._outputs
        total = jnp.zeros((length, *outputs))
        for term in self.terms:
            values = term.values(columns) - jnp.asarray(term.centre, jnp.float32)
            weights = jnp.reshape(draw[term.name], (len(term.labels), *outputs))
            total += jnp.tensordot(values, weights, 1)
        for term in self.group_terms:
            values = term.values(columns) - jnp.asarray(term.centre, jnp.float32)
            spread = jnp.reshape(draw[f"{term.name}_sigma"], (1, len(term.labels), *outputs))
            steps = jnp.reshape(draw[f"{term.name}_offset"], (len(term.groups), len(term.labels), *outputs))
            effects = (spread * steps)[term.index(columns)]
            total += jnp.sum(values.reshape(*values.shape, *[1] * len(outputs)) * effects, 1)
        return total + self.offset(columns).reshape(length, *[1] * len(outputs))

    def offset(self, columns: Columns) -> Array:
        """Give what is added to each record's predictor as it is.

        Privacy: as ``design``.
        """
        return sum((jnp.ravel(offset(columns)) for offset in self.offsets), jnp.zeros(_length(columns)))

    def outcome(self, columns: Columns) -> Array:
        """Give the response as it is modelled: 1 for the level of two that is counted, else as it is stored.

        Privacy: as ``design``.
        """
        observed = jnp.asarray(columns[self.response])
        return observed if self._success is None else jnp.asarray(observed == self._success, jnp.int32)

    def mean(self, draw: Mapping[str, Any], columns: Columns) -> Array:
        """Give what is expected of each record at one draw: a mean, or for several levels the chance of each.

        Privacy: as ``design``.
        """
        return self._family.mean(self.linear(draw, columns), draw, self._upto(columns))

    def __call__(self, **columns: Any) -> None:
        """Run the NumPyro model; columns that the formula does not use are left alone, the response may be left out.

        Privacy: as ``design``.
        """
        lacking = [name for name in self.columns if columns.get(name) is None]
        if lacking:
            raise ValueError(f"The formula {self.text!r} uses the columns {lacking}, which are not given.")
        draw = {name: numpyro.sample(name, prior) for name, prior in self.priors.items()}
        predictor = self.linear(draw, columns)
        observed = self.outcome(columns) if columns.get(self.response) is not None else None
        with numpyro.plate("records", predictor.shape[0]):
            numpyro.sample(self.response, self._family.observe(predictor, draw, self._upto(columns)), obs=observed)

    @property
    def success(self) -> Any:
        """The level of a response of two levels whose chance is modelled: the second, or the one in brackets.

        Privacy: public.
        """
        levels = self._facts.levels or (0, 1)
        return levels[1 if self._success is None else self._success]

    def _upto(self, columns: Columns) -> Any:
        """Give what the family counts up to: trials of each record, or the number of levels."""
        if self._trials is None:
            return None if self._facts.levels is None else len(self._facts.levels)
        return columns[self._trials] if isinstance(self._trials, str) else self._trials

    # In words.

    def __repr__(self) -> str:
        return f"Formula({self.text!r}, family={self.family!r})"

    def __str__(self) -> str:
        level = f" ({self.response} = {self.success})" if self.family == "bernoulli" else ""
        lines = [
            self.text,
            f"Family {self.family}: {self._family.link}{level}.",
            "Priors, on the scale of the columns:",
        ]
        for name, prior in self.priors.items():
            lines.append(f"  {name:28} {_told(prior)}{self._meaning(name)}")
        for term in self.group_terms:
            shown = [*term.groups[:6], *(["..."] if len(term.groups) > 6 else [])]
            lines.append(f"Groups of {term.name}: {len(term.groups)} ({', '.join(shown)}).")
        middle = [f"{label} = {centre:g}" for label, centre in zip(self.names, self.centre, strict=True) if centre]
        if middle:
            lines.append(f"The intercept is where {', '.join(middle)}: the middle of what the schema allows.")
        return "\n".join(lines)

    def _meaning(self, name: str) -> str:
        labels = self.labels[name]
        if name.endswith("_offset"):
            return ": effect of a group, in units of its sigma"
        if name in {term.name for term in self.terms} and labels != (name,):
            shown = [*labels[:4], *(["..."] if len(labels) > 4 else [])]
            return f" for each of {', '.join(shown)}"
        return ""

    # Reading the formula.

    def _check_names(self, description: Any) -> None:
        for node in _nodes(description):
            if isinstance(node, _Used):
                self._check_column(node.name)
            elif node not in (*_FUNCTIONS, *(f"np.{name}" for name in _FUNCTIONS), *_STATEFUL, *_CODINGS, *_OTHERS):
                known = (*_STATEFUL, *_FUNCTIONS, *_CODINGS, "offset", "I")
                spaced = [name for name in self.schema.columns if name.startswith(node) and not name.isidentifier()]
                raise ValueError(
                    f"The formula uses the function {node!r}, which is not one of {', '.join(known)}."
                    + (f" A column of that name is written in backquotes: `{spaced[0]}`." if spaced else "")
                )

    def _check_column(self, name: str) -> None:
        if name not in self.schema.columns:
            raise ValueError(f"The formula uses {name!r}, which is no column; {_instead(name, self.schema.columns)}")
        if self.schema.columns[name].shape:
            raise ValueError(
                f"The formula uses {name!r}, an array of shape {self.schema.columns[name].shape}. A formula takes "
                "columns of single values; write a NumPyro model for arrays."
            )

    def _read_response(self, description: Any) -> tuple[str, str | int | None, int | None]:
        """Give the name of the response, the trials of a binomial one, and the code of the level that is counted."""
        if description.response is None:
            raise ValueError(
                f"The formula {self.text!r} has no response. Write what is modelled before ~, as in y ~ x."
            )
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
            if self.family != "binomial":
                raise ValueError(f"The response is {component.name}: write family='binomial' for successes in trials.")
            return name, trials, None
        if self.family == "binomial":
            raise ValueError(f"A binomial response needs its trials: write p({component.name}, trials) ~ ...")
        if component.reference is None:
            return component.name, None, None
        levels = self.schema.columns[component.name].levels or ()
        texts = [str(level) for level in levels]
        if self.family != "bernoulli" or str(component.reference) not in texts:
            raise ValueError(
                f"The response is {component.name}[{component.reference}]. A level in brackets is the one that a "
                f"bernoulli response counts; {_instead(str(component.reference), texts)}"
            )
        place = texts.index(str(component.reference))
        return component.name, None, None if place == 1 else place

    def _set_up(self, description: Any) -> None:
        """Translate formulae's terms, which have been set up on the public frame."""
        intercept = any(term.kind == "intercept" for term in description.common_terms)
        if self.family == "ordinal":  # its cut points are its intercepts
            description.common_terms = [term for term in description.common_terms if term.kind != "intercept"]
        self.offsets = [
            _values(term.components[0].call.args[0], self.schema)
            for term in description.common_terms
            if term.kind == "offset"
        ]
        self._outputs = (len(self._facts.levels or ()) - 1,) if self.family == "categorical" else ()
        frame = _scattered(self.schema)
        common = [term for term in description.common_terms if term.kind != "offset"]
        self.terms = [_term(term, self.schema, frame, centred=intercept) for term in common]
        self.group_terms = [_group_term(term, self.schema, frame) for term in description.group_terms]
        used = {node.name for node in _nodes(description) if isinstance(node, _Used)}
        self.columns = tuple(name for name in self.schema.columns if name in used - {self.response})
        named = [name for term in (*description.common_terms, *description.group_terms) for name in term.var_names]
        if self.response in named:
            raise ValueError(f"The formula explains {self.response!r} by itself. Take it out after ~.")
        self.names = tuple(label for term in self.terms for label in term.labels)
        self.centre, self.scale = (
            np.concatenate([np.zeros(0), *(getattr(term, part) for term in self.terms)]) for part in ("centre", "scale")
        )
        self.groups = {term.name: term.groups for term in self.group_terms}
        self.clip = self._suited_clip(frame)
        few = len(self.names) <= LAPLACE and not self.group_terms
        self.guide = AutoLaplaceApproximation if few else None

    def _suited_clip(self, frame: Columns) -> float:
        """Give the root mean square norm of a score over the public frame, for residuals of usual size."""
        squares = jnp.zeros(FRAME)
        for term in (*self.terms, *self.group_terms):
            # An offset and the logarithm of a spread move the predictor by about half a unit each.
            share = 0.5 if isinstance(term, _Group) else 1.0
            squares += share * jnp.sum(((term.values(frame) - term.centre) / term.scale) ** 2, 1)
        more = len(self._family.parameters(self._facts))
        return self._family.reach * math.sqrt(float(jnp.mean(squares)) + more)

    def _with_priors(self, given: dict[str, dist.Distribution]) -> dict[str, dist.Distribution]:
        location, unit = self._family.unit(self._facts)
        self.unit = unit
        priors: dict[str, dist.Distribution] = {}
        self.labels: dict[str, tuple[str, ...]] = {}
        self.axes: dict[str, list[tuple[str, list[str]]]] = {}
        levels = [f": {level}" for level in (self._facts.levels or ())[1:]] if self._outputs else [""]

        def add(
            name: str,
            prior: Any,
            shape: tuple[int, ...],
            labels: list[str],
            axes: list[tuple[str, list[str]]],
            at: Any = 0.0,
            by: Any = None,
        ) -> None:
            if name in (*priors, self.response):
                raise ValueError(f"The model has two things of the name {name!r}. Rename the column of that name.")
            prior = given.pop(name, prior)
            if not isinstance(prior, dist.Distribution):
                raise TypeError(f"The prior of {name!r} is {prior!r}. Give a NumPyro distribution.")
            # Entries of their own shape are kept, as those of a prior for a whole term.
            whole = prior if prior.batch_shape + prior.event_shape == shape else prior.expand(shape)
            whole = whole.to_event(len(whole.batch_shape))
            real = by is not None and whole.support in (
                constraints.real,
                constraints.independent(constraints.real, len(shape)),
            )
            priors[name] = _InUnits(whole, at, by) if real else whole
            self.labels[name] = tuple(label + level for label in labels for level in levels)
            self.axes[name] = axes

        def units(term: _Term) -> np.ndarray:
            """Give the unit of each coefficient, in the shape of the site: a number where there is one."""
            each = np.multiply.outer(unit / term.scale, np.ones(self._outputs))
            return each.reshape(()) if each.shape == (1,) else each

        def named(term: _Term, axis: str) -> list[tuple[str, list[str]]]:
            """Name the axes of a site whose shape is that of ``units(term)``."""
            along = [(f"{term.name}_{axis}", list(term.labels))] if units(term).shape else []
            outputs = [str(level) for level in (self._facts.levels or ())[1:]]
            return along + ([(f"{self.response}_level", outputs)] if self._outputs else [])

        for term in self.terms:
            by = units(term)
            at = location if term.name == "Intercept" and not self._outputs else 0.0
            add(term.name, dist.Normal(at, WIDTH * by), by.shape, list(term.labels), named(term, "coefficient"), at, by)
        for group in self.group_terms:
            by = units(group)
            labels = [f"{group.name}_sigma" + (f"[{label}]" if len(group.labels) > 1 else "") for label in group.labels]
            add(f"{group.name}_sigma", dist.HalfNormal(by), by.shape, labels, named(group, "effect"))
            labels = [f"{label}|{level}" for level in group.groups for label in group.labels]
            axes = [(f"{group.name.split('|')[-1]}_group", list(group.groups)), *named(group, "effect")]
            add(f"{group.name}_offset", dist.Normal(0.0, 1.0), (len(group.groups), *by.shape), labels, axes)
        levels = [""]
        for name, prior in self._family.parameters(self._facts).items():
            shape = prior.batch_shape + prior.event_shape
            labels = [name] if not shape else [f"{name}[{i}]" for i in range(math.prod(shape))]
            add(name, prior, shape, labels, [(f"{name}_place", labels)] if len(shape) == 1 else [])
        if given:
            name = next(iter(given))
            raise ValueError(f"A prior is given for {name!r}, which the model does not have; {_instead(name, priors)}")
        return priors


# Terms.


@dataclass(frozen=True)
class _Term:
    """A population-level term: its columns of the design, what they are called, and their public centre and scale."""

    name: str
    labels: tuple[str, ...]
    values: Callable[[Columns], Array]
    centre: np.ndarray
    scale: np.ndarray


@dataclass(frozen=True)
class _Group(_Term):
    """A group effect: as a term, and the group of a record."""

    groups: tuple[str, ...]
    index: Callable[[Columns], Array]


def _term(term: Any, schema: Schema, frame: Columns, centred: bool) -> _Term:
    """Translate a term of formulae."""
    if term.kind == "intercept":
        return _Term("Intercept", ("Intercept",), _ones, np.zeros(1), np.ones(1))
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
    return _Term(term.name, tuple(term.labels), values, centre, np.where(scale > 0, scale, 1.0))


def _group_term(term: Any, schema: Schema, frame: Columns) -> _Group:
    """Translate a group effect of formulae."""
    for component in term.factor.components:
        if hasattr(component, "call") or schema.columns[component.name].levels is None:
            raise ValueError(
                f"The groups of ({term.name}) are {component.name}, which is not a category. Declare its levels in the "
                f"schema: {component.name} = {{levels = [...]}}."
            )
    expr = term.expr
    effect = _term(expr, schema, frame, centred=True)
    label = ("1",) if expr.kind == "intercept" else effect.labels
    names = [component.name for component in term.factor.components]
    counts = [len(schema.columns[name].levels or ()) for name in names]

    def index(columns: Columns) -> Array:
        place = jnp.zeros((), jnp.int32)
        for name, count in zip(names, counts, strict=True):
            place = place * count + columns[name]
        return place

    return _Group(term.name, label, effect.values, effect.centre, effect.scale, tuple(term.groups), index)


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
    return _values(component.call, schema)


def _coded(component: Any, schema: Schema) -> str:
    """Give the name of the column that a categorical component codes."""
    if not hasattr(component, "call"):
        return str(component.name)
    inner = component.call
    while hasattr(inner, "args"):
        if inner.callee not in _CODINGS or not inner.args:
            raise ValueError(f"The term {component.name} is not understood. Write T(g), S(g) or g for a category g.")
        inner = inner.args[0]
    if schema.columns[inner.name].levels is None:
        raise ValueError(
            f"The term {component.name} makes a category of the number {inner.name!r}, whose levels nobody declared. "
            f"Write {inner.name} = {{levels = [...]}} in the schema."
        )
    return str(inner.name)


def _values(node: Any, schema: Schema) -> Callable[[Columns], Array]:
    """Translate an expression of formulae, whose stateful parts are set up, to a matrix of numbers."""
    for used in _walk(node):
        if isinstance(used, _Used) and schema.columns[used.name].levels is not None:
            raise ValueError(
                f"The formula computes with {used.name!r}, which is a category. Use it as a term of its own, or "
                "declare it as a number."
            )

    def matrix(columns: Columns) -> Array:
        found = _computed(node, columns)
        found = (
            jnp.broadcast_to(jnp.asarray(found, jnp.float32), (_length(columns),)) if jnp.ndim(found) == 0 else found
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
    if name in _FUNCTIONS:
        return _FUNCTIONS[name][1](given)
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
    """Give the B-spline basis by its recursion; beyond the knots the outer polynomials go on."""
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


# formulae.


@dataclass(frozen=True)
class _Used:
    """A column that a formula uses."""

    name: str


_OTHERS = ("I", "offset", "p", "prop", "proportion")


def _parsed(text: str) -> Any:
    import formulae

    try:
        return formulae.model_description(text)
    except Exception as error:  # it raises many kinds
        raise ValueError(
            f"The formula {text!r} cannot be read: {error} Write it like y ~ age + sex + (1 | g)."
        ) from error


def _nodes(description: Any) -> list[Any]:
    """Give the columns and the functions that a formula uses."""
    terms = [*description.common_terms, *(t.expr for t in description.group_terms)]
    terms += [term.factor for term in description.group_terms]
    terms += [description.response.term] if description.response else []
    components = [component for term in terms for component in getattr(term, "components", ())]
    found: list[Any] = []
    for component in components:
        found += _walk(component.call) if hasattr(component, "call") else [_Used(str(component.name))]
    return found


def _walk(node: Any) -> list[Any]:
    """Give the columns and the functions of an expression."""
    if hasattr(node, "callee"):
        children = [*node.args, *node.kwargs.values()]
        return [node.callee, *(one for child in children for one in _walk(child))]
    if hasattr(node, "op"):
        return [one for child in node.args for one in _walk(child)]
    if hasattr(node, "value"):
        return []
    if node.name in ("True", "False", "None"):  # as in bs(x, df=5, center=False)
        return []
    return [_Used(str(node.name))]


def _evaluate(description: Any, frame: Any) -> None:
    """Let formulae set up its terms on the public frame: codings, centres, knots."""
    from formulae.environment import Environment

    functions = {name: both[0] for name, both in _FUNCTIONS.items()}
    environment = Environment([{**functions, "np": np, "True": True, "False": False, "None": None}])
    try:
        with np.errstate(all="ignore"):  # what is not finite is told below
            description.eval(frame, environment)
    except Exception as error:
        raise ValueError(f"A term of the formula cannot be set up: {error}") from error


@lru_cache(8)
def _frame(schema: Schema) -> Any:
    """Give the public frame: numbers even between their bounds, levels one after the other."""
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
def _scattered(schema: Schema) -> dict[str, Array]:
    """Give public records that know nothing but the schema, both ends of all bounds among them."""
    known = Schema({name: column for name, column in schema.columns.items() if not column.shape})
    records = {}
    for name, values in evenly(known, jax.random.key(0), FRAME - 2).items():
        column = known.columns[name]
        ends = [0, len(column.levels) - 1] if column.levels is not None else [column.low, column.high]
        records[name] = jnp.concatenate([values, jnp.asarray(ends, values.dtype)])
    return records


# Coordinates.


class _Units(constraints.Constraint):  # type: ignore[misc]
    """All real numbers, with an origin and a unit: a latent of unit size in the coordinates that methods work in."""

    def __init__(self, origin: Any, unit: Any) -> None:
        self.origin, self.unit = origin, unit

    def __call__(self, x: Any) -> Any:
        return jnp.isfinite(x)

    def feasible_like(self, prototype: Any) -> Any:
        return jnp.broadcast_to(self.origin, jnp.shape(prototype))

    def tree_flatten(self) -> Any:
        return (self.origin, self.unit), (("origin", "unit"), {})

    def eq(self, other: object, static: bool = False) -> Any:
        if not isinstance(other, _Units):
            return False
        return np.array_equal(self.origin, other.origin) and np.array_equal(self.unit, other.unit)


@biject_to.register(_Units)  # type: ignore[untyped-decorator]
def _in_units(constraint: _Units) -> Any:
    return AffineTransform(constraint.origin, constraint.unit)


class _InUnits(dist.Distribution):  # type: ignore[misc]
    """A prior on the scale of the columns, for a latent that methods move in units of its own."""

    reparametrized_params: list[str] = []  # noqa: RUF012, as NumPyro has it
    pytree_data_fields = ("prior",)
    pytree_aux_fields = ("at", "by")

    def __init__(self, prior: dist.Distribution, at: Any, by: Any) -> None:
        self.prior, self.at, self.by = prior, at, by
        super().__init__(prior.batch_shape, prior.event_shape)

    @property
    def support(self) -> Any:
        """Give the real numbers, in units."""
        return constraints.independent(_Units(self.at, self.by), len(self.event_shape))

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        """Draw from the prior."""
        return self.prior.sample(key, sample_shape)

    def log_prob(self, value: Any) -> Any:
        """Give the log density of the prior."""
        return self.prior.log_prob(value)


def bare(prior: dist.Distribution) -> dist.Distribution:
    """Give the distribution of single numbers that a prior is made from.

    Privacy: public.
    """
    while hasattr(prior, "prior") or hasattr(prior, "base_dist"):
        prior = prior.prior if hasattr(prior, "prior") else prior.base_dist
    return prior


def _told(prior: dist.Distribution) -> str:
    """Say a prior in words."""
    prior = bare(prior)
    numbers = []
    for name in prior.arg_constraints:
        values = np.unique(np.asarray(getattr(prior, name)).round(6))
        numbers.append(f"{values[0]:.3g}" if len(values) == 1 else f"{values[0]:.3g} to {values[-1]:.3g}")
    return f"{type(prior).__name__}({', '.join(numbers)})"


def _number(values: Any) -> Array:
    return jnp.asarray(values, jnp.float32)


def _ones(columns: Columns) -> Array:
    return jnp.ones((_length(columns), 1))


def _length(columns: Columns) -> int:
    given = [values for values in columns.values() if values is not None]
    if not given:
        raise ValueError("No columns are given, so that nothing says how many records there are.")
    return int(jnp.shape(given[0])[0])


def _side_by_side(parts: list[Array], length: int) -> Array:
    return jnp.concatenate([jnp.zeros((length, 0)), *parts], 1)


def _instead(given: str, known: Any) -> str:
    near = difflib.get_close_matches(given, list(known), 1)
    if near and not near[0].isidentifier():  # income (EUR)
        return f"did you mean {near[0]!r}? Such a name is written in backquotes: `{near[0]}`."
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(str, known))}."
