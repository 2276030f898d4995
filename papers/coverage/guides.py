"""Which guide of ``tacit.vi`` has intervals to be believed, and what the path of a normal guide adds to them.

    python papers/coverage/guides.py [--quick] [--resume]

The regressions of coverage.py as NumPyro models, by ``tacit.vi`` with its defaults and three guides. Normal guides are
drawn from twice, after the same fit: as they are ("guide alone"), and with what the noise does to their path, which is
what ``tacit.vi`` gives. Beside coverage and width of the 90% intervals: the log-likelihood of a new record, in
expectation over its outcome under the true weights and over 2000 inputs, minus that of the non-private mode.
Seeds are not those with which the number of stretches and DOUBT were chosen (2000 to 2005, logistic regressions
mostly).
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import coverage
import jax
import jax.numpy as jnp
import numpy as np
import study
from numpyro.infer.autoguide import AutoLaplaceApproximation, AutoMultivariateNormal, AutoNormal
from scipy.special import gammaln

import tacit
from tacit.run.draws import drawing

study.HERE = coverage.HERE
SEED, FRESH, DRAWS = 73_000, 2000, 300
ALONE = ", guide alone"
GUIDES = {"AutoNormal": AutoNormal, "AutoLaplaceApproximation": AutoLaplaceApproximation}
GUIDES["AutoMultivariateNormal"] = AutoMultivariateNormal


class Twice(coverage.Repeated):
    """A fit, drawn from as it is and without what the path says."""

    def __init__(self, method: Any, records: Any, budget: tacit.Budget) -> None:
        super().__init__(method, records, budget)
        alone = self.method._replace(draw=lambda state, key: self.method.draw(state._replace(path=()), key))
        self.alone = drawing(alone)

    def both(self, records: Any, seed: int) -> dict[str, Any]:
        """Return draws of both kinds; of a Laplace guide of one."""
        key, steps, runner = jax.random.key(seed), self.mechanism.steps, self.runner
        runner._programs.storage.arrays, runner._key = jax.tree.map(jnp.asarray, records), key
        runner.rekey(coverage.random.fixed(seed))
        state, last = runner.advance(self.init(key), 0, steps), jax.random.fold_in(key, steps)
        found = {"": self.draws(state, last)}
        if hasattr(state.path, "means"):
            found[ALONE] = self.alone(state, last)
        return {kind: {name: np.asarray(leaf, np.float64) for name, leaf in one.items()} for kind, one in found.items()}


def expected(likelihood: str, w: Any, noise: Any, x: Any, truth: Any) -> float:
    """Return the mean log-likelihood of a new record, over its outcome under the truth, for predictions by draws."""
    along, true = np.clip(w @ x.T, -15, 15), x @ truth
    if likelihood == "bernoulli":
        chance, p = np.exp(study.log_sigmoid(true)), np.clip(np.exp(study.log_sigmoid(along)).mean(0), 1e-9, 1 - 1e-9)
        return float(np.mean(chance * np.log(p) + (1 - chance) * np.log(1 - p)))
    rng = np.random.default_rng(0)
    if likelihood == "poisson":
        y = rng.poisson(np.exp(true))
        terms = y * along - np.exp(along) - gammaln(y + 1)
    else:
        y = true + rng.normal(size=len(true))
        terms = -0.5 * ((y - along) / noise[:, None]) ** 2 - np.log(noise[:, None]) - 0.5 * np.log(2 * np.pi)
    most = terms.max(0)
    return float(np.mean(most + np.log(np.mean(np.exp(terms - most), 0))))


def cell(guide: str, likelihood: str, design: str, epsilon: float, runs: int, count: int) -> dict[str, Any]:
    """Return all replicates: coverage, width, log-likelihood, for each kind of draws."""
    program, found = None, {}
    for seed in range(SEED, SEED + runs):
        records, truth = coverage.regression(likelihood, design, seed, count)
        mode, deviation = coverage.not_private(likelihood, records)
        free = coverage.Interval.of_normal(mode, deviation)
        x = coverage.regression(likelihood, design, seed + 1_000_000, FRESH)[0]["x"].astype(np.float64)
        base = expected(likelihood, mode[None], np.ones(1), x, truth)
        method = tacit.vi(coverage.models(likelihood), GUIDES[guide])
        program = program or Twice(method, records, tacit.Budget(epsilon, coverage.DELTA))
        for kind, draws in program.both(records, seed).items():
            one = coverage.Interval.of_draws(draws["w"])
            noise = draws.get("noise", np.ones(len(draws["w"])))[:DRAWS]
            value = expected(likelihood, draws["w"][:DRAWS], noise, x, truth) - base
            kept = found.setdefault(kind, {"covered": [], "free": [], "width": [], "loss": []})
            kept["covered"].append(one.predicate(truth))
            kept["free"].append(free.holds(truth))
            kept["width"].append(float(np.median((one.high - one.low) / (free.high - free.low))))
            kept["loss"].append(value)
    return found


def main() -> None:
    """Run the cells that are not there yet; print all."""
    chosen = study.options(
        __doc__,
        runs={"type": int, "default": 20, "help": "replicates"},
        guide={"choices": list(GUIDES), "help": "one guide"},
        cells={"type": int, "help": "stop after so many cells; go on with --resume"},
        resume={"action": "store_true", "help": "keep the cells that are in results/guides.json"},
    )
    kept = chosen.out / "results" / "guides.json"
    results = json.loads(kept.read_text())["cells"] if chosen.resume and kept.exists() else {}
    guides = [chosen.guide] if chosen.guide else ["AutoNormal"] if chosen.quick else GUIDES
    grid = [("bernoulli", "plain", 1.0)] if chosen.quick else [*itertools.product(*AXES)]
    wanted = [(guide, *one) for guide in guides for one in grid]
    wanted = [one for one in wanted if coverage.title(*one) not in results]
    for one in wanted[: chosen.cells]:
        results[coverage.title(*one)] = cell(*one, *((2, 500) if chosen.quick else (chosen.runs, coverage.COUNT)))
        report(chosen.out, results)


AXES = (tuple(coverage.SIZES), tuple(coverage.DESIGNS), coverage.EPSILONS)


def report(out: Path, results: dict[str, Any]) -> None:
    """Write the table, and for each guide what was counted and left out over all cells."""
    rows = []
    over: dict[str, list[Any]] = {}
    for name, found in results.items():
        guide, *place = name.split(", ")
        for kind, each in found.items():
            rows.append((f"{guide}{kind}", *place, *coverage.row(each), study.shown(each["loss"], 4)))
            over.setdefault(f"{guide}{kind}", []).append(each)
    header = ["guide", "likelihood", "design", "ε", *coverage.HEADER, "log-likelihood minus non-private"]
    text = [
        f"{coverage.COUNT} records, δ = {coverage.DELTA:g}; ± is the Monte-Carlo standard error over replicates.",
        study.table(header, rows),
        study.table(
            ["guide", "cells", "mean coverage", "cells within 0.03", "mean log-likelihood minus non-private"],
            [
                (
                    guide,
                    len(cells),
                    f"{np.mean([np.mean(one['covered']) for one in cells]):.3f}",
                    sum(coverage.row(one)[3] == "yes" for one in cells),
                    f"{np.mean([np.mean(one['loss']) for one in cells]):.4f}",
                )
                for guide, cells in over.items()
            ],
        ),
    ]
    gains = {
        name: study.mean_error(np.subtract(found[""]["loss"], found[ALONE]["loss"]))
        for name, found in results.items()
        if ALONE in found
    }
    order = sorted(gains, key=lambda name: gains[name])
    for word, name in zip(("least", "most"), (order[:1] + order[-1:]), strict=False):
        mean, error = gains[name]
        text.append(f"What the path adds to the log-likelihood, paired, {word} ({name}): {mean:+.4f} ± {error:.4f}.")
    study.save(
        out,
        "guides",
        "python papers/coverage/guides.py",
        "\n\n".join(text),
        {"seed": SEED, "cells": results},
        None,
    )


if __name__ == "__main__":
    main()
