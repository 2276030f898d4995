"""Records that are made up from declared facts alone."""

from __future__ import annotations

import jax

from tacit.facts.column import Column
from tacit.facts.schema import Schema
from tacit.types import Array, Key


def even_columns(schema: Schema, key: Key, size: int) -> dict[str, Array]:
    """Make up records that know nothing but the schema: numbers even between their bounds, levels alike.

    Columns are independent, and as they are stored: levels as codes.

    Privacy: public.
    """

    def column(facts: Column, key: Key) -> Array:
        shape = (size, *facts.shape)
        if facts.levels is not None:
            return jax.random.randint(key, shape, 0, len(facts.levels))
        if facts.kind == "integer":
            return jax.random.randint(key, shape, int(facts.low or 0), int(facts.high or 0) + 1)
        return jax.random.uniform(key, shape, minval=facts.low or 0.0, maxval=facts.high or 0.0)

    keys = jax.random.split(key, len(schema.columns))
    return {name: column(facts, one) for (name, facts), one in zip(schema.columns.items(), keys, strict=True)}
