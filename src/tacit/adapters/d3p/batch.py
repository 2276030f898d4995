"""A batch's arrays, and its constants apart from them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.adapters.d3p.util import example_count
from tacit.types import Array
from tacit.wall.precision import rounded


class Form(NamedTuple):
    """How the arguments of an update are made of arrays: hashable, so that compiled programs are found again."""

    tree: Any
    size: int
    rows: tuple[int, ...]  # which leaves have one row a record
    constants: tuple[int, ...]  # which are other arrays
    others: tuple[tuple[int, Any], ...]  # what is not an array

    def arguments(self, rows: Any, constants: Any) -> Any:
        """Put arrays back among the arguments."""
        leaves = dict(self.others) | dict(zip(self.rows + self.constants, [*rows, *constants], strict=True))
        return jax.tree.unflatten(self.tree, [leaves[i] for i in range(len(leaves))])


class Batch(NamedTuple):
    """The arguments of an update: the arrays of a batch, and the constants beside them."""

    form: Form
    rows: list[Array]
    constants: list[Array]

    @staticmethod
    def of(args: Any, kwargs: Any) -> Batch:
        """Return the batch that the arguments of a step are."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        given = [leaf for leaf in jax.tree.leaves(args) if np.ndim(leaf)] or [leaf for leaf in leaves if np.ndim(leaf)]
        lengths = sorted({example_count(leaf) for leaf in given})
        if len(lengths) != 1:
            raise ValueError(
                f"The arrays of a batch have the lengths {lengths}, but a step takes each record apart. Pass arrays of "
                "one length, and constant arrays to DPSVI as keywords."
            )
        arrays = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]
        rows = tuple(i for i in arrays if np.ndim(leaves[i]) and example_count(leaves[i]) == lengths[0])
        constants = tuple(i for i in arrays if i not in rows)
        others = tuple((i, leaf) for i, leaf in enumerate(leaves) if i not in arrays)
        form = Form(tree, lengths[0], rows, constants, others)
        return Batch(form, [rounded(leaves[i]) for i in rows], [rounded(leaves[i]) for i in constants])

    def made_up(self, count: int) -> Any:
        """Return arguments with so many public stand-in records."""
        rows = [jnp.full((count, *row.shape[1:]), 0.5, row.dtype) for row in self.rows]
        return self.form.arguments(rows, self.constants)


@contextlib.contextmanager
def explained(batch: Batch) -> Iterator[None]:
    """Report what model and guide were called with when they fail."""
    try:
        yield
    except Exception as error:
        shapes = ", ".join(f"{row.dtype}{['n', *row.shape[1:]]}".replace("'", "") for row in batch.rows)
        raise ValueError(
            f"Model or guide do not run on made-up records ({shapes}): {error}. They are called with the arrays of a "
            "batch, of any length; constants go to DPSVI as keywords, such as DPSVI(..., N=len(data))."
        ) from error
