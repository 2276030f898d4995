"""Logistic regression (Listings 1 to 3), over epsilon, the number of records and the number of steps.

    python papers/d3p/logistic.py [--quick]

The paper uses this model to explain d3p and as the baseline of Figures 4 and 6; it prints no figures for it. So the
axes are those of Figures 4 to 6, and "theirs" is Listing 3 as printed (Adam with rate 0.001, the guide of Listing 2),
with the subset size and clip of the paper's experiments (10 and 1), run through tacit's wall in d3p's form. Ours is
``tacit.vi`` with the recipe of the hierarchical study, which was chosen on other records. Records: five standard normal
columns, weights drawn from a standard normal; a fresh data set for every run, the same ones for every setting.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import study
from elbo_form import elbo_form
from hierarchical import OURS, budget

import tacit

D, PRIOR = 5, 4.0
EPSILONS = (2.0, 4.0, 8.0)
STEPS = 10_000
"""Theirs; the paper does not say. Figure 6 finds that more steps do no harm."""


def model(x: Any, y: Any = None) -> None:
    """Listing 1."""
    w = numpyro.sample("w", dist.Normal(0, PRIOR).expand([D]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def guide(x: Any, y: Any = None) -> None:
    """Listing 2: independent normals that start at mean 0 and spread 1."""
    at = numpyro.param("w_loc", jnp.zeros(D))
    numpyro.sample("w", dist.Normal(at, jnp.exp(numpyro.param("w_scale_log", jnp.zeros(D)))).to_event(1))


def simulated(count: int, seed: int) -> tuple[Any, Any]:
    """Draw training records, and 5000 test records of the same law."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=D)
    x = rng.normal(size=(count + 5000, D)).astype(np.float32)
    y = (rng.logistic(x @ w) > 0).astype(np.int32)
    return {"x": x[:count], "y": y[:count]}, {"x": x[count:], "y": y[count:]}


def judge(w: Any, test: dict[str, Any]) -> tuple[float, float]:
    """Return AUC and accuracy of the posterior predictive."""
    p = study.predictive(w, test["x"])
    return study.auc(test["y"], p), float(np.mean((p > 0.5) == test["y"]))


def compare(
    count: int, epsilon: float, runs: int, steps: int, their_steps: int
) -> dict[str, list[tuple[float, float]]]:
    """Fit both settings, and Laplace's posterior without privacy, to the same data sets."""
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": [], "no privacy": []}
    theirs = study.with_last(elbo_form(model, count, optax.adam(1e-3), guide))
    for seed in range(runs):
        train, test = simulated(count, seed)
        posterior = study.fit(tacit.vi(model), train, budget(epsilon, count), seed, **{**OURS, "steps": steps})
        d3p = study.fit(theirs, train, budget(epsilon, count), seed, rate=10 / count, steps=their_steps, clip=1.0)
        found["ours"].append(judge(posterior.draws["w"], test))
        found["theirs"].append(judge(d3p.draws["last/w"], test))
        found["no privacy"].append(judge(study.logistic_posterior(train["x"], train["y"], PRIOR, 1000, seed)[2], test))
    return found


def main() -> None:
    """Print the table and draw three panels."""
    chosen = study.options(__doc__)
    quick = chosen.quick
    runs, ours, theirs = (1, 40, 200) if quick else (6, OURS["steps"], STEPS)
    settings = [("ε", e, (500, e, ours, theirs)) for e in (EPSILONS[:1] if quick else EPSILONS)]
    settings += [("N", n, (n, 2.0, ours, theirs)) for n in (() if quick else (100, 200, 1000))]
    settings += [("steps", a, (500, 2.0, a, b)) for a, b in (() if quick else ((30, 1000), (100, 3000)))]
    results, rows = {}, []
    for axis, value, (count, epsilon, a, b) in settings:
        found = compare(count, epsilon, runs, a, b)
        results[f"{axis} {value:g}"] = found
        short = {who: np.asarray(found[who]) - np.asarray(found["no privacy"]) for who in ("ours", "theirs")}
        rows.append(
            (
                count,
                f"{epsilon:g}",
                f"{a} / {b}",
                *(study.shown([auc for auc, _ in found[w]]) for w in found),
                study.shown(short["ours"][:, 0], 4),
                study.shown(short["theirs"][:, 0], 4),
                *(study.shown([accuracy for _, accuracy in found[w]]) for w in found),
            )
        )
    header = [
        "N",
        "ε",
        "steps, ours / theirs",
        "AUC ours",
        "AUC theirs",
        "AUC no privacy",
        "ours minus no privacy",
        "theirs minus no privacy",
        "accuracy ours",
        "accuracy theirs",
        "accuracy no privacy",
    ]
    text = (
        f"Logistic regression, δ = 1/N, {runs} data sets, the same for all; ± is the Monte-Carlo standard error. Ours: "
        f"rate {OURS['rate']}, clip {OURS['clip']}. Theirs: subsets of 10, clip 1, Adam with rate 0.001, last iterate."
        "\n\n" + study.table(header, rows)
    )
    study.save(chosen.out, "logistic", "python papers/d3p/logistic.py", text, results, plot(results))


def plot(results: dict[str, Any]) -> Any:
    """Draw what privacy costs, on the same data sets: AUC minus that of the fit without it."""
    figure, axes = study.panels(3, 3.6, 3.2)
    groups = {
        "ε": [(e, f"ε {e:g}") for e in EPSILONS],
        "N": [(n, f"N {n}" if n != 500 else "ε 2") for n in (100, 200, 500, 1000)],
        "steps": [(s, f"steps {s}" if s != OURS["steps"] else "ε 2") for s in (30, 100, OURS["steps"])],
    }
    for ax, (axis, places) in zip(axes, groups.items(), strict=True):
        known = [(at, results[key]) for at, key in places if key in results]
        for who, paint in (("ours", "blue"), ("theirs", "orange")):
            lost = [np.asarray(found[who])[:, 0] - np.asarray(found["no privacy"])[:, 0] for _, found in known]
            mean, error = np.asarray([study.mean_error(each) for each in lost]).reshape(-1, 2).T
            kind = {"fmt": "o-", "ms": 4, "capsize": 2, "color": study.COLOURS[paint], "label": who}
            ax.errorbar([at for at, _ in known], mean, yerr=2 * error, **kind)
        ax.axhline(0, color=study.COLOURS["black"], lw=0.8, ls=":")
        ax.set_xlabel(axis if axis != "steps" else "our steps (theirs: 33 times as many)")
        study.log_axis(ax, [at for at, _ in known])
    axes[0].set_ylabel("AUC minus AUC without privacy")
    for ax, title in zip(axes, ("N = 500", "ε = 2", "N = 500, ε = 2"), strict=True):
        ax.set_title(title, fontsize="medium", loc="left")
    axes[0].legend(frameon=False, fontsize="small", loc="lower right")
    return figure


if __name__ == "__main__":
    main()
