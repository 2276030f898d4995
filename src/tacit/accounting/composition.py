"""What a recipe costs: certified privacy numbers from public parameters, and nothing else.

A recipe here is `steps` Gaussian releases with noise `noise_multiplier` times the clip, each on a fresh
Poisson subset of rate `rate`. Two adjacencies are known: "add-remove" (a neighbour has one record more or
less) and "replace-one" (a neighbour has one record exchanged).

How a certified number is made. With G(z) the hockey-stick divergence of N(1, s²) from N(0, s²) at z, one step
has the closed forms::

    remove   δ(t) = q G(z),                    e^z = 1 + (e^t - 1) / q
    add      δ(t) = q e^(t+z) G(-z),           e^z = 1 + (e^-t - 1) / q
    replace  δ(t) = q (G(w - c) + e^(t-w-c) G(w + c)),   c = 1 / 2s²,
             w = t/2 + asinh(sinh(t/2) e^c (1 - q) / q)
    exchange as remove with s / 2, in both directions

(METHODS 0.1 has the dominating pairs.) The last is for subsets of a fixed size, drawn without replacement: where a
record is not drawn another one is, so its subsets and those without it differ by up to twice the clip, as do its
subsets and those of the record that replaces it; advanced joint convexity (Balle, Barthe and Gaboardi 2018) does the
rest. The curves are joined by connect-the-dots (Doroshenko et al. 2022) into a
privacy loss distribution on a grid, which dominates the true one whatever the grid. It is composed with itself by a
discrete Fourier transform, where what falls outside of the grid counts as certain disclosure (Koskela, Jälkö and
Honkela 2020). The grid is fine enough that the bound is within about 0.1% of the truth. At rate 1
the exact Gaussian formula is used. What floating-point arithmetic may lose is added: see `rounding_slack`.

Repeat and select (`repeats`): the whole recipe is run a secret number of times, and only the best outcome is shown.
With m = `repeats`, and their number Poisson of mean m but not 0, the Rényi curve becomes (docs/proofs/select.md)::

    ε'(α) = ε(α) + m δ(log(α / (α - 1))) + log(m / (1 - e^-m)) / (α - 1)

with ε(α) and δ(ε) of one run.

Nothing here sees a record, and every function is *public*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special  # type: ignore[import-untyped]

Floats = npt.NDArray[np.float64]

ADJACENCIES = ("add-remove", "replace-one")
"""The neighbour relations the accountant knows."""

_FIXED_SIZE = "replace-one, fixed size"
# What stands for "replace-one" inside this module where subsets have a fixed size; no adjacency of its own.

Run = tuple[float, float, int] | tuple[float, float, int, float]
"""Rate, noise multiplier and steps of a run; of a selection also its repeats."""

ORDERS = (2, 3, 4, 6, 9, 13, 20, 30, 45, 68, 100, 150, 230, 350, 500, 750, 1100, 1700)
"""The Rényi orders of `spent`, fixed in advance because a filter may not choose them after looking."""

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

# The grid step is the spread of the total loss times sqrt(12 a / steps): rounding to the grid then adds about
# the fraction a to its variance. The search for a noise multiplier starts on a coarse grid and ends on the
# certified one.
_FINE = 4e-4
_COARSE = 1e-2
_FEWEST_POINTS = 1000
_FEWEST_COARSE = 100
_MOST_POINTS = 2**19
# A sum of losses takes up so many places at most, on a coarser grid if it must.
_MOST_SUMS = 2**20

# Mass that may be cut from the tails; what is cut is counted as certain disclosure.
_TAIL = 1e-15
# Below it a mass is moved to certain disclosure before the distribution is composed.
_FAINT = 1e-32

# The range in which a noise multiplier is looked for.
_LEAST_NOISE = 0.02
SMALLEST_RATE = 1e-12
"""Far below one record in all that one process can hold."""
SMALLEST_NOISE, LARGEST_NOISE = 1e-3, 1e9
"""Noise multipliers whose cost can be computed; the wall takes fewer."""
LARGEST_STEPS = 10**7
"""Above it the distribution of the privacy loss no longer fits into memory."""


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
    rate, noise, steps = _recipe("epsilon", rate, noise_multiplier, steps, adjacency)
    if repeats is not None:
        curve = _selected(rate, noise, steps, check_repeats("epsilon", repeats, fixed_size), adjacency)
        return _renyi_epsilon(curve, 1, check_delta("epsilon", delta))
    return _epsilon(rate, noise, steps, check_delta("epsilon", delta), _relation("epsilon", adjacency, fixed_size))


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
    rate, noise, steps = _recipe("delta", rate, noise_multiplier, steps, adjacency)
    epsilon = as_float("delta", "epsilon", epsilon)
    if not epsilon >= 0:
        raise ValueError(
            f"delta(epsilon={epsilon}): epsilon must be a number of at least 0, because it bounds a ratio of "
            "probabilities from above; write e.g. epsilon=1.0."
        )
    return _delta(rate, noise, steps, epsilon, _relation("delta", adjacency, fixed_size))


def noise_multiplier(
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    adjacency: str = "add-remove",
    fixed_size: bool = False,
    repeats: float | None = None,
) -> float:
    """Return the smallest noise multiplier whose certified ε does not exceed the one asked for.

    The result is rounded up to six digits and then checked with `epsilon`, so `epsilon(...)` of the result is
    at most the ε asked for, and at least 0.98 of it unless the result is the least noise that is ever
    returned, 0.02.

    Privacy: public.
    """
    epsilon = as_float("noise_multiplier", "epsilon", epsilon)
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(
            f"noise_multiplier(epsilon={epsilon}): epsilon must be a finite number above 0, because no "
            "finite noise gives perfect privacy and none is needed for an infinite ε; write e.g. "
            "epsilon=1.0."
        )
    delta = check_delta("noise_multiplier", delta)
    rate, _, steps = _recipe("noise_multiplier", rate, 1.0, steps, adjacency)
    if steps == 0:
        raise ValueError(
            "noise_multiplier(steps=0): no release needs no noise; write the number of releases, e.g. steps=1000."
        )
    ever_used = -math.expm1(steps * math.log1p(-rate)) if rate < 1 else 1.0
    if delta >= ever_used:
        raise ValueError(
            f"noise_multiplier(delta={delta}, rate={rate}, steps={steps}): a record is used at all with "
            f"probability {ever_used:.3g} only, so this delta would allow publishing records without noise; "
            "write a delta far below one over the number of records, e.g. "
            f"delta={min(1e-6, ever_used / 100):.1g}."
        )
    if repeats is not None:
        repeats = check_repeats("noise_multiplier", repeats, fixed_size)
        return _repeated_noise(epsilon, delta, rate, steps, repeats, adjacency)
    return _noise_multiplier(epsilon, delta, rate, steps, _relation("noise_multiplier", adjacency, fixed_size))


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
    rate, noise, steps = _recipe("advantage", rate, noise_multiplier, steps, adjacency)
    if steps == 0:
        return 0.0
    if repeats is not None:
        fprs = np.linspace(0.0, 1.0, 1001)
        tprs = true_positive_rate(fprs, rate, noise, steps, adjacency, repeats)
        # Between two false-positive rates the true positives are at most those of the right one.
        return float(min(1.0, np.max(tprs[1:] - fprs[:-1])))
    if rate == 1:
        return _gaussian_delta(0.0, _mu(noise, steps, adjacency))
    curve = _curves(rate, noise, steps, adjacency, _FINE, True)
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
    rate, noise, steps = _recipe("true_positive_rate", rate, noise_multiplier, steps, adjacency)
    fprs = np.asarray(fpr, dtype=np.float64)
    if not bool(np.all((fprs >= 0) & (fprs <= 1))):
        raise ValueError(
            f"true_positive_rate(fpr={fpr!r}): false-positive rates are probabilities in [0, 1]; write e.g. fpr=0.01."
        )
    if steps == 0:
        tprs = fprs
    elif repeats is not None:
        curve = _selected(rate, noise, steps, check_repeats("true_positive_rate", repeats), adjacency)
        tprs = np.ones_like(fprs)
        # Any set of points gives a valid bound.
        for at in 10.0 ** -np.arange(0.25, 12.0, 0.25):
            epsilon = _renyi_epsilon(curve, 1, float(at))
            over, under = at + math.exp(min(epsilon, 700.0)) * fprs, 1 - math.exp(-epsilon) * (1 - at - fprs)
            tprs = np.minimum(tprs, np.minimum(over, under))
        tprs = np.clip(tprs, fprs, 1.0)
    elif rate == 1:
        shifted = special.ndtr(special.ndtri(fprs) + _mu(noise, steps, adjacency))
        tprs = np.minimum(1.0, shifted * (1 + 2.0**-40))
    else:
        tprs = np.zeros_like(fprs)
        for epsilons, deltas in _trade_offs(rate, noise, steps, adjacency):
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
        one = _recipe("spent", rate, noise, steps, adjacency)
        recipes.append((*one, check_repeats("spent", repeats[0])) if repeats else one)
    recipes = [recipe for recipe in recipes if recipe[2] > 0]
    if not recipes:
        _recipe("spent", 1.0, 1.0, 0, adjacency)
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
    rate, noise, steps = _recipe("renyi_epsilon", rate, noise_multiplier, steps, adjacency)
    delta = check_delta("renyi_epsilon", delta)
    return _renyi_epsilon(_renyi(rate, noise, adjacency), steps, delta) if steps else 0.0


def rounding_slack(steps: int) -> float:
    """Return what floating-point arithmetic may have taken from a composed δ.

    The composition raises a discrete Fourier transform to the power `steps`, which multiplies its rounding
    errors by at most about that number: against extended precision the error of δ stays below 3e-16 a step.
    Fourteen times as much is added to every δ that is certified.

    Privacy: public.
    """
    return steps * 2.0**-48


# Checks ----------------------------------------------------------------------------------------------


def as_float(where: str, name: str, value: Any) -> float:
    """Return a number as a Python float, or raise TypeError. Public."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(
            f"{where}({name}={value!r}): {name} must be a number, not {type(value).__name__}, because the "
            f"privacy cost is computed from it; write e.g. {name}=1.0."
        )
    return float(value)


