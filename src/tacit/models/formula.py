"""Formulas: a line of text and a schema make a NumPyro model.

    readmitted ~ age + sex + (1 | clinic)

The text is read by ``formulae``. What formulae, Bambi and R take from the data (levels, centres, scales, knots, priors)
is taken from the schema here: terms are set up on a public frame with all levels, numbers even between their bounds.
The design of a record is then computed from that record alone, in JAX, and equals formulae's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoLaplaceApproximation

from tacit.facts.design import check_names, read_response, set_up
from tacit.facts.parsing import (
    FRAME,
    instead,
    parsed,
    scattered,
)
from tacit.facts.schema import Schema
from tacit.facts.terms import Columns, Group, length_of
from tacit.models.families import FAMILIES, Family
from tacit.models.priors import Sites, described
from tacit.types import Array

OTHER_NAMES = {"logistic": "bernoulli", "binary": "bernoulli", "normal": "gaussian", "linear": "gaussian"}
"""What families are called elsewhere."""
LAPLACE = 50
"""The curvature of so many coefficients is asked for at most."""


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

    Returns
    -------
    Formula
        A NumPyro model, to be handed to ``tacit.fit``.

    Examples
    --------
    >>> import tacit
    >>> facts = {"age": {"low": 20, "high": 100}, "sex": {"levels": ["f", "m"]}, "ill": {"levels": ["no", "yes"]}}
    >>> tacit.formula("ill ~ age + sex", tacit.Schema(facts), family="bernoulli").names
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
    information
        About how much a record says of all coefficients together at most, in the units of ``unit`` and ``scale``.
    """

    def __init__(
        self, text: str, schema: Schema, family: str = "gaussian", priors: Mapping[str, dist.Distribution] | None = None
    ) -> None:
        if family not in FAMILIES:
            meant = OTHER_NAMES.get(family)
            raise ValueError(
                f"The family is {family!r}; "
                + (f"here that is {meant!r}." if meant is not None else instead(family, FAMILIES))
            )
        if not isinstance(schema, Schema):
            raise TypeError(f"The schema is of type {type(schema).__name__}. Write tacit.Schema({{...}}).")
        self.text, self.schema, self.family = text, schema, family
        self._family: Family = FAMILIES[family]
        description = parsed(text)
        check_names(description, schema)
        response = read_response(description, text, schema, family)
        self.response, self._facts = response.name, schema.columns[response.name]
        if not self._family.suits(self._facts):
            others = [name for name, other in FAMILIES.items() if other.suits(self._facts) and name != "binomial"]
            raise ValueError(
                f"The response {self.response!r} does not fit the family {family!r}, which needs "
                f"{self._family.requirements}; "
                f"the schema has {self._facts}. Write family {' or '.join(map(repr, others))}, or change the schema's "
                f"line: {self._facts.to_toml()}."
            )
        # The cut points of an ordinal response are its intercepts.
        self._design = set_up(description, schema, response, intercepts=family != "ordinal")
        self.terms, self.group_terms = self._design.terms, self._design.group_terms
        self.offsets, self.columns = self._design.offsets, self._design.columns
        self.names, self.centre, self.scale = self._design.names, self._design.centre, self._design.scale
        self.groups = {term.name: term.groups for term in self.group_terms}
        self.clip = self._suited_clip(scattered(schema))
        self.information = self.clip**2 * min(1.0, self._family.largest / self._family.reach**2)
        few = len(self.names) <= LAPLACE and not self.group_terms
        self.guide = AutoLaplaceApproximation if few else None
        sites = Sites(self._design, self._family, family == "categorical", dict(priors or {}))
        self._outputs, self.unit = sites.outputs, sites.unit
        self.priors, self.labels, self.axes = sites.priors, sites.labels, sites.axes

    # What a record's predictor is made of.

    def design(self, columns: Columns) -> Array:
        """Return the population-level design matrix: one line for each record, one column for each of ``names``.

        It equals that of formulae. Numbers are as declared, not centred or scaled; offsets and group effects are not in
        it.

        Privacy: of one record where it is given one; public where the columns are.
        """
        return self._design.matrix(columns)

    def linear(self, draw: Mapping[str, Any], columns: Columns) -> Array:
        """Return the linear predictor of each record, at one draw of the latents.

        Privacy: as ``design``.
        """
        length, outputs = length_of(columns), self._outputs
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
        """Return what is added to each record's predictor as it is.

        Privacy: as ``design``.
        """
        return self._design.offset(columns)

    def outcome(self, columns: Columns) -> Array:
        """Return the response as it is modelled: 1 for the level of two that is counted, else as it is stored.

        Privacy: as ``design``.
        """
        return self._design.outcome(columns)

    def mean(self, draw: Mapping[str, Any], columns: Columns) -> Array:
        """Return what is expected of each record at one draw: a mean, or for several levels the probability of each.

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
        """The level of a response of two levels whose probability is modelled: the second, or the one in brackets.

        Privacy: public.
        """
        levels, counted = self._facts.levels or (0, 1), self._design.response.success
        return levels[1 if counted is None else counted]

    def _upto(self, columns: Columns) -> Any:
        """Return what the family counts up to: trials of each record, or the number of levels."""
        trials = self._design.response.trials
        if trials is None:
            return None if self._facts.levels is None else len(self._facts.levels)
        return columns[trials] if isinstance(trials, str) else trials

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
            lines.append(f"  {name:28} {described(prior)}{self._meaning(name)}")
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

    def _suited_clip(self, frame: Columns) -> float:
        """Return the root mean square norm of a score over the public frame, for residuals of usual size."""
        squares = jnp.zeros(FRAME)
        for term in (*self.terms, *self.group_terms):
            # An offset and the logarithm of a spread move the predictor by about half a unit each.
            share = 0.5 if isinstance(term, Group) else 1.0
            squares += share * jnp.sum(((term.values(frame) - term.centre) / term.scale) ** 2, 1)
        more = len(self._family.parameters(self._facts))
        return self._family.reach * math.sqrt(float(jnp.mean(squares)) + more)
