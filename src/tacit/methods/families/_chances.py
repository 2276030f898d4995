"""Bernoulli and categorical probabilities, with intervals that account for the privacy noise."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.arguments import check_positive
from tacit.methods.families._common import (
    TINY,
    all_counts,
    check_at_least,
    log_dirichlet,
    need_symbols,
    whole_within,
    x_of,
)
from tacit.methods.families._family import Family, FamilyFor
from tacit.methods.running import cut_normal
from tacit.types import Array, Key, PyTree, Record, Requirement


def bernoulli(*, prior: tuple[float, float] = (1.0, 1.0)) -> FamilyFor:
    """Fit a Bernoulli probability to each column of a record ``{"x": 0 or 1, one or a vector}``, with a Beta prior.

    Privacy: public.
    """
    check_positive(prior=min(prior))

    def build(placeholder: Record) -> Family:
        shape = x_of(placeholder).shape

        def ones_and_zeros(statistics: PyTree) -> Array:
            half = statistics["count"] / 2
            return jnp.stack([half + statistics["tilt"], half - statistics["tilt"]], -1) + jnp.array(prior)

        def evidence(expected: PyTree, record: Record) -> Array:
            # Half of all is known from the count: what is left has half the norm.
            return jnp.sum(expected["tilt"] * (record["x"].astype(jnp.float32) - 0.5)) + expected["count"]

        def repair(statistics: PyTree, noise: PyTree) -> PyTree:
            count = jnp.maximum(statistics["count"], 0)
            return {"tilt": jnp.clip(statistics["tilt"], -count / 2, count / 2), "count": count}

        def refill(draw: dict[str, Array], noisy: PyTree, noise: PyTree, key: Key) -> PyTree:
            """Draw the count, then the tilt, which has mean count (p - 1/2) and variance count p (1 - p)."""
            of_count, of_tilt = jax.random.split(key)
            chance = draw["chance"]
            mean, variance = chance - 0.5, chance * (1 - chance)
            released = _Noisy(noisy["tilt"], noise["tilt"])
            count = _how_many(of_count, mean, variance, released, _Noisy(noisy["count"], noise["count"]))
            tilt = _between(of_tilt, count * mean, count * variance, released, -count / 2, count / 2)
            return {"tilt": tilt, "count": count}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            return {"x": jax.random.bernoulli(key, draw["chance"], inputs["x"].shape).astype(jnp.int32)}

        return Family(
            lambda statistics: log_dirichlet(ones_and_zeros(statistics)),
            evidence,
            lambda key: {"tilt": jnp.zeros(shape), "count": jnp.float32(0)},
            repair,
            lambda statistics, key: {"chance": jax.random.dirichlet(key, ones_and_zeros(statistics))[..., 0]},
            {"tilt": math.sqrt(max(1, math.prod(shape))) / 2, "count": 1.0},
            predict,
            (
                Requirement(
                    "x must be 0 or 1. Write x = (answer == yes).astype(int).",
                    lambda r: whole_within(r["x"], 0, 1),
                    True,
                ),
            ),
            latent=False,
            refill=refill,
        )

    return build


def categorical(categories: int, *, concentration: float = 1.0) -> FamilyFor:
    """Fit probabilities to the categories of a record ``{"x": whole number(s) from 0}``, with a Dirichlet prior.

    With a vector ``x`` a record counts as so many draws from the same probabilities; -1 fills up shorter ones. A record
    with any other number contributes nothing, without a warning, unless a schema that declares ``x`` refused it.

    Privacy: public.
    """
    check_at_least(categories=(categories, 2))
    check_positive(concentration=concentration)

    def build(placeholder: Record) -> Family:
        length = max(1, x_of(placeholder).size)

        def evidence(expected: PyTree, record: Record) -> Array:
            return jnp.sum(jax.nn.one_hot(record["x"].astype(jnp.int32), categories) @ expected["count"])

        def refill(draw: dict[str, Array], noisy: PyTree, noise: PyTree, key: Key) -> PyTree:
            """Draw the total, then the counts, as of a total that is a Poisson variable: they are then independent."""
            of_total, of_counts = jax.random.split(key)
            chance, released = draw["chance"], _Noisy(noisy["count"], noise["count"])
            total = _how_many(of_total, chance, chance, released, _Noisy(jnp.sum(noisy["count"]), jnp.float32(jnp.inf)))
            return {"count": _between(of_counts, total * chance, total * chance, released, 0.0, jnp.inf)}

        def predict(draw: dict[str, Array], inputs: PyTree, key: Key) -> dict[str, Array]:
            return {"x": jax.random.categorical(key, jnp.log(draw["chance"]), shape=inputs["x"].shape)}

        return Family(
            lambda statistics: log_dirichlet(concentration + statistics["count"]),
            evidence,
            lambda key: {"count": jnp.zeros(categories)},
            all_counts,
            lambda statistics, key: {"chance": jax.random.dirichlet(key, concentration + statistics["count"])},
            {"count": float(length)},
            predict,
            (need_symbols(categories),),
            latent=False,
            refill=refill,
        )

    return build


class _Noisy(NamedTuple):
    """What was released, and the standard deviation of the noise in it."""

    value: Array
    std: Array


def _how_many(key: Key, mean: Array, variance: Array, released: _Noisy, count: _Noisy) -> Array:
    """Draw the number n of records, if each adds ``mean`` and ``variance`` to what was released, given a noisy n."""
    weight = mean / (jnp.maximum(count.value, 1) * variance + released.std**2 + TINY)
    known = 1 / (count.std**2 + TINY)
    precision = jnp.sum(weight * mean) + known
    centre = (jnp.sum(weight * released.value) + known * count.value) / precision
    scale = jax.lax.rsqrt(precision)
    return jnp.maximum(centre + scale * cut_normal(key, -centre / scale, jnp.float32(jnp.inf)), 0)


def _between(key: Key, mean: Array, variance: Array, released: _Noisy, low: Any, high: Any) -> Array:
    """Draw statistics with a normal distribution, cut to what records can have, given what was released."""
    gain = variance / (variance + released.std**2 + TINY)
    centre, scale = mean + gain * (released.value - mean), jnp.sqrt(gain) * released.std + TINY
    found = centre + scale * cut_normal(key, (low - centre) / scale, (high - centre) / scale)
    return jnp.clip(found, low, high)
