"""Pictures of results; every function takes ``ax`` and gives it back."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from tacit.accounting.explanation import trade_off, up
from tacit.accounting.mechanism import Mechanism
from tacit.extras import need
from tacit.ledger.certificate import Certificate
from tacit.ledger.file import Ledger
from tacit.results.calibration import LEVEL, Reliability, uncertainty
from tacit.results.posterior import Posterior
from tacit.results.shown import effects

if TYPE_CHECKING:
    from tacit.run.rehearsal import Rehearsal

__all__ = [
    "COLOURS",
    "MARKERS",
    "STYLES",
    "plot_confidence",
    "plot_forest",
    "plot_ledger",
    "plot_prediction",
    "plot_prior_posterior",
    "plot_rehearsal",
    "plot_reliability",
    "plot_sweep",
    "plot_topics",
    "plot_tradeoff",
    "plot_uncertainty",
    "plot_weights",
]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
"""Okabe and Ito's, which colour-blind readers can tell apart."""
MARKERS = ("o", "s", "^", "D")
STYLES = ("-", "--", "-.", ":")
"""Lines are told apart without colour, too."""


def plot_forest(
    posteriors: Posterior | Mapping[str, Posterior], truth: Mapping[str, Any] | None = None, ax: Any = None
) -> Any:
    """Show the mean and the central 90% interval of every number, one colour a posterior, and the truth if known.

    A hollow mark is a number that is mostly its prior's; a dotted line, draws whose intervals nobody validated.

    Privacy: post-processing.
    """
    posteriors = {"posterior": posteriors} if isinstance(posteriors, Posterior) else posteriors
    ax = _axes(ax, (7, 4.2))
    labels: list[str] = []
    for place, (title, posterior) in enumerate(posteriors.items()):
        rows = posterior.rows()
        labels = [label for label, *_ in rows]
        heights = np.arange(len(rows)) + 0.16 * (place - (len(posteriors) - 1) / 2)
        mean, low, high = (np.asarray([row[i] for row in rows]) for i in (1, 3, 4))
        colour, style = COLOURS[place], "-" if posterior.has_intervals else ":"
        _, _, lines = ax.errorbar(
            mean, heights, xerr=(mean - low, high - mean), fmt="o", ms=4, lw=1.6, color=colour, label=title
        )
        lines[0].set_linestyle(style)
        hollow = np.asarray([one.mostly_prior for one in posterior.learnt()], bool)
        ax.plot(mean[hollow], heights[hollow], "o", ms=4, mec=colour, mfc="white", zorder=3)
    if truth is not None:
        known = [(truth[label], height) for height, label in enumerate(labels) if label in truth]
        ax.plot(*zip(*known, strict=True), "|", ms=18, mew=1.6, color="black", label="truth")
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.axvline(0, color="0.8", lw=0.8, zorder=0)
    ax.set_xlabel("mean and central 90% interval")
    ax.set_title(_seen(list(posteriors.values()), truth is not None), loc="left", fontsize="medium")
    _legend_above(ax)
    return _open(ax)


def _seen(posteriors: Sequence[Posterior], truth: bool) -> str:
    """Say what a forest plot shows. Of signs it says nothing: coverage was measured on the mean over coefficients."""
    learnt = [one for posterior in posteriors for one in posterior.learnt()]
    if not all(posterior.has_intervals for posterior in posteriors):
        return "Dotted: draws whose intervals were not validated"
    if truth:
        return "Nine intervals in ten should hold the truth"
    if any(one.mostly_prior for one in learnt):
        return "Hollow: mostly the prior's"
    return "Mean and central 90% interval"


