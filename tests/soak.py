"""A day's worth of steps: 10^6 of a small model, with memory and speed watched. ``python -m tests.soak`` prints them.

It writes tests/results/soak.md, and fails if the last fifth is slower than the first by more than a tenth, or if memory
has grown by more than a tenth since the first fifth.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import tacit
from tacit.engine.runner import Runner

STEPS = 1_000_000


def model(x: Any, y: Any = None) -> None:
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([3]).to_event())
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weight), obs=y)


def resident() -> float:
    """Return the memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> int:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2000, 3)).astype(np.float32)
    y = (generator.random(2000) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.5]))).astype(np.int32)
    seen: list[tuple[float, float]] = []
    advance = Runner.advance

    def timed(runner: Runner, state: Any, first: int, stop: int) -> Any:
        began = time.process_time()  # not the clock's time: others may use the machine
        state = advance(runner, state, first, stop)
        seen.append(((time.process_time() - began) / (stop - first) * 1e6, resident()))
        return state

    Runner.advance = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        data = tacit.PrivateData({"x": x, "y": y}, size=2000, ledger=Path(folder) / "ledger.jsonl")
        budget = tacit.Budget(8.0, 1e-6)
        settings = {"rate": 0.02, "steps": STEPS, "key": jax.random.key(0), "progress": False}
        posterior = tacit.fit(tacit.vi(model), data, budget, run_dir=Path(folder) / "run", **settings)
        assert posterior.certificate is not None
        posterior.certificate.verify(data.ledger)
        assert posterior.certificate.mechanism.steps == STEPS
    finite = all(np.isfinite(draws).all() for draws in posterior.draws.values())
    parts = np.array_split(np.asarray(seen), 5)
    lines = ["| steps up to | processor µs a step (median) | memory, MB |", "|---|---|---|"]
    rows = [(np.median(part[:, 0]), part[:, 1].max()) for part in parts]
    lines += [f"| {(i + 1) * STEPS // 5:,} | {time:.1f} | {memory:.0f} |" for i, (time, memory) in enumerate(rows)]
    slower, grown = rows[-1][0] / rows[0][0], rows[-1][1] / rows[0][1]
    lines += ["", f"Time a step, last fifth over first: {slower:.3f}; memory: {grown:.3f}; all draws finite: {finite}."]
    print("\n".join(lines))
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "soak.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if finite and slower < 1.1 and grown < 1.1 else 1


if __name__ == "__main__":
    sys.exit(main())
