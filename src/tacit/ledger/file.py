"""The ledger: every look at the records, written down before it happens.

One line is one look: which run, which steps, by which recipe. Lines are only ever appended; each holds the
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
import glob
import hashlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from tacit import accounting, system
from tacit.accounting.mechanism import RESERVE, Budget, Mechanism, unprintable
from tacit.ledger import anchors

FORMAT = "tacit-ledger-1"
GENESIS = "0" * 64
KINDS = ("fit", "ask", "select")
PARTIAL = ".partial"
"""The end of the names of files that are being written."""
REOPENED = 100
"""How often a file that is replaced while its lock is waited for is opened anew."""

# Every line begins with these bytes (keys are sorted). A tail that does not is no torn line of ours: a file
# that is not a ledger must never be cut.
_OPENING = b'{"body":{"'


class LedgerError(RuntimeError):
    """The ledger is broken, or the look does not belong on it; nothing was charged."""


class BudgetExceeded(RuntimeError):
    """The look would exceed the ledger's cap; nothing was charged and no record was read."""


def canonical(content: Any) -> bytes:
    """Write JSON in the one form that is hashed: sorted keys, no spaces, UTF-8, no NaN.

    Privacy: public.
    """
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


@dataclass(frozen=True)
class Charge:
    """One look at the records: the steps [first, stop) of a run.

    Parameters
    ----------
    run
        The run's identifier.
    kind
        ``"fit"``, ``"ask"`` or ``"select"``. A selection is one look, at all steps of its recipe.
    method
        What was computed, in public words.
    mechanism
        The run's whole recipe; its ``steps`` are those planned.
    first, stop
        The steps looked at, ``stop`` excluded.
    tag
        A keyed hash, made by the wall, of everything the released bits depend on. Within a run the same tag
        and the same step must mean the same bits, and different tags independent secret randomness.
    unit
        Who is protected.
    simulation
        Whether the secret randomness was fixed, so that nobody is protected.

    Privacy: public.
    """

    run: str
    kind: str
    method: str
    mechanism: Mechanism
    first: int
    stop: int
    tag: str
    unit: str
    simulation: bool

    def __post_init__(self) -> None:
        for name in ("run", "method", "tag", "unit"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(
                    f"A look has {name} = {value!r}. The ledger tells looks apart by it; give a non-empty string."
                )
            if found := unprintable(value):
                raise ValueError(
                    f"The {name} of a look holds the character {found}, which cannot be seen. Certificates are read by "
                    "people and show it; write it with printable characters."
                )
        if self.kind not in KINDS:
            raise ValueError(
                f"A look has kind = {self.kind!r}. A certificate says what was done; write 'fit', 'ask' or 'select'."
            )
        for name in ("first", "stop"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"A look has {name} = {value!r}. Steps are counted for the cost; give a plain int.")
        if not isinstance(self.simulation, bool):
            raise ValueError(
                f"A look has simulation = {self.simulation!r}. It decides whether anyone is protected; "
                "write True or False."
            )
        if not 0 <= self.first < self.stop <= self.mechanism.steps:
            raise ValueError(
                f"A look at the steps [{self.first}, {self.stop}) of a recipe with {self.mechanism.steps} "
                "steps. Only planned steps can be charged; give 0 <= first < stop <= mechanism.steps."
            )

        if (self.kind == "select") != (self.mechanism.repeats is not None):
            raise ValueError(
                f"A look has kind = {self.kind!r} and repeats = {self.mechanism.repeats!r}. Only a selection repeats "
                "its recipe, and its cost is of all repeats together; give both or neither."
            )
        if self.kind == "select" and self.steps != self.mechanism.steps:
            raise ValueError(
                f"A look at {self.steps} of the {self.mechanism.steps} steps of a selection. How many runs it makes is "
                "secret, so it is charged once and whole; give first = 0 and stop = mechanism.steps."
            )

    @property
    def steps(self) -> int:
        """How many steps this look takes."""
        return self.stop - self.first

    def to_dict(self) -> dict[str, Any]:
        """Return the look as plain JSON values.

        Privacy: public.
        """
        return {
            "run": self.run,
            "kind": self.kind,
            "method": self.method,
            "mechanism": self.mechanism.to_dict(),
            "first": self.first,
            "stop": self.stop,
            "tag": self.tag,
            "unit": self.unit,
            "simulation": self.simulation,
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Charge:
        """Read what :meth:`to_dict` wrote.

        Privacy: public.
        """
        return cls(**{**content, "mechanism": Mechanism.from_dict(content["mechanism"])})


@dataclass(frozen=True)
class Line:
    """One line of the ledger: its number, time and content, chained to the line before.

    Privacy: public.
    """

    seq: int
    time: str
    body: dict[str, Any]
    prev: str
    hash: str

    @classmethod
    def seal(cls, seq: int, time: str, body: dict[str, Any], prev: str) -> Line:
        """Make a line and its hash.

        Privacy: public.
        """
        content = {"seq": seq, "time": time, "body": body, "prev": prev}
        return cls(seq, time, body, prev, hashlib.sha256(canonical(content)).hexdigest())

    @property
    def charge(self) -> Charge | None:
        """The look on this line; None for the header, for notes, and for a line that accepts a loss."""
        return Charge.from_dict(self.body["look"]) if "look" in self.body else None

    @property
    def loss(self) -> dict[str, Any] | None:
        """What was lost and why that was accepted, on a line that says so; None for all others."""
        return self.body.get("loss")

    @property
    def note(self) -> dict[str, str] | None:
        """The kind and text of a note, on a line that is one; None for all others."""
        return self.body.get("note")

    @property
    def reason(self) -> str:
        """Why a loss was accepted, in the words of whoever did."""
        return "" if self.loss is None else str(self.loss["reason"])

    @property
    def lost(self) -> str:
        """What is known to be missing, in words."""
        if self.loss is None:
            return ""
        had, found = self.loss["lines"], self.loss["found"]
        return f"the ledger had {had} lines, and {found} of them were there"

    @property
    def intact(self) -> bool:
        """Whether the hash belongs to the content."""
        return Line.seal(self.seq, self.time, self.body, self.prev) == self

    def to_dict(self) -> dict[str, Any]:
        """Return the line as plain JSON values.

        Privacy: public.
        """
        return {"seq": self.seq, "time": self.time, "body": self.body, "prev": self.prev, "hash": self.hash}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Line:
        """Read what :meth:`to_dict` wrote.

        Privacy: public.
        """
        return cls(**content)


@dataclass(frozen=True)
class Run:
    """What the ledger holds about one run.

    Attributes
    ----------
    run, kind, method, mechanism, unit
        As on the run's last look; ``mechanism.steps`` are those planned.
    steps
        Steps looked at; a step that was charged again counts again.
    repeated
        How many of them are repetitions.
    looks
        The number of lines.
    simulation
        Whether any of the looks had fixed secret randomness.

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
        """The recipe with the steps actually looked at, which is what the run has cost."""
        return replace(self.mechanism, steps=self.steps)


def summarise(charges: Iterable[Charge]) -> dict[str, Run]:
    """Add up looks run by run, in the order in which the runs began.

    Privacy: public.
    """
    runs: dict[str, list[Charge]] = {}
    for charge in charges:
        runs.setdefault(charge.run, []).append(charge)
    summary = {}
    for name, of_run in runs.items():
        last = of_run[-1]
        steps = sum(charge.steps for charge in of_run)
        gaps = _gaps(0, last.mechanism.steps, ((charge.first, charge.stop) for charge in of_run))
        distinct = last.mechanism.steps - sum(stop - first for first, stop in gaps)
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

    The first run counts whole from its first look on, and steps of it that were repeated count apart:
    ``accounting.spent`` takes it by its privacy loss distribution, which holds for a run whose length was
    fixed before anything was seen. Later runs go through the Rényi filter, which is checked before every
    look, so they count by the steps looked at. A selection is always one look, and counts whole.

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


class Ledger:
    """A record of every look at one data set, on disk before the look happens.

    Parameters
    ----------
    path
        The file; None keeps the ledger in memory, for rehearsals and tests. Without a cap the file is created
        by the first charge.
    cap
        What all runs together may spend. It is written into the file at once and binds whoever opens it
        later.
    adjacency
        ``"add-remove"`` or ``"replace-one"``; when None, the first look decides.
    run_anchor
        A file in a run's folder where an anchor is kept too.

    Notes
    -----
    A ledger holds one adjacency and one unit: the costs of looks that protect different things do not add up.
    Simulated looks count like real ones.

    A ledger that lacks lines which this user's state folder knows (an older copy, another file in its place, none) is
    refused when it is opened and when a look is charged; ``Ledger.accept_loss`` goes on without them.

    Privacy: public.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        cap: Budget | None = None,
        adjacency: str | None = None,
        *,
        run_anchor: Path | None = None,
    ) -> None:
        if cap is not None and not isinstance(cap, Budget):
            raise ValueError(
                f"The cap is {cap!r}. It must say ε, δ and whom it protects; write Budget(epsilon, delta)."
            )
        if adjacency is not None and adjacency not in accounting.COMPOSITION:
            raise ValueError(
                f"The adjacency is {adjacency!r}. It decides what ε protects; write one of "
                f"{', '.join(map(repr, accounting.COMPOSITION))}."
            )
        if path is not None and not system.can_lock():
            raise LedgerError(
                "This system has no file locks, so two processes could spend the same budget. "
                "Use Ledger() in memory, or run on Linux, macOS or Windows."
            )
        self._begin(None if path is None else Path(path), cap, adjacency, run_anchor)
        self._update(compare=True)
        if not self._lines and (cap is not None or adjacency is not None):
            with self._locked(write=True) as file:
                self._read(file)
                if not self._lines:
                    self._append(file, [self._header()])
                    self._move_anchors()

    def _begin(
        self, path: Path | None, cap: Budget | None, adjacency: str | None, run_anchor: Path | None = None
    ) -> None:
        """Know nothing of the file yet."""
        if path is not None and path.is_dir():
            raise LedgerError(f"{path} is a folder, and a ledger is a file; write a path inside it.")
        self._path = path
        self._run_anchor = run_anchor
        self._heeds = True  # its anchors; not while a loss is accepted
        self._mutex = threading.Lock()
        self._cap = cap
        self._adjacency = adjacency
        self._unit = None if cap is None else cap.unit
        self._lines: list[Line] = []
        self._charges: list[Charge] = []
        self._end = 0  # bytes of the file that are known, intact lines
        self._last = b""  # the bytes of the last of them, to notice a file that was replaced
        self._unterminated = False  # the last of them lacks its newline: killed one byte before the end
        self._synced = -1  # bytes known to be on the disk and not only in the kernel's memory
        self._identity: tuple[int, int] | None = None  # device and inode of the file that they were in

    def __repr__(self) -> str:
        where = "in memory" if self._path is None else repr(str(self._path))
        return f"Ledger({where}, lines={len(self.lines)}, head={self.head[:12]}…)"

    # What may be done

    def charge(self, charge: Charge) -> bool:
        """Write a look down, and return when it is on the disk; only then may records be read.

        Steps that the ledger already holds for the same run with the same tag are a replay: they give the
        same bits again and are free. Only the steps not covered are written, one line for each gap.

        Parameters
        ----------
        look
            What is about to be looked at.

        Returns
        -------
        bool
            True if anything was charged, False for a replay, which writes nothing.

        Raises
        ------
        BudgetExceeded
            If the cap would be exceeded. Nothing is written.
        LedgerError
            If the ledger is broken or the look does not belong on it. Nothing is written.

        Privacy: public.
        """
        with self._locked(write=True) as file:
            self._read(file)
            self._compare()
            self._belongs(charge.mechanism.adjacency, charge.unit)
            self._same_recipe(charge)
            if charge.kind == "select" and any(old.run == charge.run for old in self._charges):
                raise LedgerError(
                    f"The selection {charge.run!r} is on the ledger already. Its runs are secret and kept "
                    "nowhere, so it cannot be taken up again; start a new one, which is charged anew."
                )
            covered = ((old.first, old.stop) for old in self._charges if _alike(old, charge))
            gaps = _gaps(charge.first, charge.stop, covered)
            if not gaps:
                # The line may have been written by a process that was killed before its fsync.
                self._sync(file)
                self._still_in_place(file)
                self._move_anchors()
                return False
            new = [replace(charge, first=first, stop=stop) for first, stop in gaps]
            self._within_cap(new, f"a look at {sum(part.steps for part in new)} steps of run {charge.run!r}")
            header = [] if self._lines else [self._header()]
            self._append(file, header + [{"look": part.to_dict()} for part in new])
            self._move_anchors()
            return True

    def note(self, kind: str, text: str) -> None:
        """Write down what no recipe prices, such as a refusal after a check of the records.

        Privacy: public: the kind and the text say nothing about a record.
        """
        with self._locked(write=True) as file:
            self._read(file)
            self._compare()
            header = [] if self._lines else [self._header()]
            self._append(file, [*header, {"note": {"kind": kind, "text": text}}])
            self._move_anchors()

    @classmethod
    def accept_loss(cls, path: str | os.PathLike[str], reason: str) -> Ledger:
        """Go on with a ledger that lacks lines which its anchor knows, and write on it that this was accepted.

        A ledger that is gone is begun anew, under the cap that it had. All later certificates name the loss and the
        reason: what was looked at in the missing lines is in no total any more.

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
            raise ValueError("Every later certificate shows why a loss was accepted; give a reason that can be read.")
        book = cls.__new__(cls)
        book._begin(Path(path), None, None)
        book._heeds = False
        book._update()
        if not anchors.lost(Path(path), book._lines):
            raise ValueError(f"{path} lacks no line that is known, so there is no loss to accept.")
        with book._locked(write=True) as file:
            book._read(file)
            lost = anchors.lost(Path(path), book._lines)
            losses = [
                {"loss": {"reason": reason, "head": one.head, "lines": one.lines, "found": one.found(book._lines)}}
                for one in lost
            ]
            if not book._lines:
                before = lost[0].header
                book._cap = Budget.from_dict(before["cap"]) if "cap" in before else None
                book._adjacency = before.get("adjacency")
                losses.insert(0, book._header())
            book._append(file, losses)
            book._move_anchors()
            book._heeds = True
            book._compare()
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
        with self._mutex:
            self._belongs(mechanism.adjacency, unit)
            done = [charge for charge in self._charges if charge.run == run]
            kind = done[-1].kind if done else "fit" if mechanism.repeats is None else "select"
            # An unnamed plan gets a name that no run on the ledger has, so that it is added to none of them.
            name = run or max((charge.run for charge in self._charges), default="") + "+"
            plan = [
                Charge(name, kind, "planned", mechanism, first, stop, "planned", unit, False)
                for first, stop in _gaps(0, mechanism.steps, ((charge.first, charge.stop) for charge in done))
            ]
            if plan:
                self._same_recipe(plan[0])
                self._within_cap(plan, f"a run of {sum(part.steps for part in plan)} steps")

    def spent(self, delta: float | None = None) -> float:
        """Return the ε that all looks together have cost, by a rule valid for runs chosen one after the other.

        The rule is named in ``accounting.COMPOSITION[adjacency]``. The first run counts whole from its first
        look on, later runs by the steps looked at (see :func:`recipes`).

        Parameters
        ----------
        delta
            The δ at which to state it; the cap's when None. The share ``mechanism.RESERVE`` of it is kept for
            the numerical slack of the runs.

        Privacy: public.
        """
        self._update()
        with self._mutex:
            if delta is None:
                if self._cap is None:
                    raise ValueError(
                        "The ledger has no cap, so spent() has no δ, and ε means nothing without one; "
                        "write ledger.spent(delta=1e-5)."
                    )
                delta = self._cap.delta
            return _spent(self._charges, delta, self._adjacency)

    def holds(self, run: str, stop: int) -> bool:
        """Say whether every step of a run before ``stop`` is on the ledger, under whatever tag.

        Privacy: public.
        """
        return not _gaps(0, stop, ((charge.first, charge.stop) for charge in self.charges if charge.run == run))

    def runs(self) -> dict[str, Run]:
        """Summarise the ledger run by run.

        Privacy: public.
        """
        return summarise(self.charges)

    def history(self, delta: float) -> tuple[tuple[Run, float], ...]:
        """Return every run, in the order they began, and the ε that it and all before it have cost together.

        Parameters
        ----------
        delta
            The δ at which to state it.

        Privacy: public.
        """
        charges, runs = self.charges, self.runs()
        names = list(runs)
        return tuple(
            (run, _spent((charge for charge in charges if charge.run in names[: place + 1]), delta, self.adjacency))
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
        if self._path is not None:
            fresh = Ledger(self._path).lines
            for old, new in zip(known, fresh, strict=False):
                if old != new:
                    raise LedgerError(
                        f"Line {old.seq + 1} of {self._path} is not the line that was read before. The "
                        "history was rewritten; restore the file from a backup."
                    )
            if len(fresh) < len(known):
                raise LedgerError(f"{self._path} had {len(known)} lines and has {len(fresh)}. {_RESTORE}")
        prev = GENESIS
        for seq, line in enumerate(known):
            _check(line, seq, prev, "the ledger")
            prev = line.hash

    # What may be read

    @property
    def lines(self) -> tuple[Line, ...]:
        """All lines, the header first."""
        self._update()
        return tuple(self._lines)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All looks, in the order they were charged."""
        self._update()
        return tuple(self._charges)

    @property
    def losses(self) -> tuple[Line, ...]:
        """The lines that say that looks were lost, and who accepted that."""
        return tuple(line for line in self.lines if line.loss is not None)

    @property
    def head(self) -> str:
        """The hash of the last line, which stands for the whole ledger."""
        self._update()
        return self._lines[-1].hash if self._lines else GENESIS

    @property
    def path(self) -> Path | None:
        """Where the ledger is kept; None in memory."""
        return self._path

    @property
    def anchored(self) -> int:
        """How many of its lines this user's state folder knows; 0 for a ledger in memory."""
        anchor = None if self._path is None else anchors.at(self._path)
        return 0 if anchor is None else anchor.lines

    @property
    def cap(self) -> Budget | None:
        """What all runs together may spend."""
        self._update()
        return self._cap

    @property
    def adjacency(self) -> str | None:
        """The adjacency of all looks; None before the first."""
        self._update()
        return self._adjacency

    @property
    def unit(self) -> str | None:
        """Who is protected; None before the first look."""
        self._update()
        return self._unit

    # Rules

    def _belongs(self, adjacency: str, unit: str) -> None:
        for name, has, wants in (
            ("adjacency", self._adjacency, adjacency),
            ("unit of privacy", self._unit, unit),
        ):
            if has is not None and has != wants:
                raise LedgerError(
                    f"The look has {name} {wants!r}, the ledger {has!r}. An ε for one says nothing about "
                    f"the other, so they cannot be added up; use {has!r} here, or give the run a ledger of "
                    "its own."
                )

    def _same_recipe(self, charge: Charge) -> None:
        for old in reversed(self._charges):
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
        cap = self._cap
        if cap is None:
            return
        adjacency = new[0].mechanism.adjacency
        after = _spent([*self._charges, *new], cap.delta, adjacency)
        if after <= cap.epsilon:
            return
        before = _spent(self._charges, cap.delta, adjacency)
        raise BudgetExceeded(
            f"The ledger's cap is ε = {cap.epsilon:g} at δ = {cap.delta:g} for each {cap.unit}, and ε = "
            f"{before:.4g} is spent; {what} would cost {after - before:.4g} more and make it {after:.4g}. "
            "Nothing was charged. Take fewer steps or more noise, or ask "
            "whoever set the cap for a new ledger with a larger one."
        )

    # The file

    def _header(self) -> dict[str, Any]:
        header: dict[str, Any] = {"format": FORMAT, "id": secrets.token_hex(16)}
        if self._adjacency is not None:
            header["adjacency"] = self._adjacency
        if self._cap is not None:
            header["cap"] = self._cap.to_dict()
        return {"header": header}

    @contextlib.contextmanager
    def _locked(self, write: bool) -> Iterator[int | None]:
        """Hold the ledger against other threads and processes; gives the open file, None if there is none."""
        with self._mutex:
            if self._path is None:
                yield None
                return
            with contextlib.ExitStack() as held:
                for _ in range(REOPENED):
                    file = self._open(write)
                    if file is None:
                        break
                    held.callback(os.close, file)  # which gives the lock back
                    held.enter_context(system.locked(file, shared=not write))
                    if self._is_in_place(file):
                        break
                    # While this process waited for the lock, the path was given to another file. A line written to
                    # the old one would be a line that nobody ever reads.
                    held.close()
                else:
                    raise LedgerError(
                        f"{self._path} is replaced again and again by another file, so a look written to it could be "
                        "lost. Stop whatever replaces it (a synchronising program, an editor), and repeat the call."
                    )
                if file is not None and (identity := _identity(os.fstat(file))) != self._identity:
                    self._identity, self._synced = identity, -1  # nothing is known of what this file has on the disk
                yield file

    def _open(self, write: bool) -> int | None:
        assert self._path is not None
        flags = system.BINARY | (os.O_RDWR if write else os.O_RDONLY)
        try:
            try:
                return os.open(self._path, flags)
            except FileNotFoundError:
                # A file that vanished, under a ledger in use or an anchor, must not come back empty.
                if self._lines:
                    raise LedgerError(f"{self._path} had {len(self._lines)} lines and is gone. {_RESTORE}") from None
                try:
                    self._compare()
                except LedgerError:
                    if not self._path.exists():
                        raise
                    return os.open(self._path, flags)  # another process has just begun it
                return os.open(self._path, flags | os.O_CREAT, 0o644) if write else None
        except FileNotFoundError:
            raise LedgerError(
                f"The folder of the ledger {self._path} does not exist, so no look can be written "
                "down. Create it first."
            ) from None
        except OSError as error:
            raise LedgerError(
                f"The ledger {self._path} cannot be opened ({error}), so no look can be written down. "
                "Give the path of a file that may be written."
            ) from error

    def _is_in_place(self, file: int) -> bool:
        """Say whether the open file is still the one that the ledger's path leads to."""
        assert self._path is not None
        try:
            return _identity(os.stat(self._path)) == _identity(os.fstat(file))
        except FileNotFoundError:
            return False

    def _still_in_place(self, file: int | None) -> None:
        """Raise where the lines just brought to the disk are not in the file that the path leads to."""
        if file is not None and not self._is_in_place(file):
            raise LedgerError(
                f"{self._path} was replaced by another file while a look was written to it, so the line is lost to "
                "whoever opens the ledger. No record is read; stop whatever replaces the file, and repeat the call."
            )

    def _compare(self) -> None:
        """Raise where the ledger lacks lines which an anchor knows."""
        if self._path is None or not self._heeds:
            return
        if said := anchors.problem(self._path, self._lines, self._run_anchor):
            raise LedgerError(said)

    def _move_anchors(self) -> None:
        """Write outside of the file what it holds, when it is on the disk; only then may records be read.

        Where the state folder cannot be written this is left out, and certificates say so.
        """
        if self._path is None:
            return
        with anchors.held() as able:
            # A copy at another path, under another lock, may have been charged in the meantime.
            self._compare()
            if able:
                with contextlib.suppress(OSError):
                    for file, content in anchors.files(self._path, self._lines):
                        _write_anchor(file, content, 0o600)
        if self._run_anchor is not None and (anchor := anchors.Anchor.of(self._lines)) is not None:
            _write_anchor(self._run_anchor, anchor.to_bytes(), 0o644)

    def _update(self, *, compare: bool = False) -> None:
        if self._path is not None:
            with self._locked(write=False) as file:
                self._read(file)
                if compare:  # while nobody else can write a line and move the anchor
                    self._compare()

    def _read(self, file: int | None) -> None:
        """Take in the lines that were appended since the last time, by this or another process."""
        if file is None:
            return
        size = os.fstat(file).st_size
        if size < self._end or _pread(file, self._end - len(self._last), len(self._last)) != self._last:
            raise LedgerError(
                f"{self._path} no longer holds its line {len(self._lines)}: it was shortened or replaced. {_RESTORE}"
            )
        data = _pread(file, self._end, size - self._end)
        if not data:
            return
        end, unterminated = self._end, self._unterminated
        if unterminated and data[:1] == b"\n":
            data, end, unterminated = data[1:], end + 1, False
        *whole, tail = data.split(b"\n")
        seq = len(self._lines)
        prev = self._lines[-1].hash if self._lines else GENESIS
        new: list[Line] = []
        last = self._last
        for raw in whole:
            line = _parse(raw, seq + len(new), prev, str(self._path))
            new.append(line)
            prev, last, end = line.hash, raw + b"\n", end + len(raw) + 1
        if tail and _is_torn(tail):
            if not (_OPENING.startswith(tail[: len(_OPENING)]) or not tail.strip(b"\0")):
                raise LedgerError(
                    f"Line {seq + len(new) + 1} of {self._path} is not a ledger's line. Nothing can be "
                    "charged to a file that is something else; give the path of a ledger, or of a file "
                    "that does not exist yet."
                )
        elif tail:
            # All of the line but its newline: count it. It may be an editor's doing, not a killed process's.
            line = _parse(tail, seq + len(new), prev, str(self._path))
            new.append(line)
            last, end, unterminated = tail, end + len(tail), True
        self._take(new)
        self._last, self._end, self._unterminated = last, end, unterminated

    def _take(self, new: Sequence[Line]) -> None:
        """Add lines, all or none of them."""
        cap, adjacency, unit = self._cap, self._adjacency, self._unit
        charges = []
        for line in new:
            if line.seq == 0:
                header = line.body["header"]
                stored = Budget.from_dict(header["cap"]) if "cap" in header else None
                if cap is not None and stored != cap:
                    has = "no cap" if stored is None else f"the cap {stored}"
                    raise LedgerError(
                        f"The ledger {self._path} has {has}, and {cap} was given. A cap binds everyone who "
                        "opens the ledger; open it without cap=, or start a new ledger."
                    )
                cap = stored
                unit = None if cap is None else cap.unit
                if adjacency is not None and header.get("adjacency", adjacency) != adjacency:
                    raise LedgerError(
                        f"The ledger {self._path} has adjacency {header['adjacency']!r}, and {adjacency!r} "
                        "was given. It holds one only; open it without adjacency=, or start a new ledger."
                    )
                adjacency = header.get("adjacency", adjacency)
                continue
            charge = line.charge
            if charge is None:  # a note, or a loss that was accepted
                continue
            adjacency, unit = adjacency or charge.mechanism.adjacency, unit or charge.unit
            if (charge.mechanism.adjacency, charge.unit) != (adjacency, unit):
                raise LedgerError(
                    f"Line {line.seq + 1} of {self._path} has adjacency {charge.mechanism.adjacency!r} and "
                    f"unit {charge.unit!r}, the ledger {adjacency!r} and {unit!r}. It holds one of each; open "
                    "it without adjacency=, or restore the file from a backup."
                )
            charges.append(charge)
        self._cap, self._adjacency, self._unit = cap, adjacency, unit
        self._lines.extend(new)
        self._charges.extend(charges)

    def _append(self, file: int | None, bodies: Sequence[dict[str, Any]]) -> None:
        # The day only: the time between two looks follows the number of records, and certificates are published.
        now = datetime.now(UTC).date().isoformat()
        prev = self._lines[-1].hash if self._lines else GENESIS
        new: list[Line] = []
        for body in bodies:
            # Through the written form, so that a ledger in memory and one in a file hold the same.
            line = Line.seal(len(self._lines) + len(new), now, json.loads(canonical(body)), prev)
            _check(line, line.seq, prev, "the ledger")
            new.append(line)
            prev = line.hash
        if file is None:
            self._take(new)
            return
        raw = [canonical(line.to_dict()) + b"\n" for line in new]
        data = (b"\n" if self._unterminated else b"") + b"".join(raw)
        try:
            os.ftruncate(file, self._end)  # a torn line of a killed process was no look
            done = 0
            while done < len(data):
                done += system.write_at(file, data[done:], self._end + done)
            self._sync(file, self._end + len(data))
            self._still_in_place(file)
        except BaseException as error:
            # No look will follow, so no line may stay; if this fails too the line stays and was paid for
            # nothing.
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._end)
            self._synced = -1
            if isinstance(error, OSError):
                raise LedgerError(
                    f"The look could not be written to {self._path} ({error}). Records are read only after "
                    "their look is on the disk; free some space, or choose another path."
                ) from error
            raise
        self._take(new)
        self._end += len(data)
        self._last, self._unterminated = raw[-1], False

    def _sync(self, file: int | None, end: int | None = None) -> None:
        """Make sure that every line up to ``end`` survives a power failure."""
        end = self._end if end is None else end
        if file is None or self._synced >= end:
            return
        assert self._path is not None
        try:
            system.flush_to_disk(file)
            if self._synced < 0:
                # Whoever created the file may have been killed before its name was safe.
                system.flush_folder(self._path.parent)
        except OSError as error:
            raise LedgerError(
                f"The ledger {self._path} could not be brought to the disk ({error}). Records are read only after "
                "their look is there; free some space, or choose another path."
            ) from error
        self._synced = end


