"""What a cell of grid.py found, as numbers and as a line of a table; and whether the grid passes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import stats

ALLOWED, LEAST, HONEST = 0.03, 0.80, 0.87
"""By how much mean coverage may fall below the non-private one; and the least coverage of a coefficient whose
non-private one is above the third number."""
WIDTHS = {0.3: 1.6, 1.0: 1.3, 3.0: 1.3, 10.0: 1.3}
"""The largest median width over the ideal one, by epsilon; none was set for others."""
PRIOR = 1.05
"""The largest width over the prior's: the quantiles of 1000 draws are known to a few percent."""
BINS = 10
ENOUGH = 200
"""Replicates that a verdict asks for."""


def described(draws: Any, truth: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Return of one posterior, for each coefficient: the ends of intervals, mean, deviation, and the truth's rank.

    ``tarp`` is one number: the share of draws that are nearer to a random point than the truth is, in deviations of
    the posterior. It is uniform where the posterior is right, in all coefficients together (Lemos et al. 2023).
    """
    draws = np.asarray(draws, np.float64)
    low90, low50, high50, high90 = np.quantile(draws, (0.05, 0.25, 0.75, 0.95), axis=0)
    mean, std = draws.mean(0), draws.std(0)
    unit = np.where(std > 0, std, 1.0)
    point = mean + 2 * unit * rng.normal(size=len(mean))
    far, own = (np.sum(((one - point) / unit) ** 2, -1) for one in (draws, truth))
    found = {"low90": low90, "low50": low50, "high50": high50, "high90": high90, "mean": mean, "std": std}
    return {**found, "rank": np.mean(draws < truth, 0), "tarp": np.mean(far < own)}


def chi_square(ranks: Any) -> float:
    """Return the chi-square of the ranks' histogram by its degrees of freedom, mean over coefficients: 1 if uniform."""
    counts = np.stack([np.histogram(one, BINS, (0, 1))[0] for one in np.asarray(ranks).T])
    expected = len(ranks) / BINS
    return float(np.mean(np.sum((counts - expected) ** 2 / expected, 1) / (BINS - 1)))


def summary(
    ours: dict[str, Any], free: dict[str, Any], truth: Any, ideal: Any, prior: Any, epsilon: float
) -> dict[str, Any]:
    """Return the figures of a cell.

    Parameters
    ----------
    ours, free
        What `described` gave of the private and the non-private posteriors, stacked over replicates.
    truth, ideal
        The truths, and the ideal widths in units of the non-private ones: a line for each replicate.
    prior
        The widths of the prior's 90% intervals.
    epsilon
        Of the budget.
    """
    found: dict[str, Any] = {"replicates": len(truth), "judged": truth.shape[1]}
    held = {}
    for kind, one in (("", ours), ("free_", free)):
        for level in (50, 90):
            inside = (one[f"low{level}"] < truth) & (truth < one[f"high{level}"])
            held[f"{kind}{level}"] = inside
            found[f"{kind}covered{level}"] = float(inside.mean())
            found[f"{kind}worst{level}"] = float(inside.mean(0).min())
        z = (one["mean"] - truth) / np.where(one["std"] > 0, one["std"], np.nan)
        found[f"{kind}bias"] = float(np.nanmax(np.abs(np.nanmean(z, 0))))
        found[f"{kind}rms"] = float(np.sqrt(np.nanmean(z**2)))
        found[f"{kind}ranks"], found[f"{kind}tarp"] = chi_square(one["rank"]), _farthest(one["tarp"])
    width, without = (one["high90"] - one["low90"] for one in (ours, free))
    found["over_free"] = float(np.nanmedian(width / without))
    found["over_ideal"] = float(np.nanmedian(width / (without * ideal)))
    found["over_prior"] = float(np.nanmax(np.nanmedian(width, 0) / prior))
    found["worst"] = int(np.argmin(held["90"].mean(0)))
    found["broken"] = float(np.mean(~np.isfinite(ours["mean"]).all(1)))
    return found | verdicts(held["90"], held["free_90"], found, epsilon)


def verdicts(ours: Any, free: Any, found: dict[str, Any], epsilon: float) -> dict[str, str]:
    """Return whether a cell passes: on the mean, in its worst coefficient, by its width, and beside the prior.

    "no" is beyond chance: by two standard errors, or at the 5% level over all coefficients; "no?" is not.
    """
    each = ours.mean(1) - free.mean(1)
    error = each.std(ddof=1) / np.sqrt(len(each)) if len(each) > 1 else np.inf
    mean = "yes" if each.mean() >= -ALLOWED else "no" if each.mean() + 2 * error < -ALLOWED else "no?"
    short = (ours.mean(0) < LEAST) & (free.mean(0) > HONEST)
    chance = stats.binom.cdf(ours.sum(0), len(ours), LEAST)
    worst = "yes" if not short.any() else "no" if (chance[short] < 0.05 / ours.shape[1]).any() else "no?"
    most = WIDTHS.get(epsilon)
    width = "-" if most is None else "yes" if found["over_ideal"] <= most else "no"
    return {
        "passes_mean": mean,
        "passes_worst": worst,
        "passes_width": width,
        "passes_prior": "yes" if found["over_prior"] <= PRIOR else "no",
    }


def _farthest(shares: Any) -> float:
    """Return how far the distribution of numbers between 0 and 1 is from the uniform one, at most."""
    return float(stats.kstest(shares, "uniform").statistic)


HEADER = (
    *("design", "records", "judged", "ε", "method", "says", "90%", "worst", "50%", "worst"),
    *("non-private 90%", "worst", "50%", "bias, worst", "rms z", "non-private", "width / non-private", "/ ideal"),
    *(
        "/ prior, widest",
        "ranks χ²/9",
        "non-private",
        "TARP",
        "mean",
        "worst",
        "width",
        "prior",
        "replicates",
        "s a fit",
    ),
)


def row(name: str, cell: dict[str, Any]) -> tuple[str, ...]:
    """Write a line of the table."""
    design, epsilon = name.rsplit(", ", 1)
    head = (design, str(cell["records"]), str(cell.get("judged", "")), epsilon)
    if "error" in cell:
        return (*head, cell.get("method", ""), f"does not run: {cell['error']}", *[""] * (len(HEADER) - 6))
    numbers = [
        *("covered50", "worst50", "free_covered90", "free_worst90", "free_covered50", "bias", "rms"),
        *("free_rms", "over_free", "over_ideal", "over_prior", "ranks", "free_ranks", "tarp"),
    ]
    says = cell["says"] + (f" {cell['broken']:.0%} of fits not finite" if cell["broken"] else "")
    judged = [cell[f"passes_{one}"] for one in ("mean", "worst", "width", "prior")]
    return (
        *head,
        cell["method"],
        says,
        f"{cell['covered90']:.2f}",
        f"{cell['worst90']:.2f} {cell['worst']}".replace("|", "\\|"),
        *(f"{cell[one]:.2f}" for one in numbers),
        *("**no**" if one == "no" else one for one in judged),
        str(cell["replicates"]),
        f"{cell['seconds']:.1f}" if "seconds" in cell else "",
    )


def grid(cells: Iterable[dict[str, Any]]) -> str:
    """Say whether the grid passes, in a few lines."""
    cells = list(cells)
    ran = [cell for cell in cells if "error" not in cell]
    few = sum(cell["replicates"] < ENOUGH for cell in ran)

    def share(name: str) -> tuple[int, int, float]:
        asked = [cell.get(f"passes_{name}", "no") for cell in cells]
        good, count = asked.count("yes"), len(asked) - asked.count("-")
        return good, count, good / max(1, count)

    said = [
        ("1, on the mean, in 95% of the cells", *share("mean"), 0.95),
        ("1, every coefficient, in all cells", *share("worst"), 1.0),
        ("2, width over the ideal one, in 80% of the cells", *share("width"), 0.80),
        ("2, not wider than the prior, in all cells", *share("prior"), 1.0),
    ]
    lines = [
        f"- {what}: {good} of {count}, {'passes' if count and found >= asked else '**fails**'}"
        for what, good, count, found, asked in said
    ]
    if len(cells) > len(ran):
        lines.append(f"- {len(cells) - len(ran)} cells do not run, which counts as failing.")
    if few:
        lines.append(f"- {few} cells have fewer than {ENOUGH} replicates: of these the verdicts are provisional.")
    return "\n".join(lines)
