"""What a fit of a formula can learn at a budget, before anything is spent: by arithmetic, not by a fit.

    F = mean of x x' over records that are even within the schema's bounds,  H = N h F    h at the prior's middle
    S = (clip * noise multiplier)^2 * 4 / (3 T rate^2)     noise in the average of T scores, later ones weighing more
    contraction = 1 - diag((P + H (H + S)^-1 H)^-1) / prior variance

``glm`` adds its noise to whitened scores, so that S is s^2 F there, and believes in a curvature as far as it stands out
of its own noise, by the factor `ENOUGH`. Real columns are seldom as spread out as their
bounds, and outcomes seldom as even as the prior's middle, so that the contraction of a fit is mostly less. What is
foreseen to stay at its prior will.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np

from tacit.accounting.mechanism import Budget, Mechanism
from tacit.facts.parsing import scattered
from tacit.methods import leverage
from tacit.methods.laplace import CURVATURE_EVERY
from tacit.models.formula import Formula
from tacit.models.priors import bare
from tacit.results.learnt import HALF
from tacit.run.auto import ENOUGH

NOTHING = 0.1
"""Where no coefficient is foreseen to contract by more, a fit is refused."""
NAMED = 6
"""A warning names so many coefficients."""
ODDS = 0.17
"""The information of an outcome where the predictor's deviation is 1.5."""
NOISE_STD = 0.5
"""What the noise of a number is taken to be, in units of the response."""
FARTHEST = 1e12
MIDDLE = math.sqrt(2 / math.pi)
"""The mean of a half-normal distribution of scale 1."""


@dataclass(frozen=True)
class Foresight:
    """The contraction that each coefficient of a formula can have, and how many records would be needed.

    Attributes
    ----------
    contraction
        Label to contraction, foreseen.
    size, needed
        The declared number of records; about how many there had to be for every coefficient to contract by half.
    budget
        What would be spent.

    Privacy: public.
    """

    contraction: dict[str, float]
    size: int
    needed: float
    budget: Budget

    @property
    def at_prior(self) -> list[str]:
        """The coefficients that are foreseen to stay mostly at their prior."""
        return [label for label, value in self.contraction.items() if value < HALF]

    @property
    def is_noise(self) -> bool:
        """Whether no coefficient can be distinguished from its prior."""
        return max(self.contraction.values()) < NOTHING

    def __str__(self) -> str:
        if not self.at_prior:
            return f"All {len(self.contraction)} coefficients can be learnt from {self.size} records at this budget."
        shown = ", ".join(self.at_prior[:NAMED])
        more = f" and {len(self.at_prior) - NAMED} more" if len(self.at_prior) > NAMED else ""
        needed = f"{float(f'{self.needed:.2g}'):.0f}" if self.needed < FARTHEST else f"more than {FARTHEST:.0e}"
        return (
            f"{len(self.contraction)} columns at epsilon {self.budget.epsilon:g} ask for about {needed} records, and "
            f"{self.size} are declared: {shown}{more} will stay at their prior. Pool levels or groups, take fewer "
            "columns, or ask for a larger epsilon."
        )


def foresee(model: Formula, size: int, budget: Budget, mechanism: Mechanism, method: str) -> Foresight:
    """Predict what a fit of a formula can learn.

    Privacy: public. No record is touched.

    Parameters
    ----------
    model
        The formula.
    size
        About how many records there are.
    budget
        What would be spent.
    mechanism
        The recipe within that budget.
    method
        "glm" or "vi".
    """
    design = _Design(model)

    def found(size: float) -> np.ndarray:
        return design.contraction(size, mechanism, method)

    low, high = 0.0, math.log(FARTHEST)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if found(math.exp(middle)).min() >= HALF else (middle, high)
    return Foresight(dict(zip(design.labels, found(size), strict=True)), size, math.exp(high), budget)


