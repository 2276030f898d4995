"""Recalibration by private records: a temperature for probabilities; intervals and sets that cover as they promise.

Each function asks its question through the wall about records that were held aside: those that the posterior was fitted
to would make it look better than it is. Records are those of ``tacit.network``: ``{"x": input, "y": target}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.accounting.mechanism import Budget
from tacit.ledger.certificate import Certificate
from tacit.methods.root import STEPS, root
from tacit.results.posterior import Posterior
from tacit.run.fit import fit
from tacit.types import Array, Key, Method, PyTree, Record
from tacit.wall.data import PrivateData

__all__ = [
    "DRAWS",
    "FAILURE",
    "STEPS",
    "Intervals",
    "Sets",
    "Temperature",
    "fit_intervals",
    "fit_sets",
    "fit_temperature",
]

DRAWS = 199
"""Draws that predict a record here. The wall refuses an array as long as there are records; few have 199."""
FAILURE = 0.01
"""Probability that noise spoils a conformal threshold; the level is raised so that the promise holds all the same."""


class Temperature(NamedTuple):
    """A temperature for probabilities: above 1 where predictions were too sure."""

    value: float
    certificate: Certificate | None

    def apply(self, probabilities: Any) -> np.ndarray:
        """Temper probabilities (classes along the last axis, averaged over draws before).

        Privacy: post-processing.
        """
        logs = np.log(np.maximum(np.asarray(probabilities, float), 1e-12)) / self.value
        powers = np.exp(logs - logs.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)


class Intervals(NamedTuple):
    """Intervals that cover with at least the probability ``level``: so many standard deviations to both sides."""

    deviations: float
    level: float
    certificate: Certificate | None

    def around(self, draws: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return low and high ends for predictive draws of ``y`` (draws times records).

        Privacy: post-processing.
        """
        draws = np.asarray(draws, float)
        centre, spread = draws.mean(0), draws.std(0)
        return centre - self.deviations * spread, centre + self.deviations * spread


class Sets(NamedTuple):
    """Sets of classes that cover with probability ``level`` at least: all classes of probability ``least`` or more."""

    least: float
    level: float
    certificate: Certificate | None

    def among(self, probabilities: Any) -> np.ndarray:
        """Return which classes are in the sets (records times classes, averaged over draws before).

        Privacy: post-processing.
        """
        return np.asarray(probabilities, float) >= self.least


def fit_temperature(
    posterior: Posterior,
    data: PrivateData,
    budget: Budget,
    *,
    key: Key,
    clip: float = 3.0,
    simulate: int | None = None,
) -> Temperature:
    """Estimate the temperature, between 1/8 and 8, at which averaged probabilities have the least log loss.

    Privacy: reads records, through the wall.

    Parameters
    ----------
    posterior
        Of a network whose ``mean`` are probabilities.
    data
        Sealed records that it was not fitted to.
    budget
        What may be spent.
    key
        For the predictions.
    clip
        Largest slope of a record's log loss in the inverse temperature. Sure mistakes have larger ones, and count less
        than they should; a larger clip brings more noise.
    simulate
        As in ``tacit.fit``.
    """
    predict = _predict(posterior, key)

    def term(record: Record, temperature: Array) -> Array:
        logs = jnp.log(jnp.maximum(_probabilities(predict(record)), 1e-12))
        powers = jnp.exp(logs / temperature - jnp.max(logs / temperature))
        return logs[_label(record)] - jnp.sum(powers * logs) / jnp.sum(powers)

    method = root(term, 1 / 8, 8.0, clip=clip)
    value, certificate = _bought(method, posterior, data, budget, key, simulate)
    return Temperature(value, certificate)


