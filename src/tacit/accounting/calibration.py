"""The least noise whose certified cost fits a budget.

Every function is *public*.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from tacit.accounting.checks import LARGEST_NOISE, as_float, check_delta, check_recipe, check_relation, check_repeats
from tacit.accounting.composition import certified_delta, certified_epsilon, selection_curve
from tacit.accounting.gaussian import full_batch_mu, gaussian_mu
from tacit.accounting.losses import FINE
from tacit.accounting.renyi import epsilon_from_renyi

# The accuracy of the grid on which a search starts; it ends on that of losses.FINE.
_COARSE = 1e-2
# The range in which a noise multiplier is looked for.
_LEAST_NOISE = 0.02


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
    rate, _, steps = check_recipe("noise_multiplier", rate, 1.0, steps, adjacency)
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
    return _noise_multiplier(epsilon, delta, rate, steps, check_relation("noise_multiplier", adjacency, fixed_size))


@lru_cache(maxsize=1024)
def _noise_multiplier(epsilon: float, delta: float, rate: float, steps: int, adjacency: str) -> float:
    mu = gaussian_mu(epsilon, delta)
    if rate == 1:
        noise = full_batch_mu(1.0, steps, adjacency) / mu
    else:
        # The central limit's answer: never certified, only where to start looking.
        ratio = (mu / rate) ** 2 / steps
        inverse_square = math.asinh(ratio / 4) if adjacency == "replace-one" else math.log1p(ratio)
        start = min(max(inverse_square**-0.5, _LEAST_NOISE), LARGEST_NOISE)

        def excess(log_noise: float, accuracy: float) -> float:
            # One direction is enough to search by; the check below looks at all.
            found = certified_delta(rate, math.exp(log_noise), steps, epsilon, adjacency, accuracy, only_first=True)
            return math.log(max(found, 1e-300) / delta)

        position, slope = _root(lambda at: excess(at, _COARSE), math.log(start), 0.1, 1e-3)
        # The certified grid moves the answer a little: a few Newton steps with the slope of the coarse one.
        for _ in range(5):
            move = -excess(position, FINE) / slope if slope < 0 else 0.0
            position += max(-0.1, min(0.1, move))
            if abs(move) < 2e-5:
                break
        noise = math.exp(min(position + 1e-5, math.log(LARGEST_NOISE)))
    noise = _round_up(max(noise, _LEAST_NOISE))
    # The one step that makes the answer certified: it is checked as any recipe would be.
    stride = 1e-5
    while certified_epsilon(rate, noise, steps, delta, adjacency) > epsilon:
        noise = _round_up(noise * (1 + stride))
        stride *= 2
        if noise > LARGEST_NOISE:
            raise ValueError(
                f"noise_multiplier(epsilon={epsilon}, delta={delta}, rate={rate}, steps={steps}): no noise "
                f"below {LARGEST_NOISE:g} can be certified for so small a budget; write a larger epsilon or "
                "delta, or fewer steps."
            )
    return noise


@lru_cache(maxsize=64)
def _repeated_noise(epsilon: float, delta: float, rate: float, steps: int, repeats: float, adjacency: str) -> float:
    def cost(noise: float) -> float:
        return epsilon_from_renyi(selection_curve(rate, noise, steps, repeats, adjacency), 1, delta)

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