def as_int(where: str, name: str, value: Any) -> int:
    """Return a whole number as a Python int, or raise TypeError. Public."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(
            f"{where}({name}={value!r}): {name} must be a whole number, not {type(value).__name__}, because "
            f"releases are counted; write e.g. {name}=1000."
        )
    return int(value)


def check_rate(where: str, rate: Any) -> float:
    """Return a sampling rate between SMALLEST_RATE and 1, or raise. Public."""
    value = as_float(where, "rate", rate)
    if not 0 < value <= 1:
        raise ValueError(
            f"{where}(rate={value}): rate must be above 0 and at most 1, because it is the probability with "
            "which a record enters a step's subset; write e.g. rate=256/60000."
        )
    if value < SMALLEST_RATE:
        raise ValueError(
            f"{where}(rate={value}): rate must be at least {SMALLEST_RATE:g}, because with less no subset would ever "
            "have a record; write e.g. rate=256/60000."
        )
    return value


def check_noise(where: str, noise_multiplier: Any) -> float:
    """Return a noise multiplier between SMALLEST_NOISE and LARGEST_NOISE, or raise. Public."""
    noise = as_float(where, "noise_multiplier", noise_multiplier)
    if not (math.isfinite(noise) and noise > 0):
        raise ValueError(
            f"{where}(noise_multiplier={noise}): noise_multiplier must be a finite number above 0, because "
            "without noise nothing is private; write e.g. noise_multiplier=1.1, or use calibrate."
        )
    if not SMALLEST_NOISE <= noise <= LARGEST_NOISE:
        raise ValueError(
            f"{where}(noise_multiplier={noise}): noise_multiplier must be between {SMALLEST_NOISE:g} and "
            f"{LARGEST_NOISE:g}, outside of which its cost is beyond floating point; write e.g. noise_multiplier=1.1."
        )
    return noise


def check_steps(where: str, steps: Any, least: int) -> int:
    """Return a number of steps between ``least`` and LARGEST_STEPS, or raise. Public."""
    number = as_int(where, "steps", steps)
    if not least <= number <= LARGEST_STEPS:
        raise ValueError(
            f"{where}(steps={number}): steps must be at least {least}, because "
            f"{'a recipe releases something' if least else 'releases cannot be taken back'}, and at most "
            f"{LARGEST_STEPS}, for which there is memory to add up their cost; write e.g. steps=1000."
        )
    return number


def check_repeats(where: str, repeats: Any, fixed_size: bool = False) -> float:
    """Return a mean number of runs, finite and above 0, or raise. Public."""
    value = as_float(where, "repeats", repeats)
    if not (math.isfinite(value) and value > 0) or fixed_size:
        raise ValueError(
            f"{where}(repeats={value}): repeats must be a finite number above 0, the mean of a Poisson number of runs "
            "on Poisson subsets; write e.g. repeats=10, or leave it out for one run."
        )
    return value


def check_adjacency(where: str, adjacency: Any) -> str:
    """Return a known adjacency, or raise. Public."""
    if adjacency not in ADJACENCIES:
        raise ValueError(
            f"{where}(adjacency={adjacency!r}): adjacency says which data sets count as neighbours, and only "
            f"{' and '.join(map(repr, ADJACENCIES))} can be accounted; write adjacency='add-remove'."
        )
    return str(adjacency)


def check_delta(where: str, delta: Any) -> float:
    """Return a δ in (0, 1), or raise. Public."""
    value = as_float(where, "delta", delta)
    if not 0 < value < 1:
        raise ValueError(
            f"{where}(delta={value}): delta must be above 0 and below 1, because it is the probability with "
            "which the ε statement may fail; write a value far below one over the number of records, e.g. "
            "delta=1e-6."
        )
    return value


def _recipe(where: str, rate: Any, noise_multiplier: Any, steps: Any, adjacency: Any) -> tuple[float, float, int]:
    check_adjacency(where, adjacency)
    rate = check_rate(where, rate)
    noise = check_noise(where, noise_multiplier)
    return rate, noise, check_steps(where, steps, 0)


def _relation(where: str, adjacency: str, fixed_size: bool) -> str:
    if fixed_size and adjacency != "replace-one":
        raise ValueError(
            f"{where}(adjacency={adjacency!r}, fixed_size=True): a record more or less changes the rate of "
            "subsets of a fixed size, so neighbours must have equally many records; write "
            "adjacency='replace-one', or draw Poisson subsets."
        )
    return _FIXED_SIZE if fixed_size else adjacency


# Cached answers --------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _epsilon(rate: float, noise: float, steps: int, delta: float, adjacency: str) -> float:
    if steps == 0:
        return 0.0
    if rate == 1:
        return _gaussian_epsilon(delta, _mu(noise, steps, adjacency))
    # The Rényi bound is the larger one except where δ comes near the rounding slack.
    best = _renyi_epsilon(_renyi(rate, noise, adjacency), steps, delta)
    left = delta - rounding_slack(steps)
    if left > 0:
        curves = _curves(rate, noise, steps, adjacency, _FINE, False)
        best = min(best, max(loss.epsilon(left) for loss in curves) * (1 + 2.0**-40))
    return best


def _delta(
    rate: float,
    noise: float,
    steps: int,
    epsilon: float,
    adjacency: str,
    accuracy: float = _FINE,
    only_first: bool = False,
) -> float:
    if steps == 0:
        return 0.0
    if rate == 1:
        return _gaussian_delta(epsilon, _mu(noise, steps, adjacency))
    curves = _curves(rate, noise, steps, adjacency, accuracy, False, only_first)
    best = max(loss.delta(epsilon) for loss in curves) + rounding_slack(steps)
    return min(1.0, best, _renyi_delta(_renyi(rate, noise, adjacency), steps, epsilon))


@lru_cache(maxsize=1024)
def _noise_multiplier(epsilon: float, delta: float, rate: float, steps: int, adjacency: str) -> float:
    mu = _gaussian_mu(epsilon, delta)
    if rate == 1:
        noise = _mu(1.0, steps, adjacency) / mu
    else:
        # The central limit's answer: never certified, only where to start looking.
        ratio = (mu / rate) ** 2 / steps
        inverse_square = math.asinh(ratio / 4) if adjacency == "replace-one" else math.log1p(ratio)
        start = min(max(inverse_square**-0.5, _LEAST_NOISE), LARGEST_NOISE)

        def excess(log_noise: float, accuracy: float) -> float:
            # One direction is enough to search by; the check below looks at all.
            found = _delta(rate, math.exp(log_noise), steps, epsilon, adjacency, accuracy, only_first=True)
            return math.log(max(found, 1e-300) / delta)

        position, slope = _root(lambda at: excess(at, _COARSE), math.log(start), 0.1, 1e-3)
        # The certified grid moves the answer a little: a few Newton steps with the slope of the coarse one.
        for _ in range(5):
            move = -excess(position, _FINE) / slope if slope < 0 else 0.0
            position += max(-0.1, min(0.1, move))
            if abs(move) < 2e-5:
                break
        noise = math.exp(min(position + 1e-5, math.log(LARGEST_NOISE)))
    noise = _round_up(max(noise, _LEAST_NOISE))
    # The one step that makes the answer certified: it is checked as any recipe would be.
    stride = 1e-5
    while _epsilon(rate, noise, steps, delta, adjacency) > epsilon:
        noise = _round_up(noise * (1 + stride))
        stride *= 2
        if noise > LARGEST_NOISE:
            raise ValueError(
                f"noise_multiplier(epsilon={epsilon}, delta={delta}, rate={rate}, steps={steps}): no noise "
                f"below {LARGEST_NOISE:g} can be certified for so small a budget; write a larger epsilon or "
                "delta, or fewer steps."
            )
    return noise


@lru_cache(maxsize=256)
def _spent(runs: tuple[Run, ...], delta: float, adjacency: str) -> float:
    total = np.sum([_curve_of(run, adjacency) for run in runs], axis=0)

    def enough(epsilon: float) -> bool:
        together = len(ORDERS) * _renyi_delta(tuple(total), 1, epsilon)
        return together <= delta and _delta_of(runs[0], epsilon, adjacency) + together <= delta

    # At half of δ for each term the sum is enough: an end from which to bisect.
    high = max(
        _epsilon_of(runs[0], delta / 2, adjacency),
        _renyi_epsilon(tuple(total), 1, delta / (2 * len(ORDERS))),
    )
    while not enough(high):
        high *= 1 + 1e-6
    return _least(enough, high)


def _epsilon_of(run: Run, delta: float, adjacency: str) -> float:
    if len(run) == 3:
        return _epsilon(*run, delta, adjacency)
    return _renyi_epsilon(_selected(*run, adjacency), 1, delta)


def _delta_of(run: Run, epsilon: float, adjacency: str) -> float:
    if len(run) == 3:
        return _delta(*run, epsilon, adjacency)
    return _renyi_delta(_selected(*run, adjacency), 1, epsilon)


def _curve_of(run: Run, adjacency: str) -> Floats:
    if len(run) == 3:
        return run[2] * np.asarray(_renyi(*run[:2], adjacency))
    return np.asarray(_selected(*run, adjacency))


# Repeat and select -----------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _selected(rate: float, noise: float, steps: int, repeats: float, adjacency: str) -> tuple[float, ...]:
    """Return the Rényi curve of the best of a secret number of runs (the formula is in this module's docstring)."""
    if steps == 0:
        return (0.0,) * len(ORDERS)
    more = math.log(repeats / -math.expm1(-repeats))
    curve = []
    for order, value in zip(ORDERS, _renyi(rate, noise, adjacency), strict=True):
        # A little below the logarithm, so that rounding cannot carry it above.
        slack = _delta(rate, noise, steps, -math.log1p(-1 / order) * (1 - 2.0**-40), adjacency)
        curve.append((steps * value + repeats * slack + more / (order - 1)) * (1 + 2.0**-40))
    return tuple(curve)


@lru_cache(maxsize=64)
def _repeated_noise(epsilon: float, delta: float, rate: float, steps: int, repeats: float, adjacency: str) -> float:
    def cost(noise: float) -> float:
        return _renyi_epsilon(_selected(rate, noise, steps, repeats, adjacency), 1, delta)

    # One run alone needs less noise than this; what is found is checked as any recipe would be.
    low = _noise_multiplier(epsilon, delta, rate, steps, adjacency)
    high = _round_up(2 * low)
    while cost(high) > epsilon:
        low, high = high, _round_up(2 * high)
        if high > LARGEST_NOISE:
            raise ValueError(
                f"noise_multiplier(epsilon={epsilon}, delta={delta}, repeats={repeats}): no noise below "
                f"{LARGEST_NOISE:g} can be certified for so small a budget; write a larger epsilon or delta, or fewer "
                "repeats."
            )
    while high > low * (1 + 1e-3):
        middle = _round_up(math.sqrt(low * high))
        low, high = (middle, high) if cost(middle) > epsilon else (low, middle)
    return high


# The privacy loss distribution -----------------------------------------------------------------------


class _Loss(NamedTuple):
    """A privacy loss distribution: masses at losses that are multiples of the spacing, the first of them given in
    such units, and the mass at infinity."""

    spacing: float
    first: int
    masses: Floats
    certain: float

    def delta(self, epsilon: float) -> float:
        """Return the hockey-stick divergence at ε, of either sign."""
        place = self._above(epsilon)
        losses = np.arange(self.first + place, self.first + len(self.masses)) * self.spacing
        return self.certain + float(np.sum(-np.expm1(epsilon - losses) * self.masses[place:]))

    def deltas(self, epsilons: Floats) -> Floats:
        """Return the hockey-stick divergence at many increasing ε."""
        ends = [*map(self._above, epsilons.tolist()), len(self.masses)]
        found = np.empty(len(epsilons))
        upper, lower, before = self.certain, 0.0, float(epsilons[-1])
        for i in range(len(epsilons) - 1, -1, -1):
            # Masses above ε in P, and in Q times e^ε: only those up to the next ε are new.
            here, epsilon = self.masses[ends[i] : ends[i + 1]], float(epsilons[i])
            losses = np.arange(self.first + ends[i], self.first + ends[i + 1]) * self.spacing
            upper += float(np.sum(here))
            lower = lower * math.exp(epsilon - before) + float(np.sum(here * np.exp(epsilon - losses)))
            found[i], before = upper - lower, epsilon
        return found

    def epsilon(self, delta: float) -> float:
        """Return the least ε of at least 0 at which the hockey-stick divergence is at most δ; infinite if none is."""
        if self.certain > delta:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        # At the last loss only the mass at infinity is left. Look for the first one that is enough.
        enough, short = len(self.masses) - 1, max(-1, -self.first)
        decay = np.exp(-self.spacing * np.arange(len(self.masses) - max(0, short)))

        def masses(place: int) -> tuple[float, float]:
            here = self.masses[place:]
            return self.certain + float(np.sum(here)), float(np.sum(here * decay[: len(here)]))

        while enough - short > 1:
            place = (enough + short) // 2
            upper, lower = masses(place)
            enough, short = (place, short) if upper - lower <= delta else (enough, place)
        upper, lower = masses(enough)
        loss = (self.first + enough) * self.spacing
        # Between two losses δ is upper - e^(ε - loss) lower.
        return max(0.0, loss + min(0.0, math.log((upper - delta) / lower))) if upper > delta and lower > 0 else loss

    def _above(self, epsilon: float) -> int:
        """Return the place of the first loss above ε, the number of places if there is none."""
        place = min(max(math.floor(epsilon / self.spacing) + 1 - self.first, 0), len(self.masses))
        if place > 0 and (self.first + place - 1) * self.spacing > epsilon:
            return place - 1
        if place < len(self.masses) and (self.first + place) * self.spacing <= epsilon:
            return place + 1
        return place

    def span(self, steps: int) -> tuple[int, int]:
        """Return the first and the last place that the sum of so many independent losses takes up."""
        return _reach(self._heavy()[1], steps) if steps > 1 else (0, 0)

    def _heavy(self) -> tuple[int, Floats]:
        """Return the first place of a mass that counts, and the masses from there to the last."""
        heavy = np.flatnonzero(self.masses >= _FAINT)
        begin, end = int(heavy[0]), int(heavy[-1]) + 1
        return begin, np.where(self.masses < _FAINT, 0.0, self.masses)[begin:end]

    def composed(self, steps: int, span: tuple[int, int] | None = None) -> _Loss:
        """Return the distribution of the sum of so many independent losses, within its ``span``."""
        if steps == 1:
            return self
        # Arithmetic with the smallest floats is slow. Their masses count as certain disclosure, which dominates.
        begin, masses = self._heavy()
        certain = self.certain + float(np.sum(self.masses[self.masses < _FAINT]))
        low, high = _reach(masses, steps) if span is None else span
        first = (self.first + begin) * steps + low
        certain = _TAIL - math.expm1(steps * math.log1p(-certain))
        return _Loss(self.spacing, first, _self_convolved(masses, steps, low, high), certain)


def _reach(masses: Floats, steps: int) -> tuple[int, int]:
    """Return places between which all but _TAIL of the mass of a sum of so many places lies, by Chernoff's bound.

    The bound holds at any order; it is followed from the one that is best for a Gaussian as long as it gets better.
    """
    # Sums of products, since a matrix product would start threads.
    last = len(masses) - 1
    places = np.flatnonzero(masses).astype(np.float64)
    masses = masses[masses != 0]
    centre = float(np.sum(places * masses))
    variance = max(float(np.sum((places - centre) ** 2 * masses)), 1e-6)
    wanted = math.log(2 / _TAIL)
    usual = math.sqrt(2 * wanted / (steps * variance))

    def distance(order: float, sign: int) -> float:
        exponents = (sign * order) * (places - centre)
        top = float(exponents.max())
        log_mgf = top + math.log(float(np.sum(np.exp(exponents - top) * masses)))
        return (steps * log_mgf + wanted) / order

    def best(sign: int) -> float:
        least = distance(usual, sign)
        for factor in (1.5, 1 / 1.5):
            order = usual * factor
            while (found := distance(order, sign)) < least:
                least, order = found, order * factor
        return least

    with np.errstate(under="ignore"):
        low, high = centre * steps - best(-1), centre * steps + best(1)
    return max(0, math.floor(low)), min(last * steps, math.ceil(high))


def _self_convolved(masses: Floats, steps: int, low: int, high: int) -> Floats:
    """Return the masses of a sum of so many places, from `low` to `high`; those outside are added inside."""
    from scipy import fft

    size = fft.next_fast_len(max(high - low + 1, len(masses)), real=True)
    base = fft.rfft(masses, size)
    power, left = None, steps
    with np.errstate(under="ignore"):
        # By squares: a complex power takes a logarithm and is some ten times as slow.
        while left:
            if left & 1:
                power = base.copy() if power is None else np.multiply(power, base, out=power)
            left >>= 1
            if left:
                np.multiply(base, base, out=base)
    # The transform wraps around: place k is at k modulo its length.
    sums = np.roll(fft.irfft(power, size), -low)
    return np.asarray(sums[: high - low + 1], dtype=np.float64)


# Few, because one may hold millions of numbers.
@lru_cache(maxsize=8)
def _curves(
    rate: float,
    noise: float,
    steps: int,
    adjacency: str,
    accuracy: float,
    whole: bool,
    only_first: bool = False,
) -> tuple[_Loss, ...]:
    """Compose one step's privacy loss distribution: one for each direction in which neighbours differ.

    `whole` asks for accuracy near ε = 0 as well as in the tail.
    """
    directions = {"add-remove": ("remove", "add"), "replace-one": ("replace",), _FIXED_SIZE: ("exchange",)}[adjacency]
    fewest = _FEWEST_COARSE if accuracy > _FINE else _FEWEST_POINTS
    curves = []
    for direction in directions[:1] if only_first else directions:
        low, high = _loss_range(rate, noise, direction, _TAIL / steps)
        spacing = _spread(rate, noise, steps, adjacency, whole) * math.sqrt(12 * accuracy / steps)
        # Zero is always on the grid; with very little noise all losses may lie on one side of it.
        width = max(high, 0.0) - min(low, 0.0)
        spacing = min(max(spacing, width / _MOST_POINTS), width / fewest)
        loss = _Loss(spacing, *_connect_dots(rate, noise, direction, low, high, spacing))
        # Any spacing gives an upper bound. A coarser one is taken where the sum would not fit into memory: for millions
        # of steps, and for recipes that protect nobody, such as a forged certificate may hold.
        while (size := (span := loss.span(steps))[1] - span[0] + 1) > _MOST_SUMS:
            spacing *= 1.02 * size / _MOST_SUMS
            loss = _Loss(spacing, *_connect_dots(rate, noise, direction, low, high, spacing))
        curves.append(loss.composed(steps, span))
    return tuple(curves)


@lru_cache(maxsize=8)
def _trade_offs(rate: float, noise: float, steps: int, adjacency: str) -> tuple[tuple[Floats, Floats], ...]:
    """Tabulate (ε, δ(ε)) for each direction, ε running over both signs."""
    tables = []
    for loss in _curves(rate, noise, steps, adjacency, _FINE, True):
        end = loss.epsilon(min(0.5, rounding_slack(steps) + 1e-13))
        # Any set of ε gives a valid bound; this one is dense enough that the bound is tight.
        epsilons = np.linspace(-end, end, 4001) if end > 0 else np.zeros(1)
        deltas = loss.deltas(epsilons) + rounding_slack(steps)
        tables.append((epsilons, np.minimum(1.0, deltas)))
    return tuple(tables)


def _spread(rate: float, noise: float, steps: int, adjacency: str, whole: bool) -> float:
    """Return about the standard deviation of the total loss, as the tail sees it.

    Where rare large losses decide (small rate and noise) the Rényi bound knows the scale and the central
    limit does not; a Gaussian loss of standard deviation μ has ε near 6 μ at δ = 1e-6. It chooses the grid
    and certifies nothing.
    """
    if adjacency == _FIXED_SIZE:
        noise, adjacency = noise / 2, "add-remove"
    tail = _renyi_epsilon(_renyi(rate, noise, adjacency), steps, 1e-6) / 6
    if not whole:
        return tail
    variance = math.expm1(min(noise**-2, 700.0)) * (4 if adjacency == "replace-one" else 1)
    return min(tail, rate * math.sqrt(steps * variance))


def _loss_range(rate: float, noise: float, direction: str, tail: float) -> tuple[float, float]:
    """Return losses between which all but `tail` of a step's probability lies on either side."""
    if direction == "exchange":
        high = _loss_range(rate, noise / 2, "remove", tail)[1]
        return -high, high
    reach = -float(special.ndtri(tail)) * noise

    def loss(y: float) -> float:
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + (y - 0.5) / noise**2))

    if direction == "remove":
        return loss(-reach), loss(1 + reach)
    if direction == "add":
        return -loss(reach), -loss(-reach)
    return loss(-reach) - loss(reach), loss(1 + reach) - loss(-1 - reach)


