"""What a recipe costs: curves, composition and calibration, and what their numbers mean in words.

Everything here is a function of public parameters: rates, noise multipliers, numbers of steps. No record, no file and
no JAX belongs here.
"""

from tacit.accounting.calibration import noise_multiplier
from tacit.accounting.checks import (
    ADJACENCIES,
    LARGEST_NOISE,
    LARGEST_STEPS,
    SMALLEST_NOISE,
    SMALLEST_RATE,
    check_delta,
    check_rate,
)
from tacit.accounting.composition import (
    COMPOSITION,
    Run,
    advantage,
    delta,
    epsilon,
    renyi_epsilon,
    spent,
    true_positive_rate,
)
from tacit.accounting.losses import rounding_slack
from tacit.accounting.renyi import ORDERS

__all__ = [
    "ADJACENCIES",
    "COMPOSITION",
    "LARGEST_NOISE",
    "LARGEST_STEPS",
    "ORDERS",
    "SMALLEST_NOISE",
    "SMALLEST_RATE",
    "Run",
    "advantage",
    "check_delta",
    "check_rate",
    "delta",
    "epsilon",
    "noise_multiplier",
    "renyi_epsilon",
    "rounding_slack",
    "spent",
    "true_positive_rate",
]
