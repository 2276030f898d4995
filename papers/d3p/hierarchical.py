"""Hierarchical logistic regression (Listing 4): Figures 4, 5 and 6 of the d3p paper.

    python papers/d3p/hierarchical.py --figure 4|5|6 [--quick] [--rehearse]

How the paper's figures were obtained: the text prints no AUC, only pictures. What it states in words is quoted in the
output. For numbers, the paper's own setting is run again here, through tacit's wall: the data set of the experiments
(its law, sizes and seed are public with the paper), d3p's form of the gradient, the guide of Listing 4, Adam with rate
0.001, subsets of ten, clip 1, 100000 steps. It gets tacit's accountant for adding or removing a record, hence less
noise than d3p itself added (its calibration protects against replacing one).

Ours is ``tacit.vi`` on the same model with a recipe chosen on simulated records of other seeds (``--rehearse``).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import study
from elbo_form import elbo_form

import tacit

D, K, L = 5, 3, 3
GROUPS = np.eye(L, K, dtype=np.float32)
EPSILONS = (2.0, 4.0, 8.0)
OURS = {"rate": 0.5, "steps": 300, "clip": 1.0}
"""Chosen by --rehearse."""
THEIRS = {"subset": 10, "steps": 100_000, "clip": 1.0, "learning rate": 1e-3}
COMMAND = "python papers/d3p/hierarchical.py"
PAINT = {"ours": study.COLOURS["blue"], "paper": study.COLOURS["orange"]}
LABEL = {"ours": "tacit.vi", "paper": "paper's setting, run again"}
STATED = (
    "Stated in the paper: runs for ε = 4 or larger are close to the AUC of the non-private model on average; runs for "
    "ε = 2 fall short of this but still outperform the simpler baseline; for fewer than 500 records utility "
    "deteriorates rapidly. The axis of Figure 4 runs from 0.700 to 0.875."
)


def model(x: Any, group: Any, y: Any = None) -> None:
    """Listing 4: weights of a group vary around a linear function of what is known about the group."""
    m = numpyro.sample("M", dist.Normal(0, 4).expand([D, K]).to_event(2))
    w = numpyro.sample("w", dist.Normal(GROUPS @ m.T, 1).to_event(2))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=jnp.sum(x * w[group], -1)), obs=y)


def guide_of_listing_4(x: Any, group: Any, y: Any = None) -> None:
    """Listing 4's guide: for M only, so the groups' weights come from the prior given M. Starts at random."""
    at = numpyro.param("M_loc", lambda key: jax.random.normal(key, (D, K)))
    spread = jnp.exp(numpyro.param("M_scale_log", lambda key: jax.random.normal(key, (D, K))))
    numpyro.sample("M", dist.Normal(at, spread).to_event(2))


def records_of_the_paper(count: int) -> tuple[Any, Any]:
    """Make the experiments' training and test records again: one data set for each size, from seed 0."""
    rng = np.random.RandomState(0)  # the law of the published data set
    return _records(rng, rng.randn(2, count, D), rng.randint(0, L, (2, count)), rng.randn(D, K), count)


def simulated(count: int, seed: int) -> tuple[Any, Any]:
    """Draw another data set by the same law."""
    rng = np.random.RandomState(1000 + seed)
    return _records(rng, rng.randn(2, count, D), rng.randint(0, L, (2, count)), rng.randn(D, K), count)


def _records(rng: Any, x: Any, group: Any, m: Any, count: int) -> tuple[Any, Any]:
    y = np.zeros((2, count))
    for g in range(L):
        w = rng.multivariate_normal(m @ GROUPS[g], 0.1 * np.eye(D))
        for part in range(2):
            mine = group[part] == g
            y[part, mine] = rng.binomial(1, 1 / (1 + np.exp(-(x[part, mine] @ w))))
    train, test = (
        {"x": x[i].astype(np.float32), "group": group[i].astype(np.int32), "y": y[i].astype(np.int32)} for i in range(2)
    )
    return train, test


def budget(epsilon: float, count: int) -> tacit.Budget:
    """Follow the paper: delta is one over the number of records."""
    return tacit.Budget(epsilon=epsilon, delta=1 / count)


