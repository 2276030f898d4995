"""The audit of the wall at length and of every method: ``python -m tests.audits`` writes tests/results/audits.md.

It can be stopped and goes on: lines that are in the file are kept. Delete it to begin anew.

Secrets are fixed and public. A bound is above the true ε with probability at most 0.001 by chance: over some fifty
audits that is one run of this command in twenty.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.accounting.mechanism import Mechanism
from tacit.run.audit import Audit, audit
from tests.test_every_method import TABLE, numbers, plan

RESULTS = Path(__file__).parent / "results"
WALL = [Mechanism(1.0, 1.0, 1.0, 1), *(Mechanism(rate, 1.0, noise, 20) for rate, noise in ((1, 2), (0.5, 2), (0.5, 1)))]
RECIPE = Mechanism(rate=0.5, clip=1.0, noise_multiplier=1.0, steps=7)
RUNS = 100_000
OF_A_METHOD, OF_MARGINALS = 2000, 100
"""Runs of an attack; every step of ``marginals`` takes an optimisation."""
CANARIES = 1000


def extreme(name: str) -> dict[str, Any]:
    """Return the records of a method's row, their numbers ten times as large if it takes them: most reach the clip."""
    records = TABLE[name].records
    large = {**records, numbers(name): 10 * records[numbers(name)]}
    method = TABLE[name].make()(plan(PrivateData(records)))
    return large if all(jnp.all(jax.vmap(need.predicate)(large)) for need in method.requirements) else records


def line(what: str, found: Audit) -> str:
    recipe = found.mechanism
    facts = f"{recipe.rate:g} | {recipe.noise_multiplier:g} | {recipe.steps}"
    figures = f"{found.epsilon:.3f} | {found.certified:.3f} | {found.epsilon / found.certified:.2f}"
    return f"| {what} | {found.attack} | {facts} | {found.runs} | {figures} |"


def main() -> int:
    file = RESULTS / "audits.md"
    kept = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    lines = [
        "| what | attack | rate | noise | steps | runs | ε proved | ε certified | ratio |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    RESULTS.mkdir(exist_ok=True)

    def add(what: str, attack: str, recipe: Mechanism, runs: int, *given: Any) -> None:
        """Attack, unless the file has the line already."""
        start = f"| {what} | {attack} | {recipe.rate:g} | {recipe.noise_multiplier:g} | {recipe.steps} |"
        known = [old for old in kept if old.startswith(start)]
        found = known or [line(what, audit(*(given or (None, None)), recipe, attack=attack, runs=runs, seed=1))]
        lines.append(found[0])
        print(lines[-1], flush=True)
        file.write_text("\n".join(lines + kept[len(lines) :]) + "\n", encoding="utf-8")

    for recipe in WALL:
        add("the wall", "canary", recipe, RUNS)
    for recipe in (WALL[0], WALL[-1]):
        add("the wall", "one-run", recipe, CANARIES)
    # Their programs run for a second, and would be compiled for ten.
    jax.config.update("jax_disable_most_optimizations", True)
    for name in sorted(TABLE, key=lambda name: name.startswith("marginals,")):
        records, runs = extreme(name), OF_MARGINALS if name.startswith("marginals,") else OF_A_METHOD
        many = jax.tree.map(lambda leaf: np.concatenate([leaf] * 5), records)
        for attack in ("canary", "posterior", "one-run"):
            add(name, attack, RECIPE, runs, TABLE[name].make(), many if attack == "one-run" else records)
    ratios = [float(one.split(" | ")[-1].removesuffix(" |")) for one in lines[2:]]
    return sum(ratio > 1 for ratio in ratios)


if __name__ == "__main__":
    sys.exit(main())
