"""The other side of ``peer.py``, and timing in turns: what the scripts of this folder share."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

FOLDER = Path(__file__).parent
SCRIPT = FOLDER / "peer.py"
KEEP = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=100000000000:glibc.malloc.trim_threshold=100000000000"
"""d3p allocates a gigabyte a step. Where the allocator keeps freed memory it runs twice as fast: it is given that."""


class Time(NamedTuple):
    """Seconds of one unit, by the clock and on the processor (all threads together).

    On a shared machine the clock is too long for a long program, which always meets the others' load, and right for a
    short one that is repeated until it slips through. Processor time is right for a long program of one thread. It is
    too long for threads that spin, and of no use for milliseconds: it is booked at the kernel's ticks.
    """

    wall: float
    cpu: float


Timer = Callable[[], Time]


class Peer:
    """A process of another interpreter, that of a script's own folder, which times others' programs on request."""

    def __init__(self, script: Path = SCRIPT) -> None:
        self._process = subprocess.Popen(
            [_python(script), script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**_without_our_path(), "JAX_PLATFORMS": "cpu", "GLIBC_TUNABLES": KEEP},
        )

    @classmethod
    def start(cls, script: Path = SCRIPT) -> Peer | None:
        """Start the process, or say how to install it and give nothing."""
        if _python(script).exists():
            return cls(script)
        print(f"{script.name}: nothing installed; run papers/{script.parent.name}/peer.sh. Its columns are left out.")
        return None

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send one request and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"The other process ended on {request}; run its script by hand to see why.")
        return json.loads(answer)

    def timer(self, **request: Any) -> Timer:
        """Return a function that times the request once."""
        return lambda: Time(**self.ask(**request))

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


def _python(script: Path) -> Path:
    return Path(os.environ.get("PEER_PYTHON", script.parent / ".venv" / "bin" / "python"))


def _without_our_path() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def timed(program: Callable[[], Any], number: int) -> Timer:
    """Return a function that runs a program of ``number`` units and gives the seconds of one unit."""

    def once() -> Time:
        wall, cpu = time.perf_counter(), time.process_time()
        jax.block_until_ready(program())
        return Time((time.perf_counter() - wall) / number, (time.process_time() - cpu) / number)

    return once


def in_turns(timers: dict[str, Timer], rounds: int, pick: Callable[[list[float]], float] = min) -> dict[str, Time]:
    """Return the least (or ``pick``) of each over rounds A B A B, so that a busy moment does not hit one alone."""
    for timer in timers.values():
        timer()
    times = [{name: timer() for name, timer in timers.items()} for _ in range(rounds)]
    return {name: Time(*(pick([t[name][i] for t in times]) for i in range(2))) for name in timers}


def write_results(folder: Path, name: str, figures: dict[str, Any]) -> None:
    """Write the figures as JSON into ``results/``."""
    path = folder / "results" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=1) + "\n")


def figure_path(folder: Path, name: str) -> Path:
    """Return the place of a plot in ``figures/``."""
    path = folder / "figures" / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
