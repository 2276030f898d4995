"""The phases of pair scores, and which steps are for which: counts and products of covariates, rounds of scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from tacit.methods.covariates import Covariates, Table
from tacit.types import Array, PyTree, Record

ZOOM, FILL, PRODUCTS = 0.025, 0.05, (0.05, 0.1)
"""Shares of the steps for the counts of declared bounds, for those of narrower ones, and for two rounds of products."""
ROUNDS, GROWTH = 12, 1.5
"""Rounds at most, and how their lengths grow."""
SCORES = 4
"""The phase of all rounds: zoom, fill and two rounds of products come before."""


class Timetable(NamedTuple):
    """For each step its phase, the length of the phase's or round's block of steps, and whether it ends that block."""

    phase: Array
    length: Array
    ends: Array


def timetable(steps: int, covariates: int) -> Timetable:
    """Return the timetable of so many steps, for a model that conditions on so many columns.

    Privacy: public.
    """
    shares = (ZOOM, FILL, *PRODUCTS)[: 0 if not covariates else 2 if covariates == 1 else 4]
    blocks = [(phase, max(1, math.floor(share * steps + 0.5))) for phase, share in enumerate(shares)]
    left = steps - sum(length for _, length in blocks)
    number = min(ROUNDS, left)
    ideal = GROWTH ** np.arange(number)
    lengths = np.maximum(1, np.floor(left * ideal / ideal.sum())).astype(int)
    while lengths.sum() != left:
        lengths[np.argmax(lengths) if lengths.sum() > left else -1] += np.sign(left - lengths.sum())
    blocks += [(SCORES, int(length)) for length in lengths]
    phases = np.concatenate([np.full(length, phase) for phase, length in blocks])
    of_blocks = np.concatenate([np.full(length, length) for _, length in blocks])
    ends = np.concatenate([np.arange(length) == length - 1 for _, length in blocks])
    return Timetable(jnp.asarray(phases, jnp.int32), jnp.asarray(of_blocks, jnp.float32), jnp.asarray(ends))


def zeros(covariates: Covariates, latents: int) -> PyTree:
    """Return a contribution of zeros; in each phase, a record fills a part of it.

    Privacy: public.
    """
    return {
        "histogram": jnp.zeros((covariates.number, covariates.most)),
        "products": jnp.zeros((covariates.number, covariates.number)),
        "score": jnp.zeros(latents),
        "norms": jnp.zeros(2),
        "moments": jnp.zeros((2, latents, latents)),
    }


def table_contributions(covariates: Covariates, table: Table, record: Record) -> tuple[Callable[[], PyTree], ...]:
    """Return for each phase before the rounds what makes a record's part of the contribution.

    Privacy: of the record; its norm is 1 at most.
    """

    def histogram() -> PyTree:
        return {"histogram": covariates.histogram(table, record)}

    def products() -> PyTree:
        return {"products": covariates.products(table, record)}

    return (histogram, histogram, products, products) if covariates.number else ()


def table_updates(
    covariates: Covariates, table: Table, mean: PyTree, std: Array, size: float
) -> tuple[Callable[[], Table], ...]:
    """Return for each phase before the rounds what takes its mean release into the table of the covariates.

    Privacy: post-processing.
    """

    def zoom() -> Table:
        return covariates.zoom(table, mean["histogram"], std)

    def fill() -> Table:
        return covariates.fill(table, mean["histogram"], std, size)

    def correlate(whiten: bool) -> Table:
        return covariates.correlate(table, mean["products"], std, size, whiten)

    return (zoom, fill, lambda: correlate(True), lambda: correlate(False)) if covariates.number else ()
