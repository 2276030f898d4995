"""A private model of the columns that a model conditions on: marginals in two zooms, and a normal copula.

    counts of bins between the declared bounds                  the new bounds are around those with mass
    counts of bins between these                                marginals F, on the simplex, without stray tails
    u_j = Phi^-1(F_j(x_j));  M = sum u u' / N                   twice, the second time in coordinates where M is about I
    a made-up record:  z ~ N(0, R),  x_j = F_j^-1(Phi(z_j))     R from M, for a posterior with noise like M's

Tails that the noise hides are left out: what they would add to the information is not claimed. Levels, and whole
numbers with few values, have a bin each; their scores are at the middle of the bin's mass, which weakens correlations
by a known factor. Counts and products of a record have norm 1 at most. Everything after the wall
is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri

from tacit.facts.schema import Schema
from tacit.types import Array, Key, PyTree, Record

BINS = 20
"""Numbers are cut into so many bins."""
CERTAIN, BESIDE = 3.0, 0.3
"""In the first zoom, a bin holds something if its count is so many standard deviations of the noise above zero; noise
hides the tails, so that part of the width is kept beside what is certain, and one bin at least."""
FURTHEST, REACH = 2.9, 1.3
"""The largest normal score; the largest squared norm of a record's scores, in units of their number."""
GRID = 199


class Table(NamedTuple):
    """What is known of the columns: bounds of the bins, counts and their variance, distribution functions, moments.

    ``moments`` are of normal scores in the coordinates ``basis``, with noise of standard deviation ``moments_std``.
    """

    low: Array
    high: Array
    counts: Array
    variance: Array
    cumulative: Array
    basis: Array
    moments: Array
    moments_std: Array