def atomic_write(path: Path, write: Callable[[BinaryIO], Any], mode: int = 0o644, *, sync: bool = True) -> None:
    """Write a file so that it is whole and on the disk when this returns, and that a crash leaves the old one.

    Without ``sync`` that holds for crashes of the process, not for a power failure, and takes a tenth of the time.

    What is written goes to a new file under a name that nobody knows before, and takes the path's place at the end: a
    link or a file that somebody planted at either name is neither followed nor written to.

    Privacy: of what is written.
    """
    partial = partial_of(path)
    try:
        with os.fdopen(system.create(partial, mode), "wb") as file:
            write(file)
            file.flush()
            if sync:
                system.flush_to_disk(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise OSError(
            error.errno,
            f"{error.strerror}. The file could not be written; what was there before is unchanged. Make room, or make "
            "the folder writable, and repeat the call: what a run has paid for is not charged again",
            str(path),
        ) from error


def partial_of(path: Path) -> Path:
    """Return a name beside a file for what is written of it before it is whole: one that nobody knows before.

    Privacy: public.
    """
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}{PARTIAL}")


def _write_anchor(path: Path, content: bytes, mode: int) -> None:
    # Not brought to the disk: an anchor that a power failure takes away leaves the ledger ahead of it.
    atomic_write(path, lambda file: file.write(content), mode, sync=False)


