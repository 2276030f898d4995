"""How many records each method needs: held-out log-likelihood on Adult over the number of records.

    TACIT_DATA=... python papers/coverage/records.py [--quick]

``tacit.glm`` beside d3p's form (every record's share of the whole ELBO through the wall, own draws; last iterate,
as d3p gives it, and averaged; with the learning rate and clip that suit ``tacit.vi``) and ``tacit.vi``, at epsilon 1.
"As published" is d3p's form with the settings of its paper's logistic regression: subsets of 10, clip 1, Adam with rate
0.001, 10000 steps. Subsamples are paired: all methods see the same records.
The rows that were not drawn give the log-likelihood. Clips are the square root of the number of columns.
"""

from __future__ import annotations

import json
from typing import Any

import coverage
import numpy as np
import optax
import study
from elbo_form import elbo_form

import tacit

study.HERE = coverage.HERE
EPSILON, SEED = 1.0, 71_000
COUNTS = (1250, 2500, 5000, 10_000)
OURS = ("glm", "non-private")
"""What is compared with the others at half the records; without privacy, to see what could be reached at all."""


def methods(columns: int, count: int) -> dict[str, Any]:
    """Return the methods, each with its clip."""
    optimizer = optax.adam(study.simulated_schedule, b2=0.99)
    model = coverage.models("bernoulli")
    return {
        "glm": tacit.glm(prior_std=coverage.PRIOR),
        "d3p form": clipped(study.with_averages(elbo_form(model, count, optimizer)), columns**0.5),
        "vi": clipped(tacit.vi(model), columns**0.5),
        "d3p as published": clipped(
            last(elbo_form(model, count, optax.adam(1e-3))), 1.0, rate=10 / count, steps=10_000
        ),
    }


def last(method: tacit.MethodFor) -> tacit.MethodFor:
    """Return a method that draws from its last iterate, as d3p does."""

    def build(plan: tacit.Plan) -> tacit.Method:
        built = method(plan)
        return built._replace(draw=lambda state, key: built.draw(state._replace(average=state.params), key))

    return tacit.MethodFor(build)


def clipped(method: tacit.MethodFor, clip: float, **more: Any) -> tacit.MethodFor:
    """Return a method with another default clip."""

    def build(plan: tacit.Plan) -> tacit.Method:
        built = method(plan)
        return built._replace(suggests=built.suggests._replace(clip=clip, **more))

    return tacit.MethodFor(build)


def main() -> None:
    """Fit, print the table, draw the curves."""
    chosen = study.options(
        __doc__,
        runs={"type": int, "default": 10, "help": "paired subsamples"},
        resume={"action": "store_true", "help": "keep the numbers of records that are in results/records.json"},
    )
    from adult import adult

    x, y = adult()
    runs, counts = (1, (1250,)) if chosen.quick else (chosen.runs, COUNTS)
    found: dict[str, dict[int, list[float]]] = {}
    if chosen.resume:
        kept = json.loads((chosen.out / "results" / "records.json").read_text())["found"]
        found = {name: {int(count): each for count, each in values.items()} for name, values in kept.items()}
    for count in counts:
        done = {name.split(",")[0] for name, values in found.items() if count in values}
        programs: dict[str, Any] = {}
        for seed in range(SEED, SEED + runs):
            order = np.random.default_rng(seed).permutation(len(y))
            inside, outside = order[:count], order[count : count + 20_000]
            records = {"x": x[inside], "y": y[inside].astype(np.float32)}
            draws = {}
            if "non-private" not in done:
                draws["non-private"] = study.logistic_posterior(x[inside], y[inside], coverage.PRIOR, 1000, seed)[2]
            for name, method in methods(x.shape[1], count).items():
                if name in done:
                    continue
                if name not in programs:
                    programs[name] = coverage.Repeated(method, records, tacit.Budget(EPSILON, coverage.DELTA))
                one = programs[name].fit(records, seed)
                draws[f"{name}, averaged" if "last/w" in one else name] = one["w"]
                draws |= {f"{name}, last iterate": one["last/w"]} if "last/w" in one else {}
            for name, w in draws.items():
                value = study.log_likelihood(study.predictive(w, x[outside]), y[outside])
                found.setdefault(name, {}).setdefault(count, []).append(value)
        print(count, {name: float(np.mean(values[count])) for name, values in found.items()}, flush=True)
        report(chosen.out, found, [one for one in counts if all(one in each for each in found.values())])


def report(out: Any, found: dict[str, dict[int, list[float]]], counts: Any) -> None:
    """Write table and picture."""
    header = ["method", *(f"{count} records" for count in counts)]
    rows = [(name, *(study.shown(values[count], 4) for count in counts)) for name, values in found.items()]
    text = [f"Adult, ε = {EPSILON:g}, δ = {coverage.DELTA:g}; held-out log-likelihood.", study.table(header, rows)]
    halves = [(count // 2, count) for count in counts if count // 2 in counts]
    against = [(few, found[few], name) for few in OURS for name in found if name not in OURS]
    lines = [
        (ours, name, *(study.shown(np.asarray(few[less]) - np.asarray(found[name][more]), 4) for less, more in halves))
        for ours, few, name in against
    ]
    text += [
        "With half the records minus another with all of them, paired: above 0 it needs at most half. Where the "
        "non-private posterior is below 0, no private one can be expected above it.",
        study.table(["half", "all", *(f"{less} against {more}" for less, more in halves)], lines),
    ]
    figure, (ax,) = study.panels(1, 5.0, 3.6)
    for place, (name, values) in enumerate(found.items()):
        means, errors = zip(*(study.mean_error(values[count]) for count in counts), strict=True)
        colour = [*study.COLOURS.values(), "#56B4E9", "#D55E00"][place]
        ax.errorbar(counts, means, 2 * np.asarray(errors), marker="o", ms=3, label=name, color=colour)
    study.log_axis(ax, list(counts))
    ax.set(xlabel="records", ylabel="held-out log-likelihood", title="Records that each method needs, Adult at ε = 1")
    ax.legend(frameon=False, fontsize="x-small")
    command = "python papers/coverage/records.py"
    study.save(out, "records", command, "\n\n".join(text), {"seed": SEED, "found": found}, figure)


if __name__ == "__main__":
    main()
