"""What several conjugate families share: checks of records, repairs of noisy statistics, log normalisers."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from tacit.types import Array, PyTree, Requirement

TINY = 1e-6
LOG_2PI = math.log(2 * math.pi)


def log_dirichlet(concentration: Array) -> Array:
    """Return the log normaliser of Dirichlet distributions along the last axis."""
    return jnp.sum(gammaln(concentration)) - jnp.sum(gammaln(jnp.sum(concentration, -1)))


def nearest_counts(noisy: Array) -> Array:
    """Return the nearest counts along the last axis that are not negative and have the same total."""
    total = jnp.maximum(jnp.sum(noisy, -1, keepdims=True), 0)
    falling = -jnp.sort(-noisy, -1)
    excess = (jnp.cumsum(falling, -1) - total) / jnp.arange(1, noisy.shape[-1] + 1)
    kept = jnp.sum(falling > excess, -1, keepdims=True)
    return jnp.maximum(noisy - jnp.take_along_axis(excess, jnp.maximum(kept - 1, 0), -1), 0)


def all_counts(statistics: PyTree, noise: PyTree) -> PyTree:
    """Repair statistics that are counts, all of them."""
    return jax.tree.map(nearest_counts, statistics)


def raised(matrix: Array, noise_std: Array) -> Array:
    """Raise eigenvalues that noise alone would make to the size of the noise, and all above 0."""
    values, vectors = jnp.linalg.eigh(matrix)
    floor = noise_std * math.sqrt(matrix.shape[-1] / 2)
    return (vectors * jnp.maximum(values, floor)[..., None, :]) @ jnp.swapaxes(vectors, -1, -2)


def pack(matrix: Array) -> Array:
    """Return a symmetric matrix's upper triangle, what is off the diagonal times sqrt(2): the norm is the same."""
    lines, columns = np.triu_indices(matrix.shape[-1])
    return matrix[..., lines, columns] * np.where(lines == columns, 1, math.sqrt(2)).astype(np.float32)


def unpack(packed: Array, size: int) -> Array:
    """Return the symmetric matrix that `pack` was given."""
    lines, columns = np.triu_indices(size)
    values = packed * np.where(lines == columns, 1, math.sqrt(0.5)).astype(np.float32)
    matrix = jnp.zeros((*packed.shape[:-1], size, size)).at[..., lines, columns].set(values)
    return matrix.at[..., columns, lines].set(values)


def shortened(x: Array, bound: float) -> Array:
    """Scale a vector to the norm ``bound`` at most."""
    x = x.astype(jnp.float32)
    return x * jnp.minimum(1, bound / jnp.maximum(jnp.linalg.norm(x), 1e-30))


def whole_within(x: Array, least: int, most: int) -> Array:
    """Return whether all entries are whole numbers between two."""
    x = x.astype(jnp.float32)
    return jnp.all((x == jnp.round(x)) & (x >= least) & (x <= most))


def need_symbols(number: int) -> Requirement:
    """Require sequences of so many symbols."""
    return Requirement(
        f"x must be whole numbers from 0 to {number - 1}, or -1 to fill up. Number the categories by a public list: "
        "numpy.searchsorted(levels, x) for sorted levels.",
        lambda record: whole_within(record["x"], -1, number - 1),
    )


def x_of(placeholder: Any, dimensions: int | None = None) -> Array:
    """Return ``x`` of a placeholder record, or raise."""
    given = sorted(placeholder) if isinstance(placeholder, dict) else type(placeholder).__name__
    if not isinstance(placeholder, dict) or "x" not in placeholder:
        raise ValueError(f'A record of this family is {{"x": ...}}; these are {given}.')
    x = jnp.asarray(placeholder["x"])
    if dimensions is not None and x.ndim != dimensions:
        raise ValueError(
            f"x has the shape {x.shape} in each record, but must be a vector. Put all columns into one array with a "
            "line for each record: numpy.stack([...], axis=1)."
        )
    return x


def check_at_least(**values: tuple[int, int]) -> None:
    """Refuse whole numbers below their least."""
    for name, (value, least) in values.items():
        if value < least:
            raise ValueError(f"{name} is {value}. Write a whole number of at least {least}.")