def _connect_dots(
    rate: float, noise: float, direction: str, low: float, high: float, spacing: float
) -> tuple[int, Floats, float]:
    """Return a grid distribution that dominates one step: index of the first loss, masses, mass at infinity.

    The masses are second differences of the step's δ. For negative losses they are taken from
    δ(t) - (1 - e^t) = e^t δ'(-t), with δ' of the opposite direction: the same differences, without
    cancellation.
    """
    first = min(math.floor(low / spacing), -1)
    last = max(math.ceil(high / spacing), 1)
    opposite = {"remove": "add", "add": "remove"}.get(direction, direction)
    above = np.arange(0.0, last + 1.0) * spacing
    below = np.arange(-first, 0.0, -1.0) * spacing
    with np.errstate(under="ignore"):
        dots = np.concatenate(
            [
                np.exp(-below) * _step_delta(below, rate, noise, opposite),
                _step_delta(above, rate, noise, direction),
            ]
        )
    rises = np.diff(dots)
    masses = np.empty_like(dots)
    masses[0] = -dots[0] + rises[0] / math.expm1(spacing)
    masses[1:-1] = (rises[1:] - rises[:-1] * math.exp(spacing)) / math.expm1(spacing)
    masses[-1] = rises[-1] / math.expm1(-spacing)
    # What was left out of the dots below zero, 1 - e^t, has this as its second difference.
    masses[-first] += 1.0
    return first, np.maximum(masses, 0.0), float(dots[-1])


