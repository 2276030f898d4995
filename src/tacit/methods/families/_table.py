"""Mixtures over tables of numbers and categories, which can make up records."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln, logsumexp

from tacit.facts.schema import Schema, levels_of
from tacit.methods.arguments import check_positive
from tacit.methods.families._common import LOG_2PI, TINY, check_at_least, log_dirichlet, nearest_counts, whole_within
from tacit.methods.families._family import Family
from tacit.methods.running import cut_normal
from tacit.types import Array, Key, PyTree, Record, Requirement


def table(schema: Schema, components: int = 8, *, spread: float = 0.25, concentration: float = 1.0) -> Family:
    """Cluster records of numbers and categories, column by column independent within a cluster: made-up tables.

    Within a component a number is normal, with mean and deviation of its own, and a category has probabilities of its
    own; what columns have to do with one another is in the components. The posterior can ``synthesize``.

    Privacy: public. Sees the schema only.

    Parameters
    ----------
    schema
        Of the records. Numbers count in units of half their range around its middle.
    components
        How many. Each costs noise in all: some dozens of records' worth for every number and level.
    spread
        A public guess of the standard deviation within a component, in half ranges.
    concentration
        Of the components' weights; small ones empty what is not needed.
    """
    check_at_least(components=(components, 1))
    check_positive(spread=spread, concentration=concentration)
    arrays = [name for name, column in schema.columns.items() if column.shape]
    if arrays:
        raise ValueError(
            f"The columns {arrays} hold arrays. A table has numbers and categories: make every entry a column of its "
            "own."
        )
    of = _Table(schema, components, spread, concentration)
    return Family(
        of.log_normaliser,
        of.evidence,
        of.begin,
        of.repair,
        of.draw,
        {name: of.bounds[name] for name in of.kept},
        requirements=(
            Requirement(
                "The records must be sealed with the schema of the table: PrivateData(records, schema).",
                of.holds,
                facts=schema.columns,
            ),
        ),
        synthesize=partial(_made_up, schema),
    )


class _Table:
    """The family's functions, for a schema's columns, a number of components and public guesses."""

    def __init__(self, schema: Schema, components: int, spread: float, concentration: float) -> None:
        self.components, self.spread, self.concentration = components, spread, concentration
        numbers = {name: column for name, column in schema.columns.items() if column.levels is None}
        levels = {name: column.levels for name, column in schema.columns.items() if column.levels is not None}
        low, high = (np.array([getattr(column, end) for column in numbers.values()], float) for end in ("low", "high"))
        self.numbers, self.levels = numbers, levels
        self.middle, self.half = (low + high) / 2, (high - low) / 2
        self.cuts = np.cumsum([len(these) for these in levels.values()])[:-1]
        self.few, root = spread**2, math.sqrt(len(numbers) or 1)
        self.bounds = {"count": 1.0, "level": math.sqrt(len(levels) or 1), "sum": root, "square": root}
        self.kept = ["count", *(["level"] if levels else []), *(["sum", "square"] if numbers else [])]

    def whole(self, statistics: PyTree) -> PyTree:
        """Return all blocks, also those that a table without numbers or without categories has not."""
        return {**{name: jnp.zeros((self.components, 0)) for name in self.bounds}, **statistics}

    def parts(self, flat: Array) -> list[Array]:
        """Part what is kept for all levels by column."""
        return jnp.split(flat, self.cuts, axis=-1) if self.levels else []

    def seen(self, record: Record) -> tuple[Array, Array]:
        """Return a record's numbers in half ranges, and a 1 at each of its levels."""
        x = (jnp.array([record[name] for name in self.numbers], jnp.float32) - self.middle) / self.half
        ones = [jax.nn.one_hot(record[name], len(these)) for name, these in self.levels.items()]
        return jnp.clip(x, -1, 1), jnp.concatenate([jnp.zeros(0), *ones])

    def evidence(self, expected: PyTree, record: Record) -> Array:
        x, ones = self.seen(record)
        values = {"level": ones, "sum": x, "square": jnp.square(x)}
        return logsumexp(expected["count"] + sum(expected[name] @ values[name] for name in self.kept[1:]))

    def posterior(self, statistics: PyTree) -> tuple[Array, Array, Array, Array]:
        """Return each number's mean, its pseudo-count, and shape and rate of its precision, component by component."""
        statistics = self.whole(statistics)
        kappa = self.few + statistics["count"][:, None]
        mean = statistics["sum"] / kappa
        rate = self.spread**2 + (statistics["square"] - kappa * jnp.square(mean)) / 2
        return mean, kappa, 1 + statistics["count"][:, None] / 2, rate

    def log_normaliser(self, statistics: PyTree) -> Array:
        _, kappa, shape, rate = self.posterior(statistics)
        each = gammaln(shape) - shape * jnp.log(rate) - jnp.log(kappa) / 2 - (shape - 1) * LOG_2PI
        of_levels = sum(
            (log_dirichlet(1 + part) for part in self.parts(self.whole(statistics)["level"])), jnp.float32(0)
        )
        return jnp.sum(each) + log_dirichlet(self.concentration + statistics["count"]) + of_levels

    def begin(self, key: Key) -> PyTree:
        made = _start(
            key, self.components, len(self.numbers), [len(these) for these in self.levels.values()], self.spread
        )
        return {name: made[name] for name in self.kept}

    def repair(self, statistics: PyTree, noise: PyTree) -> PyTree:
        statistics = self.whole(statistics)
        count = nearest_counts(statistics["count"])
        total = jnp.clip(statistics["sum"], -count[:, None], count[:, None])
        around = jnp.square(total) / (count + TINY)[:, None]
        left = jnp.maximum(statistics["square"] - around, noise.get("square", 0.0) + TINY)
        level = jnp.concatenate(
            [jnp.zeros((self.components, 0)), *map(nearest_counts, self.parts(statistics["level"]))], -1
        )
        repaired = {"count": count, "level": level, "sum": total, "square": around + left}
        return {name: repaired[name] for name in self.kept}

    def draw(self, statistics: PyTree, key: Key) -> dict[str, Array]:
        key_weight, key_precision, key_mean, key_level = jax.random.split(key, 4)
        mean, kappa, shape, rate = self.posterior(statistics)
        deviation = jnp.sqrt(rate / jax.random.gamma(key_precision, jnp.broadcast_to(shape, rate.shape)))
        mean = mean + deviation / jnp.sqrt(kappa) * jax.random.normal(key_mean, mean.shape)
        found = {"weight": jax.random.dirichlet(key_weight, self.concentration + statistics["count"])}
        for place, name in enumerate(self.numbers):
            found[f"{name}.mean"] = self.middle[place] + self.half[place] * mean[:, place]
            found[f"{name}.std"] = self.half[place] * deviation[:, place]
        for place, (name, part) in enumerate(
            zip(self.levels, self.parts(self.whole(statistics)["level"]), strict=True)
        ):
            found[f"{name}.chance"] = jax.random.dirichlet(jax.random.fold_in(key_level, place), 1 + part)
        return found

    def holds(self, record: Record) -> Array:
        inside = [(record[name] >= column.low) & (record[name] <= column.high) for name, column in self.numbers.items()]
        return jnp.all(
            jnp.array([*inside, *(whole_within(record[name], 0, len(self.levels[name]) - 1) for name in self.levels)])
        )


