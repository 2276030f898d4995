"""What a recipe costs: certified privacy numbers from public parameters, and nothing else.

A recipe here is `steps` Gaussian releases with noise `noise_multiplier` times the clip, each on a fresh Poisson subset
of rate `rate`. Its numbers come from the privacy loss distribution (losses.py), or from the exact Gaussian formula at
rate 1 (gaussian.py). Many runs are added up by `spent`.

Repeat and select (`repeats`): the whole recipe is run a secret number of times, and only the best outcome is shown.
With m = `repeats`, and their number Poisson of mean m but not 0, the Rényi curve becomes (docs/proofs/select.md)::

    ε'(α) = ε(α) + m δ(log(α / (α - 1))) + log(m / (1 - e^-m)) / (α - 1)

with ε(α) and δ(ε) of one run.

Nothing here sees a record, and every function is *public*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special  # type: ignore[import-untyped]

from tacit.accounting.checks import as_float, check_delta, check_recipe, check_relation, check_repeats
from tacit.accounting.gaussian import Floats, full_batch_mu, gaussian_delta, gaussian_epsilon, least
from tacit.accounting.losses import FINE, loss_distributions, rounding_slack, trade_off_tables
from tacit.accounting.renyi import ORDERS, delta_from_renyi, epsilon_from_renyi, renyi_curve

Run = tuple[float, float, int] | tuple[float, float, int, float]
"""Rate, noise multiplier and steps of a run; of a selection also its repeats."""

COMPOSITION = {
    "add-remove": (
        "Adaptively chosen runs: the first run by its privacy loss distribution, all runs together by a "
        "Rényi filter (Feldman and Zrnic 2021; Lécuyer 2021) over 18 orders fixed in advance, δ shared among "
        "them. This holds for a total capped in advance; without a cap, only if earlier answers had no say in which "
        "runs were made."
    ),
    "replace-one": (
        "Adaptively chosen runs: the first run by its privacy loss distribution, all runs together by a "
        "Rényi filter (Feldman and Zrnic 2021; Lécuyer 2021) over 18 orders fixed in advance, δ shared among "
        "them; the Rényi curve of replacing a record is that of removing one and adding another (weak "
        "triangle inequality, Mironov 2017). This holds for a total capped in advance; without a cap, only if earlier "
        "answers had no say in which runs were made."
    ),
}
"""The rule by which `spent` adds up runs, one sentence for each adjacency."""


def epsilon(
    rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    adjacency: str = "add-remove",
    fixed_size: bool = False,
    repeats: float | None = None,
) -> float:
    """Return a certified upper bound on ε at the given δ.

    Parameters
    ----------
    rate
        Probability with which a record enters a step's subset, in (0, 1].
    noise_multiplier
        Noise standard deviation divided by the clip.
    steps
        Number of releases; 0 costs nothing.
    delta
        The δ of the (ε, δ) statement, in (0, 1).
    adjacency
        "add-remove" or "replace-one".
    fixed_size
        Whether subsets are drawn without replacement with a size fixed in advance, `rate` times the number of records,
        and not as Poisson subsets. tacit draws none such; they need "replace-one" and cost much more.
    repeats
        Of repeat and select: the recipe is run a Poisson number of times of this mean, at least once, and only the best
        outcome is shown. None for one run.

    Returns
    -------
    float
        Never below the true ε; infinite if δ is too small for anything to be certified.

    Privacy: public.
    """
    rate, noise, steps = check_recipe("epsilon", rate, noise_multiplier, steps, adjacency)
    if repeats is not None:
        curve = selection_curve(rate, noise, steps, check_repeats("epsilon", repeats, fixed_size), adjacency)
        return epsilon_from_renyi(curve, 1, check_delta("epsilon", delta))
    return certified_epsilon(
        rate, noise, steps, check_delta("epsilon", delta), check_relation("epsilon", adjacency, fixed_size)
    )


def delta(
    rate: float,
    noise_multiplier: float,
    steps: int,
    epsilon: float,
    adjacency: str = "add-remove",
    fixed_size: bool = False,
) -> float:
    """Return a certified upper bound on δ at the given ε; the recipe is that of `epsilon`.

    Privacy: public.
    """
    rate, noise, steps = check_recipe("delta", rate, noise_multiplier, steps, adjacency)
    epsilon = as_float("delta", "epsilon", epsilon)
    if not epsilon >= 0:
        raise ValueError(
            f"delta(epsilon={epsilon}): epsilon must be a number of at least 0, because it bounds a ratio of "
            "probabilities from above; write e.g. epsilon=1.0."
        )
    return certified_delta(rate, noise, steps, epsilon, check_relation("delta", adjacency, fixed_size))


def advantage(
    rate: float,
    noise_multiplier: float,
    steps: int,
    adjacency: str = "add-remove",
    repeats: float | None = None,
) -> float:
    """Return the advantage of the best attacker: true-positive rate minus false-positive rate, at most.

    It is δ at ε = 0, from the whole privacy loss distribution; of repeat and select, what the Rényi curve allows.

    Privacy: public.
    """
    rate, noise, steps = check_recipe("advantage", rate, noise_multiplier, steps, adjacency)
    if steps == 0:
        return 0.0
    if repeats is not None:
        fprs = np.linspace(0.0, 1.0, 1001)
        tprs = true_positive_rate(fprs, rate, noise, steps, adjacency, repeats)
        # Between two false-positive rates the true positives are at most those of the right one.
        return float(min(1.0, np.max(tprs[1:] - fprs[:-1])))
    if rate == 1:
        return gaussian_delta(0.0, full_batch_mu(noise, steps, adjacency))
    curve = loss_distributions(rate, noise, steps, adjacency, FINE, True)
    return min(1.0, max(loss.delta(0.0) for loss in curve) + rounding_slack(steps))


def true_positive_rate(
    fpr: npt.ArrayLike,
    rate: float,
    noise_multiplier: float,
    steps: int,
    adjacency: str = "add-remove",
    repeats: float | None = None,
) -> Any:
    """Return the best attacker's true-positive rate at given false-positive rates, at most.

    It is the least of δ(ε) + e^ε fpr over ε, for the harder of the two questions ("is the record there?", "is
    it missing?"), from the whole privacy loss distribution and not from one (ε, δ) point.

    Parameters
    ----------
    fpr
        False-positive rates in [0, 1]: a number, or an array of any shape.
    rate, noise_multiplier, steps, adjacency, repeats
        The recipe, as for `epsilon`.

    Returns
    -------
    float or numpy.ndarray
        Shaped like `fpr`.

    Privacy: public.
    """
    rate, noise, steps = check_recipe("true_positive_rate", rate, noise_multiplier, steps, adjacency)
    fprs = np.asarray(fpr, dtype=np.float64)
    if not bool(np.all((fprs >= 0) & (fprs <= 1))):
        raise ValueError(
            f"true_positive_rate(fpr={fpr!r}): false-positive rates are probabilities in [0, 1]; write e.g. fpr=0.01."
        )
    if steps == 0:
        tprs = fprs
    elif repeats is not None:
        curve = selection_curve(rate, noise, steps, check_repeats("true_positive_rate", repeats), adjacency)
        tprs = np.ones_like(fprs)
        # Any set of points gives a valid bound.
        for at in 10.0 ** -np.arange(0.25, 12.0, 0.25):
            epsilon = epsilon_from_renyi(curve, 1, float(at))
            over, under = at + math.exp(min(epsilon, 700.0)) * fprs, 1 - math.exp(-epsilon) * (1 - at - fprs)
            tprs = np.minimum(tprs, np.minimum(over, under))
        tprs = np.clip(tprs, fprs, 1.0)
    elif rate == 1:
        shifted = special.ndtr(special.ndtri(fprs) + full_batch_mu(noise, steps, adjacency))
        tprs = np.minimum(1.0, shifted * (1 + 2.0**-40))
    else:
        tprs = np.zeros_like(fprs)
        for epsilons, deltas in trade_off_tables(rate, noise, steps, adjacency):
            with np.errstate(over="ignore"):
                bounds = deltas + np.exp(epsilons) * fprs[..., None]
            tprs = np.maximum(tprs, bounds.min(axis=-1))
        tprs = np.clip(tprs, fprs, 1.0)
    return float(tprs) if fprs.ndim == 0 else tprs


def spent(runs: Sequence[Run], delta: float, adjacency: str = "add-remove") -> float:
    """Return the total ε of many runs, each of which may have been chosen after seeing the ones before.

    The result is the least ε with::

        δ₁(ε) + |ORDERS| min over α of δ_α(ε) <= delta

    where δ₁ is the first run's δ from its privacy loss distribution and δ_α converts the sum of all runs'
    Rényi curves at order α. (For a single run the second term is absent, so one run costs what `epsilon`
    says.)

    Why a cap on this number holds for adaptive runs. The first run is chosen before anything is seen. Sort
    the transcripts that the cap lets pass: those of one run differ between neighbours by at most δ₁(cap).
    Every other one satisfies, for some α of the fixed list, that its Rényi costs stay below the level that
    makes δ_α(cap) equal to (delta - δ₁(cap)) / |ORDERS|; it is therefore also a transcript of the same
    interaction guarded by a Rényi filter at that order, which keeps (cap, that δ) for adaptively chosen runs
    (Feldman and Zrnic 2021; Lécuyer 2021). The parts add up to delta. A run stopped early is post-processing
    of the whole run, so it is charged whole.

    Parameters
    ----------
    runs
        One (rate, noise_multiplier, steps) for each run, in the order they were made; a fourth number is the `repeats`
        of a selection, whose δ₁ comes from its Rényi curve.
    delta
        The δ of the total.
    adjacency
        The same for all runs.

    Privacy: public.
    """
    delta = check_delta("spent", delta)
    recipes: list[Run] = []
    for rate, noise, steps, *repeats in runs:
        one = check_recipe("spent", rate, noise, steps, adjacency)
        recipes.append((*one, check_repeats("spent", repeats[0])) if repeats else one)
    recipes = [recipe for recipe in recipes if recipe[2] > 0]
    if not recipes:
        check_recipe("spent", 1.0, 1.0, 0, adjacency)
        return 0.0
    if len(recipes) == 1:
        return _epsilon_of(recipes[0], delta, adjacency)
    return _spent(tuple(recipes), delta, adjacency)


def renyi_epsilon(
    rate: float, noise_multiplier: float, steps: int, delta: float, adjacency: str = "add-remove"
) -> float:
    """Return a certified but looser ε by Rényi differential privacy at the fixed `ORDERS`.

    Privacy: public.
    """
    rate, noise, steps = check_recipe("renyi_epsilon", rate, noise_multiplier, steps, adjacency)
    delta = check_delta("renyi_epsilon", delta)
    return epsilon_from_renyi(renyi_curve(rate, noise, adjacency), steps, delta) if steps else 0.0


@lru_cache(maxsize=4096)
def certified_epsilon(rate: float, noise: float, steps: int, delta: float, adjacency: str) -> float:
    """Return `epsilon` of a checked recipe: the least of its bounds."""
    if steps == 0:
        return 0.0
    if rate == 1:
        return gaussian_epsilon(delta, full_batch_mu(noise, steps, adjacency))
    # The Rényi bound is the larger one except where δ comes near the rounding slack.
    best = epsilon_from_renyi(renyi_curve(rate, noise, adjacency), steps, delta)
    left = delta - rounding_slack(steps)
    if left > 0:
        curves = loss_distributions(rate, noise, steps, adjacency, FINE, False)
        best = min(best, max(loss.epsilon(left) for loss in curves) * (1 + 2.0**-40))
    return best


def certified_delta(
    rate: float,
    noise: float,
    steps: int,
    epsilon: float,
    adjacency: str,
    accuracy: float = FINE,
    only_first: bool = False,
) -> float:
    """Return `delta` of a checked recipe; with ``only_first`` of one direction alone, to search by."""
    if steps == 0:
        return 0.0
    if rate == 1:
        return gaussian_delta(epsilon, full_batch_mu(noise, steps, adjacency))
    curves = loss_distributions(rate, noise, steps, adjacency, accuracy, False, only_first)
    best = max(loss.delta(epsilon) for loss in curves) + rounding_slack(steps)
    return min(1.0, best, delta_from_renyi(renyi_curve(rate, noise, adjacency), steps, epsilon))


@lru_cache(maxsize=256)
def _spent(runs: tuple[Run, ...], delta: float, adjacency: str) -> float:
    total = np.sum([_curve_of(run, adjacency) for run in runs], axis=0)

    def enough(epsilon: float) -> bool:
        together = len(ORDERS) * delta_from_renyi(tuple(total), 1, epsilon)
        return together <= delta and _delta_of(runs[0], epsilon, adjacency) + together <= delta

    # At half of δ for each term the sum is enough: an end from which to bisect.
    high = max(
        _epsilon_of(runs[0], delta / 2, adjacency),
        epsilon_from_renyi(tuple(total), 1, delta / (2 * len(ORDERS))),
    )
    while not enough(high):
        high *= 1 + 1e-6
    return least(enough, high)


def _epsilon_of(run: Run, delta: float, adjacency: str) -> float:
    if len(run) == 3:
        return certified_epsilon(*run, delta, adjacency)
    return epsilon_from_renyi(selection_curve(*run, adjacency), 1, delta)


def _delta_of(run: Run, epsilon: float, adjacency: str) -> float:
    if len(run) == 3:
        return certified_delta(*run, epsilon, adjacency)
    return delta_from_renyi(selection_curve(*run, adjacency), 1, epsilon)


def _curve_of(run: Run, adjacency: str) -> Floats:
    if len(run) == 3:
        return run[2] * np.asarray(renyi_curve(*run[:2], adjacency))
    return np.asarray(selection_curve(*run, adjacency))


@lru_cache(maxsize=256)
def selection_curve(rate: float, noise: float, steps: int, repeats: float, adjacency: str) -> tuple[float, ...]:
    """Return the Rényi curve of the best of a secret number of runs (the formula is in this module's docstring)."""
    if steps == 0:
        return (0.0,) * len(ORDERS)
    more = math.log(repeats / -math.expm1(-repeats))
    curve = []
    for order, value in zip(ORDERS, renyi_curve(rate, noise, adjacency), strict=True):
        # A little below the logarithm, so that rounding cannot carry it above.
        slack = certified_delta(rate, noise, steps, -math.log1p(-1 / order) * (1 - 2.0**-40), adjacency)
        curve.append((steps * value + repeats * slack + more / (order - 1)) * (1 + 2.0**-40))
    return tuple(curve)
