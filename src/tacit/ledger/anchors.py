"""Anchors: what is known of a ledger outside of its file, so that an older copy in its place is noticed.

An anchor names a ledger, the number of its lines and the hash of the last. It is kept in this user's state folder,
where it is found by the ledger's path and by the ledger's identity, and in the folder of the run that is under way. It
is written when a line is on the disk and before records are read, and it only moves forward. The one exception is a
loss that somebody accepted, which is a line of the ledger itself. A certificate is an anchor that others keep.

Whoever may write both the ledger and its anchors can put both back: see ``docs/threats.md``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tacit import system
from tacit.ledger.lines import Line

RUN = "run.json"
"""The name of the file that makes a folder one of a run."""
RUN_ANCHOR = "anchor.json"
"""The name of the anchor in a run's folder."""
COMMAND = "tacit ledger accept-loss"
POINTER = {"ledger": str, "path": str}


class Anchor(NamedTuple):
    """How far a ledger was known to go.

    Attributes
    ----------
    ledger
        The ledger's identity, as :func:`identity` gives it.
    lines, head
        The number of its lines, and the hash of the last.
    header
        What its first line says, with the cap: a ledger that was lost goes on under the same cap.

    Privacy: public.
    """

    ledger: str
    lines: int
    head: str
    header: dict[str, Any]

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Anchor | None:
        """Return the anchor of a ledger with these lines; None where nothing tells it from others yet.

        Privacy: public.
        """
        name = identity(lines)
        return cls(name, len(lines), lines[-1].hash, lines[0].body["header"]) if name else None

    def to_bytes(self) -> bytes:
        """Write the anchor as JSON.

        Privacy: public.
        """
        return _json(self._asdict())

    def problem(self, path: Path, lines: Sequence[Line]) -> str:
        """Return what a ledger lacks that this anchor knows, or nothing.

        Privacy: public.
        """
        if not lines:
            return f"{path} had {self.lines} lines and is gone or empty."
        if identity(lines) != self.ledger:
            return f"{path} is another ledger than the one that is known, which had {self.lines} lines."
        if len(lines) < self.lines:
            return f"{path} has {len(lines)} lines, and it had {self.lines}: this is an older copy of it."
        if lines[self.lines - 1].hash != self.head:
            return f"Line {self.lines} of {path} is not the one that was written: this went on from an older copy."
        return ""

    def found(self, lines: Sequence[Line]) -> int:
        """Return how many of the lines that this anchor knows are the first of these lines, as far as it can know.

        Privacy: public.
        """
        if identity(lines) != self.ledger:
            return 0
        return len(lines) if len(lines) < self.lines else 1


FIELDS = {"ledger": str, "lines": int, "head": str, "header": dict}


def identity(lines: Sequence[Line]) -> str:
    """Return what tells a ledger from every other, copies of it excepted: the hash of its first line.

    In ledgers of earlier versions that line holds nothing random, and their second one, a charge, does. Empty where
    such a ledger has no second line, or there are no lines at all.

    Privacy: public.
    """
    private = lines[:1] if lines and "id" in lines[0].body["header"] else lines[1:2]
    return private[0].hash if private else ""


def at(path: Path) -> Anchor | None:
    """Return the anchor of the ledger that was last charged at a path, None if none is known.

    Raises
    ------
    ValueError
        If there is a file in its place that this user did not write, or that cannot be read.

    Privacy: public.
    """
    found = _read(_pointer(path), POINTER)
    return None if found is None else _of_ledger(found["ledger"])


def problem(path: Path, lines: Sequence[Line], run_anchor: Path | None = None) -> str:
    """Return what a ledger lacks that its anchors know, in the state folder and in a run's folder; or nothing.

    Privacy: public.
    """
    try:
        lacked = lost(path, lines)
        of_run = None if run_anchor is None else _read(run_anchor, FIELDS, private=False)
    except ValueError as error:
        return f"It is not known whether {path} is whole: {error}"
    if lacked:
        return (
            f"{lacked[0].problem(path, lines)} Charges are missing, and none can be added; restore the newest copy, "
            f"or, if it is lost for good, write: {COMMAND} {path} --reason '...'"
        )
    if run_anchor is not None and of_run is not None and Anchor(**of_run).problem(path, lines):
        return (
            f"The run in {run_anchor.parent} was charged to a ledger that had {of_run['lines']} lines, and {path} is "
            "another one or lacks some of them. Restore its newest copy, give the records that ledger, or choose "
            "another run_dir."
        )
    return ""


