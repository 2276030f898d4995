"""Time of a private step, and memory, with 10^4 to 10^8 records of 20 float32 columns on disk.

    python benchmarks/scale.py --largest 100000000             # makes its files (8 GB) in a temporary folder
    python benchmarks/scale.py --folder records --largest ...  # keeps them there for the next time

"fetched ahead" is the whole step, GROUPS groups in a row. "device" is the same program on what was drawn and read
before. "drawn" and "gathered" is what the thread takes for the subset and for its records, beside the noise; the share
is of the whole step, although most of it goes on meanwhile. "cold" drops the largest file from the page cache before a
group of steps. "10^8 mapped" is the same file with the limit of what stays mapped lifted: it is resident then. Rounds
of all rows are interleaved; medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tacit
from tacit.engine import disk, random
from tacit.engine.runner import Runner
from tacit.ledger.file import Ledger

COLUMNS, SUBSET, GROUPS = 20, 256, 8
HIDDEN = {"network": 256, "wide network": 1200}
"""Units in each of two hidden layers."""


def logistic() -> tacit.Method:
    """Follow the gradient of a logistic regression: the least that a step can do."""

    def contribute(w: Any, record: Any, _: Any) -> Any:
        x = record["x"].at[0].set(1.0)
        return ((record["x"][0] > 0) - jax.nn.sigmoid(x @ w)) * x

    return _follow(contribute, jnp.zeros(COLUMNS))


def network(hidden: int) -> tacit.Method:
    """Follow the gradient of a network with two hidden layers."""

    def loss(w: Any, record: Any) -> Any:
        h = jnp.tanh(record["x"].at[0].set(1.0) @ w["a"])
        return -jax.nn.log_sigmoid(jnp.sign(record["x"][0]) * (jnp.tanh(h @ w["b"]) @ w["c"]))

    a, b, c = (
        0.1 * jax.random.normal(jax.random.key(i), s)
        for i, s in enumerate([(COLUMNS, hidden), (hidden, hidden), (hidden,)])
    )
    return _follow(lambda w, record, _: jax.grad(loss)(w, record), {"a": a, "b": b, "c": c}, -1e-6)


def _follow(contribute: Callable[..., Any], start: Any, rate: float = 1e-6) -> tacit.Method:
    def update(w: Any, release: Any, _: Any) -> Any:
        return jax.tree.map(lambda old, full: old + rate * full, w, release.full)

    return tacit.Method(lambda _: start, contribute, update, lambda w, _: {"w": jax.tree.leaves(w)[0]})


def write(folder: Path, count: int) -> None:
    """Write records of normal numbers: a million, again and again with another second column."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "x.npy").exists():
        return
    part = min(count, 10**6)
    block = np.random.default_rng(0).standard_normal((part, COLUMNS), dtype=np.float32)
    with open(folder / "x.partial", "wb") as out:
        facts = {"descr": "<f4", "fortran_order": False, "shape": (count, COLUMNS)}
        np.lib.format.write_array_header_1_0(out, facts)
        for i in range(count // part):
            block[:, 1] = i
            out.write(block.data)
        out.flush()
        os.fsync(out.fileno())
    (folder / "x.partial").rename(folder / "x.npy")


def programs(runner: Runner, start: Any) -> dict[str, Callable[[int], float]]:
    """Return functions from a round's number to microseconds a step."""
    fetch = runner._programs
    assert fetch is not None
    steps = GROUPS * fetch.together

    def ahead(turn: int) -> float:
        began = time.perf_counter()
        runner._advance(start, turn * steps, (turn + 1) * steps)
        return (time.perf_counter() - began) / steps * 1e6

    def device(turn: int) -> float:
        given, _ = fetch._group(runner._stream, turn * steps, (turn + 1) * steps, 0, 0)
        began = time.perf_counter()
        state = start
        for i in range(GROUPS):
            first = i * fetch.together
            state = fetch.programs[0](state, first, first + fetch.together, given, runner._stream, runner._key)
        jax.block_until_ready(state)
        return (time.perf_counter() - began) / steps * 1e6

    subsets = jax.jit(lambda secret, steps: runner._step.draws.draw(secret, steps)[1])

    def drawn(turn: int) -> float:
        numbers = turn * steps + np.arange(fetch.together, dtype=np.int32)
        began = time.perf_counter()
        jax.block_until_ready(subsets(runner._stream, numbers))
        return (time.perf_counter() - began) / fetch.together * 1e6

    def gathered(turn: int) -> float:
        # Not the records that were fetched just now: their pages would be in the processor's cache.
        places = np.asarray(subsets(runner._stream, 500_000 + turn * steps + np.arange(fetch.together, dtype=np.int32)))
        began = time.perf_counter()
        mine = places.reshape(-1)
        slots = np.flatnonzero(mine < fetch.stored.count)
        for file, room in zip(fetch.stored.files, fetch._rooms[0], strict=True):
            file.gather(mine[slots], room.reshape(-1, file.width), slots, cold=False)
        return (time.perf_counter() - began) / fetch.together * 1e6

    def cold(turn: int) -> float:
        for file in fetch.stored.files:
            os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        fetch._cold = True
        began = time.perf_counter()
        runner._advance(start, turn * steps, turn * steps + fetch.together)
        return (time.perf_counter() - began) / fetch.together * 1e6

    return {"fetched": ahead, "device": device, "drawn": drawn, "gathered": gathered, "cold": cold}


def peak() -> str:
    """Return the most memory that was resident so far, files included."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return f"{int(line.split()[1]) / 1e6:.2f} GB"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=10**6)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--cold", type=int, default=0, help="rounds with the largest file dropped from the page cache")
    parser.add_argument("--mapped", action="store_true", help="the largest file once more, mapped into memory")
    parser.add_argument("--only", choices=["logistic", *HIDDEN], help="this step alone, for the memory it takes")
    parser.add_argument("--write", action="store_true", help="make the files and stop")
    options = parser.parse_args()
    methods = {"logistic": logistic(), **{name: network(hidden) for name, hidden in HIDDEN.items()}}
    methods = {name: method for name, method in methods.items() if options.only in (None, name)}
    counts = [n for n in (10**4, 10**6, 10**8) if n <= options.largest]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for n in counts:
            write(folder / str(n), n)
        if options.write:
            return
        timed: dict[tuple[str, str, str], list[float]] = {}
        all_programs = {}
        rows = [(f"{n:.0e}", n, disk.MAPPED) for n in counts]
        if options.mapped:
            rows.append((f"{counts[-1]:.0e} mapped", counts[-1], 1 << 40))
        for row, n, mapped in rows:
            began = time.perf_counter()
            data = tacit.read_columns(folder / str(n), size=n, mapped=mapped)
            print(f"{row} records checked and hashed in {time.perf_counter() - began:.1f} s; resident {peak()}")
            for name, method in methods.items():
                mechanism = tacit.Mechanism(rate=SUBSET / n, clip=5.0, noise_multiplier=1.3, steps=10**6)
                facts = {"ledgers": [Ledger()], "run": "bench", "kind": "fit", "title": name, "simulation": True}
                runner = Runner(method, data, mechanism, secret=random.fixed(0), key=jax.random.key(0), **facts)
                start = jax.tree.map(jnp.asarray, method.init(jax.random.key(0)))
                for kind, program in programs(runner, start).items():
                    all_programs[name, row, kind] = program
        before = peak()
        for turn in range(options.rounds + 1):
            for place, program in all_programs.items():
                # Subsets are the same for every model; a network's cannot be drawn without its noise.
                if place[2] != "cold" and (place[2] != "drawn" or place[0] == "logistic" or options.only):
                    took = program(turn)
                    if turn:  # the first round warms up
                        timed.setdefault(place, []).append(took)
        after, largest = peak(), rows[len(counts) - 1][0]
        for turn in range(options.cold):  # at the end: the file stays cold
            place = next(iter(methods)), largest, "cold"
            timed.setdefault(place, []).append(all_programs[place](turn))
    print(f"\nsubsets of {SUBSET}; resident at most {before} before the first step, {after} after the last\n")
    print("| µs a step | records | fetched ahead | against 10^4 | device | drawn | gathered | share | cold |")
    print("|---|---|---|---|---|---|---|---|---|")
    found = {place: statistics.median(values) for place, values in timed.items()}
    for name in methods:
        for row, _, _ in rows:
            whole, device = (found[name, row, kind] for kind in ("fetched", "device"))
            drawn, gathered = found[next(iter(methods)), row, "drawn"], found[name, row, "gathered"]
            cold = f"{found[name, row, 'cold']:.0f}" if (name, row, "cold") in found else ""
            growth, share = whole / found[name, rows[0][0], "fetched"], (drawn + gathered) / whole
            shown = f"{device:.0f} | {drawn:.0f} | {gathered:.0f} | {share:.0%} | {cold}"
            print(f"| {name} | {row} | {whole:.0f} | {growth:.2f} | {shown} |")


if __name__ == "__main__":
    main()
