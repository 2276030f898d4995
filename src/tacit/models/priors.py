"""The latent sites of a formula: default priors on the scale of the columns, labels and axes."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import AffineTransform

from tacit.facts.design import Design
from tacit.facts.parsing import instead
from tacit.facts.terms import Group, Term
from tacit.models.families import Family

Axes = list[tuple[str, list[str]]]
"""The name and the coordinates of each axis of a site."""

WIDTH = 2.5
"""Standard deviation of a default prior, in units of the response for one unit of the column."""


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


class InUnits(dist.Distribution):  # type: ignore[misc]
    """A prior on the scale of the columns, for a latent that methods move in units of its own."""

    reparametrized_params: list[str] = []  # noqa: RUF012, as NumPyro has it
    pytree_data_fields = ("prior",)
    pytree_aux_fields = ("at", "by")

    def __init__(self, prior: dist.Distribution, at: Any, by: Any) -> None:
        self.prior, self.at, self.by = prior, at, by
        super().__init__(prior.batch_shape, prior.event_shape)

    @property
    def support(self) -> Any:
        """Return the real numbers, in units."""
        return constraints.independent(_Units(self.at, self.by), len(self.event_shape))

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        """Draw from the prior."""
        return self.prior.sample(key, sample_shape)

    def log_prob(self, value: Any) -> Any:
        """Return the log density of the prior."""
        return self.prior.log_prob(value)


def bare(prior: dist.Distribution) -> dist.Distribution:
    """Return the distribution of single numbers that a prior is made from.

    Privacy: public.
    """
    while hasattr(prior, "prior") or hasattr(prior, "base_dist"):
        prior = prior.prior if hasattr(prior, "prior") else prior.base_dist
    return prior


def described(prior: dist.Distribution) -> str:
    """Describe a prior in words."""
    prior = bare(prior)
    numbers = []
    for name in prior.arg_constraints:
        values = np.unique(np.asarray(getattr(prior, name)).round(6))
        numbers.append(f"{values[0]:.3g}" if len(values) == 1 else f"{values[0]:.3g} to {values[-1]:.3g}")
    return f"{type(prior).__name__}({', '.join(numbers)})"


class Sites:
    """The latent sites of a formula, by name: ``priors``, ``labels`` of their numbers, and ``axes``.

    Privacy: public.

    Parameters
    ----------
    design
        What the predictor is made of.
    family
        Of the response.
    several
        Whether each level of the response but the first has a predictor of its own.
    given
        Priors that take the place of the default ones.
    """

    def __init__(self, design: Design, family: Family, several: bool, given: dict[str, dist.Distribution]) -> None:
        self._design, self._chosen = design, dict(given)
        self._levels = [str(level) for level in (design.facts.levels or ())[1:]] if several else []
        self.outputs: tuple[int, ...] = (len(self._levels),) if several else ()
        self._location, self.unit = family.unit(design.facts)
        self.priors: dict[str, dist.Distribution] = {}
        self.labels: dict[str, tuple[str, ...]] = {}
        self.axes: dict[str, Axes] = {}
        for term in design.terms:
            self._add_term(term)
        for group in design.group_terms:
            self._add_group(group)
        for name, prior in family.parameters(design.facts).items():
            self._add_parameter(name, prior)
        if self._chosen:
            name = next(iter(self._chosen))
            raise ValueError(
                f"A prior is given for {name!r}, which the model does not have; {instead(name, self.priors)}"
            )

    def _add_term(self, term: Term) -> None:
        by = self._units(term)
        at = self._location if term.name == "Intercept" and not self.outputs else 0.0
        axes = self._axes_of(term, "coefficient")
        self._add(term.name, dist.Normal(at, WIDTH * by), by.shape, self._by_level(term.labels), axes, at, by)

    def _add_group(self, group: Group) -> None:
        by, axes = self._units(group), self._axes_of(group, "effect")
        labels = [f"{group.name}_sigma" + (f"[{label}]" if len(group.labels) > 1 else "") for label in group.labels]
        self._add(f"{group.name}_sigma", dist.HalfNormal(by), by.shape, self._by_level(labels), axes)
        labels = [f"{label}|{level}" for level in group.groups for label in group.labels]
        axes = [(f"{group.name.split('|')[-1]}_group", list(group.groups)), *axes]
        shape = (len(group.groups), *by.shape)
        self._add(f"{group.name}_offset", dist.Normal(0.0, 1.0), shape, self._by_level(labels), axes)

    def _add_parameter(self, name: str, prior: dist.Distribution) -> None:
        shape = prior.batch_shape + prior.event_shape
        labels = [name] if not shape else [f"{name}[{i}]" for i in range(math.prod(shape))]
        self._add(name, prior, shape, labels, [(f"{name}_place", labels)] if len(shape) == 1 else [])

    def _add(
        self,
        name: str,
        prior: Any,
        shape: tuple[int, ...],
        labels: list[str],
        axes: Axes,
        at: Any = 0.0,
        by: Any = None,
    ) -> None:
        if name in (*self.priors, self._design.response.name):
            raise ValueError(f"The model has two things of the name {name!r}. Rename the column of that name.")
        prior = self._chosen.pop(name, prior)
        if not isinstance(prior, dist.Distribution):
            raise TypeError(f"The prior of {name!r} is {prior!r}. Pass a NumPyro distribution.")
        # Entries of their own shape are kept, as those of a prior for a whole term.
        whole = prior if prior.batch_shape + prior.event_shape == shape else prior.expand(shape)
        whole = whole.to_event(len(whole.batch_shape))
        real = by is not None and whole.support in (
            constraints.real,
            constraints.independent(constraints.real, len(shape)),
        )
        self.priors[name] = InUnits(whole, at, by) if real else whole
        self.labels[name], self.axes[name] = tuple(labels), axes

    def _by_level(self, labels: Any) -> list[str]:
        """Return the labels of a site that has entries for each of several levels, if there are several."""
        levels = [f": {level}" for level in self._levels] if self.outputs else [""]
        return [label + level for label in labels for level in levels]

    def _units(self, term: Term) -> np.ndarray:
        """Return the unit of each coefficient, in the shape of the site: a number where there is one."""
        each = np.multiply.outer(self.unit / term.scale, np.ones(self.outputs))
        return each.reshape(()) if each.shape == (1,) else each

    def _axes_of(self, term: Term, axis: str) -> Axes:
        """Return the axes of a site whose shape is that of the term's units."""
        along = [(f"{term.name}_{axis}", list(term.labels))] if self._units(term).shape else []
        return along + ([(f"{self._design.response.name}_level", list(self._levels))] if self.outputs else [])
