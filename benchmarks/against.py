"""This tree against another checkout: the time of a step and of compiling it, in alternating processes.

    python benchmarks/against.py /path/to/other/src

Each process runs one case of one tree, by that tree's own benchmarks and without a cache of compiled programs. The
trees take turns, and medians over the rounds are compared: a ratio above 1 says that this tree is slower. What is
called compiling is all that happens before the first step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve()
CASES = {
    "logistic": "step.py: 100 coefficients, subsets of 256 of 60000",
    "mlp": "peers.py mlp: 784-1200-1200-10, subsets of 256 of 60000",
}


def measure(case: str, tree: Path) -> dict[str, float]:
    """Return the seconds of compiling and of a step, by the benchmarks of a tree."""
    sys.path[:0] = [str(tree / "benchmarks"), str(tree / "papers" / "dpbnn")]
    import jax
    import numpy as np

    import tacit

    assert Path(tacit.__file__).is_relative_to(tree), f"tacit was imported from {tacit.__file__}"
    if case == "logistic":
        import step

        random = np.random.default_rng(0)
        x = random.standard_normal((60000, step.COLUMNS), dtype=np.float32)
        data = tacit.PrivateData({"x": x, "y": (x[:, 0] > 0).astype(np.float32)}, size=60000)
        began = time.perf_counter()
        program = step.private(data, 60000)
        compiling, number = time.perf_counter() - began, step.STEPS
        program()
        return {"compile": compiling, "step": min(seconds(program) for _ in range(5)) / number}
    import timing
    from mnist import module

    data, number = tacit.PrivateData(timing.made_up(), size=timing.RECORDS), timing.STEPS["mlp"][0]
    net = tacit.network(module("mlp", jax.random.key(1)), prior_std=0.1)
    began = time.perf_counter()
    timer = timing.private(timing.METHODS["SGD"](net), data, number)
    opened = time.perf_counter() - began
    timer()
    each = min(seconds(timer) for _ in range(3)) / number
    return {"compile": opened - timing.WARM * each, "step": each}  # opening takes some steps


def seconds(program: object) -> float:
    """Time one call."""
    assert callable(program)
    began = time.perf_counter()
    program()
    return time.perf_counter() - began


def in_process(case: str, tree: Path) -> dict[str, float]:
    """Measure in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    command = [sys.executable, str(HERE), str(tree / "src"), "--measure", case]
    environment = {**kept, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{case} in {tree}:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print medians of both trees and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder src of another checkout, its benchmarks beside it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    other = options.other.resolve().parent
    if options.measure:
        print(json.dumps(measure(options.measure, other)))
        return
    trees = {"this": HERE.parents[1], "other": other}
    print("| case | | this | other | this / other | from | to |\n|---|---|---|---|---|---|---|")
    for case in options.cases:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
        for turn in range(options.rounds):
            # Who is first changes with the round: a machine that slows down hits both.
            for name in list(trees)[:: 1 if turn % 2 else -1]:
                found[name].append(in_process(case, trees[name]))
        for what, unit, scale in (("compile", "s", 1.0), ("step", "ms", 1e3)):
            this, that = ([scale * one[what] for one in found[name]] for name in trees)
            ratios = [a / b for a, b in zip(this, that, strict=True)]
            middle = statistics.median(this), statistics.median(that)
            cells = [f"{value:.4g} {unit}" for value in middle]
            cells += [f"{value:.3f}" for value in (middle[0] / middle[1], min(ratios), max(ratios))]
            print(f"| {CASES[case]} | {what} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
