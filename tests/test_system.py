"""Platforms: the calls that Linux, macOS and Windows do not share, and what stands in for them."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tacit import system

ROOT = Path(__file__).parents[1]
SHARED = ["sched_getaffinity", "process_cpu_count", "posix_fadvise", "pread", "preadv", "pwrite"]
"""What not every system has, and what Python 3.13 makes of it."""


@pytest.fixture(params=["here", "elsewhere"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Test with what this system has, and without what not every system has."""
    if request.param == "elsewhere":
        for name in SHARED:
            monkeypatch.delattr(os, name, raising=False)
    return request.param


def test_reads_and_writes_at_a_place(place: str, tmp_path: Path) -> None:
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | system.BINARY)
    assert system.write_at(file, b"0123456789\r\n", 0) == 12
    assert system.write_at(file, b"ab", 4) == 2
    assert system.read_at(file, 4, 3) == b"3ab6"
    assert system.read_at(file, 9, 10) == b"\r\n"  # to the end, and no translation
    assert system.read_at(file, 9, 99) == b""
    held = bytearray(6)
    assert system.read_into(file, memoryview(held)[1:5], 8) == 4
    assert bytes(held) == b"\x0089\r\n\x00"
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as memory:
        system.expect_random_access(file, memory)
        system.prefetch(file, 0, 4)
        system.release_pages(memory, 3, 12)
        assert memory[:3] == b"012"
    system.flush_to_disk(file)
    os.close(file)
    system.flush_folder(tmp_path)


def test_cores(place: str) -> None:
    found = system.cores()
    assert found == sorted(set(found))
    assert len(found) >= 1


LOCKS = """
import os, sys
from pathlib import Path
from tacit import system
assert (system.fcntl is None) == ("elsewhere" in sys.argv), system.fcntl
folder = Path(sys.argv[1])
one, two = (os.open(folder / "file", os.O_RDWR | os.O_CREAT) for _ in range(2))

def taken(shared=False):
    try:
        with system.locked(two, shared=shared, wait=False):
            return False
    except BlockingIOError:
        return True

with system.locked(one):
    assert taken() and taken(shared=True)
os.close(one)
assert not taken()
with system.locked_folder(folder):
    try:
        with system.locked_folder(folder):
            raise AssertionError("two hold one folder")
    except BlockingIOError:
        pass
with system.locked_folder(folder):
    print("good")
"""


def environment(elsewhere: bool) -> dict[str, str]:
    """Return the variables of a process, on this system or on one without its names."""
    there = [str(ROOT / "tests/elsewhere")] if elsewhere else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*there, *filter(None, [os.environ.get("PYTHONPATH")])])}


def run(script: str, *arguments: str, elsewhere: bool) -> str:
    """Run a script in a process of its own, on this system or on one without its names."""
    command = [sys.executable, "-c", script, *arguments, *(["elsewhere"] if elsewhere else [])]
    done = subprocess.run(command, env=environment(elsewhere), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_lock_is_held_by_one_open_file(elsewhere: bool, tmp_path: Path) -> None:
    assert run(LOCKS, str(tmp_path), elsewhere=elsewhere) == "good\n"


def test_without_any_lock_no_ledger_is_kept_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tacit

    monkeypatch.setattr(system, "fcntl", None)
    monkeypatch.setattr(system, "msvcrt", None)
    with pytest.raises(RuntimeError, match="no file locks"):
        tacit.Ledger(tmp_path / "ledger.jsonl")
    assert tacit.Ledger().charges == ()


def test_the_ledger_with_the_locks_of_windows(tmp_path: Path) -> None:
    """The same tests, races and kills among them, in a process without flock and positioned reads."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_ledger.py"]
    names = ["append", "share_the_cap", "killed", "torn", "full_disk", "changed_byte", "cap"]
    chosen = [*command, "-k", " or ".join(names), f"--basetemp={tmp_path / 'ledger'}"]
    done = subprocess.run(chosen, env=environment(True), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]  # pytest ends with 5 where no test was chosen