def score(draws: Any, test: dict[str, Any]) -> float:
    """Return the AUC of the posterior predictive."""
    odds = np.einsum("nd,snd->sn", test["x"], np.asarray(draws["w"])[:, test["group"]])
    return study.auc(test["y"], (1 / (1 + np.exp(-odds))).mean(0))


def score_of_m(draws: Any, test: dict[str, Any]) -> float:
    """Return the AUC as the paper's experiments did: at the guide's mean of M, with the groups' weights at theirs."""
    w = GROUPS @ np.asarray(draws["M"]).mean(0).T
    return study.auc(test["y"], np.sum(test["x"] * w[test["group"]], -1))


def ours(data: tuple[Any, Any], epsilon: float, seed: int, **changed: Any) -> float:
    """Fit Listing 4's model by tacit.vi and score it."""
    train, test = data
    # M has no term of its own in the likelihood: its score is zero, and a large public weight keeps noise off it.
    recipe = {**OURS, "weights": (1e3, 1.0), **changed}
    return score(study.fit(tacit.vi(model), train, budget(epsilon, len(train["y"])), seed, **recipe).draws, test)


def ours_public(data: tuple[Any, Any], seed: int) -> float:
    """Fit the same method without privacy."""
    return score(tacit.fit_public(tacit.vi(model), data[0], steps=2000, key=jax.random.key(seed)).draws, data[1])


def paper(data: tuple[Any, Any], epsilon: float, seed: int, steps: int = THEIRS["steps"]) -> float:
    """Run the paper's setting through the wall."""
    train, test = data
    count = len(train["y"])
    method = study.with_last(elbo_form(model, count, optax.adam(THEIRS["learning rate"]), guide_of_listing_4))
    rate = THEIRS["subset"] / count
    posterior = study.fit(method, train, budget(epsilon, count), seed, rate=rate, steps=steps, clip=THEIRS["clip"])
    return score_of_m({"M": posterior.draws["last/M"]}, test)


def paper_public(data: tuple[Any, Any], seed: int) -> float:
    """Run the paper's setting without privacy, on all records at once and with a larger learning rate."""
    method = elbo_form(model, len(data[0]["y"]), optax.adam(1e-2), guide_of_listing_4)
    return score_of_m(tacit.fit_public(method, data[0], steps=5000, key=jax.random.key(seed)).draws, data[1])


def baseline(data: tuple[Any, Any]) -> float:
    """Fit one weight vector for all groups, without privacy, as the paper's red line."""
    train, test = data
    return study.auc(test["y"], test["x"] @ study.logistic_posterior(train["x"], train["y"], 1.0, 2, 0)[0])


def rehearse(runs: int) -> None:
    """Compare recipes on simulated records of other seeds; free."""
    sets = [simulated(500, 100 + seed) for seed in range(runs)]
    public = [ours_public(data, 0) for data in sets]
    print("non-private", study.shown(public, 4), "baseline", study.shown(map(baseline, sets), 4), flush=True)
    for rate, steps, clip in ((0.2, 1000, 0.5), (0.2, 1000, 1.0), (0.2, 1000, 2.0), (0.5, 300, 1.0)):
        scores = [ours(data, 2.0, 7, rate=rate, steps=steps, clip=clip) for data in sets]
        short = study.shown(np.asarray(scores) - np.asarray(public), 4)
        print(f"rate {rate}, steps {steps}, clip {clip}: AUC minus non-private at ε = 2: {short}", flush=True)


