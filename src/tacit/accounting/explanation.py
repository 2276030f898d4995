"""What (ε, δ) means: odds, and the error rates of the best attacker, in numbers and in sentences.

Every number is an upper bound on what an attacker can do who knows everything except whether the one person's
data are in the data set: all other records, the method, the recipe. Printed numbers are rounded up, never
down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.accounting.mechanism import Mechanism

FALSE_POSITIVE_RATES = (0.01, 0.05)
PRIORS = (0.01, 0.1, 0.5)


def up(value: float, digits: int = 3) -> str:
    """Print a number rounded up to some significant digits, so that no bound is ever understated.

    Privacy: public.
    """
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    exact = Decimal(value)
    # A float such as 0.1 lies a little above its decimal: do not turn it into 0.101 for that.
    shortest = Decimal(repr(value))
    exact = shortest if abs(exact - shortest) <= Decimal(math.ulp(value)) else exact
    place = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    rounded = exact.quantize(place, rounding=ROUND_CEILING)
    if not -7 <= rounded.adjusted() < 7:
        head, _, power = f"{rounded:.{digits - 1}e}".partition("e")
        return f"{head.rstrip('0').rstrip('.')}e{int(power)}"
    text = f"{rounded:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float) -> str:
    """Print a probability as a percentage, rounded up.

    Privacy: public.
    """
    return f"{up(float(Decimal(repr(float(value))) * 100))}%"


@dataclass(frozen=True)
class Explanation:
    """What an (ε, δ) guarantee allows the best attacker, in numbers; ``str()`` gives the sentences.

    Attributes
    ----------
    epsilon, delta
        The guarantee explained.
    unit, adjacency
        Who is protected, and what neighbouring data sets are.
    advantage
        The most by which an attacker's true positives can exceed the false positives.
    false_positive_rates, true_positive_rates
        The most that an attacker can find, at each rate of false alarms.
    exact
        True if the error rates come from the recipe's whole privacy-loss distribution; False if from the
        (ε, δ) point, or from several of a selection, which is valid but looser.

    Privacy: post-processing.
    """

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    advantage: float
    false_positive_rates: tuple[float, ...]
    true_positive_rates: tuple[float, ...]
    exact: bool

    def odds(self, prior: float) -> float:
        """Return the worst-case posterior odds for prior odds: ``prior * exp(epsilon)``.

        Parameters
        ----------
        prior
            Odds before the release, for example 1.0 for "as likely as not".

        Privacy: post-processing.
        """
        if not prior >= 0:
            raise ValueError(f"The prior odds are {prior!r}. Odds are a ratio of probabilities; write a number >= 0.")
        return prior * _exp(self.epsilon) if prior else 0.0

    def probability(self, prior: float) -> float:
        """Return the worst-case posterior probability for a prior probability.

        Parameters
        ----------
        prior
            Probability before the release, between 0 and 1.

        Privacy: post-processing.
        """
        if not 0 <= prior <= 1:
            raise ValueError(
                f"The prior probability is {prior!r}. It is what an attacker believes beforehand; "
                "write a number between 0 and 1."
            )
        if prior in (0, 1):
            return float(prior)
        return prior / (prior + (1 - prior) * math.exp(-self.epsilon))

    @property
    def question(self) -> str:
        """What the attacker wants to know."""
        if self.adjacency == "replace-one":
            return f"which of two versions of one {self.unit} is in the data"
        return f"whether one given {self.unit} is in the data"

    @property
    def protected(self) -> str:
        """Who is protected, and in which sense."""
        if self.adjacency == "replace-one":
            return (
                f"Each single {self.unit}. What was published is almost as likely with the {self.unit} as "
                f"it is as with any other {self.unit} in its place. The number of {self.unit}s is taken to "
                "be public."
            )
        return (
            f"Each single {self.unit}. What was published is almost as likely with the {self.unit} in the "
            "data as without."
        )

    @property
    def about_odds(self) -> str:
        """The sentence about odds."""
        return (
            "Someone who thinks it as likely as not (odds 1 to 1) will, after seeing everything published, "
            f"put the odds at {up(self.odds(1.0))} to 1 at most."
        )

    @property
    def about_beliefs(self) -> str:
        """The sentence about probabilities."""
        return (
            "In probabilities: "
            + ", ".join(f"{percent(prior)} becomes at most {percent(self.probability(prior))}" for prior in PRIORS)
            + "."
        )

    @property
    def about_delta(self) -> str:
        """The sentence about δ."""
        if self.delta == 0:
            return "The bound on the odds holds without exception."
        return (
            "The bound on the odds holds always for an ideal procedure, from which the one used differs "
            f"with probability at most δ = {up(self.delta)}, that is one in {_one_in(self.delta)}."
        )

    @property
    def about_errors(self) -> tuple[str, ...]:
        """The sentences about an attacker's error rates."""
        found = tuple(
            f"With false alarms in {percent(fpr)} of the cases where the answer is no, the best attacker is "
            f"right in at most {percent(tpr)} of the cases where it is yes; guessing is right in "
            f"{percent(fpr)}."
            for fpr, tpr in zip(self.false_positive_rates, self.true_positive_rates, strict=True)
        )
        return (
            f"The best attacker's advantage over guessing (true positives minus false positives) is at most "
            f"{up(self.advantage)}, where 0 is a coin flip and 1 is certainty.",
            *found,
        )

    @property
    def about_source(self) -> str:
        """The sentence that says where the error rates come from."""
        if self.exact:
            return "These error rates are computed from the recipe's whole privacy-loss distribution."
        return (
            "These error rates follow from (ε, δ) alone. They are valid but looser than those computed "
            "from a recipe's whole privacy-loss distribution."
        )

    def __str__(self) -> str:
        lines = (
            f"ε = {up(self.epsilon, 4)} at δ = {up(self.delta)}: the attacker asks {self.question}.",
            self.about_odds,
            self.about_beliefs,
            self.about_delta,
            *self.about_errors,
            self.about_source,
        )
        return "\n".join(lines)


