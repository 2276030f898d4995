"""What the processes of tests/test_distribute.py run: sums whose bits are printed, and a fit that may be killed.

python -m tacit.adapters.distribute -n 2 shards.py FOLDER [kill]
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tacit

COUNTS = (50, 61, 0, 55)
STEPS = 6
MECHANISM = tacit.Mechanism(0.3, 1.5, 1.0, STEPS)


def part(shard: int) -> dict[str, np.ndarray]:
    """Make up the records of a shard."""
    return {"x": np.random.default_rng(shard).normal(size=(COUNTS[shard], 3)).astype(np.float32)}


def written(steps: int) -> tacit.Method:
    """Write down every release; contributions follow what was released before."""
    import jax.numpy as jnp

    return tacit.Method(
        init=lambda key: (jnp.int32(0), jnp.zeros((steps, 3))),
        contribute=lambda state, record, key: jnp.sin(3 * record["x"] + state[1].sum(0)),
        update=lambda state, release, key: (state[0] + 1, state[1].at[state[0]].set(release.total)),
        draw=lambda state, key: {"released": state[1]},
    )


def released() -> np.ndarray:
    """Return what a few simulated steps release."""
    import jax
    import jax.numpy as jnp

    from tacit.engine import random
    from tacit.engine.runner import Runner
    from tacit.ledger.file import Ledger

    data = tacit.distribute.seal(part, shards=4, size=160)
    facts: dict[str, Any] = {"ledgers": [Ledger()], "run": "test", "kind": "fit", "title": "test"}
    secret = random.fixed(1)
    runner = Runner(written(STEPS), data, MECHANISM, secret=secret, key=jax.random.key(0), simulation=True, **facts)
    return np.asarray(runner.advance((jnp.int32(0), jnp.zeros((STEPS, 3))), 0, STEPS)[1])


def fitted(folder: Path, kill: bool) -> tacit.Posterior:
    """Fit; process 1 may die in the middle, after the ledger line of a segment and before its records are read."""
    import jax

    from tacit.engine import shards

    if kill and jax.process_index() == 1:
        calls = iter(range(100))
        run = shards.InShards.run

        def dying(*given: Any) -> Any:
            if next(calls) == 10:
                os.kill(os.getpid(), signal.SIGKILL)
            return run(*given)

        shards.InShards.run = dying  # type: ignore[method-assign]
    data = tacit.distribute.seal(part, shards=4, size=160, ledger=folder / "ledger.jsonl")
    budget, run_dir = tacit.Budget(1.0, 1e-6), folder / "run"
    return tacit.fit(
        written(50), data, budget, rate=0.3, steps=50, clip=1.5, run_dir=run_dir, key=jax.random.key(3), progress=False
    )


def say(word: str, process: int, bits: np.ndarray) -> None:
    """Print a line at once: where output is not buffered, ``print`` writes the end of a line on its own."""
    os.write(1, f"{word} {process} {hashlib.sha256(bits.tobytes()).hexdigest()}\n".encode())


def main() -> None:
    """Say what was released, and what the posterior is."""
    tacit.distribute.start()
    import jax

    kill = "kill" in sys.argv
    process = jax.process_index()
    if "fit" not in sys.argv:
        say("sums", process, released())
    if "sums" not in sys.argv:
        posterior = fitted(Path(sys.argv[1]), kill)
        say("fit", process, np.asarray(posterior.draws["released"][0]))


if __name__ == "__main__":
    main()