def _step_delta(losses: npt.NDArray[Any], rate: float, noise: float, direction: str) -> Floats:
    """Return one step's δ at losses of at least 0, by the closed forms in this module's docstring."""
    if direction == "exchange":
        return _step_delta(losses, rate, noise / 2, "remove")
    centre = 0.5 / noise**2
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        if direction == "remove":
            near = np.log1p(np.expm1(np.minimum(losses, 30.0)) / rate)
            z = np.where(losses > 30, losses - math.log(rate), near)
            return rate * _hockey_stick(z, noise)
        if direction == "add":
            # Beyond -log(1 - rate) no outcome has so large a loss: z is -inf there and δ is 0.
            z = np.log1p(np.maximum(np.expm1(-losses) / rate, -1.0))
            possible = np.isfinite(z)
            z = np.where(possible, z, 0.0)
            return np.where(possible, rate * np.exp(losses + z) * _hockey_stick(-z, noise), 0.0)
        log_sinh = losses / 2 + np.log(-np.expm1(-losses)) - math.log(2)
        log_argument = log_sinh + centre + math.log1p(-rate) - math.log(rate)
        w = losses / 2 + np.logaddexp(0.5 * np.logaddexp(0.0, 2 * log_argument), log_argument)
        w = np.where(losses == 0, 0.0, w)
        mirrored = _hockey_stick(np.abs(w - centre), noise)
        negative = np.minimum(w - centre, 0.0)
        towards = np.where(w >= centre, mirrored, -np.expm1(negative) + np.exp(negative) * mirrored)
        return rate * (towards + np.exp(losses - w - centre) * _hockey_stick(w + centre, noise))