def figure_4(chosen: Any) -> None:
    """AUC over epsilon at N = 500."""
    runs, theirs, epsilons = (1, 1, EPSILONS[:1]) if chosen.quick else (10, chosen.theirs, EPSILONS)
    data = records_of_the_paper(500)
    other = [data] if chosen.quick else [simulated(500, i) for i in range(runs)]
    others_public = np.asarray([ours_public(d, 0) for d in other])
    line = baseline(data)
    found: dict[str, Any] = {"ours": {}, "paper": {}, "others": {}, "baseline": line}
    found["ours"]["none"] = [ours_public(data, seed) for seed in range(min(runs, 3))]
    found["paper"]["none"] = [paper_public(data, seed) for seed in range(min(runs, 3))]
    rows = []
    for e in epsilons:
        mine = [ours(data, e, seed, **few(chosen, ours)) for seed in range(runs)]
        again = [paper(data, e, seed, **few(chosen, paper)) for seed in range(theirs)]
        found["ours"][f"{e:g}"], found["paper"][f"{e:g}"] = mine, again
        others = [ours(d, e, seed, **few(chosen, ours)) for seed, d in enumerate(other)]
        found["others"][f"{e:g}"] = others
        noise = [
            tacit.calibrate(budget(e, 500), rate=rate, steps=steps, clip=1.0, adjacency=adjacency).noise_multiplier
            for rate, steps, adjacency in (
                (OURS["rate"], OURS["steps"], "add-remove"),
                (0.02, THEIRS["steps"], "add-remove"),
                (0.02, THEIRS["steps"], "replace-one"),
                (0.01, THEIRS["steps"], "add-remove"),
            )
        ]
        better = "yes" if np.mean(mine) >= np.mean(again) else "no"
        below = study.shown(np.asarray(others) - others_public, 4)
        sigmas = [f"{noise[0]:.3f}", " / ".join(f"{sigma:.3f}" for sigma in noise[1:])]
        rows.append((f"{e:g}", study.shown(mine, 4), study.shown(again, 4), better, below, *sigmas))
    none = [study.shown(found[who]["none"], 4) for who in ("ours", "paper")]
    rows += [("no privacy", *none, "", "", "", ""), ("baseline", f"{line:.4f}", f"{line:.4f}", "", "", "", "")]
    header = [
        "ε",
        "ours",
        "paper's setting, run again",
        "ours at least theirs",
        "ours minus no privacy, other data sets",
    ]
    header += ["our σ", "their σ: add/remove / replace-one / add/remove at rate 0.01"]
    text = [
        f"Figure 4: AUC on 500 test records, N = 500, δ = 1/500, the paper's data set; {runs} runs of ours, {theirs} "
        "of the paper's setting; ± is the Monte-Carlo standard error of the mean. "
        f"Ours: rate {OURS['rate']}, {OURS['steps']} steps, clip {OURS['clip']}. "
        f"Paper's setting: rate 0.02, {THEIRS['steps']} steps, clip 1. "
        "Baseline: one weight vector for all groups, no privacy.",
        study.table(header, rows),
        STATED,
    ]
    figure, (ax,) = study.panels(1, 5.0, 3.6)
    keys = [*(f"{e:g}" for e in epsilons), "none"]
    for shift, who in ((-0.18, "ours"), (0.18, "paper")):
        boxes = ax.boxplot(
            [found[who][key] for key in keys], positions=np.arange(len(keys)) + shift, widths=0.3, patch_artist=True
        )
        for box, middle in zip(boxes["boxes"], boxes["medians"], strict=True):
            box.set(facecolor=PAINT[who], alpha=0.6)
            middle.set(color="black")
        ax.plot([], [], "s", color=PAINT[who], alpha=0.6, label=LABEL[who])
    ax.axhline(line, color="firebrick", lw=1, label="one weight vector, no privacy")
    ax.set_xticks(range(len(keys)), [*(f"ε = {key}" for key in keys[:-1]), "no privacy"])
    ax.set(title="Figure 4: N = 500", ylabel="AUC")
    ax.legend(frameon=False, fontsize="small")
    study.save(chosen.out, "figure4", f"{COMMAND} --figure 4", "\n\n".join(text), found, figure)


def figure_5(chosen: Any) -> None:
    """AUC over the number of records."""
    sizes, runs, theirs = ((100,), 1, 1) if chosen.quick else ((100, 200, 500, 1000), 5, 2)
    cells: dict[str, Any] = {"ours": {}, "paper": {}}
    no_privacy, line = [], []
    for n in sizes:
        data = records_of_the_paper(n)
        no_privacy.append(ours_public(data, 0))
        line.append(baseline(data))
        for e in EPSILONS[:1] if chosen.quick else EPSILONS:
            cells["ours"][n, e] = [ours(data, e, seed, **few(chosen, ours)) for seed in range(runs)]
            cells["paper"][n, e] = [paper(data, e, seed, **few(chosen, paper)) for seed in range(theirs)]
    title = (
        f"Figure 5: mean AUC ± standard deviation over runs ({runs} ours, {theirs} of the paper's setting), δ = 1/N."
    )
    places = {"ours": sizes, "paper": sizes}
    extra = {"no privacy, ours": no_privacy, "baseline": line}
    over("figure5", f"{COMMAND} --figure 5", title, "N", chosen, cells, places, extra)


