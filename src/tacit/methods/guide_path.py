"""What the path of a normal guide's parameters shows of the noise in their average.

Averages over K batches of the path differ by the noise, by subsets and by the guide's own draws; the variance V of the
average follows from the variance of these (batch means; Chen et al. 2020), correlations included. It costs no privacy.
What moves more slowly than a batch is long is not seen: intervals account for much of the noise and not for all of it
(papers/coverage).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from numpyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from tacit.methods.running import (
    BATCHES,
    MANY,
    BatchMeans,
    sample_average_error,
    start_batch_means,
    update_batch_means,
)
from tacit.models.guided import GuidedModel, is_kind
from tacit.models.traced import Values
from tacit.types import Array, Key, PyTree

NORMAL = (AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal)
"""Guides whose draws count what the noise does to their path."""


def start_path(guided: GuidedModel, guide: Any, params: Values) -> BatchMeans | tuple[()]:
    """Return a path that has no step yet; nothing unless the guide is a normal one of not too many parameters."""
    size = sum(map(jnp.size, jax.tree.leaves(params)))
    is_followed = bool(guided.latents) and is_kind(guide or AutoNormal, NORMAL) and size * BATCHES < MANY
    return start_batch_means(params) if is_followed else ()


def update_path(path: PyTree, params: Values, step: Array) -> PyTree:
    """Take a step's parameters into the path of a normal guide; leave what others keep as it is."""
    return update_batch_means(path, params, step) if isinstance(path, BatchMeans) else path


def draw_average(average: Values, path: PyTree, step: Array, key: Key) -> Values:
    """Return the average with an error of its own, from N(0, V), where a normal guide's path shows it."""
    if not isinstance(path, BatchMeans):
        return average
    return jax.tree.map(jnp.add, average, sample_average_error(path, step, key))
