"""How many records each method needs: held-out log-likelihood on Adult over the number of records.

    TACIT_DATA=... python papers/coverage/records.py [--quick]

``tacit.natural`` beside d3p's form (every record's share of the whole ELBO through the wall, own draws; last iterate,
as d3p gives it, and averaged) and ``tacit.vi``, at epsilon 1. Subsamples are paired: all methods see the same records.
The rows that were not drawn give the log-likelihood. Clips are the square root of the number of columns.
"""

from __future__ import annotations

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


def methods(columns: int, count: int) -> dict[str, Any]:
    """Give the methods, each with its clip."""
    optimizer = optax.adam(study.simulated_schedule, b2=0.99)
    model = coverage.models("bernoulli")
    return {
        "natural": tacit.natural(size=count, prior_std=coverage.PRIOR),
        "d3p form": clipped(study.with_averages(elbo_form(model, count, optimizer)), columns**0.5),
        "vi": clipped(tacit.vi(model), columns**0.5),
    }


def clipped(method: Any, clip: float) -> Any:
    """Give a method with another default clip."""
    return lambda placeholder: method(placeholder)._replace(clip=clip)


def main() -> None:
    """Fit, print the table, draw the curves."""
    chosen = study.options(__doc__, runs={"type": int, "default": 10, "help": "paired subsamples"})
    from adult import adult

    x, y = adult()
    runs, counts = (1, (1250,)) if chosen.quick else (chosen.runs, COUNTS)
    found: dict[str, dict[int, list[float]]] = {}
    for count in counts:
        programs: dict[str, Any] = {}
        for seed in range(SEED, SEED + runs):
            order = np.random.default_rng(seed).permutation(len(y))
            inside, outside = order[:count], order[count : count + 20_000]
            records = {"x": x[inside], "y": y[inside].astype(np.float32)}
            draws = {"non-private": study.logistic_posterior(x[inside], y[inside], coverage.PRIOR, 1000, seed)[2]}
            for name, method in methods(x.shape[1], count).items():
                if name not in programs:
                    programs[name] = coverage.Repeated(method, records, tacit.Budget(EPSILON, coverage.DELTA))
                one = programs[name].fit(records, seed)
                draws[f"{name}, averaged" if "last/w" in one else name] = one["w"]
                draws |= {f"{name}, last iterate": one["last/w"]} if "last/w" in one else {}
            for name, w in draws.items():
                value = study.log_likelihood(study.predictive(w, x[outside]), y[outside])
                found.setdefault(name, {}).setdefault(count, []).append(value)
        print(count, {name: float(np.mean(values[count])) for name, values in found.items()}, flush=True)
    report(chosen.out, found, counts)


def report(out: Any, found: dict[str, dict[int, list[float]]], counts: Any) -> None:
    """Write table and picture."""
    header = ["method", *(f"{count} records" for count in counts)]
    rows = [(name, *(study.shown(values[count], 4) for count in counts)) for name, values in found.items()]
    text = [f"Adult, ε = {EPSILON:g}, δ = {coverage.DELTA:g}; held-out log-likelihood.", study.table(header, rows)]
    halves = [(count // 2, count) for count in counts if count // 2 in counts]
    for name in found:
        if name not in ("natural", "non-private"):
            gains = [np.asarray(found["natural"][few]) - np.asarray(found[name][many]) for few, many in halves]
            said = ", ".join(
                f"{few} against {many}: {study.shown(gain, 4)}" for (few, many), gain in zip(halves, gains, strict=True)
            )
            text.append(f"`natural` with half the records minus {name}: {said or 'not run'}.")
    figure, (ax,) = study.panels(1, 5.0, 3.6)
    for place, (name, values) in enumerate(found.items()):
        means, errors = zip(*(study.mean_error(values[count]) for count in counts), strict=True)
        colour = list(study.COLOURS.values())[place]
        ax.errorbar(counts, means, 2 * np.asarray(errors), marker="o", ms=3, label=name, color=colour)
    study.log_axis(ax, list(counts))
    ax.set(xlabel="records", ylabel="held-out log-likelihood", title="Records that each method needs, Adult at ε = 1")
    ax.legend(frameon=False, fontsize="x-small")
    command = "python papers/coverage/records.py"
    study.save(out, "records", command, "\n\n".join(text), {"seed": SEED, "found": found}, figure)


if __name__ == "__main__":
    main()
