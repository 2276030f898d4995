"""Lower bounds on ε from the scores of an attack.

The scores of runs with and without a record become an attack by a threshold. Its false- and true-positive rates are
compared with what a mechanism allows::

    threshold   from one half of the scores
    counts      from the other half: fp of n runs without the canary, tp of m runs with it
    p(f, t)     p-value of "false-positive rate f, true-positive rate at most t": Fisher's combination of
                P(Bin(n, f) <= fp) and P(Bin(m, t) >= tp)
    refuted     the mechanism with trade-off curve t(.), when p(f, t(f)) <= 1 - confidence for every f
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from tacit import accounting
from tacit.accounting.mechanism import Mechanism

Floats = npt.NDArray[np.float64]
Test = Callable[[Floats, Floats], bool]
"""Whether the highest true-positive rates at a grid of false-positive rates are refuted."""
THRESHOLDS = 200
GUESS = 3e-5
"""Tail probability of the Clopper-Pearson guesses by which the threshold is chosen."""
GRID = 128
TOLERANCE = 1e-3
GUESSED = (0.01, 0.05, 0.1, 0.25, 0.5)
"""The shares of the canaries about whom a one-run attack guesses; the confidence is divided among them."""
FACTOR = 64.0
"""Noise multipliers are searched up to this factor either side of the claimed one."""


def lower_bound(
    inside: npt.ArrayLike, outside: npt.ArrayLike, *, mechanism: Mechanism, delta: float, confidence: float = 0.999
) -> float:
    """Return an ε that the mechanism which made the scores does not undercut, from the family it should belong to.

    The family is that of the claimed recipe with any noise multiplier. All its members with more noise than some s are
    refuted by the scores, and what is returned is the ε of the member with noise multiplier s.

    Parameters
    ----------
    inside, outside
        Scores of independent runs with and without the canary, higher for "inside": the log-likelihood ratio, or
        anything that grows with it.
    mechanism
        The claimed recipe of ONE run. Its rate, steps and adjacency define the family.
    delta
        The δ at which ε is stated.
    confidence
        Probability with which the bound holds, whatever the true member of the family.

    Returns
    -------
    float
        At most the true ε of a member of the family, with the given confidence; 0 when nothing is refuted.

    Privacy: public: for runs on made-up records. Scores of real records are as secret as the records.
    """
    scores = _halves(inside, outside, confidence)
    delta = accounting.check_delta("lower_bound", delta)

    def curve(fpr: Floats, noise: float) -> Floats:
        tpr: Floats = accounting.true_positive_rate(
            fpr, mechanism.rate, noise, mechanism.steps, adjacency=mechanism.adjacency
        )
        return tpr

    def least_refuted(refuted: Callable[[float], bool]) -> float | None:
        claimed = high = mechanism.noise_multiplier
        while not refuted(high):
            high *= 2
            if high > FACTOR * claimed:
                return None
        low = high / 2
        while low > claimed / FACTOR and refuted(low):
            low, high = low / 2, low
        while high > low * (1 + TOLERANCE):
            middle = (low * high) ** 0.5
            low, high = (low, middle) if refuted(middle) else (middle, high)
        return high

    cuts, fprs, tprs = _guesses(scores[0])
    best = least_refuted(lambda noise: bool(np.any(tprs > curve(fprs, noise))))
    cut = cuts[0] if best is None else cuts[np.argmax(tprs - curve(fprs, best))]
    test, grid = _test(scores[1], cut, 1 - confidence)
    noise = least_refuted(lambda noise: test(grid, curve(grid, noise)))
    return 0.0 if noise is None else replace(mechanism, noise_multiplier=noise).cost(delta)


def direct(inside: npt.ArrayLike, outside: npt.ArrayLike, *, delta: float, confidence: float = 0.999) -> float:
    """Return a lower bound on ε that assumes nothing of the mechanism: log((TPR - δ) / FPR), Clopper-Pearson.

    Much looser than `lower_bound`, since one (FPR, TPR) point says little about the rest of the curve.

    Parameters
    ----------
    inside, outside, delta, confidence
        As for `lower_bound`.

    Privacy: public: for runs on made-up records.
    """
    halves = _halves(inside, outside, confidence)
    delta = accounting.check_delta("direct", delta)
    # "Is it missing?" is the same attack with the roles exchanged.
    sides = [halves, tuple((-outside, -inside) for inside, outside in halves)]
    guesses = [_guesses(side[0]) for side in sides]
    gains = [(np.maximum(tprs - delta, 0) / fprs) for _, fprs, tprs in guesses]
    side = int(np.argmax([gain.max() for gain in gains]))
    n, m, fp, tp = _counts(sides[side][1], guesses[side][0][np.argmax(gains[side])])
    alpha = (1 - confidence) / 2
    fpr = 1.0 if fp == n else float(stats.beta.ppf(1 - alpha, fp + 1, n - fp))
    tpr = 0.0 if tp == 0 else float(stats.beta.ppf(alpha, tp, m - tp + 1))
    return float(max(0.0, np.log(max(tpr - delta, 1e-300) / fpr)))


def one_run_bound(scores: npt.ArrayLike, inside: npt.ArrayLike, *, delta: float, confidence: float = 0.999) -> float:
    """Return a lower bound on ε from ONE run with many canaries, each put in with probability one half.

    The highest and lowest scores become guesses. Under (ε, δ) the number of right ones among r is, but for δ, at most
    binomial with probability 1 / (1 + e^-ε) each (Steinke, Nasr and Jagielski 2023, Theorem 5.2).

    Parameters
    ----------
    scores
        One for each canary, higher for "inside".
    inside
        Which canaries were put in.
    delta, confidence
        As for `lower_bound`.

    Privacy: public: for runs on made-up records.
    """
    values, truth = np.asarray(scores, np.float64), np.asarray(inside, bool)
    if values.shape != truth.shape or values.ndim != 1 or len(values) < 20 or np.isnan(values).any():
        raise ValueError("Pass at least 20 canaries: one score for each, none NaN, and whether it was put in.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} must be above 0 and below 1; write e.g. confidence=0.999.")
    delta = accounting.check_delta("one_run_bound", delta)
    # Ties in an order that does not depend on the coins.
    order = np.lexsort((np.arange(len(values)), values))
    each = sorted({max(1, round(share * len(values) / 2)) for share in GUESSED})
    alpha = (1 - confidence) / len(each)
    best = 0.0
    for side in each:
        right = int(np.sum(truth[order[-side:]]) + np.sum(~truth[order[:side]]))

        def refuted(epsilon: float, guesses: int = 2 * side, right: int = right) -> bool:
            return _one_run_p_value(len(values), guesses, right, epsilon, delta) <= alpha

        low, high = 0.0, 50.0
        if not refuted(low):
            continue
        while high - low > TOLERANCE:
            middle = (low + high) / 2
            low, high = (middle, high) if refuted(middle) else (low, middle)
        best = max(best, low)
    return best


def _one_run_p_value(count: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    chance = special.expit(epsilon)
    below = stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, chance)
    # δ moves the count by i at the price of i: the worst i decides.
    worst = float(np.max(np.cumsum(below) / np.arange(1, right + 1))) if right else 0.0
    return float(min(1.0, stats.binom.sf(right - 1, guesses, chance) + 2 * count * delta * worst))


def _halves(inside: npt.ArrayLike, outside: npt.ArrayLike, confidence: float) -> tuple[tuple[Floats, Floats], ...]:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} must be above 0 and below 1; write e.g. confidence=0.999.")
    scores = [np.asarray(values, np.float64) for values in (inside, outside)]
    if any(values.ndim != 1 or len(values) < 20 or np.isnan(values).any() for values in scores):
        raise ValueError(
            "inside and outside must each be a list of at least 20 scores, one for each independent run and none "
            "of them NaN, because rates are counted; write e.g. 10000 runs of each."
        )
    return tuple((scores[0][part::2], scores[1][part::2]) for part in (0, 1))


def _guesses(scores: tuple[Floats, Floats]) -> tuple[Floats, Floats, Floats]:
    """Return candidate thresholds, with a high guess of the false-positive and a low one of the true-positive rate."""
    inside, outside = (np.sort(values) for values in scores)
    cuts = np.quantile(np.concatenate(scores), np.linspace(0, 1, THRESHOLDS + 2)[1:-1], method="higher")
    fp, tp = (len(values) - np.searchsorted(values, cuts) for values in (outside, inside))
    # Exact and generous: with normal errors the best of so many thresholds is often a lucky one in the tail.
    high = stats.beta.ppf(1 - GUESS, fp + 1, np.maximum(len(outside) - fp, 1e-3))
    low = stats.beta.ppf(GUESS, np.maximum(tp, 1e-3), len(inside) - tp + 1)
    return cuts, high, low


def _counts(scores: tuple[Floats, Floats], cut: Any) -> tuple[int, int, int, int]:
    inside, outside = scores
    return len(outside), len(inside), int(np.sum(outside >= cut)), int(np.sum(inside >= cut))


def _test(scores: tuple[Floats, Floats], cut: Any, alpha: float) -> tuple[Test, Floats]:
    n, m, fp, tp = _counts(scores, cut)
    # Outside these rates the false positives alone are refuted, or weigh nothing.
    low, high = stats.beta.ppf([1e-7, 1 - alpha / 50], [max(fp, 1e-3), fp + 1], [n - fp + 1, max(n - fp, 1e-3)])
    grid: Floats = np.concatenate([[0.0], np.linspace(low, high, GRID), [1.0]])

    def refuted(fpr: Floats, tpr: Floats) -> bool:
        # Between two points of the grid the first factor is largest on the left, the second on the right.
        few = special.bdtr(fp, n, fpr[:-1])
        many = special.betainc(tp, m - tp + 1, tpr[1:]) if tp else np.ones(len(tpr) - 1)
        product = np.maximum(few * many, 1e-300)
        return bool(np.all(product * (1 - np.log(product)) <= alpha))

    return refuted, grid