def forewarn(foresight: Foresight | None, *, force: bool = False) -> None:
    """Warn of coefficients that will stay at their prior; refuse where all of them will.

    Privacy: public.
    """
    if foresight is None or force:
        return
    if foresight.is_noise:
        raise ValueError(
            f"The answer would be noise, and what was spent on it would be lost. {foresight} To fit it all the same, "
            "write force=True."
        )
    if foresight.at_prior:
        warnings.warn(str(foresight), stacklevel=3)


class _Design:
    """The second moments of a formula's scaled columns, groups included, over the public frame."""

    def __init__(self, model: Formula) -> None:
        frame = scattered(model.schema)
        x = (np.asarray(model.design(frame), float) - model.centre) / model.scale
        given = [np.ravel(np.asarray(bare(model.priors[term.name]).variance)) for term in model.terms]
        shapes = [len(term.labels) for term in model.terms]
        variances = np.concatenate(
            [np.resize(one, count) for one, count in zip(given, shapes, strict=True)]
        ) * np.square(model.scale)
        self.labels = list(model.names)
        self.fixed = len(self.labels) + sum(len(term.groups) - 1 for term in model.group_terms)
        for term in model.group_terms:
            values = (np.asarray(term.values(frame), float) - term.centre) / term.scale
            each = np.eye(len(term.groups))[np.asarray(term.index(frame))]
            x = np.hstack([x, (each[:, :, None] * values[:, None, :]).reshape(len(x), -1)])
            variances = np.append(variances, np.full(each.shape[1] * values.shape[1], np.square(MIDDLE * model.unit)))
            self.labels += [f"{label}|{level}" for level in term.groups for label in term.labels]
        self.variances = variances / model.unit**2
        self.moments = x.T @ x / len(x)
        self.usual = _information(model)

    def contraction(self, size: float, mechanism: Mechanism, method: str) -> np.ndarray:
        """Return the contraction of each column's coefficient."""
        noise = mechanism.clip * mechanism.noise_multiplier / mechanism.rate
        if method == "glm":
            late: float = mechanism.steps - leverage.phases(mechanism.steps)[1]
            share = 1 - leverage.CURVATURE - leverage.TRACE
            unit = leverage.REACH * math.sqrt(self.fixed * self.usual / share)
            of_curvature = leverage.LEVER * self.fixed * self.usual / math.sqrt(leverage.CURVATURE)
            hidden = ENOUGH * noise * of_curvature * math.sqrt(self.fixed / late) / (size * self.usual)
            known = size * self.usual / (1 + hidden**2)
            gained = self.moments * known**2 / (known + (noise * unit) ** 2 * 4 / (3 * late))
        else:
            late = mechanism.steps * (1 - 1 / CURVATURE_EVERY)
            variance = noise**2 * 4 / (3 * late)
            values, vectors = np.linalg.eigh(size * self.usual * self.moments)
            values = np.maximum(values, 0)
            gained = (vectors * (values**2 / (values + variance + 1e-30))) @ vectors.T
        roots = np.sqrt(self.variances)
        posterior = np.linalg.inv(np.eye(len(roots)) + roots[:, None] * gained * roots)
        return np.clip(1 - np.diag(posterior), 0, 1)


def _information(model: Formula) -> float:
    """Return the information of one outcome about its predictor, in units of the response, at the prior's middle."""
    where = float(np.ravel(np.asarray(bare(model.priors["Intercept"]).mean))[0]) if "Intercept" in model.priors else 0.0
    mean = math.exp(min(where, 15.0)) if model.family in ("poisson", "negative_binomial") else 1.0
    odds = dict.fromkeys(("bernoulli", "binomial", "ordinal", "categorical"), ODDS)
    counts = {"poisson": mean, "negative_binomial": mean / (1 + mean), "gamma": 1.0}
    return {**odds, **counts}.get(model.family, 1 / NOISE_STD**2)


def foreseen(model: object, title: str, size: int | None, mechanism: Mechanism, budget: Budget) -> Foresight | None:
    """Return what can be foreseen of a planned fit; None where the arithmetic does not know the model or the method.

    Privacy: public.
    """
    if not isinstance(model, Formula) or model.family == "categorical" or title not in ("glm", "vi") or size is None:
        return None
    return foresee(model, size, budget, replace(mechanism), title)
