"""Families of responses, as a table: what a response may be, how it follows the predictor, and its own parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform

from tacit.facts.column import Column
from tacit.types import Array

Draw = Mapping[str, Any]


class Family(NamedTuple):
    """A family of responses.

    Attributes
    ----------
    link
        In words, what is linear.
    requirements
        In words, what the response's column must be.
    suits
        Whether a column is that.
    unit
        Of the response's column: where the linear predictor usually is, and by how much it changes.
    observe
        ``observe(predictor, draw, count)``: the distribution of the response. ``count`` is the number of trials, or of
        levels.
    mean
        ``mean(predictor, draw, count)``: what is expected, or the probability of each level.
    parameters
        Of the response's column: its other parameters, with their default priors.
    reach
        How large a residual usually is, in the units of a score.
    largest
        The largest information of an outcome about its predictor, where there is one; a category has one.
    """

    link: str
    requirements: str
    suits: Callable[[Column], bool]
    unit: Callable[[Column], tuple[float, float]]
    observe: Callable[[Array, Draw, Any], dist.Distribution]
    mean: Callable[[Array, Draw, Any], Array]
    parameters: Callable[[Column], dict[str, dist.Distribution]] = lambda column: {}
    reach: float = 2.0
    largest: float = math.inf


def _number(column: Column) -> bool:
    return column.levels is None


def _counts(column: Column) -> bool:
    return column.kind == "integer" and (column.low or 0) >= 0


def _two(column: Column) -> bool:
    if column.levels is not None:
        return len(column.levels) == 2
    return column.kind == "integer" and (column.low, column.high) == (0, 1)


def _several(column: Column) -> bool:
    return len(column.levels or ()) > 2


def _bounds(column: Column) -> tuple[float, float]:
    """Take the response to be in the middle of its bounds, which are two units away."""
    low, high = float(column.low or 0), float(column.high or 0)
    return (low + high) / 2, (high - low) / 4


def _log_counts(column: Column) -> tuple[float, float]:
    return math.log1p(float(column.high or 0)) / 2, 1.0


def _log_bounds(column: Column) -> tuple[float, float]:
    return (math.log(float(column.low or 1)) + math.log(float(column.high or 1))) / 2, 1.0


def _odds(column: Column) -> tuple[float, float]:
    return 0.0, 1.0


def _spread(column: Column) -> dict[str, dist.Distribution]:
    return {"sigma": dist.HalfNormal(_bounds(column)[1])}


def _cuts(column: Column) -> dict[str, dist.Distribution]:
    """Return cut points about even between -2 and 2."""
    count = len(column.levels or ()) - 1
    steps = np.full(count, math.log(4 / max(1, count - 1)), np.float32)
    steps[0] = -2
    return {"cutpoints": dist.TransformedDistribution(dist.Normal(steps, 1.0).to_event(1), OrderedTransform())}


def _with_first(predictor: Array) -> Array:
    """Return the logits of all levels: the first is what the others are compared with."""
    return jnp.concatenate([jnp.zeros((*predictor.shape[:-1], 1)), predictor], -1)


FAMILIES: dict[str, Family] = {
    "gaussian": Family(
        "the mean is linear, with normal errors of standard deviation sigma",
        "a number",
        _number,
        _bounds,
        lambda predictor, draw, _: dist.Normal(predictor, draw["sigma"]),
        lambda predictor, draw, _: predictor,
        _spread,
        reach=3.0,
    ),
    "student": Family(
        "the centre is linear, with Student's errors of scale sigma and nu degrees of freedom",
        "a number",
        _number,
        _bounds,
        lambda predictor, draw, _: dist.StudentT(draw["nu"], predictor, draw["sigma"]),
        lambda predictor, draw, _: predictor,
        lambda column: {**_spread(column), "nu": dist.Gamma(2.0, 0.1)},
        reach=3.0,
    ),
    "bernoulli": Family(
        "the log odds are linear",
        "a category of two levels, or an integer from 0 to 1",
        _two,
        _odds,
        lambda predictor, draw, _: dist.Bernoulli(logits=predictor),
        lambda predictor, draw, _: jax.nn.sigmoid(predictor),
        reach=1.0,
        largest=0.25,
    ),
    "binomial": Family(
        "the log odds of one success are linear",
        "an integer from 0",
        _counts,
        _odds,
        lambda predictor, draw, trials: dist.Binomial(trials, logits=predictor),
        lambda predictor, draw, trials: trials * jax.nn.sigmoid(predictor),
    ),
    "poisson": Family(
        "the logarithm of the mean is linear",
        "an integer from 0",
        _counts,
        _log_counts,
        lambda predictor, draw, _: dist.Poisson(jnp.exp(predictor)),
        lambda predictor, draw, _: jnp.exp(predictor),
    ),
    "negative_binomial": Family(
        "the logarithm of the mean is linear; the variance is mean + mean squared / alpha",
        "an integer from 0",
        _counts,
        _log_counts,
        lambda predictor, draw, _: dist.NegativeBinomial2(jnp.exp(predictor), draw["alpha"]),
        lambda predictor, draw, _: jnp.exp(predictor),
        lambda column: {"alpha": dist.LogNormal(0.0, 1.5)},
    ),
    "gamma": Family(
        "the logarithm of the mean is linear; the shape is alpha",
        "a number above 0: a lower bound above 0",
        lambda column: column.levels is None and (column.low or 0) > 0,
        _log_bounds,
        lambda predictor, draw, _: dist.Gamma(draw["alpha"], draw["alpha"] * jnp.exp(-predictor)),
        lambda predictor, draw, _: jnp.exp(predictor),
        lambda column: {"alpha": dist.LogNormal(0.0, 1.5)},
    ),
    "ordinal": Family(
        "the log odds of a level above each cut point are linear, with the same slopes",
        "a category of three levels or more, in their order",
        _several,
        _odds,
        lambda predictor, draw, _: dist.OrderedLogistic(predictor, draw["cutpoints"]),
        lambda predictor, draw, _: dist.OrderedLogistic(predictor, draw["cutpoints"]).probs,
        _cuts,
        largest=1.0,
    ),
    "categorical": Family(
        "the log odds of each level against the first are linear",
        "a category of three levels or more",
        _several,
        _odds,
        lambda predictor, draw, _: dist.Categorical(logits=_with_first(predictor)),
        lambda predictor, draw, _: jax.nn.softmax(_with_first(predictor), -1),
        largest=1.0,
    ),
}
