"""The names of d3p.dputil: noise for a target ε."""

from __future__ import annotations

import functools
import math

from tacit import accounting

__all__ = [
    "approximate_sigma",
    "approximate_sigma_remove_relation",
]


def approximate_sigma(
    target_eps: float,
    delta: float,
    q: float,
    num_iter: float,
    tol: float = 1e-4,
    force_smaller: bool = False,
    maxeval: int = 10,
    *,
    adjacency: str = "replace-one",
) -> tuple[float, float, int]:
    """Return the noise for a target ε under "replace-one": neighbours have one record exchanged.

    Covers batches of a fixed size drawn without replacement, and Poisson batches. d3p's noise is smaller: it is that
    of Poisson batches, which its README does not draw.

    Privacy: public.

    Parameters
    ----------
    target_eps, delta
        What may be spent.
    q, num_iter
        The share of the records in a batch, and the number of updates.
    tol, force_smaller, maxeval
        Accepted and not needed: the ε of the result never exceeds the target.
    adjacency
        "replace-one" or "add-remove"; d3p has another function for the second.

    Returns
    -------
    tuple
        The noise multiplier, its certified ε, and 1.
    """
    relation, steps = relation_of(adjacency), whole_steps(num_iter)
    sigma = accounting.noise_multiplier(float(target_eps), float(delta), float(q), steps, *relation)
    return sigma, accounting.epsilon(float(q), sigma, steps, float(delta), *relation), 1


approximate_sigma_remove_relation = functools.partial(approximate_sigma, adjacency="add-remove")
"""The same under "add-remove", for Poisson batches only: neighbours have one record more or less."""


def relation_of(adjacency: str) -> tuple[str, bool]:
    """Take "replace-one" for batches of a fixed size: their cost bounds that of Poisson batches (joint convexity)."""
    return adjacency, adjacency == "replace-one"


def whole_steps(num_iter: float) -> int:
    """Return a number of steps, rounded up where a division did not come out even."""
    # Rounded up, but not for what a division left over: 10 epochs at q = 0.01 are 1000 steps.
    return math.ceil(float(num_iter) * (1 - 2.0**-40))
