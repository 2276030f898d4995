"""Seconds of one fit: a logistic regression of 5000 records with 17 columns by ``tacit.glm``, at epsilon 1.

    python benchmarks/fit.py

The first line is ``tacit.fit`` in a new process without a cache of compiled programs, import left out. The last is the
median of ten more fits through the compiled program, records and keys changed, as in a rehearsal: steps and 1000 draws.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import tacit
from tacit.engine import random
from tacit.engine.runner import Runner
from tacit.ledger.file import Ledger
from tacit.run.draws import drawing
from tacit.run.plan import planned

COUNT, COLUMNS, BUDGET = 5000, 17, tacit.Budget(1.0, 1e-5)


def sealed(seed: int) -> tacit.PrivateData:
    """Make up records of an intercept and normal columns."""
    rng = np.random.default_rng(seed)
    x = np.append(np.ones((COUNT, 1)), rng.normal(size=(COUNT, COLUMNS - 1)), 1)
    y = rng.logistic(x @ (0.5 * rng.normal(size=COLUMNS))) > 0
    return tacit.PrivateData({"x": x.astype(np.float32), "y": y.astype(np.float32)}, size=COUNT)


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return seconds on the clock, and of processor time."""
    clock, processor = time.perf_counter(), time.process_time()
    jax.block_until_ready(work())
    return time.perf_counter() - clock, time.process_time() - processor


def main() -> None:
    """Print both."""
    jax.config.update("jax_enable_compilation_cache", False)
    method = tacit.glm()
    data, key = sealed(0), jax.random.key(0)
    first = timed(lambda: tacit.fit(method, data, BUDGET, key=key, progress=False).draws)
    print(f"with compilation {first[0]:.2f} s, {first[1]:.2f} s of processor time (asked: 5)")
    built, mechanism, _ = planned(method, data, BUDGET)
    facts: dict[str, Any] = {"run": "timing", "kind": "fit", "title": "glm", "simulation": True}
    runner = Runner(built, data, mechanism, secret=random.fixed(0), key=key, ledgers=[Ledger()], **facts)
    init, draws = jax.jit(built.init), drawing(built)

    def again(seed: int) -> Any:
        other = runner.rehearse(sealed(seed), random.fixed(seed), key)
        start = time.perf_counter()
        jax.block_until_ready(draws(other.advance(init(key), 0, mechanism.steps), key))
        return time.perf_counter() - start

    seconds = [again(seed) for seed in range(11)][1:]
    print(f"after compilation {statistics.median(seconds):.3f} s, the longest of ten {max(seconds):.3f} s (asked: 0.2)")


if __name__ == "__main__":
    main()