def fit_intervals(
    posterior: Posterior,
    data: PrivateData,
    budget: Budget,
    *,
    key: Key,
    level: float = 0.9,
    simulate: int | None = None,
) -> Intervals:
    """Estimate split-conformal intervals for numbers: mean and so many standard deviations of the predictive draws.

    The next record, exchangeable with those held aside, is covered with a probability of at least ``level``, over
    records, noise and the draws of the posterior, whatever the model; not for each input by itself. The noise makes
    intervals wider, the fewer records and budget the more. Where no width is sure to be enough, it is infinite.

    Privacy: reads records, through the wall.

    Parameters
    ----------
    posterior
        Of a network with one numeric target.
    data, budget, key
        As in ``fit_temperature``.
    level
        Wanted coverage.
    simulate
        As in ``tacit.fit``.
    """
    predict = _predict(posterior, key)

    def off(record: Record) -> Array:
        draws = jnp.ravel(predict(record)["y"]).astype(jnp.float32)
        return jnp.abs(jnp.reshape(record["y"], ()) - jnp.mean(draws)) / jnp.maximum(jnp.std(draws), 1e-12)

    method = _conformal(off, 1 / 16, 16.0, level, np.inf)
    deviations, certificate = _bought(method, posterior, data, budget, key, simulate)
    return Intervals(deviations, level, certificate)


def fit_sets(
    posterior: Posterior,
    data: PrivateData,
    budget: Budget,
    *,
    key: Key,
    simulate: int | None = None,
    level: float = 0.9,
) -> Sets:
    """Estimate split-conformal sets of classes, with the promise of ``fit_intervals``.

    Privacy: reads records, through the wall.

    Parameters
    ----------
    posterior
        Of a network whose ``mean`` are probabilities.
    data, budget, key, level, simulate
        As in ``fit_intervals``.
    """
    predict = _predict(posterior, key)

    def off(record: Record) -> Array:
        return -jnp.log(jnp.maximum(_probabilities(predict(record))[_label(record)], 1e-12))

    method = _conformal(off, 0.01, 20.0, level, np.inf)
    most, certificate = _bought(method, posterior, data, budget, key, simulate)
    return Sets(math.exp(-most), level, certificate)


def _conformal(off: Callable[[Record], Array], low: float, high: float, level: float, otherwise: float) -> Method:
    """Find a threshold that as many held records stay below as split-conformal prediction asks for, for certain.

    With n records it asks that at least (n + 1) level of them do: the sum of 1 - level for those that do and of -level
    for the others is at least level. Noise is kept at bay by a margin that it exceeds in any step with probability
    FAILURE at most, and since noise and records are independent, a level of level / (1 - FAILURE) makes up for that.
    """
    if not 0.5 <= level < 1 - FAILURE:
        raise ValueError(f"level is {level:g}, but must be from 0.5 to below {1 - FAILURE:g}. Write level=0.9.")
    raised = level / (1 - FAILURE)
    margin = NormalDist().inv_cdf(1 - FAILURE / STEPS)

    def term(record: Record, threshold: Array) -> Array:
        return jnp.where(off(record) <= threshold, 1 - raised, -raised)

    # A clip above every term: none is shortened by rounding.
    return root(term, low, high, clip=1.0, shift=raised, margin=margin, otherwise=otherwise)


def _predict(posterior: Posterior, key: Key) -> Callable[[Record], PyTree]:
    """Return a function that predicts one record, leaving out the axis of records."""
    draws = jax.tree.map(lambda value: value[:DRAWS], posterior.draws)
    few = Posterior(draws, None, posterior._method, posterior.point_estimates)

    def predict(record: Record) -> PyTree:
        found = few.predict({"x": record["x"][None]}, key=key)
        return {name: value[:, 0] for name, value in found.items()}

    return predict


def _probabilities(predicted: PyTree) -> Array:
    """Return the mean probabilities of the classes; of class 0 and 1 where there is a probability of class 1 only."""
    mean = jnp.mean(predicted["mean"], 0)
    return jnp.stack([1 - mean, mean]) if mean.ndim == 0 else mean


def _label(record: Record) -> Array:
    return jnp.reshape(record["y"], ()).astype(jnp.int32)


def _bought(
    method: Method, posterior: Posterior, data: PrivateData, budget: Budget, key: Key, simulate: int | None
) -> tuple[float, Certificate | None]:
    # What the network needed of its records it needs of these.
    needs = getattr(posterior._method, "requirements", ())
    found = fit(method._replace(requirements=needs), data, budget, key=key, simulate=simulate, progress=False)
    return float(found.draws["root"][0]), found.certificate
