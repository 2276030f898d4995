"""Columns of a schema as codes: levels, or bins of numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.facts.column import Column
from tacit.facts.schema import Schema, levels_of
from tacit.types import Array, Key, Requirement

BINS = 8
"""Numbers are cut into so many bins by default."""


def cut(schema: Schema, bins: Mapping[str, int | Sequence[float | int]] | None = None) -> dict[str, Cut]:
    """Return every column of a schema as codes.

    Privacy: public.
    """
    check_known(bins or {}, schema.columns)
    odd = [name for name in schema.columns if ":" in name]
    if odd:
        raise ValueError(
            f"The columns {odd} have a colon in their names, which joins those of a marginal. Rename them."
        )
    return {name: _cut(column, (bins or {}).get(name)) for name, column in schema.columns.items()}


def declared(schema: Schema, columns: Mapping[str, Cut]) -> Requirement:
    """Return the requirement that records are those of the schema.

    Privacy: public.
    """
    return Requirement(
        "The records must be sealed with the schema that the marginals are of: tacit.PrivateData(records, schema).",
        lambda record: jnp.all(jnp.array([column.holds(record[name]) for name, column in columns.items()])),
        facts=schema.columns,
    )


class Cut(NamedTuple):
    """A column whose values are codes 0, 1, ...: levels, or bins of numbers between edges."""

    size: int
    edges: tuple[float, ...] = ()
    levels: tuple[Any, ...] = ()
    whole: bool = False

    def code(self, value: Array) -> Array:
        """Return the number of the bin or level of each value."""
        if self.levels:
            return value.astype(jnp.int32)
        return jnp.searchsorted(jnp.array(self.edges[1:-1]), value.astype(jnp.float32), side="right")

    def holds(self, value: Array) -> Array:
        """Return whether each value is within the bounds, or a level."""
        low, high = (0, self.size - 1) if self.levels else (self.edges[0], self.edges[-1])
        return (value >= low) & (value <= high)

    def decoded(self, codes: Any, key: Key) -> Any:
        """Return levels, or numbers that are anywhere in their bins."""
        if self.levels:
            return levels_of(self.levels, codes)
        edges, share = np.asarray(self.edges), np.asarray(jax.random.uniform(key, codes.shape), np.float64)
        if not self.whole:
            return edges[codes] + share * (edges[codes + 1] - edges[codes])
        first = np.ceil(edges)
        first[-1] = np.floor(edges[-1]) + 1
        return np.floor(first[codes] + share * (first[codes + 1] - first[codes])).astype(np.int64)


def _cut(column: Column, bins: int | Sequence[float | int] | None) -> Cut:
    if column.shape:
        raise ValueError(
            f"Column {column.name!r} holds arrays of the shape {column.shape}. Marginals are of numbers and "
            "categories: make every entry a column of its own."
        )
    if column.levels is not None:
        if bins is not None:
            raise ValueError(f"Column {column.name!r} has levels and needs no bins. Leave them out.")
        return Cut(len(column.levels), levels=column.levels)
    low, high = float(column.low or 0), float(column.high or 0)
    whole = column.kind == "integer"
    if bins is None:
        bins = min(BINS, int(high - low) + 1) if whole else BINS
    if isinstance(bins, int):
        inner = np.linspace(low, high + whole, max(bins, 1) + 1)[1:-1]
        inner = np.ceil(inner) if whole else inner
    else:
        inner = np.asarray([edge for edge in bins if low < edge < high], float)
    edges = (low, *(float(edge) for edge in inner), high)
    if any(after <= before for before, after in itertools.pairwise(edges[:-1])) or len(edges) < 3:
        raise ValueError(
            f"Column {column.name!r} has the bins {bins!r}. Write a number of at least 2 (and for whole numbers of at "
            f"most as many as there are), or rising edges between its bounds {low:g} and {high:g}."
        )
    return Cut(len(edges) - 1, edges, whole=whole)


def check_known(names: Iterable[str], columns: Mapping[str, Any]) -> None:
    """Refuse names that are no columns of the schema."""
    unknown = sorted(set(names) - set(columns))
    if unknown:
        raise ValueError(f"The schema has no columns {unknown}. Those it has are {list(columns)}.")