def _start(key: Key, components: int, numbers: int, levels: list[int], spread: float) -> dict[str, Array]:
    """Start from ten records around some random places, with random levels."""
    key_place, key_level = jax.random.split(key)
    places = jax.random.uniform(key_place, (components, numbers), minval=-0.5, maxval=0.5)
    chances = [
        jax.random.dirichlet(jax.random.fold_in(key_level, column), jnp.ones(these), (components,))
        for column, these in enumerate(levels)
    ]
    return {
        "count": jnp.full(components, 10.0),
        "level": 10 * jnp.concatenate([jnp.zeros((components, 0)), *chances], -1),
        "sum": 10 * places,
        "square": 10 * (jnp.square(places) + spread**2),
    }


def _made_up(schema: Schema, draw: dict[str, Array], number: int, key: Key) -> dict[str, Any]:
    """Make up records from one draw, with the schema's levels and numbers within its bounds."""
    component = jax.random.categorical(key, jnp.log(draw["weight"]), shape=(number,))
    made = {}
    for place, (name, column) in enumerate(schema.columns.items()):
        column_key = jax.random.fold_in(key, place)
        if column.levels is not None:
            codes = jax.random.categorical(column_key, jnp.log(draw[f"{name}.chance"][component]))
            made[name] = levels_of(column.levels, np.asarray(codes))
            continue
        mean, std = (draw[f"{name}.{part}"][component] for part in ("mean", "std"))
        ends = float(column.low or 0), float(column.high or 0)
        least, most = ((end - mean) / std for end in ends)
        values = np.asarray(mean + std * cut_normal(column_key, least, most), np.float64).clip(*ends)
        made[name] = np.rint(values).astype(np.int64) if column.kind == "integer" else values
    return made
