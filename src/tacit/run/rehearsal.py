"""What a rehearsal found: widths, coverage and errors of each setting, and which is best."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from tacit.accounting.mechanism import Budget, Mechanism
from tacit.results.calibration import LEVEL


class Estimate(NamedTuple):
    """A mean over replicates and its standard error."""

    value: float
    error: float

    def __str__(self) -> str:
        return "" if math.isnan(self.value) else f"{self.value:.3g} ± {self.error:.1g}"


class Rehearsed(NamedTuple):
    """What came out of the replicates of one setting.

    Attributes
    ----------
    budget, settings
        What was rehearsed.
    width
        Width of the central 90% intervals, mean over all numbers of the posterior.
    times_public
        The same in units of the width without privacy, number by number.
    coverage, public_coverage
        The share of the intervals that hold the value from which the records were made; and of those without privacy.
    log_likelihood_gap
        Log-likelihood of a record held out, less that without privacy.
    loss
        The interval score (width, and twenty times the distance of a value outside) in units of the width without
        privacy; the smaller the better, and smallest for intervals that are narrow and cover.
    method, mechanism
        The name of the method that was run, and its recipe: those that ``fit`` has at this budget and these settings.
    reason
        Why the method was chosen, where ``tacit.auto`` did.
    """

    budget: Budget
    settings: dict[str, Any]
    width: Estimate
    times_public: Estimate
    coverage: Estimate
    public_coverage: Estimate
    log_likelihood_gap: Estimate
    loss: Estimate
    method: str = ""
    mechanism: Mechanism | None = None
    reason: str = ""

    @property
    def narrow(self) -> bool:
        """Whether intervals cover less than they say, by more than two standard errors."""
        return self.coverage.value + 2 * self.coverage.error < LEVEL

    @property
    def verdict(self) -> str:
        """What the rehearsal says of the intervals, in a sentence."""
        if math.isnan(self.coverage.value):
            return "The rehearsal cannot say how often intervals cover: no value is known that they should hold."
        found, public = (
            f"{100 * one.value:.0f} ± {100 * one.error:.0f}%" for one in (self.coverage, self.public_coverage)
        )
        judged = "They are too narrow: read them as such, or ask for a larger budget." if self.narrow else ""
        return (
            f"At epsilon {self.budget.epsilon:g} the 90% intervals covered {found} of the values from which records "
            f"were made up, and {public} without privacy. {judged}".strip()
        )


@dataclass(frozen=True)
class Rehearsal:
    """What is to be expected of a fit, from made-up records; nothing was spent.

    Attributes
    ----------
    rows
        One `Rehearsed` for each budget and setting; ``pandas.DataFrame(rehearsal.rows)`` is a table of them.
    budget
        The budget that ``best`` is for.
    replicates
        How often each setting was rehearsed.

    Privacy: public. No real record was touched.
    """

    rows: tuple[Rehearsed, ...]
    budget: Budget
    replicates: int

    @property
    def chosen(self) -> Rehearsed:
        """The row with the best setting at the budget: the least loss, or without one the best predictions."""
        here = [row for row in self.rows if row.budget == self.budget]

        def order(row: Rehearsed) -> float:
            judged = row.loss.value if not math.isnan(row.loss.value) else -row.log_likelihood_gap.value
            return math.inf if math.isnan(judged) else judged

        return min(here, key=order)

    @property
    def best(self) -> dict[str, Any]:
        """The budget and the best setting, as arguments: ``tacit.fit(method, data, **rehearsal.best)``.

        Where intervals were found to be too narrow, the posterior will say so.
        """
        row = self.chosen
        warning = {"warning": f"Found by rehearsal: {row.verdict}"} if row.narrow else {}
        return {"budget": self.budget, **row.settings, **warning}

    def table(self) -> str:
        """Return all rows as Markdown; ± is one standard error."""
        names = list(self.rows[0].settings)
        head = ["epsilon", *names, "width", "times public", "coverage", "public", "log-likelihood gap", "loss"]
        lines = [head, ["---"] * len(head)]
        for row in self.rows:
            lines.append([f"{row.budget.epsilon:g}", *(str(row.settings[name]) for name in names), *map(str, row[2:8])])
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def plot(self, ax: Any = None) -> Any:
        """Show coverage over epsilon, one line for each setting; the dashed line is what intervals promise."""
        from tacit.results.plots import plot_rehearsal

        return plot_rehearsal(self, ax=ax)

    def __str__(self) -> str:
        head = f"Simulation: {self.replicates} replicates on made-up records. Nothing was spent."
        chosen = f" Method: {self.chosen.reason}." if self.chosen.reason else ""
        return f"{head}{chosen}\n\n{self.table()}\n\n{self.chosen.verdict}"
