"""The public shape of a contribution, and what is refused of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.types import PyTree, SparseRows, is_sparse


class Layout(NamedTuple):
    """The public shape of a contribution: its leaves, a weight for each, its numbers and those of its release."""

    leaves: list[Any]
    weights: tuple[float, ...]
    length: int
    dimension: int

    @classmethod
    def of(cls, contribution: PyTree, weights: tuple[float, ...] | None) -> Layout:
        """Return the layout of contributions of a shape; refuse what cannot be clipped or has no place in a sum."""
        leaves = jax.tree.leaves(contribution, is_leaf=is_sparse)
        weights = weights or (1.0,) * len(leaves)
        if len(weights) != len(leaves):
            raise ValueError(
                f"The mechanism has {len(weights)} block weights, but a contribution has {len(leaves)} leaves. "
                "Pass one weight for each leaf, in the order of jax.tree.leaves, or none."
            )
        for leaf in filter(is_sparse, leaves):
            _check_rows(leaf)
        numbers = [leaf.values if is_sparse(leaf) else leaf for leaf in leaves]
        if any(not jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype.kind == "c" for leaf in numbers):
            raise TypeError("A contribution must be a pytree of real numbers; cast booleans to float first.")
        # What a record gives, and what is released: the same numbers unless a leaf is sparse.
        length, dimension = sum(leaf.size for leaf in numbers), sum(map(released_size, leaves))
        if not dimension:
            raise ValueError("A contribution is empty: the model has nothing to learn from the records.")
        return cls(leaves, weights, length, dimension)


def released_size(leaf: Any) -> int:
    """Return how many numbers are released of a leaf: of a sparse one the whole table.

    Privacy: public.
    """
    return leaf.count * leaf.values.shape[1] if is_sparse(leaf) else leaf.size


def _check_rows(rows: SparseRows) -> None:
    """Refuse a sparse leaf that does not say what is added where."""
    if rows.values.ndim != 2 or rows.index.shape != rows.values.shape[:1] or rows.count < 1:
        raise ValueError(
            f"A contribution holds SparseRows with an index of shape {rows.index.shape}, values of shape "
            f"{rows.values.shape} and a table of {rows.count} lines. Write one index for each line of a matrix of "
            "values, and a count of at least one."
        )
    if not jnp.issubdtype(rows.index.dtype, jnp.integer):
        raise TypeError(
            f"A contribution holds SparseRows whose index is of type {rows.index.dtype}, which may lie between two "
            "lines of the table. Pass integers."
        )