def _hockey_stick(z: npt.NDArray[Any], noise: float) -> Floats:
    """Return the hockey-stick divergence of N(1, noise²) from N(0, noise²) at z >= 0, accurate in the
    tail."""
    half = 0.5 / noise
    u = z * noise - half
    root = math.sqrt(2)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        # φ(u) times a difference of Mills ratios R keeps its relative precision where both tails vanish.
        if noise <= 10:
            gap = special.erfcx(u / root) - special.erfcx((u + 2 * half) / root)
            gap = gap * math.sqrt(math.pi / 2)
        else:
            # The two ratios come together: integrate -R' = 1 - x R instead of subtracting.
            nodes, weights = np.polynomial.legendre.leggauss(6)
            gap = np.zeros_like(u)
            for node, weight in zip(nodes, weights, strict=True):
                x = u + half * (1 + node)
                gap += weight * half * (1 - x * math.sqrt(math.pi / 2) * special.erfcx(x / root))
        far = np.exp(-0.5 * u * u) / math.sqrt(2 * math.pi) * gap
        near = special.ndtr(-u) - np.exp(z + special.log_ndtr(-u - 2 * half))
    return np.asarray(np.where(u > -3, far, near), dtype=np.float64)


# The Gaussian mechanism without sampling -------------------------------------------------------------


