"""Units of several records: grouped once, when the records are sealed, and clipped as one contribution.

    contribution of a unit = sum over its records of contribute(state, record)

A method stays written for one record. Neighbours differ by one unit, with all its records (docs/proofs/units.md).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, Shaped

from tacit.types import Key, Method, PyTree, Requirement, SparseRows, State, is_sparse


class Unit(NamedTuple):
    """The records of one unit along a leading axis, filled up to a public number; ``present`` tells which are real."""

    records: PyTree
    present: Any


def group(
    columns: dict[str, Shaped[np.ndarray, "n ..."]],
    units: Int[np.ndarray, " n"],
    most: int,
    filler: dict[str, Shaped[np.ndarray, "..."]],
) -> dict[str, Shaped[np.ndarray, "..."]] | Unit:
    """Keep the first records of each unit, ``most`` at most; with several to a unit, in the form of `Unit`.

    Privacy: reads records. What is kept of a unit depends on its own records alone.

    Parameters
    ----------
    columns
        Stored columns, with a leading axis of records.
    units
        The number of each record's unit.
    most
        How many records of a unit are kept.
    filler
        The public placeholder, which fills up the units that have fewer.
    """
    order = np.argsort(units, kind="stable")
    found, first, line = np.unique(units[order], return_index=True, return_inverse=True)
    place = np.arange(len(order)) - first[line] if len(order) else order
    kept = place < most
    if most == 1:
        # Units in the order in which they came, as records would be without ids.
        chosen = np.sort(order[kept])
        return {name: values[chosen] for name, values in columns.items()}
    where = (line[kept], place[kept])
    present = np.zeros((len(found), most), bool)
    present[where] = True
    records = {}
    for name, values in columns.items():
        filled = np.broadcast_to(filler[name], (*present.shape, *values.shape[1:])).astype(values.dtype)
        filled[where] = values[order[kept]]
        records[name] = filled
    return Unit(records, present)


def sum_over_unit(method: Method) -> Method:
    """Return the method for units: a unit's contribution is the sum of those of its records.

    Privacy: public. The wall clips the sum, whatever it is; what fills up a unit adds exactly nothing.
    """

    def contribute(state: State, unit: Unit, key: Key, record_key: Key | None = None) -> PyTree:
        count = unit.present.shape[0]
        keys = None if record_key is None else jax.random.split(record_key, count)
        each = jax.vmap(lambda record, mine: method.contribution(state, record, key, mine))(unit.records, keys)
        return jax.tree.map(lambda leaf: _total(leaf, unit.present), each, is_leaf=is_sparse)

    def need(one: Requirement) -> Requirement:
        return one._replace(predicate=lambda unit: jnp.all(jax.vmap(one.predicate)(unit.records) | ~unit.present))

    return method._replace(contribute=contribute, requirements=tuple(map(need, method.requirements)))


def _total(leaf: Any, present: Bool[jax.Array, " most"]) -> Any:
    def here(values: Any) -> Any:
        return jnp.where(present.reshape(-1, *[1] * (values.ndim - 1)), values, 0)

    if not is_sparse(leaf):
        return jnp.sum(here(leaf), 0)
    # A line that several records name: the first is given what they add up to, and the wall leaves out the others.
    index = jnp.where(present[:, None], leaf.index, leaf.count).reshape(-1)
    values = here(leaf.values).reshape(len(index), -1)
    same = (index[:, None] == index[None, :]).astype(values.dtype)
    return SparseRows(index, jnp.matmul(same, values, precision=jax.lax.Precision.HIGHEST), leaf.count)