def figure_6(chosen: Any) -> None:
    """AUC over the number of steps; every run has its own noise, calibrated for its number of steps."""
    places: dict[str, tuple[int, ...]] = {"ours": (30, 100, 300, 1000), "paper": (2000, 10_000, 30_000)}
    runs = 3
    if chosen.quick:
        places, runs = {"ours": (30,), "paper": (100,)}, 1
    data = records_of_the_paper(500)
    cells: dict[str, Any] = {"ours": {}, "paper": {}}
    for who, run in (("ours", ours), ("paper", paper)):
        for e in EPSILONS[:1] if chosen.quick else EPSILONS:
            for t in places[who]:
                cells[who][t, e] = [run(data, e, seed, steps=t) for seed in range(runs)]
    title = f"Figure 6: mean AUC ± standard deviation over {runs} runs, N = 500, by the number of steps."
    over("figure6", f"{COMMAND} --figure 6", title, "steps", chosen, cells, places, {})


def over(
    name: str, command: str, title: str, axis: str, chosen: Any, cells: Any, places: Any, extra: dict[str, Any]
) -> None:
    """Write and draw AUC over an axis, with the spread that the paper shows."""
    epsilons = list(dict.fromkeys(e for _, e in cells["ours"]))
    figure, (ax,) = study.panels(1, 5.4, 3.6)
    text = [title]
    for who in ("ours", "paper"):
        rows = []
        for i, at in enumerate(places[who]):
            runs = [cells[who][at, e] for e in epsilons]
            more = [f"{values[i]:.3f}" for values in extra.values()] if who == "ours" else []
            rows.append((at, *(f"{np.mean(r):.3f} ± {np.std(r):.3f}" for r in runs), *more))
        header = [f"{axis}, {LABEL[who]}", *(f"ε = {e:g}" for e in epsilons), *(extra if who == "ours" else ())]
        text.append(study.table(header, rows))
        for e, style in zip(epsilons, ("-", "--", ":"), strict=False):
            runs = [cells[who][at, e] for at in places[who]]
            mean, spread = (np.asarray([f(r) for r in runs]) for f in (np.mean, np.std))
            ax.plot(places[who], mean, style, marker=".", color=PAINT[who], label=f"{LABEL[who]}, ε = {e:g}")
            ax.fill_between(places[who], mean - spread, mean + spread, color=PAINT[who], alpha=0.12, lw=0)
    for (label, values), paint in zip(extra.items(), ("black", "firebrick"), strict=False):
        ax.plot(places["ours"], values, color=paint, lw=1, label=label)
    ax.set(xscale="log", xlabel=axis, ylabel="AUC", title=title.split(":")[0])
    ax.legend(frameon=False, fontsize="x-small")
    flat = {who: {f"{at}, {e:g}": runs for (at, e), runs in cells[who].items()} for who in cells}
    study.save(chosen.out, name, command, "\n\n".join(text), {**flat, **extra}, figure)


def few(chosen: Any, run: Any) -> dict[str, int]:
    """Return fewer steps to a smoke test."""
    return {"steps": 40 if run is ours else 200} if chosen.quick else {}


def main() -> None:
    """Print and draw one figure."""
    chosen = study.options(
        __doc__,
        figure={"choices": ("4", "5", "6"), "default": "4"},
        theirs={"type": int, "default": 10, "help": "runs of the paper's setting in Figure 4, a minute each"},
        rehearse={"action": "store_true", "help": "choose the recipe on simulated records"},
    )
    if chosen.rehearse:
        rehearse(6)
    else:
        {"4": figure_4, "5": figure_5, "6": figure_6}[chosen.figure](chosen)


if __name__ == "__main__":
    main()