def _mu(noise: float, steps: int, adjacency: str) -> float:
    """Return the shift, in standard deviations, that tells neighbours apart after full-data releases."""
    return (1.0 if adjacency == "add-remove" else 2.0) * math.sqrt(steps) / noise


def _gaussian_delta(epsilon: float, mu: float) -> float:
    exact = float(_hockey_stick(np.asarray(epsilon), 1 / mu))
    # The formula is good to about 1e-14; this is far more, and far less than anyone would notice.
    return min(1.0, exact * (1 + 2.0**-40))


def _gaussian_epsilon(delta: float, mu: float) -> float:
    # Above this the loss itself is too large with probability below δ.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return _least(lambda epsilon: _gaussian_delta(epsilon, mu) <= delta, high)


def _gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest μ at which the Gaussian mechanism is (ε, δ)-private."""
    low = 1e-12
    high = 1.0
    while _gaussian_delta(epsilon, high) <= delta:
        high *= 2
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _gaussian_delta(epsilon, middle) <= delta else (low, middle)
    return low


# Rényi -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _renyi(rate: float, noise: float, adjacency: str) -> tuple[float, ...]:
    """Return one step's Rényi divergence bound at each of `ORDERS`."""
    if adjacency == _FIXED_SIZE:
        # Records of twice the norm in Poisson subsets, one of them exchanged for zero, have these curves both ways.
        return _renyi(rate, noise / 2, "replace-one")
    if rate == 1:
        factor = 4 if adjacency == "replace-one" else 1
        return tuple(factor * order / (2 * noise**2) for order in ORDERS)
    if adjacency == "add-remove":
        return tuple(_sampled_renyi(rate, noise, order) for order in ORDERS)
    # D_α(P‖Q) <= (α - 1/2)/(α - 1) D_2α(P‖R) + D_{2α-1}(R‖Q), with R the data without the exchanged record.
    # dp-accounting's Rényi accountant would not do: for replacement it forgets the doubled sensitivity.
    return tuple(
        (order - 0.5) / (order - 1) * _sampled_renyi(rate, noise, 2 * order)
        + _sampled_renyi(rate, noise, 2 * order - 1)
        for order in ORDERS
    )


