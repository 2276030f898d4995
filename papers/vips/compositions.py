"""Noise by composition: what each analysis asks for in the settings of the VIPS paper (its Table 1).

    python papers/vips/compositions.py      (--quick for a smoke test)

A noise multiplier is the noise's standard deviation over the clip, in one release a step of all statistics together.
The paper composes several releases a step, each with its own sensitivity; "as the paper counts" is its recipe over all
of them, divided by the square root of their number: what one joint release with equal parts would have. Steps are the
paper's where it says them; for the belief network one pass is taken. delta is the paper's 1e-4; of delta for a step, on
which its recipe depends too, it says nothing, and 1e-6 is taken (``tacit.classical.vips``). Advanced and linear
composition are of exactly analysed steps, which is kinder to them than the paper was.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tacit import accounting
from tacit.accounting import classical
from tacit.accounting.mechanism import Mechanism

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "d3p"))
import study  # noqa: E402

study.HERE = HERE
DELTA = 1e-4
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
SHOWN = 1.0
"""The epsilon of the table."""


class Setting(NamedTuple):
    """A run of the paper: records, records in a step, steps, and how many releases it composes in a step."""

    name: str
    records: int
    subset: int
    steps: int
    releases: int


SETTINGS = (
    Setting("LDA, S = 10", 400_000, 10, 16_000, 1),
    Setting("LDA, S = 400", 400_000, 400, 400, 1),
    Setting("BLR, S = 10", 10_069, 10, 400, 2),
    Setting("SBN, S = 50", 60_000, 50, 1_200, 5 + 784 + 100),
)
ANALYSES: dict[str, tuple[Callable[[Mechanism, float], classical.Comparison], str, str]] = {
    "VIPS recipe": (classical.vips, "orange", "--"),
    "linear composition": (classical.linear, "pink", "-"),
    "advanced composition": (classical.advanced, "green", "-"),
    "zCDP": (classical.zcdp, "black", "-"),
    "RDP": (classical.rdp, "blue", ":"),
}
OURS = "PLD"
COUNTED = "VIPS recipe, as the paper counts"


def multiplier(analysis: Callable[[Mechanism, float], Any], rate: float, steps: int, epsilon: float) -> float:
    """Return the least noise multiplier, to 1 part in 10000, that an analysis accepts: its epsilon falls with noise."""
    low, high = math.log(0.02), math.log(1e7)
    while high - low > 1e-4:
        middle = (low + high) / 2
        enough = analysis(Mechanism(rate, 1.0, math.exp(middle), steps), DELTA).epsilon <= epsilon
        low, high = (low, middle) if enough else (middle, high)
    return math.exp(high)


def curves(setting: Setting, epsilons: tuple[float, ...]) -> dict[str, list[float]]:
    """Return the noise multiplier over epsilon by every analysis."""
    rate, steps, releases = setting.subset / setting.records, setting.steps, setting.releases
    found = {
        name: [multiplier(analysis, rate, steps, epsilon) for epsilon in epsilons]
        for name, (analysis, _, _) in ANALYSES.items()
    }
    found[OURS] = [accounting.noise_multiplier(epsilon, DELTA, rate, steps) for epsilon in epsilons]
    counted = [multiplier(classical.vips, rate, steps * releases, epsilon) for epsilon in epsilons]
    found[COUNTED] = [value / math.sqrt(releases) for value in counted]
    return found


def verdicts() -> dict[str, bool]:
    """Say of every analysis whether it is valid in a setting with subsets, as ``tacit.classical`` does."""
    one = Mechanism(0.01, 1.0, 1.0, 10)
    found = {name: analysis(one, DELTA).valid for name, (analysis, _, _) in ANALYSES.items()}
    return {**found, OURS: True, COUNTED: found["VIPS recipe"]}


def main() -> None:
    """Print the table and draw the curves."""
    chosen = study.options(__doc__)
    settings, epsilons = (SETTINGS[2:3], (1.0, 4.0)) if chosen.quick else (SETTINGS, EPSILONS)
    found = {setting.name: curves(setting, epsilons) for setting in settings}
    valid = verdicts()
    at = epsilons.index(SHOWN)
    names = [OURS, "RDP", "VIPS recipe", COUNTED, "zCDP", "advanced composition", "linear composition"]
    rows = [
        (name, "valid" if valid[name] else "not valid", *(f"{found[s.name][name][at]:.3g}" for s in settings))
        for name in names
    ]
    spent = {
        name: {
            s.name: accounting.epsilon(s.subset / s.records, found[s.name][name][at], s.steps, DELTA) for s in settings
        }
        for name in ("VIPS recipe", COUNTED)
    }
    text = "\n\n".join(
        [
            f"Noise multiplier of one joint release a step, at ε = {SHOWN:g}, δ = {DELTA:g}:",
            study.table(["analysis", "", *(s.name for s in settings)], rows),
            study.table(
                ["setting", "records", "rate", "steps", "releases a step in the paper"],
                [(s.name, s.records, f"{s.subset / s.records:.2g}", s.steps, s.releases) for s in settings],
            ),
            f"Not valid means that no theorem stands behind it. What that noise for ε = {SHOWN:g} can cost, by the "
            "privacy loss distribution, where a record is at all bounds at once, all releases of a step come from "
            "the same subset, and the sensitivity is that of the sum over the subset:",
            study.table(
                ["ε of the noise by", *(s.name for s in settings)],
                [(name, *(f"{value:.2g}" for value in spent[name].values())) for name in spent],
            ),
            "The paper prints the sensitivity of a mean over all records, with which there is too little noise by a "
            "factor of records over S.",
        ]
    )
    results = {"epsilon": list(epsilons), "noise_multiplier": found, "valid": valid, "true_epsilon": spent}
    figure = plot(settings, epsilons, found, valid)
    study.save(chosen.out, "compositions", "python papers/vips/compositions.py", text, results, figure)


def plot(settings: tuple[Setting, ...], epsilons: tuple[float, ...], found: Any, valid: dict[str, bool]) -> Any:
    """Draw the noise multiplier over epsilon, a panel for each setting."""
    figure, axes = study.panels(len(settings), 3.4, 4.2)
    lines = {name: (study.COLOURS[paint], line) for name, (_, paint, line) in ANALYSES.items()}
    lines[OURS] = (study.COLOURS["blue"], "o-")
    for ax, setting in zip(axes, settings, strict=True):
        for name, (colour, line) in lines.items():
            label = f"{name}: {'valid' if valid[name] else 'not valid'}"
            ax.plot(epsilons, found[setting.name][name], line, ms=4, color=colour, label=label)
        ax.set(yscale="log", xlabel=f"ε (δ = {DELTA:g})")
        study.log_axis(ax, epsilons)
        ax.set_title(setting.name, fontsize="medium", loc="left")
    axes[0].set_ylabel("noise multiplier")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return figure


if __name__ == "__main__":
    main()
