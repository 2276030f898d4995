"""Steps a second of two processes with a core each, against one process limited to one core.

    python benchmarks/distribute.py

The same two shards of 50000 records, the same bits: a network with two hidden layers and 29312 parameters, and the
convolutional one of papers/dpbnn with 26010, whose contributions are dear. Runs of one and of two processes take turns;
medians. "sum" is what forming a sum of that size takes two processes, in a loop of its own, and "masks" what it takes
one to make the words that hide its part.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tacit

COLUMNS, HIDDEN, COUNT = 100, 128, 50000
ROWS = (("MLP", 1024, 40), ("MLP", 16384, 8), ("CNN", 1024, 4))
"""The network, the expected size of a subset, and how many steps are timed together."""


def mlp() -> tuple[Any, Callable[[Any, Any], Any], int]:
    """Return the weights at the start, the loss of a record, and how many columns it has."""
    import jax
    import jax.numpy as jnp

    def loss(w: Any, record: Any) -> Any:
        h = jnp.tanh(jnp.tanh(record["x"] @ w["a"]) @ w["b"])
        return -jax.nn.log_sigmoid(jnp.sign(record["x"][0]) * (h @ w["c"]))

    keys = jax.random.split(jax.random.key(0), 3)
    shapes = {"a": (COLUMNS, HIDDEN), "b": (HIDDEN, HIDDEN), "c": (HIDDEN,)}
    start = {name: 0.1 * jax.random.normal(key, shape) for key, (name, shape) in zip(keys, shapes.items(), strict=True)}
    return start, loss, COLUMNS


def cnn() -> tuple[Any, Callable[[Any, Any], Any], int]:
    """Return the same for the convolutional network."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "papers" / "dpbnn"))
    import equinox as eqx
    import jax
    from mnist import module

    start, rest = eqx.partition(module("cnn", jax.random.key(0)), eqx.is_inexact_array)

    def loss(w: Any, record: Any) -> Any:
        logits = eqx.combine(w, rest)(record["x"], jax.random.key(0))
        return -jax.nn.log_softmax(logits)[(record["x"][0] > 0).astype(int)]

    return start, loss, 784


def work() -> None:
    """Take steps in this process, together with the others, and say how long one took."""
    tacit.distribute.start()
    import jax

    from tacit.engine import random
    from tacit.engine.runner import Runner
    from tacit.ledger.file import Ledger

    def update(w: Any, release: Any, _: Any) -> Any:
        return jax.tree.map(lambda old, full: old - 1e-6 * full, w, release.full)

    facts: dict[str, Any] = {"ledgers": [Ledger()], "run": "bench", "kind": "fit", "title": "bench", "simulation": True}
    for name, subset, steps in ROWS:
        start, loss, columns = {"MLP": mlp, "CNN": cnn}[name]()

        def contribute(w: Any, record: Any, _: Any, loss: Any = loss) -> Any:
            return jax.grad(loss)(w, record)

        def load(shard: int, columns: int = columns) -> dict[str, Any]:
            return {"x": np.random.default_rng(shard).standard_normal((COUNT, columns), dtype=np.float32)}

        method = tacit.Method(
            lambda _, start=start: start, contribute, update, lambda w, _: {"w": jax.tree.leaves(w)[-1]}
        )
        data = tacit.distribute.seal(load, shards=2, size=2 * COUNT)
        mechanism = tacit.Mechanism(subset / (2 * COUNT), 1.0, 1.3, 10**6)
        runner = Runner(method, data, mechanism, secret=random.fixed(0), key=jax.random.key(0), **facts)
        runner._advance(start, 0, 2)
        times = []
        for i in range(7):
            began = time.perf_counter()
            runner._advance(start, i * steps, (i + 1) * steps)
            times.append((time.perf_counter() - began) / steps)
        if jax.process_index() == 0:
            print(f"took {statistics.median(times) * 1e3:.3f}", flush=True)
    if jax.process_count() > 1:
        parts(data._records, runner._step.dimension)


def parts(shards: Any, dimension: int) -> None:
    """Say how long a sum over the processes takes, and the masks of one."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    from tacit.engine.shards import _mask

    one, several = PartitionSpec(), PartitionSpec("shard")

    def total(pads: Any, number: Any) -> Any:
        start = jnp.full((2, dimension), pads[0, 0, 0])
        return jax.lax.fori_loop(0, number, lambda i, held: jax.lax.psum(held + i, "shard"), start)

    def masks(pads: Any, number: Any) -> Any:
        start = jnp.full((2, dimension), pads[0, 0, 0])
        return jax.lax.fori_loop(0, number, lambda i, held: held + _mask(pads, i, dimension), start)

    pads, steps = shards._pads("bench"), 100
    for name, part in (("sum", total), ("masks", masks)):
        mapped = jax.shard_map(part, mesh=shards.mesh, in_specs=(several, one), out_specs=several, check_vma=False)
        program, times = jax.jit(mapped), []
        for _ in range(8):
            began = time.perf_counter()
            jax.block_until_ready(program(pads, shards.same(np.int32(steps))))
            times.append((time.perf_counter() - began) / steps)
        if jax.process_index() == 0:
            print(f"{name} {statistics.median(times[1:]) * 1e3:.3f}", flush=True)


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
    said: dict[str, list[float]] = {"sum": [], "masks": []}
    for _ in range(options.rounds):
        for processes in times:
            command = [sys.executable, "-m", "tacit.adapters.distribute", "-n", str(processes), __file__, "--work"]
            core = {min(os.sched_getaffinity(0))}
            limit = (lambda core=core: os.sched_setaffinity(0, core)) if processes == 1 else None
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=limit)
            times[processes].append([float(took) for took in re.findall(r"took (\S+)", done.stdout)])
            for part, held in said.items():
                held.extend(map(float, re.findall(rf"{part} (\S+)", done.stdout)))
    print("| network | subset | ms a step, one process | two processes | throughput |\n|---|---|---|---|---|")
    for (name, subset, _), *both in zip(
        ROWS, *(map(statistics.median, zip(*t, strict=True)) for t in times.values()), strict=True
    ):
        print(f"| {name} | {subset} | {both[0]:.2f} | {both[1]:.2f} | {both[0] / both[1]:.2f} |")
    print("\n" + ", ".join(f"{part} {statistics.median(held):.2f} ms" for part, held in said.items()))


if __name__ == "__main__":
    main()