def _sampled_renyi(rate: float, noise: float, order: int) -> float:
    """Return the Rényi divergence of the Poisson-sampled Gaussian at a whole order (Mironov et al. 2019)."""
    k = np.arange(order + 1.0)
    log_choose = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
    terms = log_choose + (order - k) * math.log1p(-rate) + k * math.log(rate) + k * (k - 1) / (2 * noise**2)
    # The logarithms of factorials lose a few units in the last place of the largest of them.
    lost = 2.0**-50 * (1 + float(special.gammaln(order + 1)))
    return (max(float(special.logsumexp(terms)), 0.0) + lost) / (order - 1)


def _renyi_delta(curve: tuple[float, ...], steps: int, epsilon: float) -> float:
    """Convert a Rényi curve to δ at ε, the least over orders (Canonne, Kamath and Steinke 2020)."""
    logs = (
        (order - 1) * (steps * value - epsilon + math.log1p(-1 / order)) - math.log(order)
        for order, value in zip(ORDERS, curve, strict=True)
    )
    return math.exp(min(0.0, *logs))


def _renyi_epsilon(curve: tuple[float, ...], steps: int, delta: float) -> float:
    """Convert a Rényi curve to ε at δ, the least over orders (Canonne, Kamath and Steinke 2020)."""
    values = (
        steps * value + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        for order, value in zip(ORDERS, curve, strict=True)
    )
    return max(0.0, min(values))