def plot_prior_posterior(posterior: Posterior, ax: Any = None) -> Any:
    """Show what each number of a formula was taken to be before the records, and what it is after them.

    Numbers are in units of the prior's standard deviation around its mean, so that all fit one picture: a posterior as
    wide as its prior has learned nothing.

    Privacy: post-processing. Priors are public.
    """
    priors = getattr(posterior.model, "priors", None)
    if priors is None:
        raise ValueError(
            "The priors are not known: the posterior is not that of a formula, or was loaded without its method. Fit "
            "tacit.formula(...), or load it with tacit.vi(model)(tacit.Plan(schema.placeholder()))."
        )
    ax = _axes(ax, (7, 4.2))
    heights = np.arange(sum(value[0].size for value in posterior.draws.values()))
    key = jax.random.key(0)
    before = {name: np.asarray(priors[name].sample(key, (4000,))) for name in posterior.draws}
    before, after = effects(before, posterior.labels), effects(posterior.draws, posterior.labels)
    centre, unit = ({name: of(value, axis=0) for name, value in before.items()} for of in (np.mean, np.std))
    for place, (title, draws) in enumerate((("prior", before), ("posterior", after))):
        values = [(np.asarray(draws[name]) - centre[name]) / unit[name] for name in posterior.draws]
        flat = np.concatenate([value.reshape(len(value), -1) for value in values], 1)
        low, high = np.quantile(flat, (0.05, 0.95), axis=0)
        mean = flat.mean(0)
        ax.errorbar(
            mean,
            heights + 0.1 - 0.2 * (place == 0),
            xerr=(mean - low, high - mean),
            fmt="o",
            ms=4,
            lw=1.6,
            color=("0.7", COLOURS[0])[place],
            label=title,
        )
    ax.set_yticks(heights, [label for label, *_ in posterior.rows()])
    ax.invert_yaxis()
    ax.set_xlabel("mean and central 90% interval, in standard deviations of the prior around its mean")
    ax.set_title("What is as wide as its prior, the records did not tell", loc="left", fontsize="medium")
    _legend_above(ax)
    return _open(ax)