class Covariates:
    """The columns of a schema that a model conditions on, each entry of an array a column of its own.

    Privacy: public. ``histogram`` and ``products`` are of one record, for the wall.

    Parameters
    ----------
    schema
        With bounds or levels of the columns.
    names
        The columns.
    """

    def __init__(self, schema: Schema, names: Sequence[str]) -> None:
        unknown = [name for name in names if name not in schema.columns]
        if unknown:
            raise ValueError(
                f"The model conditions on the columns {unknown}, and the schema does not declare them. Their bounds "
                "or levels are needed to make records up."
            )
        self.columns = {name: schema.columns[name] for name in names}
        columns: list[tuple[float, float, int, bool, bool]] = []
        for column in self.columns.values():
            first, last = (0, len(column.levels) - 1) if column.levels is not None else (column.low, column.high)
            assert first is not None
            assert last is not None
            of_its_own = (column.kind != "real" and last - first < BINS) or column.levels is not None
            beyond, number = (0.5, int(last - first) + 1) if of_its_own else (0.0, BINS)
            facts = (first - beyond, last + beyond, number, of_its_own, column.kind != "real")
            columns += [facts] * math.prod(column.shape)
        self.number = len(columns)
        low, high, bins, apart, whole = zip(*columns, strict=True) if columns else [()] * 5
        self._low, self._high = np.array(low, np.float32), np.array(high, np.float32)
        self._bins, self._apart, self._whole = np.array(bins, np.int32), np.array(apart, bool), np.array(whole, bool)
        self.most = max(bins, default=0)
        self._inside = np.arange(self.most) < self._bins[:, None]

    def start(self) -> Table:
        """Begin with even and independent columns."""
        counts = jnp.asarray(self._inside / np.maximum(self._bins, 1)[:, None], jnp.float32)
        identity = jnp.eye(self.number)
        return Table(
            jnp.asarray(self._low),
            jnp.asarray(self._high),
            counts,
            jnp.float32(0),
            _cumulative(counts),
            identity,
            identity,
            jnp.float32(0),
        )

    def values(self, record: Record) -> Array:
        """Return the columns of one record as a vector."""
        return jnp.concatenate([jnp.ravel(jnp.asarray(record[name], jnp.float32)) for name in self.columns])

    def records(self, values: Array) -> dict[str, Array]:
        """Return vectors, one in each line, as columns of records."""
        found: dict[str, Array] = {}
        place = 0
        for name, column in self.columns.items():
            size = math.prod(column.shape)
            found[name] = values[:, place : place + size].reshape(-1, *column.shape).astype(column.dtype)
            place += size
        return found

    def histogram(self, table: Table, record: Record) -> Array:
        """Return a record's bin in each column, with norm 1 in all."""
        bin_of = jnp.floor(self._position(table, self.values(record))).astype(jnp.int32)
        return (jnp.arange(self.most) == bin_of[:, None]) / math.sqrt(self.number)

    def zoom(self, table: Table, released: Array, std: Array) -> Table:
        """Take the released counts of declared bounds, and narrow the bounds of numbers to where there is something."""
        counts, std = released * math.sqrt(self.number), std * math.sqrt(self.number)
        first, last = self._certain(counts, std)
        beside = jnp.maximum(1, jnp.ceil(BESIDE * (last - first)))
        width = (table.high - table.low) / self._bins
        narrow = (jnp.maximum(first - beside, 0), jnp.minimum(last + beside, self._bins))
        return table._replace(
            low=jnp.where(self._apart, table.low, table.low + narrow[0] * width),
            high=jnp.where(self._apart, table.high, table.low + narrow[1] * width),
            counts=counts,
            variance=jnp.square(std),
        )

    def fill(self, table: Table, released: Array, std: Array, size: float) -> Table:
        """Take the released counts of the narrower bounds; levels have been counted twice."""
        counts, variance = released * math.sqrt(self.number), jnp.square(std) * self.number
        both = (counts * table.variance + table.counts * variance) / (table.variance + variance + 1e-20)
        counts = jnp.where(self._apart[:, None], both, counts)
        first, last = self._certain(counts, jnp.sqrt(variance))
        place = jnp.arange(self.most)
        near = (place >= first[:, None] - 1) & (place <= last[:, None])
        inside = jnp.asarray(self._inside) & (near | self._apart[:, None])
        counts = jax.vmap(_on_simplex, (0, 0, None))(counts, inside, size)
        return table._replace(counts=counts, cumulative=_cumulative(counts + 1e-6 * size * inside))

    def _certain(self, counts: Array, std: Array) -> tuple[Array, Array]:
        """Return the first bin that holds something for certain, and the one after the last; all bins if none does."""
        certain = jnp.where((counts > CERTAIN * std) & self._inside, counts, 0) + 1e-6 * self._inside
        cumulative = _cumulative(certain)
        return jnp.sum(cumulative[:, 1:] <= 0.001, 1), jnp.sum(cumulative[:, 1:] < 0.999, 1) + 1

    def scores(self, table: Table, values: Array) -> Array:
        """Return the normal scores of a vector of columns."""
        position = self._position(table, values)
        position = jnp.where(self._apart, jnp.floor(position) + 0.5, position)
        bin_of = jnp.floor(position).astype(jnp.int32)[:, None]
        below, above = (jnp.take_along_axis(table.cumulative, bin_of + more, 1)[:, 0] for more in (0, 1))
        share = below + (position - bin_of[:, 0]) * (above - below)
        return jnp.clip(ndtri(jnp.clip(share, 1e-3, 1 - 1e-3)), -FURTHEST, FURTHEST)

    def products(self, table: Table, record: Record) -> Array:
        """Return the products of a record's scores, in the coordinates of the basis, with norm 1 at most."""
        scores = table.basis @ self.scores(table, self.values(record))
        bound = REACH * self.number
        return jnp.outer(scores, scores) / jnp.maximum(bound, scores @ scores)

    def correlate(self, table: Table, released: Array, std: Array, size: float, whiten: bool) -> Table:
        """Take released products as moments; ``whiten`` where others will be asked for in better coordinates."""
        bound = REACH * self.number / size
        moments, moments_std = bound * (released + released.T) / 2, bound * std
        if not whiten:
            return table._replace(moments=moments, moments_std=moments_std)
        values, vectors = jnp.linalg.eigh(moments)
        raised = jnp.maximum(values, moments_std * math.sqrt(self.number))
        return table._replace(basis=(vectors / jnp.sqrt(raised)).T @ table.basis)

    def draw(self, table: Table, key: Key, count: int, wobble: Array) -> dict[str, Array]:
        """Make up the columns of records; ``wobble`` is 1 for a draw of the moments, 0 for what they are believed."""
        of_moments, of_scores = jax.random.split(key)
        noise = wobble * table.moments_std * jax.random.normal(of_moments, table.moments.shape)
        moments = table.moments + (noise + noise.T) / 2
        floor = 0.5 * table.moments_std * math.sqrt(self.number) + 1e-4
        inverse = jnp.linalg.inv(table.basis)
        correlations = _unit(inverse @ _at_least(moments, floor) @ inverse.T)
        kept = self._kept(table)
        latent = jnp.clip(correlations / kept / kept[:, None], -0.98, 0.98)
        latent = _unit(_at_least(jnp.where(jnp.eye(self.number) > 0, 1.0, latent), 0.02))
        scores = jax.random.normal(of_scores, (count, self.number)) @ jnp.linalg.cholesky(latent).T
        return self.records(jax.vmap(lambda one: self._invert(table, one))(scores))

    def _kept(self, table: Table) -> Array:
        """Return the correlation of each column's scores with the normal variable behind them."""
        grid = ndtri((jnp.arange(GRID) + 0.5) / GRID)
        scores = jax.vmap(lambda z: self.scores(table, self._invert(table, jnp.full(self.number, z))))(grid)
        centred = scores - jnp.mean(scores, 0)
        return (grid @ centred) / (jnp.linalg.norm(grid) * jnp.linalg.norm(centred, axis=0) + 1e-6) + 1e-3

    def _invert(self, table: Table, scores: Array) -> Array:
        share = ndtr(scores)
        bin_of = jnp.sum(table.cumulative[:, 1:] <= share[:, None], 1)
        bin_of = jnp.minimum(bin_of, self._bins - 1)[:, None]
        below, above = (jnp.take_along_axis(table.cumulative, bin_of + more, 1)[:, 0] for more in (0, 1))
        within = jnp.where(self._apart, 0.5, jnp.clip((share - below) / (above - below + 1e-12), 0, 1))
        values = table.low + (bin_of[:, 0] + within) / self._bins * (table.high - table.low)
        return jnp.where(self._whole, jnp.round(values), values)

    def _position(self, table: Table, values: Array) -> Array:
        """Return where values are among the bins of their columns; what is outside is in the first or last."""
        share = (values - table.low) / (table.high - table.low) * self._bins
        return jnp.clip(share, 0, self._bins - 1e-3)


def _cumulative(counts: Array) -> Array:
    total = jnp.cumsum(counts, 1)
    return jnp.concatenate([jnp.zeros((len(counts), 1)), total / total[:, -1:]], 1)


def _on_simplex(counts: Array, inside: Array, total: Any) -> Array:
    """Return the nearest counts that are not negative and have the right sum."""
    ordered = -jnp.sort(-jnp.where(inside, counts, -jnp.inf))
    excess = (jnp.cumsum(jnp.where(jnp.isfinite(ordered), ordered, 0)) - total) / jnp.arange(1, len(counts) + 1)
    number = jnp.sum(ordered > excess)
    return jnp.where(inside, jnp.maximum(counts - excess[number - 1], 0), 0)


def _at_least(matrix: Array, floor: Any) -> Array:
    values, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * jnp.maximum(values, floor)) @ vectors.T


def _unit(matrix: Array) -> Array:
    std = jnp.sqrt(jnp.diag(matrix))
    return matrix / std / std[:, None]


def made_up(placeholder: Record, columns: PyTree, count: int) -> PyTree:
    """Return the placeholder so many times, with other columns in it.

    Privacy: public.
    """
    rows = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], count, 0), placeholder)
    return {**rows, **columns}