# Search ----------------------------------------------------------------------------------------------


def _least(enough: Callable[[float], bool], high: float) -> float:
    """Return nearly the least value in [0, high] that is enough, itself enough; `high` must be."""
    low = 0.0
    if enough(low):
        return low
    while high - low > 1e-10 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _root(excess: Callable[[float], float], start: float, stride: float, tolerance: float) -> tuple[float, float]:
    """Return where a decreasing function of the log noise crosses zero and its slope there.

    The end of the noise range, with slope 0, if it does not cross.
    """
    least, most = math.log(_LEAST_NOISE), math.log(LARGEST_NOISE)
    here = min(max(start, least), most)
    value = excess(here)
    sign = 1.0 if value > 0 else -1.0
    end = most if sign > 0 else least
    there, other = here, value
    while other * sign > 0:
        if there == end:
            return end, 0.0
        here, value = there, other
        there = min(max(there + sign * stride, least), most)
        other = excess(there)
        stride *= 2
    slope = (other - value) / (there - here) if there != here else -1.0
    # Regula falsi, Illinois variant: the bracket never loses the root.
    for _ in range(60):
        if abs(there - here) < tolerance or other == 0:
            break
        middle = there - other * (there - here) / (other - value)
        found = excess(middle)
        if found != other:
            slope = (found - other) / (middle - there)
        if found * other < 0:
            here, value = there, other
        else:
            value /= 2
        moved = abs(middle - there)
        there, other = middle, found
        if moved < tolerance:
            break
    return there, slope


def _round_up(value: float) -> float:
    """Round up to six significant digits."""
    scale = 10.0 ** (5 - math.floor(math.log10(value)))
    # Decimal text is the nearest float to the rounded number, which multiplication would miss.
    rounded = float(f"{math.ceil(value * scale) / scale:.6g}")
    return rounded if rounded >= value else math.nextafter(value, math.inf)