def plot_reliability(found: Mapping[str, Reliability], ax: Any = None) -> Any:
    """Show accuracy over confidence, one line a method, and as bars how often the first one's confidences occur.

    Privacy: post-processing of what ``tacit.calibration.reliability`` gave.
    """
    ax = _axes(ax, (5.2, 4.6))
    ax.plot([0, 1], [0, 1], color="0.6", lw=1, ls="--", label="calibrated")
    for place, (title, one) in enumerate(found.items()):
        there = one.share > 0
        colour = COLOURS[place % len(COLOURS)]
        label = f"{title}: error {one.ece:.3f}"
        style = ("o-", "s:")[place // len(COLOURS) % 2]  # beyond four methods colours come again
        ax.plot(one.confidence[there], one.accuracy[there], style, ms=4, lw=1.4, color=colour, label=label)
        if place == 0:
            ax.bar(one.low, one.share, one.high - one.low, align="edge", color=colour, alpha=0.15, zorder=0)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy (bars: share of predictions)")
    ax.set_title("Below the dashed line predictions are too sure", loc="left", fontsize="medium")
    ax.legend(frameon=False, loc="upper left", fontsize="small")
    return _open(ax)


def plot_confidence(found: Reliability, ax: Any = None) -> Any:
    """Show how often which confidence occurs, with lines at its mean and at the accuracy.

    Privacy: post-processing of what ``tacit.calibration.reliability`` gave.
    """
    ax = _axes(ax, (4.4, 3.4))
    ax.bar(found.low, found.share, found.high - found.low, align="edge", color=COLOURS[0], alpha=0.5)
    for values, style, label in ((found.confidence, "-", "mean confidence"), (found.accuracy, "--", "accuracy")):
        ax.axvline(np.nansum(found.share * values), color="0.2", lw=1.2, ls=style, label=label)
    ax.set(xlim=(0, 1), xlabel="confidence", ylabel="share of predictions")
    ax.set_title("Sure beyond the accuracy is too sure", loc="left", fontsize="medium")
    ax.legend(frameon=False, loc="upper left", fontsize="small")
    return _open(ax)


def plot_prediction(probabilities: Any, label: int | None = None, ax: Any = None) -> Any:
    """Show how the draws of a posterior spread the probabilities of each class for ONE input (draws times classes).

    A class lies to the right where draws are sure of it, and to the left where they rule it out; classes that all draws
    rule out are left out, and the true class, if given, is the thick line.

    Privacy: post-processing.
    """
    probabilities = np.asarray(probabilities, float)
    if probabilities.ndim != 2:
        raise ValueError(
            f"probabilities have the shape {probabilities.shape}. Pass those of one input: draws times classes."
        )
    ax = _axes(ax, (4.4, 3.4))
    edges = np.linspace(0, 1, 21)
    shown = [k for k in range(probabilities.shape[1]) if probabilities[:, k].max() > edges[1] or k == label]
    for place, k in enumerate(shown):
        ax.hist(
            probabilities[:, k],
            edges,
            histtype="step",
            lw=2.4 if k == label else 1.2,
            color=COLOURS[k % len(COLOURS)],
            ls=STYLES[k // len(COLOURS) % len(STYLES)],
            zorder=3 - place / len(shown),
            label=f"class {k}" + (" (true)" if k == label else ""),
        )
    ax.set(xlim=(0, 1), xlabel="probability of the class", ylabel="draws")
    ax.set_title("Classes that spread out are in doubt", loc="left", fontsize="medium")
    ax.legend(frameon=False, fontsize="small")
    return _open(ax)


def plot_uncertainty(x: Any, mean: Any, std: Any, seen: tuple[Any, Any] | None = None, ax: Any = None) -> Any:
    """Show predictions of one number over one input, with both parts of their uncertainty (draws times inputs).

    Privacy: post-processing. ``seen``, points to show beside it, must be public or made up.
    """
    ax = _axes(ax, (6, 4))
    x, mean = np.ravel(x), np.asarray(mean)
    parts, centre, order = uncertainty(mean, std), mean.mean(0), np.argsort(x)
    whole = np.hypot(parts.epistemic, parts.aleatoric)
    for spread, alpha, label in ((whole, 0.2, "noise and model"), (parts.epistemic, 0.45, "model: epistemic")):
        low, high = (centre + sign * 1.645 * spread for sign in (-1, 1))
        ax.fill_between(x[order], low[order], high[order], color=COLOURS[0], alpha=alpha, lw=0, label=label)
    ax.plot(x[order], centre[order], color=COLOURS[0], lw=1.4, label="mean")
    if seen is not None:
        ax.plot(*seen, ".", ms=3, color="0.3", label="records")
    ax.set_title("90% intervals: the model's own doubt, and all of it", loc="left", fontsize="medium")
    ax.legend(frameon=False, fontsize="small")
    return _open(ax)


def plot_rehearsal(rehearsal: Rehearsal, ax: Any = None) -> Any:
    """Show how often intervals covered over epsilon, one line for each setting, with two standard errors to both sides.

    Privacy: public. No real record was touched.
    """
    ax = _axes(ax, (5.6, 4))
    ax.axhline(LEVEL, color="0.6", lw=1, ls="--", label="what they promise")
    settings = list({str(row.settings): row.settings for row in rehearsal.rows}.values())
    for place, setting in enumerate(settings):
        rows = [row for row in rehearsal.rows if row.settings == setting]
        name = ", ".join(f"{name} {value}" for name, value in setting.items()) or "as fitted"
        label = f"{name}: {rows[-1].times_public.value:.2g} times as wide at {rows[-1].budget.epsilon:g}"
        ax.errorbar(
            [row.budget.epsilon for row in rows],
            [row.coverage.value for row in rows],
            yerr=[2 * row.coverage.error for row in rows],
            fmt="o-",
            ms=4,
            lw=1.4,
            color=COLOURS[place % len(COLOURS)],
            label=label,
        )
    first = rehearsal.rows[0].public_coverage.value
    ax.axhline(first, color="0.6", lw=1, ls=":", label="without privacy")
    ax.set(xscale="log", ylim=(0, 1.02), xlabel="epsilon", ylabel="share of 90% intervals that cover")
    sees = f"Below the dashed line intervals are too narrow ({rehearsal.replicates} rehearsals)"
    ax.set_title(sees, loc="left", fontsize="medium")
    ax.legend(frameon=False, fontsize="small")
    return _open(ax)


def plot_sweep(
    found: Mapping[str, Mapping[float, Any]], measure: str, public: float | None = None, ax: Any = None
) -> Any:
    """Show what privacy costs: a measure over epsilon, one line a method, and the line without privacy if given.

    Parameters
    ----------
    found
        Name to a mapping from epsilon to the measure, or to a list of it from several runs: then the mean is shown,
        with two standard errors to both sides.
    measure
        What it is, for the axis.
    public
        What came out without privacy.
    ax
        Where to draw; a figure of its own by default.

    Privacy: public if the numbers are, such as those of a rehearsal.
    """
    ax = _axes(ax, (5.6, 4))
    for place, (title, values) in enumerate(found.items()):
        epsilons = sorted(values)
        runs = [np.ravel(np.asarray(values[epsilon], float)) for epsilon in epsilons]
        errors = [2 * one.std(ddof=1) / np.sqrt(one.size) if one.size > 1 else 0.0 for one in runs]
        ax.errorbar(
            epsilons,
            [one.mean() for one in runs],
            yerr=errors if any(errors) else None,
            fmt=f"{MARKERS[place % len(MARKERS)]}-",
            ms=5,
            lw=1.4,
            capsize=2,
            color=COLOURS[place % len(COLOURS)],
            label=title,
        )
    if public is not None:
        ax.axhline(public, color="0.4", lw=1, ls="--", label="without privacy")
    ax.set(xscale="log", xlabel="epsilon (more privacy to the left)", ylabel=measure)
    ticks = sorted({epsilon for values in found.values() for epsilon in values})
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_title(f"What privacy costs in {measure}, from right to left", loc="left", fontsize="medium")
    ax.legend(frameon=False, fontsize="small")
    return _open(ax)


def plot_tradeoff(promises: Mapping[str, Mechanism | Certificate], ax: Any = None) -> Any:
    """Show the best attacker's true positives over false positives, one curve a recipe or certificate.

    Privacy: public.
    """
    ax = _axes(ax, (4.8, 4.6))
    ax.plot([0, 1], [0, 1], color="0.6", lw=1, ls="--", label="guessing")
    for place, (title, promise) in enumerate(promises.items()):
        mechanism, slack = (promise, 0.0) if isinstance(promise, Mechanism) else (promise.mechanism, promise.slack)
        fpr, tpr = trade_off(mechanism, slack)
        colour, style = COLOURS[place % len(COLOURS)], STYLES[place % len(STYLES)]
        gain = f"{title}: advantage {up(min(1.0, mechanism.advantage() + 2 * slack))}"
        ax.plot(fpr, tpr, color=colour, lw=1.8, ls=style, label=gain)
        ax.fill_between(fpr, fpr, tpr, color=colour, alpha=0.08, lw=0)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="false positives", ylabel="true positives, at most")
    ax.set_title("An attacker gains what lies above the diagonal", loc="left", fontsize="medium")
    ax.legend(frameon=False, loc="lower right", fontsize="small")
    return _open(ax)


def plot_ledger(ledger: Ledger, delta: float | None = None, ax: Any = None) -> Any:
    """Show what every run on a ledger took of the cap, and what is left; without a cap, what was spent.

    A first run alone is counted more closely than several together, so the second may seem dearer than it is.

    Parameters
    ----------
    ledger
        What was charged.
    delta
        The delta at which to state epsilon; the cap's by default.
    ax
        Where to draw; a figure of its own by default.

    Privacy: public.
    """
    cap = ledger.cap
    if delta is None and cap is None:
        raise ValueError("The ledger has no cap, so epsilon needs a delta to be stated at; write delta=1e-6.")
    ax = _axes(ax, (6, 3.8))
    history = ledger.history(cap.delta if delta is None and cap is not None else float(delta or 0))
    spent = [total for _, total in history]
    names = [f"{run.run[:8]}\n{run.method[:14]}" for run, _ in history]
    tops = [cap.epsilon - one for one in [0.0, *spent]] if cap else [0.0, *spent]
    for place, (before, after) in enumerate(itertools.pairwise(tops)):
        ax.bar(place, before - after, 0.7, bottom=after, color=COLOURS[0], alpha=0.85)
        said = up(abs(before - after), 2)
        ax.annotate(
            said, (place, max(before, after)), (0, 3), textcoords="offset points", ha="center", fontsize="small"
        )
        if place:
            ax.plot([place - 1.35, place + 0.35], [before, before], color="0.4", lw=0.8)
    ax.set_xticks(range(len(names)), names, fontsize="small")
    ax.set(ylabel="epsilon left" if cap else "epsilon spent", ylim=(0, 1.12 * max([*tops, 1e-9])))
    last = up(spent[-1] if spent else 0.0)
    count = f"{len(history)} {'run' if len(history) == 1 else 'runs'}"
    title = f"{count}: epsilon {last} of {cap.epsilon:g} is spent" if cap else f"{count}: epsilon {last} is spent"
    ax.set_title(title, loc="left", fontsize="medium")
    return _open(ax)


def plot_topics(concentration: Any, words: Any, count: int = 8, ax: Any = None) -> Any:
    """Show the top words of every topic, one line a topic, each with a bar for its probability under the topic.

    Privacy: post-processing of a posterior's topics (topics times vocabulary).
    """
    topics = np.asarray(concentration, float)
    if topics.ndim != 2 or topics.shape[1] != len(words):
        raise ValueError(
            f"The topics have the shape {topics.shape} and the vocabulary {len(words)} words. Pass topics times "
            "vocabulary, such as posterior.draws['topics'].mean(0)."
        )
    ax = _axes(ax, (1.25 * count + 0.8, 0.5 * len(topics) + 0.7))
    probabilities = topics / topics.sum(1, keepdims=True)
    best = np.argsort(-probabilities, axis=1)[:, :count]
    longest = np.take_along_axis(probabilities, best, 1).max()
    for line, (row, top) in enumerate(zip(probabilities, best, strict=True)):
        for place, word in enumerate(top):
            ax.barh(line + 0.28, 0.9 * row[word] / longest, 0.16, left=place, color=COLOURS[0], alpha=0.8)
            ax.text(place, line - 0.02, str(words[word]), va="center", fontsize="small")
    ax.set(xlim=(-0.05, count), ylim=(len(topics) - 0.4, -0.5), xticks=[], ylabel="topic")
    ax.set_yticks(range(len(topics)))
    ax.set_title(f"The {count} likeliest words of every topic (bars: their probability)", loc="left", fontsize="medium")
    ax.spines["bottom"].set_visible(False)
    return _open(ax)


def plot_weights(weights: Any, shape: tuple[int, int], ax: Any = None) -> Any:
    """Show weights as images, one for each hidden unit: units times pixels, of images of a shape.

    Privacy: post-processing of a posterior's weights.
    """
    weights = np.asarray(weights, float)
    if weights.ndim != 2 or weights.shape[1] != shape[0] * shape[1]:
        raise ValueError(
            f"The weights have the shape {weights.shape}, and an image has {shape[0]} x {shape[1]} pixels. Pass units "
            "times pixels."
        )
    across = int(np.ceil(np.sqrt(len(weights))))
    down = -(-len(weights) // across)
    ax = _axes(ax, (0.75 * across + 1.2, 0.75 * down + 0.5))
    high, wide = shape
    grid = np.full((down * (high + 1) - 1, across * (wide + 1) - 1), np.nan)
    for place, image in enumerate(weights.reshape(-1, high, wide)):
        top, left = (high + 1) * (place // across), (wide + 1) * (place % across)
        grid[top : top + high, left : left + wide] = image
    bound = float(np.abs(weights).max()) or 1.0
    drawn = ax.imshow(grid, cmap="PuOr", vmin=-bound, vmax=bound, interpolation="nearest")
    ax.figure.colorbar(drawn, ax=ax, shrink=0.8, label="weight")
    ax.set_axis_off()
    ax.set_title(f"What {len(weights)} hidden units look for", loc="left", fontsize="medium")
    return ax


def _axes(ax: Any, size: tuple[float, float]) -> Any:
    if ax is not None:
        return ax
    plt = need("tacit.plots", "matplotlib.pyplot")
    return plt.subplots(figsize=size, layout="constrained")[1]


def _legend_above(ax: Any) -> None:
    """Put the legend where no interval is."""
    ax.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1.04), borderaxespad=0, fontsize="small")


def _open(ax: Any) -> Any:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax
