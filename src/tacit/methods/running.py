"""The recursion that all methods on expected sufficient statistics share (VIPS; Park et al. 2020).

    theta <- (1 - pace) theta + pace (prior + release.full),    theta = prior + statistics

The average of what was released is the state, as it came: noise makes it indefinite or negative, and a repaired average
would be biased for ever after. Only a copy is repaired, each time it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.types import Array, PyTree, Release

Pace = Callable[[Array], Array]
"""The weight of a step's release in the average, from the step's number, counted from 0; the first is 1."""


class Running(NamedTuple):
    """A running average of released statistics, each an estimate of the sum over all records."""

    statistics: PyTree
    step: Array


def start(statistics: PyTree) -> Running:
    """Begin with statistics that the first release replaces."""
    return Running(jax.tree.map(jnp.asarray, statistics), jnp.int32(0))


def blend(running: Running, release: Release, pace: Pace) -> Running:
    """Take a step's release into the average."""
    weight = pace(running.step)
    mixed = jax.tree.map(lambda old, new: old + weight * (new - old), running.statistics, release.full)
    return Running(mixed, running.step + 1)


def slowing(delay: float = 1.0, power: float = 0.7) -> Pace:
    """Give the pace ``(1 + step / delay) ** -power``: 1 at first, then ever slower."""
    return lambda step: (1 + step / delay) ** -power
