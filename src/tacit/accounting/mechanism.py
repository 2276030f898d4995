"""The public recipe of a private computation, and the budget it has to fit.

Everything here may be published: none of it is computed from records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy.typing as npt

from tacit.accounting import calibration, checks, composition
from tacit.extras import need

RESERVE = 2.0**-20
"""The share of a budget's δ that `calibrate` leaves unused.

The wall's samplers are not the ideal distributions but so close that the difference, once computed, is added
to δ. This share is what it is paid from, so that a calibrated recipe with its numerical slack still fits the
budget.
"""


def unprintable(text: str) -> str:
    """Return the first character that a reader would not see as it is, as ``U+202E``; or nothing.

    Control and format characters are invisible, and those that change the direction of writing can make a page show
    another text, or other numbers, than it holds.

    Privacy: public.
    """
    return next((f"U+{ord(sign):04X}" for sign in text if not sign.isprintable()), "")


@dataclass(frozen=True, kw_only=False)
class Budget:
    """What may be spent on one unit of privacy: ε and δ.

    Privacy: public.

    Parameters
    ----------
    epsilon
        Bound on the log odds that anyone can gain about one unit; finite, above 0.
    delta
        Probability with which that may fail; in (0, 1), far below one over the number of records.
    unit
        Who is protected: what one record stands for, e.g. "patient".

    Examples
    --------
    >>> import tacit
    >>> tacit.Budget(epsilon=1.0, delta=1e-6, unit="patient")
    Budget(epsilon=1.0, delta=1e-06, unit='patient')
    """

    epsilon: float
    delta: float
    unit: str = "record"

    def __post_init__(self) -> None:
        epsilon = checks.as_float("Budget", "epsilon", self.epsilon)
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ValueError(
                f"Budget(epsilon={epsilon}): epsilon must be a finite number above 0, because it bounds what "
                f"can be learned about one {self.unit}; write e.g. Budget(epsilon=1.0, delta=1e-6)."
            )
        delta = checks.check_delta("Budget", self.delta)
        if not isinstance(self.unit, str) or not self.unit.strip():
            raise (ValueError if isinstance(self.unit, str) else TypeError)(
                f"Budget(unit={self.unit!r}): unit must be a word for who is protected, because the "
                "certificate names it; write e.g. unit='patient'."
            )
        if found := unprintable(self.unit):
            raise ValueError(
                f"Budget(unit=...): the unit holds the character {found}, which cannot be seen, and the certificate "
                "must show who is protected; write it with printable characters, e.g. unit='patient'."
            )
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)

    def split(self, *shares: float) -> tuple[Budget, ...]:
        """Return budgets for several runs, each of one release of all records, that together cost this one.

        Together means by the ledger, which allows for each run having been chosen in view of the ones before,
        as marginals are after `choose_pairs`. The parts' epsilons add up to more than the whole.

        Parameters
        ----------
        shares
            The parts of the information, summing to 1: ``budget.split(0.1, 0.9)``.

        Privacy: public.
        """
        if not shares or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
            raise ValueError(
                f"Budget.split{shares}: the shares must be positive and sum to 1, because together they are the "
                "whole; write e.g. budget.split(0.1, 0.9)."
            )
        delta = self.delta * (1 - RESERVE)
        low = calibration.noise_multiplier(self.epsilon, delta, 1.0, 1)
        high = 2 * low

        def runs(noise: float) -> list[tuple[float, float, int]]:
            return [(1.0, noise * share**-0.5, 1) for share in shares]

        while composition.spent(runs(high), delta) > self.epsilon:
            low, high = high, 2 * high
        while high > low * (1 + 1e-4):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if composition.spent(runs(middle), delta) > self.epsilon else (low, middle)
        # A part's epsilon is rounded, and turned back into noise of slightly another size.
        parts = [composition.epsilon(*run, delta) for run in runs(high * (1 + 1e-4))]
        return tuple(Budget(part, self.delta, self.unit) for part in parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the budget as plain values for JSON.

        Privacy: public.
        """
        return {"epsilon": self.epsilon, "delta": self.delta, "unit": self.unit}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Budget:
        """Return the budget that `to_dict` described; unknown and missing fields are refused.

        Privacy: public.
        """
        return cls(**_fields_of(cls, values))

    def to_json(self) -> str:
        """Return the budget as JSON, every float to the last bit.

        Privacy: public.
        """
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Budget:
        """Return the budget that `to_json` wrote.

        Privacy: public.
        """
        return cls.from_dict(_parsed("Budget", text))


