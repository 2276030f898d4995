"""The file of a ledger: locked, read, appended to, brought to the disk, and compared with its anchors."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tacit import system
from tacit.ledger import anchors
from tacit.ledger.contents import Contents
from tacit.ledger.lines import RESTORE, LedgerError, canonical, read_tail

REOPENED = 100
"""How often a file that is replaced while its lock is waited for is opened anew."""


class Storage:
    """Where a ledger's contents are kept: an append-only file, or memory alone.

    Open files are given as descriptors, and as None where there is no file.

    Privacy: public.
    """

    def __init__(self, contents: Contents, run_anchor: Path | None = None) -> None:
        path = contents.path
        if path is not None and not system.can_lock():
            raise LedgerError(
                "This system has no file locks, so two processes could spend the same budget. "
                "Use Ledger() in memory, or run on Linux, macOS or Windows."
            )
        if path is not None and path.is_dir():
            raise LedgerError(f"{path} is a folder, and a ledger is a file; write a path inside it.")
        self.contents = contents
        self.path = path
        self.mutex = threading.Lock()
        self.heeds_anchors = True  # not while a loss is accepted
        self._run_anchor = run_anchor
        self._end = 0  # bytes of the file that are known, intact lines
        self._last = b""  # the bytes of the last of them, to notice a file that was replaced
        self._unterminated = False  # the last of them lacks its newline: killed one byte before the end
        self._synced = -1  # bytes known to be on the disk and not only in the kernel's memory
        self._identity: tuple[int, int] | None = None  # device and inode of the file that they were in

    @contextlib.contextmanager
    def locked(self, write: bool) -> Iterator[int | None]:
        """Lock the ledger against other threads and processes; yield the open file, None if there is none.

        Privacy: public.
        """
        with self.mutex:
            if self.path is None:
                yield None
                return
            with contextlib.ExitStack() as held:
                for _ in range(REOPENED):
                    file = self._open(write)
                    if file is None:
                        break
                    held.callback(os.close, file)  # which gives the lock back
                    held.enter_context(system.locked(file, shared=not write))
                    if is_in_place(self.path, file):
                        break
                    # While this process waited for the lock, the path was given to another file. A line written to
                    # the old one would be a line that nobody ever reads.
                    held.close()
                else:
                    raise LedgerError(
                        f"{self.path} is replaced again and again by another file, so a charge written to it could be "
                        "lost. Stop whatever replaces it (a synchronising program, an editor), and repeat the call."
                    )
                if file is not None and (identity := _identity(os.fstat(file))) != self._identity:
                    self._identity, self._synced = identity, -1  # nothing is known of what this file has on the disk
                yield file

    def _open(self, write: bool) -> int | None:
        assert self.path is not None
        flags = system.BINARY | (os.O_RDWR if write else os.O_RDONLY)
        try:
            try:
                return os.open(self.path, flags)
            except FileNotFoundError:
                # A file that vanished, under a ledger in use or an anchor, must not come back empty.
                if known := len(self.contents.lines):
                    raise LedgerError(f"{self.path} had {known} lines and is gone. {RESTORE}") from None
                try:
                    self.compare()
                except LedgerError:
                    if not self.path.exists():
                        raise
                    return os.open(self.path, flags)  # another process has just begun it
                return os.open(self.path, flags | os.O_CREAT, 0o644) if write else None
        except FileNotFoundError:
            raise LedgerError(
                f"The folder of the ledger {self.path} does not exist, so no charge can be written. Create it first."
            ) from None
        except OSError as error:
            raise LedgerError(
                f"The ledger {self.path} cannot be opened ({error}), so no charge can be written down. "
                "Pass the path of a file that may be written."
            ) from error

    def compare(self) -> None:
        """Raise where the ledger lacks lines which an anchor knows.

        Privacy: public.
        """
        if self.path is None or not self.heeds_anchors:
            return
        if said := anchors.problem(self.path, self.contents.lines, self._run_anchor):
            raise LedgerError(said)

    def read(self, file: int | None) -> None:
        """Take in the lines that were appended since the last time, by this or another process.

        Privacy: public.
        """
        if file is None:
            return
        size, known = os.fstat(file).st_size, self.contents
        if size < self._end or _read_at(file, self._end - len(self._last), len(self._last)) != self._last:
            raise LedgerError(
                f"{self.path} no longer holds its line {len(known.lines)}: it was shortened or replaced. {RESTORE}"
            )
        data = _read_at(file, self._end, size - self._end)
        newline = int(self._unterminated and data[:1] == b"\n")
        tail = read_tail(data[newline:], len(known.lines), known.head, str(self.path))
        known.take(tail.lines)
        self._end += newline + tail.size
        self._last = tail.last or self._last
        self._unterminated = tail.unterminated or (self._unterminated and not newline)

    def append(self, file: int | None, bodies: Iterable[dict[str, Any]]) -> None:
        """Write lines, and return when they are on the disk and known to the anchors; only then may records be read.

        Privacy: public.
        """
        new = self.contents.seal(bodies)
        raw = [canonical(line.to_dict()) + b"\n" for line in new]
        data = (b"\n" if self._unterminated else b"") + b"".join(raw)
        if file is not None:
            self._write(file, data)
        self.contents.take(new)
        if file is not None:
            self._end += len(data)
            self._last, self._unterminated = raw[-1], False
        self._move_anchors()

    def _write(self, file: int, data: bytes) -> None:
        try:
            os.ftruncate(file, self._end)  # a torn line of a killed process was no charge
            done = 0
            while done < len(data):
                done += system.write_at(file, data[done:], self._end + done)
            self._sync(file, self._end + len(data))
            self._still_in_place(file)
        except BaseException as error:
            # No access will follow, so no line may stay; if this fails too the line stays and was paid for
            # nothing.
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._end)
            self._synced = -1
            if isinstance(error, OSError):
                raise LedgerError(
                    f"The charge could not be written to {self.path} ({error}). Records are read only after "
                    "their charge is on the disk; free some space, or choose another path."
                ) from error
            raise

    def confirm(self, file: int | None) -> None:
        """Make sure that all lines are on the disk and known to the anchors, whoever wrote them.

        Privacy: public.
        """
        if file is not None:
            self._sync(file, self._end)
            self._still_in_place(file)
        self._move_anchors()

    def _sync(self, file: int, end: int) -> None:
        """Make sure that every line up to ``end`` survives a power failure."""
        if self._synced >= end:
            return
        assert self.path is not None
        try:
            system.flush_to_disk(file)
            if self._synced < 0:
                # Whoever created the file may have been killed before its name was safe.
                system.flush_folder(self.path.parent)
        except OSError as error:
            raise LedgerError(
                f"The ledger {self.path} could not be brought to the disk ({error}). Records are read only after "
                "their charge is there; free some space, or choose another path."
            ) from error
        self._synced = end

    def _still_in_place(self, file: int) -> None:
        """Raise where the lines just brought to the disk are not in the file that the path leads to."""
        if not is_in_place(self.path, file):
            raise LedgerError(
                f"{self.path} was replaced by another file while a charge was written to it, so the line is lost to "
                "whoever opens the ledger. No record is read; stop whatever replaces the file, and repeat the call."
            )

    def _move_anchors(self) -> None:
        """Write outside of the file what it holds, when it is on the disk; only then may records be read."""
        if self.path is not None:
            # A copy at another path, under another lock, may have been charged in the meantime: compared once more.
            anchors.move(self.path, self.contents.lines, self._run_anchor, self.compare)


def is_in_place(path: Path | None, file: int) -> bool:
    """Return whether an open file is still the one that a path leads to.

    Privacy: public.
    """
    try:
        return path is not None and _identity(os.stat(path)) == _identity(os.fstat(file))
    except FileNotFoundError:
        return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _read_at(file: int, offset: int, size: int) -> bytes:
    parts = []
    while size > 0:
        part = system.read_at(file, size, offset)
        if not part:
            break
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return b"".join(parts)