def lost(path: Path, lines: Sequence[Line]) -> list[Anchor]:
    """Return the anchors in the state folder that know lines which a ledger lacks.

    Privacy: public.
    """
    found = (at(path), _of_ledger(identity(lines)))
    known = {anchor.ledger: anchor for anchor in found if anchor is not None}
    return [anchor for anchor in known.values() if anchor.problem(path, lines)]


def move(path: Path, lines: Sequence[Line], run_anchor: Path | None, check: Callable[[], None]) -> None:
    """Note how far a ledger goes, once ``check`` has let it pass under the lock of all anchors.

    Where the state folder cannot be written it is left out, and certificates say so.

    Privacy: public.
    """
    with _held() as able:
        check()
        if able:
            with contextlib.suppress(OSError):
                for file, content in _changed(path, lines):
                    _write(file, content, 0o600)
    if run_anchor is not None and (anchor := Anchor.of(lines)) is not None:
        _write(run_anchor, anchor.to_bytes(), 0o644)


def _changed(path: Path, lines: Sequence[Line]) -> Iterator[tuple[Path, bytes]]:
    """Yield the files of the state folder that must change, and what they must hold, for lines to be known."""
    if (anchor := Anchor.of(lines)) is None:
        return
    pointer = {"ledger": anchor.ledger, "path": os.path.realpath(path)}
    wanted = [(_file(anchor.ledger), anchor.to_bytes())]
    # A run's own ledger without a cap goes when the run's folder is removed, and the path is free for another run.
    if "cap" in anchor.header or not (path.parent / RUN).exists():
        wanted.append((_pointer(path), _json(pointer)))  # last: what it leads to is there
    for file, content in wanted:
        if system.read_own(file) != content:
            yield file, content


@contextlib.contextmanager
def _held() -> Iterator[bool]:
    """Hold this user's anchors against other processes; gives False where the state folder cannot be written."""
    with contextlib.ExitStack() as stack:
        try:
            folder = _folder()
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | system.BINARY
            file = os.open(folder / ".lock", flags, 0o600)
            stack.callback(os.close, file)  # which gives the lock back
            stack.enter_context(system.locked(file))
        except OSError:
            able = False
        else:
            able = True
        yield able


def _of_ledger(ledger: str) -> Anchor | None:
    found = _read(_file(ledger), FIELDS) if ledger else None
    return None if found is None else Anchor(**found)


def _folder() -> Path:
    return system.state_folder() / "anchors"


def _file(ledger: str) -> Path:
    return _folder() / f"ledger-{ledger}.json"


def _pointer(path: Path) -> Path:
    return _folder() / f"path-{hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()}.json"


def _read(file: Path, fields: Mapping[str, type], *, private: bool = True) -> dict[str, Any] | None:
    """Read a file with fields of these types; None if it is not there."""
    try:
        content = system.read_own(file) if private else file.read_bytes()
    except FileNotFoundError:
        return None
    if content == b"" or (content is None and not os.path.lexists(file)):
        return None  # empty after a power failure
    with contextlib.suppress(ValueError):
        found = None if content is None else json.loads(content)
        if isinstance(found, dict) and {name: type(value) for name, value in found.items()} == fields:
            return found
    raise ValueError(
        f"its anchor {file} cannot be read{', or is not yours alone (chmod 600)' if private else ''}. Restore it, or "
        "remove it if you know that the ledger is whole."
    )


def _write(file: Path, content: bytes, mode: int) -> None:
    # Not brought to the disk: an anchor that a power failure takes away leaves the ledger ahead of it.
    system.atomic_write(file, lambda opened: opened.write(content), mode, sync=False)


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, allow_nan=False).encode()