@dataclass(frozen=True)
class Mechanism:
    """The public recipe: how records are sampled, clipped and hidden in noise, and how often.

    Privacy: public.

    Parameters
    ----------
    rate
        Probability with which a record enters a step's subset, in (0, 1].
    clip
        Bound on the norm of one record's contribution.
    noise_multiplier
        Noise standard deviation divided by the clip.
    steps
        Number of releases.
    adjacency
        "add-remove" (a neighbour has one record more or less) or "replace-one".
    weights
        Optional public weight for each leaf of a contribution, applied before the clip.
    repeats
        Of a selection (`tacit.select`): all steps are run a secret number of times, Poisson of this mean and at least
        one, and only the best outcome is shown. None for one run.

    Examples
    --------
    >>> import tacit
    >>> recipe = tacit.Mechanism(rate=0.1, clip=1.0, noise_multiplier=4.0, steps=100)
    >>> round(recipe.cost(delta=1e-6), 2)
    1.13
    """

    rate: float
    clip: float
    noise_multiplier: float
    steps: int
    adjacency: str = "add-remove"
    weights: tuple[float, ...] | None = None
    repeats: float | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "rate", checks.check_rate("Mechanism", self.rate))
        put(self, "clip", _clip("Mechanism", self.clip))
        put(self, "noise_multiplier", checks.check_noise("Mechanism", self.noise_multiplier))
        put(self, "steps", checks.check_steps("Mechanism", self.steps, 1))
        put(self, "adjacency", checks.check_adjacency("Mechanism", self.adjacency))
        put(self, "weights", _weights("Mechanism", self.weights))
        if self.repeats is not None:
            put(self, "repeats", checks.check_repeats("Mechanism", self.repeats))

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise in each coordinate: noise_multiplier times clip."""
        return self.noise_multiplier * self.clip

    def cost(self, delta: float) -> float:
        """Return the certified ε of the whole recipe at δ: an upper bound, never an approximation.

        Privacy: public.
        """
        recipe = (self.rate, self.noise_multiplier, self.steps)
        return composition.epsilon(*recipe, delta, self.adjacency, repeats=self.repeats)

    def advantage(self) -> float:
        """Return the best attacker's true-positive rate minus false-positive rate, at most.

        Privacy: public.
        """
        return composition.advantage(self.rate, self.noise_multiplier, self.steps, self.adjacency, self.repeats)

    def true_positive_rate(self, fpr: npt.ArrayLike) -> Any:
        """Return the best attacker's true-positive rate at given false-positive rates, at most.

        Privacy: public.
        """
        recipe = (self.rate, self.noise_multiplier, self.steps)
        return composition.true_positive_rate(fpr, *recipe, self.adjacency, self.repeats)

    def event(self) -> Any:
        """Return the recipe as a dp-accounting DpEvent, for other accountants.

        The event says nothing of adjacency: pass REPLACE_ONE to the accountant if the recipe says "replace-
        one", and then use its PLD accountant, because its RDP accountant ignores the doubled sensitivity. The
        event of a selection is of a Poisson number of runs that may be 0, for the RDP accountant alone.

        Privacy: public.
        """
        dp_accounting = need("Mechanism.event", "dp_accounting")
        step = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.rate < 1:
            step = dp_accounting.PoissonSampledDpEvent(self.rate, step)
        run = dp_accounting.SelfComposedDpEvent(step, self.steps)
        if self.repeats is None:
            return run
        return dp_accounting.dp_event.RepeatAndSelectDpEvent(run, self.repeats, math.inf)

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain values for JSON.

        Privacy: public.
        """
        return {
            "rate": self.rate,
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
            "steps": self.steps,
            "adjacency": self.adjacency,
            "weights": None if self.weights is None else list(self.weights),
            **({} if self.repeats is None else {"repeats": self.repeats}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Mechanism:
        """Return the recipe that `to_dict` described; unknown and missing fields are refused.

        Privacy: public.
        """
        return cls(**_fields_of(cls, {"repeats": None, **values}))

    def to_json(self) -> str:
        """Return the recipe as JSON, every float to the last bit.

        Privacy: public.
        """
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Mechanism:
        """Return the recipe that `to_json` wrote.

        Privacy: public.
        """
        return cls.from_dict(_parsed("Mechanism", text))


def calibrate(
    budget: Budget,
    *,
    rate: float,
    steps: int,
    clip: float,
    adjacency: str = "add-remove",
    weights: tuple[float, ...] | None = None,
    repeats: float | None = None,
) -> Mechanism:
    """Return the recipe with the least noise whose certified cost fits the budget.

    The noise is calibrated at ``budget.delta * (1 - RESERVE)`` and rounded to the safe side; the rest of δ is
    kept for the numerical slack of the wall's samplers.

    Privacy: public.

    Parameters
    ----------
    budget
        The ε and δ that may be spent.
    rate, steps, clip, adjacency, weights, repeats
        The rest of the recipe, as in `Mechanism`.

    Returns
    -------
    Mechanism
        With ``mechanism.cost(budget.delta) <= budget.epsilon``.

    Examples
    --------
    >>> import tacit
    >>> recipe = tacit.calibrate(tacit.Budget(1.0, 1e-6), rate=0.1, steps=100, clip=1.0)
    >>> round(recipe.noise_multiplier, 1)
    4.5
    """
    if not isinstance(budget, Budget):
        raise TypeError(
            f"calibrate(budget={budget!r}): the budget must be a Budget, because ε means nothing without δ "
            "and a unit; write calibrate(Budget(epsilon=1.0, delta=1e-6), ...)."
        )
    rate = checks.check_rate("calibrate", rate)
    steps = checks.check_steps("calibrate", steps, 1)
    clip = _clip("calibrate", clip)
    adjacency = checks.check_adjacency("calibrate", adjacency)
    recipe = (budget.epsilon, budget.delta * (1 - RESERVE), rate, steps, adjacency)
    noise = calibration.noise_multiplier(*recipe, repeats=repeats)
    return Mechanism(rate, clip, noise, steps, adjacency, weights, repeats)


def _clip(where: str, value: Any) -> float:
    clip = checks.as_float(where, "clip", value)
    if not (math.isfinite(clip) and clip > 0):
        raise ValueError(
            f"{where}(clip={clip}): clip must be a finite number above 0, because the noise hides "
            "contributions of at most this norm; write e.g. clip=1.0."
        )
    return clip


def _weights(where: str, value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError(
            f"{where}(weights={value!r}): weights must be a tuple of numbers, one for each leaf of a "
            "contribution; write e.g. weights=(1.0, 0.1)."
        )
    weights = tuple(checks.as_float(where, "weights", weight) for weight in value)
    # With the clip's own range, the constants that a compiler makes of both stay normal float32 numbers.
    if not weights or not all(1 / checks.LARGEST_WEIGHT <= weight <= checks.LARGEST_WEIGHT for weight in weights):
        raise ValueError(
            f"{where}(weights={weights}): weights must be numbers between {1 / checks.LARGEST_WEIGHT:.1g} and "
            f"{checks.LARGEST_WEIGHT:.1g}, one for each leaf of a contribution, because they are divided out again "
            "after the release; write e.g. weights=(1.0, 0.1)."
        )
    return weights


def _fields_of(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for field in fields(kind)}
    unknown, missing = sorted(set(values) - known), sorted(known - set(values))
    if unknown or missing:
        raise ValueError(
            f"{kind.__name__}.from_dict: unknown fields {unknown}, missing fields {missing}. A field that is "
            f"not understood could change what is promised; write exactly {sorted(known)}."
        )
    return dict(values)


def _parsed(name: str, text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{name}.from_json: this is not JSON ({error}); write what to_json returned.") from error
    if not isinstance(values, dict):
        raise ValueError(
            f"{name}.from_json: a JSON object is needed, not {type(values).__name__}; write what to_json returned."
        )
    return values
