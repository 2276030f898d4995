"""Rényi differential privacy of a step, at orders fixed in advance, and its conversion to ε and δ.

Every function is *public*.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from tacit.accounting.checks import FIXED_SIZE

ORDERS = (2, 3, 4, 6, 9, 13, 20, 30, 45, 68, 100, 150, 230, 350, 500, 750, 1100, 1700)
"""The Rényi orders of `spent`, fixed in advance because a filter may not choose them after looking."""


@lru_cache(maxsize=4096)
def renyi_curve(rate: float, noise: float, adjacency: str) -> tuple[float, ...]:
    """Return one step's Rényi divergence bound at each of `ORDERS`."""
    if adjacency == FIXED_SIZE:
        # Records of twice the norm in Poisson subsets, one of them exchanged for zero, have these curves both ways.
        return renyi_curve(rate, noise / 2, "replace-one")
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


def delta_from_renyi(curve: tuple[float, ...], steps: int, epsilon: float) -> float:
    """Convert a Rényi curve to δ at ε, the least over orders (Canonne, Kamath and Steinke 2020)."""
    logs = (
        (order - 1) * (steps * value - epsilon + math.log1p(-1 / order)) - math.log(order)
        for order, value in zip(ORDERS, curve, strict=True)
    )
    return math.exp(min(0.0, *logs))


def epsilon_from_renyi(curve: tuple[float, ...], steps: int, delta: float) -> float:
    """Convert a Rényi curve to ε at δ, the least over orders (Canonne, Kamath and Steinke 2020)."""
    values = (
        steps * value + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        for order, value in zip(ORDERS, curve, strict=True)
    )
    return max(0.0, min(values))
