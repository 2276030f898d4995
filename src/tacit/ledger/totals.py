"""Totals of a ledger: charges added up run by run, and what the accountant must add up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tacit import accounting
from tacit.accounting.mechanism import RESERVE, Mechanism
from tacit.ledger.lines import Charge


@dataclass(frozen=True)
class Run:
    """What the ledger holds about one run.

    Attributes
    ----------
    run, kind, method, mechanism, unit
        As on the run's last charge; ``mechanism.steps`` are those planned.
    steps
        Steps taken; a step that was charged again counts again.
    repeated
        How many of them are repetitions.
    charges
        The number of lines.
    simulation
        Whether any of the charges had fixed secret randomness.

    Privacy: public.
    """

    run: str
    kind: str
    method: str
    mechanism: Mechanism
    unit: str
    steps: int
    repeated: int
    charges: int
    simulation: bool

    @property
    def looked(self) -> Mechanism:
        """The recipe with the steps actually taken, which is what the run has cost."""
        return replace(self.mechanism, steps=self.steps)


def summarise(charges: Iterable[Charge]) -> dict[str, Run]:
    """Add up charges run by run, in the order in which the runs began.

    Privacy: public.
    """
    runs: dict[str, list[Charge]] = {}
    for charge in charges:
        runs.setdefault(charge.run, []).append(charge)
    summary = {}
    for name, of_run in runs.items():
        last = of_run[-1]
        steps = sum(charge.steps for charge in of_run)
        missing = gaps(0, last.mechanism.steps, ((charge.first, charge.stop) for charge in of_run))
        distinct = last.mechanism.steps - sum(stop - first for first, stop in missing)
        summary[name] = Run(
            run=name,
            kind=last.kind,
            method=last.method,
            mechanism=last.mechanism,
            unit=last.unit,
            steps=steps,
            repeated=steps - distinct,
            charges=len(of_run),
            simulation=any(charge.simulation for charge in of_run),
        )
    return summary


Recipe = tuple[str, float, float, int] | tuple[str, float, float, int, float]
"""A run's identifier, rate, noise multiplier and steps, and of a selection its repeats: what the accountant adds up."""


def recipes(charges: Iterable[Charge]) -> tuple[Recipe, ...]:
    """Return what the accountant must add up, in the order the runs began.

    The first run counts whole from its first charge on, and steps of it that were repeated count apart:
    ``accounting.spent`` takes it by its privacy loss distribution, which holds for a run whose length was
    fixed before anything was seen. Later runs go through the Rényi filter, which is checked before every
    charge, so they count by the steps taken. A selection is always one charge, and counts whole.

    Privacy: public.
    """
    parts: list[Recipe] = []
    for place, run in enumerate(summarise(charges).values()):
        if (repeats := run.mechanism.repeats) is not None:
            recipe = run.mechanism
            parts += [(run.run, recipe.rate, recipe.noise_multiplier, recipe.steps, repeats)] * run.charges
            continue
        counts = (run.mechanism.steps, run.repeated) if place == 0 else (run.steps,)
        parts += [(run.run, run.mechanism.rate, run.mechanism.noise_multiplier, steps) for steps in counts if steps]
    return tuple(parts)


def cost_of(runs: Sequence[Recipe], delta: float, adjacency: str) -> float:
    """Return the ε that recipes cost together, by the rule of their adjacency.

    Privacy: public.
    """
    return float(accounting.spent([run[1:] for run in runs], delta, adjacency))


def spent(charges: Iterable[Charge], delta: float, adjacency: str | None) -> float:
    """Return the ε that charges have cost together, the share of δ for the runs' inexact sampling kept apart.

    Privacy: public.
    """
    runs = recipes(charges)
    if not runs:
        return 0.0
    assert adjacency is not None  # set by the first charge
    return cost_of(runs, delta * (1 - RESERVE), adjacency)


def without_slack(delta: float, slack: float) -> float:
    """Return the δ at which ε is certified: what inexact sampling leaves of it.

    Privacy: public.
    """
    # The next float below: the difference itself may round up to more than is left.
    return math.nextafter(delta - slack, 0.0) if slack else delta


def for_all_runs(delta: float, slack: float) -> float:
    """Return the δ at which ε is stated for all runs: others have a slack too, which the ledger does not know.

    Privacy: public.
    """
    return min(without_slack(delta, slack), delta * (1 - RESERVE))


def gaps(first: int, stop: int, covered: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of [first, stop) that no covered interval holds.

    Privacy: public.
    """
    found = []
    at = first
    for low, high in sorted(covered):
        if low >= stop:
            break
        if low > at:
            found.append((at, low))
        at = max(at, high)
    if at < stop:
        found.append((at, stop))
    return found
