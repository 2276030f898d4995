"""How far predictions can be believed: calibration of probabilities, coverage of intervals, parts of the uncertainty.

All functions take plain arrays: what ``posterior.predict`` gave, and outcomes that are public or your own. Outcomes of
private records must not come here; what is computed from them would not be certified.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "BINS",
    "LEVEL",
    "Reliability",
    "Uncertainty",
    "classes",
    "coverage",
    "reliability",
    "uncertainty",
]

LEVEL = 0.9
"""Of the intervals that summaries and rehearsals show."""
BINS = 15


class Reliability(NamedTuple):
    """How often predictions of a confidence were right, bin by bin: from ``low`` to ``high``, a share of them all."""

    low: np.ndarray
    high: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    share: np.ndarray

    @property
    def ece(self) -> float:
        """The expected calibration error: the mean gap between confidence and accuracy."""
        return float(np.nansum(self.share * np.abs(self.confidence - self.accuracy)))

    @property
    def mce(self) -> float:
        """The maximum calibration error: the largest gap of a bin with predictions in it."""
        return float(np.nanmax(np.abs(self.confidence - self.accuracy)))


def reliability(probabilities: Any, y: Any, bins: int = BINS) -> Reliability:
    """Compare confidence with accuracy.

    Privacy: post-processing of predictions; ``y`` must be public or your own.

    Parameters
    ----------
    probabilities
        Probabilities of the classes (records times classes), or of class 1 (records); with a leading axis of draws they
        are averaged over it first.
    y
        The true classes, whole numbers from 0.
    bins
        Number of equal bins of confidence, from 0 to 1.
    """
    probabilities, y = classes(probabilities, y)
    if bins < 1:
        raise ValueError(f"bins is {bins}. Write a whole number of at least 1.")
    confidence, right = probabilities.max(1), probabilities.argmax(1) == y
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean, accuracy = (np.bincount(place, values, bins) / count for values in (confidence, right))
    edges = np.linspace(0, 1, bins + 1)
    return Reliability(edges[:-1], edges[1:], mean, accuracy, count / len(y))


def classes(probabilities: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Convert probabilities to the shape records times classes, and check the outcomes.

    Privacy: post-processing.
    """
    probabilities, y = np.asarray(probabilities, float), np.asarray(y)
    if y.ndim != 1 or not np.array_equal(y, np.floor(y.astype(float))) or np.any(y < 0):
        raise ValueError(f"y has the shape {y.shape}; it must be a list of classes, whole numbers from 0.")
    if not len(y):
        raise ValueError("There are no outcomes to compare with.")
    if probabilities.ndim == 3 or (
        probabilities.ndim == 2 and probabilities.shape[1] == len(y) and not _adds_up(probabilities)
    ):
        probabilities = probabilities.mean(0)  # over draws
    if probabilities.ndim == 1:
        probabilities = np.stack([1 - probabilities, probabilities], 1)
    if probabilities.ndim != 2 or len(probabilities) != len(y):
        raise ValueError(
            f"There are {len(y)} outcomes, and probabilities of the shape {probabilities.shape} do not fit them."
        )
    if not _adds_up(probabilities):
        raise ValueError("Probabilities must not be negative and add up to 1 over the classes. Pass those, not logits.")
    if y.max() >= probabilities.shape[1]:
        raise ValueError(
            f"y has the class {y.max()}, but there are probabilities of {probabilities.shape[1]} classes only."
        )
    return probabilities, y.astype(int)


def coverage(draws: Any, y: Any, level: float = 0.9) -> float:
    """Return the share of outcomes within the central interval of their predictive draws (draws times records).

    Privacy: post-processing of predictions; ``y`` must be public or your own.
    """
    draws, y = np.asarray(draws, float), np.asarray(y, float)
    if draws.ndim != y.ndim + 1 or draws.shape[1:] != y.shape:
        raise ValueError(f"Draws have the shape {draws.shape}, and outcomes {y.shape}. Pass draws times records.")
    if not 0 < level < 1:
        raise ValueError(f"level is {level:g}, but must be between 0 and 1. Write level=0.9.")
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return float(np.mean((low <= y) & (y <= high)))


class Uncertainty(NamedTuple):
    """Two parts of a prediction's uncertainty: ``epistemic`` shrinks with more records, ``aleatoric`` does not."""

    epistemic: np.ndarray
    aleatoric: np.ndarray


def uncertainty(mean: Any, std: Any = None) -> Uncertainty:
    """Split the uncertainty of predictions into what more records would settle, and what they would not.

    For numbers: the standard deviation of the means over draws, and the root of the mean noise variance. For classes
    (no ``std``; draws times records times classes): how much a draw tells of the class, in nats, and the mean entropy.

    Privacy: post-processing.
    """
    mean = np.asarray(mean, float)
    if std is not None:
        return Uncertainty(mean.std(0), np.sqrt(np.mean(np.square(np.asarray(std, float)), 0)))
    if mean.ndim == 2:
        mean = np.stack([1 - mean, mean], -1)  # of class 1 alone
    if mean.ndim != 3:
        raise ValueError(
            f"Without std, mean must be probabilities: draws times records times classes, not {mean.shape}."
        )
    within = np.mean(_entropy(mean), 0)
    return Uncertainty(np.maximum(_entropy(mean.mean(0)) - within, 0), within)


def _adds_up(probabilities: np.ndarray) -> bool:
    return bool(np.all(probabilities >= 0) and np.allclose(probabilities.sum(1), 1, atol=1e-3))


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    return -np.sum(probabilities * np.log(np.maximum(probabilities, 1e-30)), -1)
