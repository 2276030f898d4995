"""What may be read of a ledger: its lines, and what the charges on them have cost."""

from __future__ import annotations

from pathlib import Path

from tacit.accounting.mechanism import Budget
from tacit.ledger import anchors
from tacit.ledger.contents import Contents
from tacit.ledger.lines import RESTORE, Charge, LedgerError, Line, check_chain
from tacit.ledger.storage import Storage
from tacit.ledger.totals import Run, gaps, spent, summarise


class View:
    """The charges for one data set, as far as they are written down when a method is called.

    Privacy: public.
    """

    def __init__(self, contents: Contents, storage: Storage) -> None:
        self._known, self._storage = contents, storage

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else repr(str(self.path))
        return f"Ledger({where}, lines={len(self.lines)}, head={self.head[:12]}…)"

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines, the header first."""
        return tuple(self._update().lines)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All charges, in the order they were charged."""
        return tuple(self._update().charges)

    @property
    def losses(self) -> tuple[Line, ...]:
        """The lines that say that charges were lost, and who accepted that."""
        return tuple(line for line in self.lines if line.loss is not None)

    @property
    def head(self) -> str:
        """The hash of the last line, which stands for the whole ledger."""
        return self._update().head

    @property
    def path(self) -> Path | None:
        """Where the ledger is kept; None in memory."""
        return self._known.path

    @property
    def anchored(self) -> int:
        """How many of its lines this user's state folder knows; 0 for a ledger in memory."""
        anchor = None if self.path is None else anchors.at(self.path)
        return 0 if anchor is None else anchor.lines

    @property
    def cap(self) -> Budget | None:
        """What all runs together may spend."""
        return self._update().cap

    @property
    def adjacency(self) -> str | None:
        """The adjacency of all charges; None before the first."""
        return self._update().adjacency

    @property
    def unit(self) -> str | None:
        """Who is protected; None before the first charge."""
        return self._update().unit

    def spent(self, delta: float | None = None) -> float:
        """Return the ε that all charges together have cost, by a rule valid for runs chosen one after the other.

        The rule is named in ``accounting.COMPOSITION[adjacency]``. The first run counts whole from its first
        charge on, later runs by the steps taken (see ``tacit.ledger.totals.recipes``).

        Parameters
        ----------
        delta
            The δ at which to state it; the cap's when None. The share ``mechanism.RESERVE`` of it is kept for
            the numerical slack of the runs.

        Privacy: public.
        """
        charges = self.charges
        if delta is None:
            if self._known.cap is None:
                raise ValueError(
                    "The ledger has no cap, so spent() has no δ, and ε means nothing without one; "
                    "write ledger.spent(delta=1e-5)."
                )
            delta = self._known.cap.delta
        return spent(charges, delta, self._known.adjacency)

    def holds(self, run: str, stop: int) -> bool:
        """Return whether every step of a run before ``stop`` is on the ledger, under whatever tag.

        Privacy: public.
        """
        return not gaps(0, stop, ((charge.first, charge.stop) for charge in self.charges if charge.run == run))

    def runs(self) -> dict[str, Run]:
        """Summarise the ledger run by run.

        Privacy: public.
        """
        return summarise(self.charges)

    def history(self, delta: float) -> tuple[tuple[Run, float], ...]:
        """Return every run, in the order they began, and the ε at ``delta`` of it and all before it together.

        Privacy: public.
        """
        charges, runs = self.charges, self.runs()
        names = list(runs)
        return tuple(
            (run, spent((charge for charge in charges if charge.run in names[: place + 1]), delta, self.adjacency))
            for place, run in enumerate(runs.values())
        )

    def verify(self) -> None:
        """Read the whole ledger again and check every line and the chain.

        Raises
        ------
        LedgerError
            Naming the first broken line.

        Privacy: public.
        """
        known = self.lines
        if self.path is not None:
            fresh = self._opened_anew().lines
            for old, new in zip(known, fresh, strict=False):
                if old != new:
                    raise LedgerError(
                        f"Line {old.seq + 1} of {self.path} is not the line that was read before. The "
                        "history was rewritten; restore the file from a backup."
                    )
            if len(fresh) < len(known):
                raise LedgerError(f"{self.path} had {len(known)} lines and has {len(fresh)}. {RESTORE}")
        check_chain(known, "the ledger")

    def _opened_anew(self) -> View:
        contents = Contents(self.path)
        anew = View(contents, Storage(contents))
        anew._update(compare=True)
        return anew

    def _update(self, *, compare: bool = False) -> Contents:
        """Take in what this or another process has written."""
        if self.path is not None:
            with self._storage.locked(write=False) as file:
                self._storage.read(file)
                if compare:  # while nobody else can write a line and move the anchor
                    self._storage.compare()
        return self._known
