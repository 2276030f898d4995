"""The lines of a ledger: what one says, how it is written and chained, and what is refused when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tacit.accounting.mechanism import Budget, Mechanism, unprintable

FORMAT = "tacit-ledger-1"
GENESIS = "0" * 64
KINDS = ("fit", "ask", "select")
RESTORE = "Looks may be missing, so nothing can be charged; restore the file from a backup."

# Every line begins with these bytes (keys are sorted). A tail that does not is no torn line of ours: a file
# that is not a ledger must never be cut.
_OPENING = b'{"body":{"'


class LedgerError(RuntimeError):
    """The ledger is broken, or the charge does not belong on it; nothing was charged."""


def canonical(content: Any) -> bytes:
    """Write JSON in the one form that is hashed: sorted keys, no spaces, UTF-8, no NaN.

    Privacy: public.
    """
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


@dataclass(frozen=True)
class Charge:
    """One charge: access to the records in the steps [first, stop) of a run.

    Parameters
    ----------
    run
        The run's identifier.
    kind
        ``"fit"``, ``"ask"`` or ``"select"``. A selection is one charge, at all steps of its recipe.
    method
        What was computed, in public words.
    mechanism
        The run's whole recipe; its ``steps`` are those planned.
    first, stop
        The steps taken, ``stop`` excluded.
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
                    f"A charge has {name} = {value!r}. The ledger tells charges apart by it; write a non-empty string."
                )
            if found := unprintable(value):
                raise ValueError(
                    f"The {name} of a charge holds the character {found}, which is invisible. Certificates are read by "
                    "people and show it; write it with printable characters."
                )
        if self.kind not in KINDS:
            raise ValueError(
                f"A charge has kind = {self.kind!r}. A certificate says what was done; write 'fit', 'ask' or 'select'."
            )
        for name in ("first", "stop"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"A charge has {name} = {value!r}. Steps are counted for the cost; write a plain int.")
        if not isinstance(self.simulation, bool):
            raise ValueError(
                f"A charge has simulation = {self.simulation!r}. It decides whether anyone is protected; "
                "write True or False."
            )
        if not 0 <= self.first < self.stop <= self.mechanism.steps:
            raise ValueError(
                f"A charge for the steps [{self.first}, {self.stop}) of a recipe with {self.mechanism.steps} "
                "steps. Only planned steps can be charged; write 0 <= first < stop <= mechanism.steps."
            )

        if (self.kind == "select") != (self.mechanism.repeats is not None):
            raise ValueError(
                f"A charge has kind = {self.kind!r} and repeats = {self.mechanism.repeats!r}. Only a selection repeats "
                "its recipe, and its cost is of all repeats together; pass both or neither."
            )
        if self.kind == "select" and self.steps != self.mechanism.steps:
            raise ValueError(
                f"A charge for {self.steps} of the {self.mechanism.steps} steps of a selection. How many runs it makes "
                "is secret, so it is charged once and whole; write first = 0 and stop = mechanism.steps."
            )

    @property
    def steps(self) -> int:
        """How many steps this charge takes."""
        return self.stop - self.first

    def to_dict(self) -> dict[str, Any]:
        """Return the charge as plain JSON values.

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
        """The charge on this line; None for the header, for notes, and for a line that accepts a loss."""
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


class Tail(NamedTuple):
    """What was read of a ledger's file, from some line's end on: whole lines, and the bytes that they take.

    Privacy: public.
    """

    lines: list[Line]
    last: bytes
    size: int
    unterminated: bool


def read_tail(data: bytes, seq: int, prev: str, where: str) -> Tail:
    """Read lines that follow line number ``seq - 1`` with the hash ``prev``; a torn last one is left out.

    Privacy: public.
    """
    *whole, tail = data.split(b"\n")
    lines: list[Line] = []

    def take(raw: bytes) -> None:
        lines.append(_parse(raw, seq + len(lines), lines[-1].hash if lines else prev, where))

    for raw in whole:
        take(raw)
    size = len(data) - len(tail)
    if not tail or _is_torn(tail):
        if not (_OPENING.startswith(tail[: len(_OPENING)]) or not tail.strip(b"\0")):
            raise LedgerError(
                f"Line {seq + len(lines) + 1} of {where} is not a ledger's line. Nothing can be "
                "charged to a file that is something else; pass the path of a ledger, or of a file "
                "that does not exist yet."
            )
        return Tail(lines, whole[-1] + b"\n" if whole else b"", size, False)
    # All of the line but its newline: count it. It may be an editor's doing, not a killed process's.
    take(tail)
    return Tail(lines, tail, size + len(tail), True)


def check_chain(lines: Sequence[Line], where: str) -> None:
    """Raise unless every line is whole, in its place, and follows from the one before it.

    Privacy: public.
    """
    prev = GENESIS
    for seq, line in enumerate(lines):
        check_line(line, seq, prev, where)
        prev = line.hash


def _parse(raw: bytes, seq: int, prev: str, where: str) -> Line:
    try:
        content = json.loads(raw)
        # Only the written form itself: a digit too many in a number could otherwise change unseen.
        if canonical(content) != raw:
            raise ValueError("not in the form that tacit writes")
        line = Line.from_dict(content)
    except (ValueError, TypeError, RecursionError) as error:
        raise LedgerError(f"Line {seq + 1} of {where} cannot be read ({error}). {RESTORE}") from error
    check_line(line, seq, prev, where)
    return line


def check_line(line: Line, seq: int, prev: str, where: str) -> None:
    """Raise unless the line is whole, in its place, and says what a line may say.

    Privacy: public.
    """
    problem = None
    kinds = [["header"]] if seq == 0 else [["look"], ["loss"], ["note"]]
    if not isinstance(line.body, dict) or list(line.body) not in kinds:
        problem = "should be the header" if seq == 0 else "should be a charge"
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
        raise LedgerError(f"Line {seq + 1} of {where} {problem}. {RESTORE}")


def _check_loss(loss: Any) -> None:
    """Raise unless this says what was lost, and why that was accepted."""
    if set(loss) != {"reason", "head", "lines", "found"}:
        raise ValueError(f"a loss has the fields {sorted(loss)}")
    if not isinstance(loss["reason"], str) or not loss["reason"].strip() or unprintable(loss["reason"]):
        raise ValueError("a loss has no reason that can be read")
    if not isinstance(loss["head"], str) or any(type(loss[name]) is not int for name in ("lines", "found")):
        raise ValueError("a loss does not say what was lost")


def _is_torn(tail: bytes) -> bool:
    # No proper prefix of a JSON object is JSON: what parses was written to its end, and must then be right.
    try:
        json.loads(tail)
    except ValueError:
        return True
    return False
