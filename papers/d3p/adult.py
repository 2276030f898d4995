"""UCI Adult at epsilon 1: the score form against d3p's form and against the non-private posterior.

    TACIT_DATA=... python papers/d3p/adult.py [--quick] [--rehearse]

Logistic regression of income above 50000 dollars on 17 columns with an intercept, 5000 records drawn at random from
the training part. Figures: the log-likelihood of the training rows that were not drawn, under the posterior predictive
(mean over draws) for every variant alike; and how often a central 90% interval holds the mode of the posterior on all
rows, the nearest thing to a truth. Clip, rate, steps and optimiser were chosen on simulated records only
(``--rehearse``), for each form apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import study
from forms import PRIOR, covered, variants

import tacit

COUNT, RADIUS = 5000, 5.0
BUDGET = tacit.Budget(epsilon=1.0, delta=1e-5)
WIDTH = 17
RECIPE = {"rate": 0.1, "steps": 1000}
CLIP = {"sco": 4.0, "d3p": 4.0}
"""Chosen by --rehearse."""
THEIRS = {"non-private": -0.336, "score form": -0.340, "d3p form": -0.344}
"""The prototype that the project began with, on 17 columns of its own: only differences can be compared."""


def into_ball(x: Any) -> Any:
    """Shorten rows that are longer than the radius, which is public."""
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return (x * np.minimum(1, RADIUS / length)).astype(np.float32)


def adult() -> tuple[Any, Any]:
    """Read the official training part; every constant is a round number known without the records."""
    import pandas as pd

    rows = pd.read_csv(study.data_folder() / "adult.csv.gz")
    rows = rows[rows["split"] == "train"]
    age = (rows["age"] - 40) / 14
    work, job, status = rows["workclass"], rows["occupation"], rows["marital_status"]
    columns = [
        np.ones(len(rows)),
        age,
        age**2 - 1,
        (rows["education_num"] - 10) / 2.5,
        (rows["hours_per_week"] - 40) / 12,
        np.log1p(rows["capital_gain"]) / 3,
        np.log1p(rows["capital_loss"]) / 3,
        *(
            np.where(yes, 1.0, -1.0)
            for yes in (
                rows["sex"] == "Male",
                status == "Married-civ-spouse",
                status == "Never-married",
                rows["race"] == "White",
                rows["native_country"] == "United-States",
                job == "Exec-managerial",
                job == "Prof-specialty",
                job.isin(["Other-service", "Handlers-cleaners", "Farming-fishing", "Priv-house-serv"]),
                work.isin(["Self-emp-inc", "Self-emp-not-inc"]),
                work.str.endswith("-gov"),
            )
        ),
    ]
    return into_ball(np.stack(columns, 1)), (rows["income"] == ">50K").to_numpy(np.int32)


def simulated(count: int, seed: int) -> tuple[Any, Any]:
    """Make up a census: columns like Adult's in kind, coefficients drawn anew for every seed."""
    rng = np.random.default_rng(seed)
    married = rng.random(count) < 0.45
    never = ~married & (rng.random(count) < 0.6)
    shares = (0.85, 0.9, 0.13, 0.13, 0.2, 0.1, 0.13)
    age, education, hours = rng.normal(size=(3, count))
    gain, loss = (2.8 * (rng.random(count) < share) for share in (0.08, 0.05))
    flags = [rng.random(count) < 0.6, married, never, *(rng.random(count) < share for share in shares)]
    columns = [np.ones(count), age, age**2 - 1, education, hours, gain, loss, *(np.where(f, 1, -1) for f in flags)]
    x = into_ball(np.stack(columns, 1))
    w = rng.normal(0, 0.4, WIDTH)
    w[0] -= 1
    return x, (rng.logistic(x @ w) > 0).astype(np.int32)


def rehearse(runs: int) -> None:
    """Compare clips and learning rates on simulated records; free."""
    rows = []
    for rate, steps in ((0.1, 1000),):
        for clip in (1.5, 2.0, 3.0, 4.0, 6.0):
            found: dict[str, list[tuple[float, float]]] = {}
            for seed in range(1000, 1000 + runs):
                x, y = simulated(COUNT + 20000, seed)
                truth = study.logistic_posterior(x, y, PRIOR, 2, seed)[0]
                recipe = {"rate": rate, "steps": steps}
                fits = variants(x[:COUNT], y[:COUNT], seed, BUDGET, {"sco": clip, "d3p": clip}, recipe)
                base = study.log_likelihood(study.predictive(fits["non-private"], x[COUNT:]), y[COUNT:])
                for name, w in fits.items():
                    loss = study.log_likelihood(study.predictive(w, x[COUNT:]), y[COUNT:]) - base
                    found.setdefault(name, []).append((loss, covered(w, truth)))
            for name, pairs in found.items():
                losses, coverage = zip(*pairs, strict=True)
                rows.append((rate, steps, clip, name, study.shown(losses, 4), study.shown(coverage)))
                print(rows[-1], flush=True)
    print(study.table(["rate", "steps", "clip", "variant", "log-likelihood - non-private", "coverage"], rows))


