"""What a run's certificate is issued for, and what it must warn of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tacit.accounting.mechanism import RESERVE, Budget
from tacit.engine.runner import versions
from tacit.ledger.certificate import Certificate
from tacit.ledger.file import Ledger
from tacit.results.numbers import fingerprint
from tacit.results.posterior import Posterior, named
from tacit.types import Method, State
from tacit.wall.border import with_own_checks
from tacit.wall.data import PrivateData

NO_LASTING_LEDGER = (
    "The records came without a ledger file, so other uses of them (questions, other fits, processes or run folders) "
    "may not be in the total. "
    "Pass one: PrivateData(records, schema, ledger='ledger.jsonl')."
)
NO_ANCHOR = (
    "The length of the ledger could not be noted outside of it, so an older copy in its place might not be noticed. "
    "Make the folder writable that the variable XDG_STATE_HOME names (~/.local/state where it is not set)."
)


def certify(
    ledger: Ledger,
    run: str,
    budget: Budget,
    data: PrivateData,
    slack: Callable[[int, float], float],
    numbers: dict[str, str],
    code: Literal["tacit", "user"],
    engine: Literal["fast", "reference"] = "fast",
) -> Certificate:
    """Issue a run's certificate; ``slack(steps, epsilon)`` bounds what inexact sampling adds to delta.

    Privacy: post-processing.
    """
    looked = ledger.runs()[run].looked
    cost = max(budget.epsilon, looked.cost(budget.delta * (1 - RESERVE)))
    return Certificate.issue(
        ledger=ledger,
        run=run,
        budget=budget,
        slack=slack(looked.steps, cost),
        versions=versions(),
        caveats=caveats(budget, data),
        numbers=numbers,
        code=code,
        engine=engine,
    )


def leave_room(slack: float, budget: Budget) -> None:
    """Refuse a budget whose delta does not allow for inexact sampling.

    Privacy: public.
    """
    if slack > RESERVE * budget.delta:
        raise ValueError(
            f"At epsilon {budget.epsilon:g} a delta of {budget.delta:g} is too small for the numerical slack of the "
            "noise sampler, which is part of delta. Ask for a smaller epsilon or a larger delta."
        )


def too_large(budget: Budget, data: PrivateData) -> str:
    """Return what a delta of one over the declared number of units or more allows, or nothing.

    Privacy: public.
    """
    if data.size is None or budget.delta * data.size < 1:
        return ""
    return (
        f"Delta is {budget.delta:g}, and {data.size} units are declared: so large a delta does not rule out that some "
        f"are published as they are. Take it far below {1 / data.size:.2g}."
    )


def left_out(built: Method, data: PrivateData) -> str:
    """Return, where no schema does, which records contributed nothing without a warning; or nothing.

    Privacy: public. It looks at what the method asks for, not at records.
    """
    asked = [need.message for need in with_own_checks(built).requirements if not need.fixed]
    if data.schema is not None or not asked:
        return ""
    return (
        "No schema was given, so nobody knows whether every record was what the method needs; one that was not counted "
        f"for nothing. {' '.join(asked)} Seal the records with a schema that says so: it refuses others beforehand."
    )


def caveats(budget: Budget, data: PrivateData) -> tuple[str, ...]:
    """Return what a certificate must warn of.

    Privacy: public.
    """
    ledger = ""
    if data.ledger.path is None:
        ledger = NO_LASTING_LEDGER
    elif data.ledger.anchored < len(data.ledger.lines):
        ledger = NO_ANCHOR
    return tuple(filter(None, (ledger, too_large(budget, data))))


def released_numbers(state: State, posterior: Posterior) -> dict[str, str]:
    """Return the hashes of a method's last state and of what was made of it.

    Privacy: post-processing.
    """
    return {"state": fingerprint(named({"state": state})), **posterior.fingerprints()}
