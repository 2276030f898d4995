"""What a ledger holds, and the rules for what may be added to it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.accounting import COMPOSITION
from tacit.accounting.mechanism import Budget, Mechanism
from tacit.ledger.lines import FORMAT, GENESIS, Charge, LedgerError, Line, canonical, check_line
from tacit.ledger.totals import gaps, spent


class BudgetExceeded(RuntimeError):
    """The charge would exceed the ledger's cap; nothing was charged and no record was read.

    Privacy: public.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> ledger = tacit.Ledger(cap=tacit.Budget(0.5, 1e-6))
    >>> data = tacit.PrivateData({"age": np.full(100, 50.0)}, ledger=ledger)
    >>> try:
    ...     tacit.ask(data, lambda record: 1.0, tacit.Budget(1.0, 1e-6), clip=1.0)
    ... except tacit.BudgetExceeded:
    ...     print(len(ledger.charges))
    0
    """


class Contents:
    """The known lines of a ledger, with its cap, adjacency and unit.

    Privacy: public.
    """

    def __init__(self, path: Path | None, cap: Budget | None = None, adjacency: str | None = None) -> None:
        if cap is not None and not isinstance(cap, Budget):
            raise ValueError(
                f"The cap is {cap!r}. It must say ε, δ and whom it protects; write Budget(epsilon, delta)."
            )
        if adjacency is not None and adjacency not in COMPOSITION:
            raise ValueError(
                f"The adjacency is {adjacency!r}. It decides what ε protects; write one of "
                f"{', '.join(map(repr, COMPOSITION))}."
            )
        self.path = path
        self.cap = cap
        self.adjacency = adjacency
        self.unit = None if cap is None else cap.unit
        self.lines: list[Line] = []
        self.charges: list[Charge] = []

    @property
    def head(self) -> str:
        """The hash of the last line."""
        return self.lines[-1].hash if self.lines else GENESIS

    def seal(self, bodies: Iterable[dict[str, Any]]) -> list[Line]:
        """Make the lines that would follow, the header first if there are none yet.

        Privacy: public.
        """
        # The day only: the time between two charges follows the number of records, and certificates are published.
        now = datetime.now(UTC).date().isoformat()
        prev = self.head
        new: list[Line] = []
        for body in bodies if self.lines else [self._header(), *bodies]:
            # Through the written form, so that a ledger in memory and one in a file hold the same.
            line = Line.seal(len(self.lines) + len(new), now, json.loads(canonical(body)), prev)
            check_line(line, line.seq, prev, "the ledger")
            new.append(line)
            prev = line.hash
        return new

    def take(self, new: Sequence[Line]) -> None:
        """Add lines, all or none of them.

        Privacy: public.
        """
        cap, adjacency, unit = self.cap, self.adjacency, self.unit
        charges = []
        for line in new:
            if line.seq == 0:
                cap, adjacency = self._agreed(line.body["header"])
                unit = None if cap is None else cap.unit
                continue
            charge = line.charge
            if charge is None:  # a note, or a loss that was accepted
                continue
            adjacency, unit = adjacency or charge.mechanism.adjacency, unit or charge.unit
            if (charge.mechanism.adjacency, charge.unit) != (adjacency, unit):
                raise LedgerError(
                    f"Line {line.seq + 1} of {self.path} has adjacency {charge.mechanism.adjacency!r} and "
                    f"unit {charge.unit!r}, the ledger {adjacency!r} and {unit!r}. It holds one of each; open "
                    "it without adjacency=, or restore the file from a backup."
                )
            charges.append(charge)
        self.cap, self.adjacency, self.unit = cap, adjacency, unit
        self.lines.extend(new)
        self.charges.extend(charges)

    def uncovered(self, charge: Charge) -> list[Charge]:
        """Return the parts of a charge that must be written: none of a replay.

        Raises
        ------
        BudgetExceeded
            If they would exceed the cap.
        LedgerError
            If the charge does not belong on this ledger.

        Privacy: public.
        """
        self.check_unit(charge.mechanism.adjacency, charge.unit)
        self._same_recipe(charge)
        if charge.kind == "select" and any(old.run == charge.run for old in self.charges):
            raise LedgerError(
                f"The selection {charge.run!r} is on the ledger already. Its runs are secret and kept "
                "nowhere, so it cannot be taken up again; start a new one, which is charged anew."
            )
        covered = ((old.first, old.stop) for old in self.charges if _alike(old, charge))
        new = [replace(charge, first=first, stop=stop) for first, stop in gaps(charge.first, charge.stop, covered)]
        if new:
            self._within_cap(new, f"a charge for {sum(part.steps for part in new)} steps of run {charge.run!r}")
        return new

    def afford(self, mechanism: Mechanism, unit: str, run: str | None) -> None:
        """Raise unless a whole run fits under the cap, what is charged of it already included.

        Privacy: public.
        """
        self.check_unit(mechanism.adjacency, unit)
        done = [charge for charge in self.charges if charge.run == run]
        kind = done[-1].kind if done else "fit" if mechanism.repeats is None else "select"
        # An unnamed plan gets a name that no run on the ledger has, so that it is added to none of them.
        name = run or max((charge.run for charge in self.charges), default="") + "+"
        plan = [
            Charge(name, kind, "planned", mechanism, first, stop, "planned", unit, False)
            for first, stop in gaps(0, mechanism.steps, ((charge.first, charge.stop) for charge in done))
        ]
        if plan:
            self._same_recipe(plan[0])
            self._within_cap(plan, f"a run of {sum(part.steps for part in plan)} steps")

    def check_unit(self, adjacency: str, unit: str) -> None:
        """Raise unless the ledger holds charges that protect the same.

        Privacy: public.
        """
        for name, has, wants in (
            ("adjacency", self.adjacency, adjacency),
            ("unit of privacy", self.unit, unit),
        ):
            if has is not None and has != wants:
                raise LedgerError(
                    f"The charge has {name} {wants!r}, the ledger {has!r}. An ε for one says nothing about "
                    f"the other, so they cannot be added up; use {has!r} here, or give the run a ledger of "
                    "its own."
                )

    def _header(self) -> dict[str, Any]:
        header: dict[str, Any] = {"format": FORMAT, "id": secrets.token_hex(16)}
        if self.adjacency is not None:
            header["adjacency"] = self.adjacency
        if self.cap is not None:
            header["cap"] = self.cap.to_dict()
        return {"header": header}

    def _agreed(self, header: dict[str, Any]) -> tuple[Budget | None, str | None]:
        """Return the cap and adjacency of a header, which must be those that were given, if any were."""
        cap = Budget.from_dict(header["cap"]) if "cap" in header else None
        if self.cap not in (None, cap):
            has = "no cap" if cap is None else f"the cap {cap}"
            raise LedgerError(
                f"The ledger {self.path} has {has}, and {self.cap} was given. A cap binds everyone who "
                "opens the ledger; open it without cap=, or start a new ledger."
            )
        adjacency = header.get("adjacency", self.adjacency)
        if self.adjacency not in (None, adjacency):
            raise LedgerError(
                f"The ledger {self.path} has adjacency {adjacency!r}, and {self.adjacency!r} "
                "was given. It holds one only; open it without adjacency=, or start a new ledger."
            )
        return cap, adjacency

    def _same_recipe(self, charge: Charge) -> None:
        for old in reversed(self.charges):
            if old.run == charge.run:
                if (old.mechanism, old.kind) != (charge.mechanism, charge.kind):
                    raise LedgerError(
                        f"Run {charge.run!r} is on the ledger with another recipe: {old.kind} "
                        f"{old.mechanism.to_dict()}, now {charge.kind} {charge.mechanism.to_dict()}. A run has "
                        "one recipe, which its certificate states; resume it unchanged, or start a run "
                        "with a new identifier."
                    )
                return

    def _within_cap(self, new: Sequence[Charge], what: str) -> None:
        cap = self.cap
        if cap is None:
            return
        adjacency = new[0].mechanism.adjacency
        after = spent([*self.charges, *new], cap.delta, adjacency)
        if after <= cap.epsilon:
            return
        before = spent(self.charges, cap.delta, adjacency)
        raise BudgetExceeded(
            f"The ledger's cap is ε = {cap.epsilon:g} at δ = {cap.delta:g} for each {cap.unit}, and ε = "
            f"{before:.4g} is spent; {what} would cost {after - before:.4g} more and make it {after:.4g}. "
            "Nothing was charged. Take fewer steps or more noise, or ask "
            "whoever set the cap for a new ledger with a larger one."
        )


def _alike(one: Charge, two: Charge) -> bool:
    """Return whether two charges are equal in everything but the steps.

    The run and the tag alone should do; asking for more can only charge more.
    """
    names = ("run", "tag", "kind", "method", "mechanism", "unit", "simulation")
    return all(getattr(one, name) == getattr(two, name) for name in names)
