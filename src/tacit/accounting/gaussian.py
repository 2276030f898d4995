"""The Gaussian mechanism without sampling, and the hockey-stick divergence of two Gaussians.

Every function is *public*.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special  # type: ignore[import-untyped]

Floats = npt.NDArray[np.float64]


def hockey_stick(z: npt.NDArray[Any], noise: float) -> Floats:
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


def full_batch_mu(noise: float, steps: int, adjacency: str) -> float:
    """Return the shift, in standard deviations, that tells neighbours apart after full-data releases."""
    return (1.0 if adjacency == "add-remove" else 2.0) * math.sqrt(steps) / noise


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return δ at ε of two Gaussians of unit width that are μ apart."""
    exact = float(hockey_stick(np.asarray(epsilon), 1 / mu))
    # The formula is good to about 1e-14; this is far more, and far less than anyone would notice.
    return min(1.0, exact * (1 + 2.0**-40))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Return ε at δ of two Gaussians of unit width that are μ apart."""
    # Above this the loss itself is too large with probability below δ.
    high = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return least(lambda epsilon: gaussian_delta(epsilon, mu) <= delta, high)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest μ at which the Gaussian mechanism is (ε, δ)-private."""
    low = 1e-12
    high = 1.0
    while gaussian_delta(epsilon, high) <= delta:
        high *= 2
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian_delta(epsilon, middle) <= delta else (low, middle)
    return low


def least(enough: Callable[[float], bool], high: float) -> float:
    """Return nearly the least value in [0, high] that is enough, itself enough; `high` must be."""
    low = 0.0
    if enough(low):
        return low
    while high - low > 1e-10 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high