def explain(
    epsilon: float,
    delta: float,
    mechanism: Mechanism | None = None,
    *,
    slack: float = 0.0,
    unit: str = "record",
) -> Explanation:
    """Explain what (ε, δ) means for one person: odds, and how often the best attacker is right.

    Privacy: public.

    Parameters
    ----------
    epsilon, delta
        The guarantee.
    mechanism
        The recipe that has it. With it the error rates come from the whole privacy-loss distribution; without
        it from the (ε, δ) point alone, which is looser.
    slack
        The part of δ that stands for inexact sampling; it is added to the attacker's side.
    unit
        Who is protected.

    Returns
    -------
    Explanation
        What can be asked of it, such as ``odds``; ``print`` shows it in words.

    Examples
    --------
    >>> import tacit
    >>> print(round(tacit.explain(1.0, 1e-5).odds(1.0), 3))
    2.718
    """
    if not epsilon >= 0:
        raise ValueError(f"ε is {epsilon!r}. It bounds how much odds can change; write a number >= 0, for example 1.0.")
    if not 0 <= delta < 1:
        raise ValueError(
            f"δ is {delta!r}. It is the probability that the bound fails; write 0 <= delta < 1, well below 1 "
            "over the number of records."
        )
    if not 0 <= slack <= delta:
        raise ValueError(f"The slack is {slack!r}. It is a part of δ = {delta!r}; write 0 <= slack <= delta.")
    rates = FALSE_POSITIVE_RATES
    if mechanism is None:
        advantage = (1 - math.exp(-epsilon) + 2 * delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
        found = [point_bound(rate, epsilon, delta) for rate in rates]
    else:
        # Outputs at total variation `slack` from the ideal: shift both rates by it.
        advantage = float(mechanism.advantage()) + 2 * slack
        shifted = np.minimum(np.asarray(rates) + slack, 1.0)
        found = [float(rate) + slack for rate in np.asarray(mechanism.true_positive_rate(shifted))]
    return Explanation(
        epsilon=float(epsilon),
        delta=float(delta),
        unit=unit,
        adjacency="add-remove" if mechanism is None else mechanism.adjacency,
        advantage=min(1.0, advantage),
        false_positive_rates=rates,
        true_positive_rates=tuple(min(1.0, rate) for rate in found),
        exact=mechanism is not None and mechanism.repeats is None,
    )


def trade_off(mechanism: Mechanism, slack: float = 0.0) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the best attacker's curve: false-positive rates from 0 to 1, and the most true positives at each.

    Privacy: public.
    """
    fpr = np.concatenate([[0.0], np.geomspace(1e-4, 0.1, 24), np.linspace(0.12, 1.0, 45)])
    found = np.asarray(mechanism.true_positive_rate(np.minimum(fpr + slack, 1.0)), float)
    return fpr, np.minimum(found + slack, 1.0)


def point_bound(fpr: float, epsilon: float, delta: float) -> float:
    """Return the most true positives that (ε, δ) allows at a false-positive rate, by both of its directions.

    Privacy: public.
    """
    return min(1.0, delta + _exp(epsilon) * fpr, 1 - math.exp(-epsilon) * (1 - delta - fpr))


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf


def _one_in(probability: float) -> str:
    # Rounded down: "one in" fewer is the weaker claim.
    return f"{math.floor(1 / probability * (1 + 1e-12)):,}"