def main() -> None:
    """Print the table, ours beside the non-private and d3p's form."""
    chosen = study.options(
        __doc__,
        rehearse={"action": "store_true", "help": "choose the recipe on simulated records"},
        runs={"type": int, "default": 20, "help": "random subsamples"},
    )
    if chosen.rehearse:
        return rehearse(2 if chosen.quick else 6)
    runs = 1 if chosen.quick else chosen.runs
    recipe = {**RECIPE, "steps": 60} if chosen.quick else RECIPE
    x, y = adult()
    truth = study.logistic_posterior(x, y, PRIOR, 2, 0)[0]
    held_out: dict[str, list[float]] = {}
    coverage: dict[str, list[float]] = {}
    for seed in range(runs):
        order = np.random.default_rng(seed).permutation(len(y))
        inside, outside = order[:COUNT], order[COUNT:]
        for name, w in variants(x[inside], y[inside], seed, BUDGET, CLIP, recipe).items():
            held_out.setdefault(name, []).append(study.log_likelihood(study.predictive(w, x[outside]), y[outside]))
            coverage.setdefault(name, []).append(covered(w, truth))
    report(chosen, runs, recipe, held_out, coverage)
    return None


def report(chosen: Any, runs: int, recipe: dict[str, Any], held_out: Any, coverage: Any) -> None:
    """Write the table and the picture."""
    base, theirs = np.asarray(held_out["non-private"]), np.asarray(held_out["d3p form, last iterate"])
    rows = [
        (
            name,
            study.shown(values, 4),
            study.shown(np.asarray(values) - base, 4),
            study.shown(np.asarray(values) - theirs, 4),
            study.shown(coverage[name]),
        )
        for name, values in held_out.items()
    ]
    ours = np.asarray(held_out["score form, mean-field, averaged"])
    gap, ahead = study.mean_error(base - ours), study.mean_error(ours - theirs)
    verdict = (
        f"Within 0.005 of the non-private posterior: {gap[0] < 0.005} (short by {gap[0]:.4f} ± {gap[1]:.4f}). "
        f"Above d3p's form: {ahead[0] > 0} (by {ahead[0]:.4f} ± {ahead[1]:.4f})."
    )
    text = "\n\n".join(
        [
            f"Adult, {COUNT} records, epsilon {BUDGET.epsilon:g}, delta {BUDGET.delta:g}, rate {recipe['rate']}, "
            f"{recipe['steps']} steps, clip {CLIP['sco']} (score) and {CLIP['d3p']} (d3p's form); {runs} random "
            "subsamples, one fit of each variant on each; ± is the Monte-Carlo standard error over subsamples.",
            study.table(
                ["variant", "held-out log-likelihood", "minus non-private", "minus d3p form", "90% coverage"], rows
            ),
            f"Default method: score form, mean-field, averaged. {verdict}",
            "The project's prototype, other columns: " + ", ".join(f"{k} {v}" for k, v in THEIRS.items()) + ".",
        ]
    )
    figure, (left, right) = study.panels(2, 5.0, 3.9)
    names = list(held_out)[::-1]
    colour = {"non": "black", "d3p": "orange", "sco": "blue"}
    for place, name in enumerate(names):
        paint = study.COLOURS[colour[name[:3]]]
        mean, error = study.mean_error(np.asarray(held_out[name]) - base)
        left.errorbar(mean, place, xerr=2 * error, fmt="o", ms=4, color=paint)
        mean, error = study.mean_error(coverage[name])
        right.errorbar(mean, place, xerr=2 * error, fmt="o", ms=4, color=paint)
    left.axvline(-0.005, color="0.6", lw=0.8, ls="--")
    right.axvline(0.9, color="0.6", lw=0.8, ls="--")
    left.set_yticks(range(len(names)), names, fontsize="small")
    right.set_yticks(range(len(names)), [])
    left.set_title("Log-likelihood minus non-private", fontsize="medium", loc="left")
    right.set_title("Coverage of 90% intervals", fontsize="medium", loc="left")
    right.set_xlim(0, 1)
    left.locator_params(axis="x", nbins=4)
    left.set_xlabel("bars: two Monte-Carlo standard errors")
    results = {"held_out": held_out, "coverage": coverage, "recipe": recipe, "clip": CLIP, "runs": runs}
    study.save(chosen.out, "adult", "python papers/d3p/adult.py", text, results, figure)


if __name__ == "__main__":
    main()
