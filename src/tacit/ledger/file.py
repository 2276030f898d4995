"""The ledger: every access to the records, written down before it happens.

One line is one charge: which run, which steps, by which recipe. Lines are only ever appended; each holds the
hash of the line before it, and is on the disk before :meth:`Ledger.charge` returns, hence before a record is
read. A run that was killed replays the steps it had already paid for: the same run, tag and steps are free,
because they give the same bits again. ``docs/proofs/replay.md`` proves that this is sound, and says what the
wall must guarantee for it.

The chain of hashes finds accidents and careless edits. It is not a signature: whoever may write the file can
also write a different, consistent one. Anchors (`tacit.ledger.anchors`) hold the head of the chain outside of the
file, as every certificate does, so they expose a ledger that was shortened, rewritten or deleted after they were
written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tacit.accounting.mechanism import Budget, Mechanism, unprintable
from tacit.ledger import anchors
from tacit.ledger.contents import BudgetExceeded, Contents
from tacit.ledger.lines import GENESIS, Charge, LedgerError, Line
from tacit.ledger.storage import Storage
from tacit.ledger.view import View

__all__ = ["GENESIS", "BudgetExceeded", "Charge", "Ledger", "LedgerError", "Line"]


class Ledger(View):
    """A record of every access to one data set, on disk before the access happens.

    Privacy: public.

    Parameters
    ----------
    path
        The file; None keeps the ledger in memory, for rehearsals and tests. Without a cap the file is created
        by the first charge.
    cap
        What all runs together may spend. It is written into the file at once and binds whoever opens it
        later.
    adjacency
        ``"add-remove"`` or ``"replace-one"``; when None, the first charge decides.
    run_anchor
        A file in a run's folder where an anchor is kept too.

    Notes
    -----
    A ledger holds one adjacency and one unit: the costs of charges that protect different things do not add up.
    Simulated charges count like real ones.

    A ledger that lacks lines which this user's state folder knows (an older copy, another file in its place, none) is
    refused when it is opened and when a charge is made; ``Ledger.accept_loss`` goes on without them.

    Examples
    --------
    >>> import tacit
    >>> ledger = tacit.Ledger("patients.ledger.jsonl", cap=tacit.Budget(2.0, 1e-6, unit="patient"))
    >>> ledger.charges
    ()
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        cap: Budget | None = None,
        adjacency: str | None = None,
        *,
        run_anchor: Path | None = None,
    ) -> None:
        contents = Contents(None if path is None else Path(path), cap, adjacency)
        super().__init__(contents, Storage(contents, run_anchor))
        self._update(compare=True)
        if not self._known.lines and (cap is not None or adjacency is not None):
            with self._writing(compare=False) as file:
                if not self._known.lines:
                    self._storage.append(file, [])

    def charge(self, charge: Charge) -> bool:
        """Write a charge down, and return when it is on the disk; only then may records be read.

        Steps that the ledger already holds for the same run with the same tag are a replay: they give the
        same bits again and are free. Only the steps not covered are written, one line for each gap.

        Parameters
        ----------
        charge
            What is about to be charged.

        Returns
        -------
        bool
            True if anything was charged, False for a replay, which writes nothing.

        Raises
        ------
        BudgetExceeded
            If the cap would be exceeded. Nothing is written.
        LedgerError
            If the ledger is broken or the charge does not belong on it. Nothing is written.

        Privacy: public.
        """
        with self._writing() as file:
            new = self._known.uncovered(charge)
            if new:
                self._storage.append(file, [{"look": part.to_dict()} for part in new])
            else:  # the line may have been written by a process that was killed before its fsync
                self._storage.confirm(file)
            return bool(new)

    def note(self, kind: str, text: str) -> None:
        """Write down what no recipe prices, such as a refusal after a check of the records.

        Privacy: public: the kind and the text say nothing about a record.
        """
        with self._writing() as file:
            self._storage.append(file, [{"note": {"kind": kind, "text": text}}])

    @classmethod
    def accept_loss(cls, path: str | os.PathLike[str], reason: str) -> Ledger:
        """Continue with a ledger that lacks lines which its anchor knows, and write on it that this was accepted.

        A ledger that is gone is begun anew, under the cap that it had. All later certificates name the loss and the
        reason: what the missing lines charged is in no total any more.

        Parameters
        ----------
        path
            The ledger's file, or where it was.
        reason
            How the lines were lost and why that is accepted, in words for whoever reads a certificate.

        Raises
        ------
        ValueError
            If no loss is known, or there is no reason that can be read.

        Privacy: public.
        """
        if not reason.strip() or unprintable(reason):
            raise ValueError("Every later certificate shows why a loss was accepted; pass a reason that can be read.")
        book = cls.__new__(cls)
        known = Contents(Path(path))
        View.__init__(book, known, Storage(known))
        book._storage.heeds_anchors = False
        book._update()
        if not anchors.lost(Path(path), known.lines):
            raise ValueError(f"{path} lacks no line that is known, so there is no loss to accept.")
        with book._writing() as file:
            lost = anchors.lost(Path(path), known.lines)
            if not known.lines:
                before = lost[0].header
                known.cap = Budget.from_dict(before["cap"]) if "cap" in before else None
                known.adjacency = before.get("adjacency")
            losses = [
                {"loss": {"reason": reason, "head": one.head, "lines": one.lines, "found": one.found(known.lines)}}
                for one in lost
            ]
            book._storage.append(file, losses)
            book._storage.heeds_anchors = True
            book._storage.compare()
        return book

    def afford(self, mechanism: Mechanism, unit: str, run: str | None = None) -> None:
        """Check that a whole run fits under the cap, before it begins; nothing is written.

        Parameters
        ----------
        mechanism
            The run's whole recipe.
        unit
            Who is protected.
        run
            The identifier of a run that is being resumed: its steps on the ledger are not counted a second
            time.

        Raises
        ------
        BudgetExceeded
            If the cap would be exceeded.

        Privacy: public.
        """
        self._update(compare=True)
        with self._storage.mutex:
            self._known.afford(mechanism, unit, run)

    @contextlib.contextmanager
    def _writing(self, *, compare: bool = True) -> Iterator[int | None]:
        """Hold the ledger, with all of its lines known, to add to it."""
        with self._storage.locked(write=True) as file:
            self._storage.read(file)
            if compare:
                self._storage.compare()
            yield file
