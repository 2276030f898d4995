"""Make a Python on Linux look like one that is not: with this folder on PYTHONPATH, every process starts without the
names that Linux, macOS and Windows do not share. Locks are Windows' kind, of one byte, held by an open file."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess  # noqa: F401  before there is a module that only Windows has
import sys
import types

LOCK, UNLOCK = 2, 0


def locking(file: int, mode: int, size: int) -> None:
    """Lock or unlock bytes at a file's position, as Windows does: owned by the open file, and gone with it."""
    # Linux wants a file that may be written for a lock that keeps everyone out; Windows does not mind.
    reading = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    kind = fcntl.F_UNLCK if mode == UNLOCK else fcntl.F_RDLCK if reading else fcntl.F_WRLCK
    place = os.lseek(file, 0, os.SEEK_CUR)
    request = struct.pack("hhqqi4x", kind, os.SEEK_SET, place, size, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, request)
    except BlockingIOError:
        raise OSError(errno.EACCES, "Permission denied") from None


if sys.platform == "linux":
    windows = types.ModuleType("msvcrt")
    windows.LK_UNLCK, windows.LK_NBLCK, windows.locking = UNLOCK, LOCK, locking  # type: ignore[attr-defined]
    for name in ("sched_getaffinity", "sched_setaffinity", "posix_fadvise", "pread", "preadv", "pwrite", "pwritev"):
        delattr(os, name)
    if hasattr(os, "process_cpu_count"):  # on Linux it is made of one of these names
        os.process_cpu_count = os.cpu_count
    sys.modules["msvcrt"] = windows
    sys.modules["fcntl"] = None  # type: ignore[assignment]
