"""The names of d3p.minibatch: batches of records, drawn or shuffled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit import accounting
from tacit.adapters.d3p import random
from tacit.adapters.d3p.keys import random_words
from tacit.adapters.d3p.sampling import draw_subset, rate_for, secret_key, shuffled
from tacit.adapters.d3p.util import example_count
from tacit.adapters.d3p.warning import warn
from tacit.engine import sample
from tacit.types import Array, Key, PyTree
from tacit.wall.precision import single_precision

__all__ = [
    "batch_size_to_q",
    "poisson_batchify_data",
    "q_to_batch_size",
    "split_batchify_data",
    "subsample_batchify_data",
]


Sampler = tuple[Callable[..., tuple[int, Any]], Callable[..., Any]]
"""What a batchifier gives: ``init(rng_key) -> (batches an epoch, state)`` and ``get_batch(i, state) -> batch``."""


def subsample_batchify_data(
    dataset: PyTree,
    batch_size: int | None = None,
    q: float | None = None,
    with_replacement: bool = False,
    rng_suite: Any = random,
    return_mask: bool = False,
) -> Sampler:
    """Draw batches of a fixed size, uniformly among all subsets of that size.

    Privacy: reads records. The adjacency of such batches is "replace-one"; they cost more than Poisson batches. With
    replacement a record may be in a batch twice, which no figure of this module covers.

    Parameters
    ----------
    dataset
        A tuple or dictionary of arrays with equally many records; a batch has the same form.
    batch_size, q
        The size of a batch, or its share of the records.
    with_replacement
        Whether a batch may hold a record more than once.
    rng_suite
        Where keys come from: this module's ``random`` or another with its functions.
    return_mask
        Whether ``get_batch`` gives ``(batch, mask)``, the mask all true.
    """
    columns, count = _columns(dataset)
    size = _batch_size(batch_size, q, count)
    if with_replacement:
        warn("With replacement a record may be in a batch twice, which epsilon does not cover; leave it out.")

    def draw(secret: Key) -> Array:
        if with_replacement:
            return jax.random.randint(secret, (size,), 0, count)
        return draw_subset(secret, count, rate_for(count, size), size)[0]

    return _sampler(columns, count // size, draw, rng_suite, return_mask)


def poisson_batchify_data(
    dataset: PyTree,
    q: float,
    max_batch_size: int | float,
    handle_oversized_batch: str = "truncate",
    rng_suite: Any = random,
) -> Sampler:
    """Draw Poisson batches: each record is in one independently with probability ``q``.

    ``get_batch`` gives ``(batch, mask)``: the records stand in random slots, and the mask tells them from padding.

    Privacy: reads records. Covered under both adjacencies as long as no batch is cut; empty ones are ordinary.

    Parameters
    ----------
    dataset, rng_suite
        As in `subsample_batchify_data`.
    q
        The rate.
    max_batch_size
        The number of slots. A fraction, d3p's quantile, asks for as many as a batch exceeds with probability 2**-128,
        whatever the fraction: a batch cut at a quantile is no Poisson batch.
    handle_oversized_batch
        "truncate" keeps a random part of a batch that has too many records, "suppress" none of it.
    """
    columns, count = _columns(dataset)
    rate = accounting.check_rate("poisson_batchify_data", float(q))
    needed = sample.room(count, rate) if rate < 1 else count
    whole = isinstance(max_batch_size, int | np.integer)
    if not (max_batch_size >= 1 if whole else 0 < max_batch_size < 1):
        raise ValueError(
            f"max_batch_size={max_batch_size!r} is neither a number of slots nor a fraction below 1. Write {needed}, "
            "which no batch exceeds, or 0.99 for the same."
        )
    if handle_oversized_batch not in ("truncate", "suppress"):
        raise ValueError(
            f"handle_oversized_batch={handle_oversized_batch!r} is unknown. Write 'truncate' or 'suppress'."
        )
    slots = int(max_batch_size) if whole else needed
    if slots < needed:
        warn(
            f"A batch may have more than max_batch_size={slots} records and is cut then, which epsilon does not cover. "
            f"Write max_batch_size={needed}, which no batch exceeds, or 0.99 for the same."
        )

    def draw(secret: Key) -> Array:
        chosen, size = draw_subset(secret, count, rate, slots)
        return jnp.where((size > slots) & (handle_oversized_batch == "suppress"), count, chosen)

    return _sampler(columns, max(1, int(1 / rate)), draw, rng_suite, True)


def split_batchify_data(
    dataset: PyTree,
    batch_size: int | None = None,
    q: float | None = None,
    rng_suite: Any = random,
    return_mask: bool = False,
) -> Sampler:
    """Shuffle the records once an epoch and cut them into batches of a fixed size: for test data.

    Privacy: reads records. A pass over shuffled records is no fresh draw for every step: no figure covers it.

    Parameters
    ----------
    dataset, batch_size, q, rng_suite, return_mask
        As in `subsample_batchify_data`.
    """
    columns, count = _columns(dataset)
    size = _batch_size(batch_size, q, count)

    @single_precision
    def init(rng_key: Any) -> tuple[int, Array]:
        return count // size, shuffled(random_words(secret_key(rng_suite, rng_key), 4 * count)[1][0], jnp.arange(count))

    def get_batch(i: Any, state: Array) -> Any:
        return _rows(columns, jax.lax.dynamic_slice_in_dim(state, i * size, size), return_mask)

    return init, get_batch


def q_to_batch_size(q: float, N: int) -> int:
    """Return the size of a batch with the share ``q`` of the records, rounded down. Privacy: public."""
    return int(N * q * (1 + 2.0**-50))


def batch_size_to_q(batch_size: int, N: int) -> float:
    """Return the share of the records in a batch. Privacy: public."""
    return batch_size / N


def _sampler(columns: PyTree, batches: int, draw: Callable[[Key], Array], rng_suite: Any, with_mask: bool) -> Sampler:
    @single_precision
    @jax.jit
    def positions(i: Any, state: Any) -> Array:
        return draw(secret_key(rng_suite, rng_suite.fold_in(state, i)))

    return lambda rng_key: (batches, rng_key), lambda i, state: _rows(columns, positions(i, state), with_mask)


def _rows(columns: PyTree, positions: Array, with_mask: bool) -> Any:
    mask = positions < example_count(jax.tree.leaves(columns)[0])

    def rows(column: Array) -> Array:
        shown = mask.reshape(-1, *[1] * (column.ndim - 1))
        return jnp.where(shown, column.at[positions].get(mode="clip"), jnp.zeros((), column.dtype))

    batch = jax.tree.map(rows, columns)
    return (batch, mask) if with_mask else batch


def _columns(dataset: PyTree) -> tuple[PyTree, int]:
    if not isinstance(dataset, tuple | list | dict):
        raise TypeError(
            f"The data set is a {type(dataset).__name__}, not a tuple or a dictionary of arrays. Write (x, y), or (x,) "
            "for a single array; sealed records (tacit.PrivateData) are for tacit.fit."
        )
    columns = jax.tree.map(jnp.asarray, tuple(dataset) if isinstance(dataset, list) else dataset)
    lengths = {example_count(column) for column in jax.tree.leaves(columns)}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError("A data set needs arrays with equally many records, at least one: a batch cuts all alike.")
    return columns, lengths.pop()


def _batch_size(batch_size: int | None, q: float | None, count: int) -> int:
    if (batch_size is None) == (q is None):
        raise ValueError("A batch needs either a size or a share of the records. Write batch_size=100 or q=0.01.")
    size = int(batch_size) if batch_size is not None else q_to_batch_size(float(q or 0), count)
    if not 1 <= size <= count:
        raise ValueError(
            f"A batch of {size} records cannot be drawn from the data set. Pass a size from 1 to the number of "
            "records; if q times that number is below 1, poisson_batchify_data keeps the rate."
        )
    return size