def remove_partial(path: Path) -> None:
    """Remove what was left of a file under ``partial_of`` by a kill; nobody else may be writing it.

    Privacy: public.
    """
    for left in path.parent.glob(f"{glob.escape(path.name)}.*{PARTIAL}"):
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def lock_folder(folder: Path | None) -> Iterator[None]:
    """Hold a run's folder against other threads and processes; there is nothing to hold without one.

    Privacy: public.
    """
    if folder is None or not system.can_lock():
        yield
        return
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        if made:
            held.callback(_remove_if_empty, folder)  # a refusal leaves nothing behind, not even the folder
        try:
            held.enter_context(system.locked_folder(folder))
        except BlockingIOError:
            raise LedgerError(
                f"Another process is at work in the folder {folder}. Two would write over each other's files; wait "
                "until it has ended, or choose another run_dir."
            ) from None
        yield


_RESTORE = "Looks may be missing, so nothing can be charged; restore the file from a backup."


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _pread(file: int, offset: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = system.read_at(file, size, offset)
        if not part:
            break
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return b"".join(parts)


def _is_torn(tail: bytes) -> bool:
    # No proper prefix of a JSON object is JSON: what parses was written to its end, and must then be right.
    try:
        json.loads(tail)
    except ValueError:
        return True
    return False


def _parse(raw: bytes, seq: int, prev: str, where: str) -> Line:
    try:
        content = json.loads(raw)
        # Only the written form itself: a digit too many in a number could otherwise change unseen.
        if canonical(content) != raw:
            raise ValueError("not in the form that tacit writes")
        line = Line.from_dict(content)
    except (ValueError, TypeError, RecursionError) as error:
        raise LedgerError(f"Line {seq + 1} of {where} cannot be read ({error}). {_RESTORE}") from error
    _check(line, seq, prev, where)
    return line


def _check(line: Line, seq: int, prev: str, where: str) -> None:
    """Raise unless the line is whole, in its place, and says what a line may say."""
    problem = None
    kinds = [["header"]] if seq == 0 else [["look"], ["loss"], ["note"]]
    if not isinstance(line.body, dict) or list(line.body) not in kinds:
        problem = "should be the header" if seq == 0 else "should be a look"
    elif not isinstance(line.time, str):
        problem = f"has the time {line.time!r}"
    elif line.seq != seq or isinstance(line.seq, bool):
        problem = f"has the number {line.seq}, not {seq}"
    elif line.prev != prev:
        problem = "does not follow from the line before it"
    elif not line.intact:
        problem = "was changed: its hash does not belong to it"
    else:
        try:
            if seq == 0:
                if line.body["header"]["format"] != FORMAT:
                    problem = f"has the format {line.body['header']['format']!r}, and this version reads {FORMAT!r}"
                elif "cap" in line.body["header"]:
                    Budget.from_dict(line.body["header"]["cap"])
            elif line.loss is not None:
                _check_loss(line.loss)
            elif "look" in line.body:
                Charge.from_dict(line.body["look"])
            elif {key: type(value) for key, value in line.body["note"].items()} != {"kind": str, "text": str}:
                problem = "has a note without a kind and a text"
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            problem = f"does not make sense ({error})"
    if problem is not None:
        raise LedgerError(f"Line {seq + 1} of {where} {problem}. {_RESTORE}")


def _check_loss(loss: Any) -> None:
    """Raise unless this says what was lost, and why that was accepted."""
    if set(loss) != {"reason", "head", "lines", "found"}:
        raise ValueError(f"a loss has the fields {sorted(loss)}")
    if not isinstance(loss["reason"], str) or not loss["reason"].strip() or unprintable(loss["reason"]):
        raise ValueError("a loss has no reason that can be read")
    if not isinstance(loss["head"], str) or any(type(loss[name]) is not int for name in ("lines", "found")):
        raise ValueError("a loss does not say what was lost")


def _alike(one: Charge, two: Charge) -> bool:
    """Tell whether two looks are equal in everything but the steps.

    The run and the tag alone should do; asking for more can only charge more.
    """
    names = ("run", "tag", "kind", "method", "mechanism", "unit", "simulation")
    return all(getattr(one, name) == getattr(two, name) for name in names)


def _gaps(first: int, stop: int, covered: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of [first, stop) that no covered interval holds."""
    gaps = []
    at = first
    for low, high in sorted(covered):
        if low >= stop:
            break
        if low > at:
            gaps.append((at, low))
        at = max(at, high)
    if at < stop:
        gaps.append((at, stop))
    return gaps


def _spent(charges: Iterable[Charge], delta: float, adjacency: str | None) -> float:
    runs = [run[1:] for run in recipes(charges)]
    if not runs:
        return 0.0
    assert adjacency is not None  # set by the first look
    # The rest of δ pays for the runs' inexact sampling, as in calibrate.
    return float(accounting.spent(runs, delta * (1 - RESERVE), adjacency))
