"""Pictures of results; every function takes ``ax`` and gives it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tacit.posterior import Posterior

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
"""Okabe and Ito's, which colour-blind readers can tell apart."""


def plot_forest(posteriors: Mapping[str, Posterior], truth: Mapping[str, Any] | None = None, ax: Any = None) -> Any:
    """Show the mean and the central 90% interval of every number, one colour a posterior, and the truth if known.

    Privacy: post-processing.
    """
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=(7, 4.2), layout="constrained")[1]
    labels: list[str] = []
    for place, (title, posterior) in enumerate(posteriors.items()):
        rows = posterior.rows()
        labels = [label for label, *_ in rows]
        heights = np.arange(len(rows)) + 0.16 * (place - (len(posteriors) - 1) / 2)
        mean, low, high = (np.asarray([row[i] for row in rows]) for i in (1, 3, 4))
        ax.errorbar(
            mean, heights, xerr=(mean - low, high - mean), fmt="o", ms=4, lw=1.6, color=COLOURS[place], label=title
        )
    if truth is not None:
        known = [(truth[label], height) for height, label in enumerate(labels) if label in truth]
        ax.plot(*zip(*known, strict=True), "|", ms=18, mew=1.6, color="black", label="truth")
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()
    ax.axvline(0, color="0.8", lw=0.8, zorder=0)
    ax.set_xlabel("coefficient (log odds)" if truth is not None else "value")
    ax.set_title("Means and central 90% intervals", loc="left", fontsize="medium")
    ax.legend(frameon=False)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax
