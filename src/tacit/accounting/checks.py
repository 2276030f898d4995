"""Limits and checks of the numbers that a recipe is made of.

Each check returns the number as Python's own type, or raises with what was given, why it matters and what to write.
Every function is *public*.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

ADJACENCIES = ("add-remove", "replace-one")
"""The neighbour relations the accountant knows."""

# What stands for "replace-one" inside this package where subsets have a fixed size; no adjacency of its own.
FIXED_SIZE = "replace-one, fixed size"
SMALLEST_RATE = 1e-12
"""Far below one record in all that one process can hold."""
SMALLEST_NOISE, LARGEST_NOISE = 1e-3, 1e9
"""Noise multipliers whose cost can be computed; the wall takes fewer."""
LARGEST_WEIGHT = 2.0**60
"""Of a leaf of a contribution; the smallest is one over it. Beyond, float32 may flush what is made of it to zero."""
LARGEST_STEPS = 10**7
"""Above it the distribution of the privacy loss no longer fits into memory."""


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


def check_recipe(where: str, rate: Any, noise_multiplier: Any, steps: Any, adjacency: Any) -> tuple[float, float, int]:
    """Return rate, noise multiplier and steps, each checked, or raise. Public."""
    check_adjacency(where, adjacency)
    rate = check_rate(where, rate)
    noise = check_noise(where, noise_multiplier)
    return rate, noise, check_steps(where, steps, 0)


def check_relation(where: str, adjacency: str, fixed_size: bool) -> str:
    """Return what neighbours are for subsets of this kind, or raise. Public."""
    if fixed_size and adjacency != "replace-one":
        raise ValueError(
            f"{where}(adjacency={adjacency!r}, fixed_size=True): a record more or less changes the rate of "
            "subsets of a fixed size, so neighbours must have equally many records; write "
            "adjacency='replace-one', or draw Poisson subsets."
        )
    return FIXED_SIZE if fixed_size else adjacency
