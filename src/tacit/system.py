"""Calls to the operating system that Linux, macOS and Windows do not share, each with a fallback; whole files.

Every other module calls these, so that what a platform lacks, and how a file is replaced, is decided in one place.
Locks are held by an open file and end with it, also when the process is killed: ``flock`` where there is one, a locked
byte beyond the file's end on Windows.
"""

from __future__ import annotations

import contextlib
import glob
import mmap
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # everywhere else
    msvcrt = None  # type: ignore[assignment]

BINARY = getattr(os, "O_BINARY", 0)
"""A flag for ``os.open``: without it Windows translates line endings."""
LOCKED_BYTE = 1 << 30
"""The byte that is locked on Windows, where a locked byte cannot be read: no file of ours is that long."""
PARTIAL = ".partial"
"""The end of the names of files that are being written."""
RETRY = 0.01
"""Seconds between two attempts at a lock that another process holds, where the system cannot wait for it."""

_position = threading.Lock()
"""Held while a file's position is moved, on systems that cannot read at a given place."""


def cores() -> list[int]:
    """Return the processor cores that this process may use.

    Privacy: public.
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    count = os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()
    return list(range(count or 1))


def read_at(file: int, size: int, offset: int) -> bytes:
    """Read up to ``size`` bytes of an open file from ``offset`` on.

    Privacy: reads whatever the file holds.
    """
    if hasattr(os, "pread"):
        return os.pread(file, size, offset)
    with _position:
        os.lseek(file, offset, os.SEEK_SET)
        return os.read(file, size)


def create(path: Path, mode: int) -> int:
    """Create a file that must not be there, open it for writing, and return its descriptor. No link is followed.

    Privacy: public.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | BINARY, mode)


def state_folder() -> Path:
    """Return the folder of what tacit keeps for this user between processes; it need not be there.

    Privacy: public.
    """
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:  # a user without a home: a path under which nothing can be written
        state = os.devnull
    return Path(state) / "tacit"


def read_own(path: Path) -> bytes | None:
    """Read a file that only this user can have written and read; return None if it is another, a link or not there.

    Windows tells neither owner nor permissions in this way: there every regular file is read.

    Privacy: reads whatever the file holds.
    """
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | BINARY)
    except OSError:
        return None
    with os.fdopen(file, "rb") as opened:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            return None
        if hasattr(os, "geteuid") and (facts.st_uid != os.geteuid() or facts.st_mode & 0o077 or facts.st_nlink > 1):
            return None
        return opened.read()


def read_into(file: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer from an open file, from ``offset`` on, and return the number of bytes read.

    Privacy: reads whatever the file holds.
    """
    if hasattr(os, "preadv"):
        return os.preadv(file, [buffer], offset)
    found = read_at(file, len(buffer), offset)
    buffer[: len(found)] = found
    return len(found)


def write_at(file: int, data: bytes, offset: int) -> int:
    """Write to an open file at ``offset``, and return the number of bytes written.

    Privacy: of what is written.
    """
    if hasattr(os, "pwrite"):
        return os.pwrite(file, data, offset)
    with _position:
        os.lseek(file, offset, os.SEEK_SET)
        return os.write(file, data)


def expect_random_access(file: int, memory: mmap.mmap | None = None) -> None:
    """Announce that a file, and its memory map if given, is read at scattered places. A hint only.

    Privacy: public.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    if memory is not None and hasattr(memory, "madvise"):
        memory.madvise(mmap.MADV_RANDOM)


def prefetch(file: int, start: int, size: int) -> None:
    """Request that the system reads a part of a file ahead of its use. A hint only.

    Privacy: public.
    """
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, start, size, os.POSIX_FADV_WILLNEED)


def release_pages(memory: mmap.mmap, begin: int, end: int) -> None:
    """Release the resident pages of a memory map. A hint only.

    Privacy: public.
    """
    if hasattr(memory, "madvise"):
        begin = begin // mmap.PAGESIZE * mmap.PAGESIZE
        memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def can_lock() -> bool:
    """Return whether this system has locks that end with the process that holds them.

    Privacy: public.
    """
    return fcntl is not None or msvcrt is not None


@contextlib.contextmanager
def locked(file: int, *, shared: bool = False, wait: bool = True) -> Iterator[None]:
    """Lock an open file against every other open file, in this process or another.

    Privacy: public.

    Parameters
    ----------
    file
        A file descriptor. The lock ends with the block, or with the process.
    shared
        Whether other holders of a shared lock are let in. Windows has no such locks, and nobody is.
    wait
        Whether to wait for the lock. Otherwise, if it is taken, ``BlockingIOError`` is raised.
    """
    if fcntl is not None:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        yield  # closing the file gives the lock back
        return
    if msvcrt is None:
        raise OSError("this system has no file locks")
    while not _lock_byte(file, msvcrt.LK_NBLCK):
        if not wait:
            raise BlockingIOError("the file is locked")
        time.sleep(RETRY)
    try:
        yield
    finally:
        _lock_byte(file, msvcrt.LK_UNLCK)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock an existing folder; if it is taken, ``BlockingIOError`` is raised.

    Privacy: public.
    """
    # Windows cannot open a folder; a file inside stands for it.
    path, flags = (folder, os.O_RDONLY) if fcntl is not None else (folder / ".lock", os.O_RDWR | os.O_CREAT | BINARY)
    handle = os.open(path, flags, 0o600)
    try:
        with locked(handle, wait=False):
            yield
    finally:
        os.close(handle)
        if path != folder:
            with contextlib.suppress(OSError):  # Windows does not remove a file that another process has open
                path.unlink()


def flush_to_disk(file: int) -> None:
    """Flush an open file to the disk, so that it survives a power failure.

    Privacy: public.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:  # macOS: fsync alone leaves the data in the drive's cache
        with contextlib.suppress(OSError):  # file systems that do not know it
            fcntl.fcntl(file, full)
            return
    os.fsync(file)


def flush_folder(folder: Path) -> None:
    """Flush the names of a folder's files to the disk. Windows does so by itself.

    Privacy: public.
    """
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def atomic_write(path: Path, write: Callable[[BinaryIO], Any], mode: int = 0o644, *, sync: bool = True) -> None:
    """Write a file so that it is whole and on the disk when this returns, and that a crash leaves the old one.

    Without ``sync`` that holds for crashes of the process, not for a power failure, and takes a tenth of the time.

    What is written goes to a new file under a name that nobody knows before, and takes the path's place at the end: a
    link or a file that somebody planted at either name is neither followed nor written to.

    Privacy: of what is written.
    """
    partial = partial_of(path)
    try:
        with os.fdopen(create(partial, mode), "wb") as file:
            write(file)
            file.flush()
            if sync:
                flush_to_disk(file.fileno())
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


def remove_partial(path: Path) -> None:
    """Remove what was left of a file under ``partial_of`` by a kill; nobody else may be writing it.

    Privacy: public.
    """
    for left in path.parent.glob(f"{glob.escape(path.name)}.*{PARTIAL}"):
        left.unlink(missing_ok=True)


def _lock_byte(file: int, mode: int) -> bool:
    """Lock or unlock one byte beyond the file's end; return whether that was possible."""
    with _position:
        os.lseek(file, LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file, mode, 1)  # type: ignore[attr-defined]
        except PermissionError:  # another open file has it; whatever else is wrong would stay wrong
            return False
    return True
