"""Steps a second of two processes with a core each, against one process limited to one core.

    python benchmarks/distribute.py

The same two shards of 50000 records, the same bits; a network with two hidden layers and 29312 parameters. Runs of one
and of two processes take turns; medians. Forming the sum of two processes takes some milliseconds a step, whatever its
size, so that it pays for large subsets.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

import tacit

COLUMNS, HIDDEN, COUNT = 100, 128, 50000
SUBSETS = {1024: 40, 16384: 8}
"""Expected size of a subset, and how many steps are timed together."""


def work() -> None:
    """Take steps in this process, together with the others, and say how long one took."""
    tacit.distribute.start()
    import jax
    import jax.numpy as jnp

    from tacit.ledger import Ledger
    from tacit.wall import Door, random

    def loss(w: Any, record: Any) -> Any:
        h = jnp.tanh(jnp.tanh(record["x"] @ w["a"]) @ w["b"])
        return -jax.nn.log_sigmoid(jnp.sign(record["x"][0]) * (h @ w["c"]))

    def update(w: Any, release: Any, _: Any) -> Any:
        return jax.tree.map(lambda old, full: old - 1e-6 * full, w, release.full)

    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"a": (COLUMNS, HIDDEN), "b": (HIDDEN, HIDDEN), "c": (HIDDEN,)}
    start = {name: 0.1 * jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}
    method = tacit.Method(lambda _: start, lambda w, r, _: jax.grad(loss)(w, r), update, lambda w, _: {"c": w["c"]})

    def load(shard: int) -> dict[str, Any]:
        return {"x": np.random.default_rng(shard).standard_normal((COUNT, COLUMNS), dtype=np.float32)}

    data = tacit.distribute.seal(load, shards=2, size=2 * COUNT)
    facts: dict[str, Any] = {"ledgers": [Ledger()], "run": "bench", "kind": "fit", "title": "bench", "simulation": True}
    for subset, steps in SUBSETS.items():
        mechanism = tacit.Mechanism(subset / (2 * COUNT), 1.0, 1.3, 10**6)
        door = Door(method, data, mechanism, secret=random.fixed(0), key=jax.random.key(0), **facts)
        door._advance(start, 0, 2)
        times = []
        for i in range(7):
            began = time.perf_counter()
            door._advance(start, i * steps, (i + 1) * steps)
            times.append((time.perf_counter() - began) / steps)
        if jax.process_index() == 0:
            print(f"took {statistics.median(times) * 1e3:.3f}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    times: dict[int, list[list[float]]] = {1: [], 2: []}
    for _ in range(options.rounds):
        for processes in times:
            command = [sys.executable, "-m", "tacit.distribute", "-n", str(processes), __file__, "--work"]
            core = {min(os.sched_getaffinity(0))}
            limit = (lambda core=core: os.sched_setaffinity(0, core)) if processes == 1 else None
            done = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=limit)
            times[processes].append([float(took) for took in re.findall(r"took (\S+)", done.stdout)])
    print("| subset | ms a step, one process | two processes | throughput |\n|---|---|---|---|")
    for subset, *both in zip(
        SUBSETS, *(map(statistics.median, zip(*t, strict=True)) for t in times.values()), strict=True
    ):
        print(f"| {subset} | {both[0]:.2f} | {both[1]:.2f} | {both[0] / both[1]:.2f} |")


if __name__ == "__main__":
    main()
