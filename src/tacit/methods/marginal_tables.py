"""Tables of marginals: which are asked for, where parameters and cells stand in one vector, sums over all columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from tacit.methods.cuts import Cut, check_known
from tacit.types import Array, Key, Record

Names = tuple[str, ...]
CELLS, NUMBERS = 1 << 16, 1 << 26
"""The largest table that exact computations may need, and the largest with derivatives by all parameters."""


def maximal(queries: Iterable[Sequence[str]], columns: Mapping[str, Cut]) -> list[Names]:
    """Return marginals in the order of the schema, without those that others hold; every column is in one.

    Privacy: public.
    """
    place = {name: number for number, name in enumerate(columns)}
    sets = {frozenset([query] if isinstance(query, str) else query) for query in queries}
    check_known(frozenset().union(*sets), columns)
    sets |= {frozenset([name]) for name in columns}
    kept = [one for one in sets if one and not any(one < other for other in sets)]
    ordered = [tuple(sorted(one, key=place.__getitem__)) for one in kept]
    return sorted(ordered, key=lambda query: [place[name] for name in query])


def cells(columns: Mapping[str, Cut], queries: Sequence[Names], record: Record) -> dict[str, Array]:
    """Return a record's tables: 1 in its cell of every marginal, 0 elsewhere.

    Privacy: of one record, for the wall.
    """
    ones = {name: jax.nn.one_hot(column.code(record[name]), column.size) for name, column in columns.items()}
    tables = {}
    for query in queries:
        table = jnp.ones(())
        for name in query:
            table = table[..., None] * ones[name]
        tables[":".join(query)] = table
    return tables


def feasible(asked: Sequence[Names], sizes: Mapping[str, int]) -> tuple[Names, int]:
    """Return the order of elimination and the number of parameters, or say that exact computations need too much.

    Privacy: public.
    """
    order, largest = elimination(asked, sizes)
    sets = {one for query in asked for one in subsets(query)}
    length = sum(math.prod(sizes[name] - 1 for name in one) for one in sets)
    if largest > CELLS or largest * length > NUMBERS:
        raise ValueError(
            f"Exact computations with these {len(asked)} marginals need a table of {largest} cells for {length} "
            f"parameters; {CELLS} cells are feasible, and {NUMBERS} for cells times parameters. Ask for fewer pairs "
            "(tacit.run.pairs.choose_pairs finds which matter), or cut numbers into fewer bins."
        )
    return order, length


def elimination(queries: Sequence[Names], sizes: Mapping[str, int]) -> tuple[Names, int]:
    """Return an order in which columns can be eliminated one by one, and the cells of the largest table on the way.

    Privacy: public.
    """
    cliques = [frozenset(query) for query in queries]
    order: list[str] = []
    largest = 1
    while len(order) < len(sizes):
        joined = {
            name: frozenset([name]).union(*(clique for clique in cliques if name in clique))
            for name in sizes
            if name not in order
        }
        name = min(joined, key=lambda name: (math.prod(sizes[other] for other in joined[name]), name))
        largest = max(largest, math.prod(sizes[other] for other in joined[name]))
        cliques = [clique for clique in cliques if name not in clique] + [joined[name] - {name}]
        order.append(name)
    return tuple(order), largest


def _contrasts(size: int) -> Any:
    """Return an orthonormal basis of what sums to 0 over so many levels: Helmert's."""
    lines = np.zeros((size, size - 1))
    for j in range(1, size):
        lines[:j, j - 1], lines[j, j - 1] = 1, -j
        lines[:, j - 1] /= math.sqrt(j * (j + 1))
    return lines


class Layout(NamedTuple):
    """Where each set of columns has its parameters in one vector, and each marginal its cells in one vector.

    The basis is a matrix, cells times parameters: in a marginal's cells stand, for each set of columns within it,
    contrasts of these, the same for all levels of the others. ``own`` is the same with zeros in all marginals but the
    first that holds a set, so that effects are counted once. ``summed`` says, in the places of ``basis`` by marginal
    and parameter, over how many cells of other columns contrasts are summed: 0 where a marginal does not hold the set.
    """

    shapes: dict[Names, tuple[int, ...]]
    places: dict[Names, Any]
    orders: Any
    queries: dict[Names, tuple[int, ...]]
    cells: dict[Names, Any]
    basis: Any
    matrix: Any
    summed: Any

    @classmethod
    def of(cls, queries: Sequence[Names], sizes: Mapping[str, int]) -> Layout:
        """Return the layout of the marginals that are asked for, and of all below them."""
        sets = sorted(dict.fromkeys(one for query in queries for one in subsets(query)), key=len)
        shapes = {one: tuple(sizes[name] - 1 for name in one) for one in sets}
        places = _ranges(shapes)
        orders = np.concatenate([np.full(len(places[one]), len(one)) for one in sets])
        asked = {query: tuple(sizes[name] for name in query) for query in queries}
        where = _ranges(asked)
        basis = np.zeros((sum(map(len, where.values())), len(orders)), np.float32)
        matrix, summed = basis.copy(), np.zeros((len(queries), len(orders)), np.float32)
        seen: set[Names] = set()
        for line, query in enumerate(queries):
            for one in subsets(query):
                block = np.ones((1, 1))
                for name in query:
                    block = np.kron(block, _contrasts(sizes[name]) if name in one else np.ones((sizes[name], 1)))
                basis[np.ix_(where[query], places[one])] = block
                matrix[np.ix_(where[query], places[one])] = block if one not in seen else 0
                summed[line, places[one]] = math.prod(sizes[name] for name in query if name not in one)
                seen.add(one)
        return cls(shapes, places, orders, asked, where, basis, matrix, summed)

    def named(self, vector: Array) -> dict[str, Array]:
        """Return the part of each marginal, by its name."""
        return {":".join(one): vector[place].reshape(self.shapes[one]) for one, place in self.places.items()}

    def vector(self, named: Mapping[str, Array]) -> Array:
        """Join the parts of all marginals."""
        return jnp.concatenate([jnp.ravel(named[":".join(one)]) for one in self.shapes])

    def potentials(self, vector: Array) -> list[tuple[Names, Array]]:
        """Return the log potentials of every marginal's table."""
        whole = self.matrix @ vector
        return [
            (query, whole[self.cells[query][0] : self.cells[query][-1] + 1].reshape(shape))
            for query, shape in self.queries.items()
        ]

    def statistics(self, tables: Mapping[str, Array], noise_std: Mapping[str, Array]) -> tuple[Array, Array, Array]:
        """Return the number of records and the sums of contrasts by least squares, and the variances of their noise.

        The basis is orthogonal, so that its noise is independent: contrasts of some columns, summed over the others,
        are known from each table that holds them, the better the fewer cells it sums over.
        """
        names = [":".join(query) for query in self.queries]
        # Without any noise (in tests) all tables agree.
        variance = jnp.maximum(jnp.stack([noise_std[name] for name in names]) ** 2, 1e-6)
        cells = np.array([len(cells) for cells in self.cells.values()])
        weight = 1 / (variance * cells)
        total = jnp.stack([jnp.sum(tables[name]) for name in names])
        weights = jnp.where(self.summed > 0, 1 / (variance[:, None] * np.maximum(self.summed, 1)), 0)
        each = jnp.repeat(weights, cells, axis=0, total_repeat_length=cells.sum())
        sums = jnp.concatenate([jnp.ravel(tables[name]) for name in names]) @ (self.basis * each)
        noise = jnp.append(1 / jnp.sum(weight), 1 / jnp.sum(weights, 0))
        return weight @ total / jnp.sum(weight), sums * noise[1:], noise


def _ranges(shapes: Mapping[Names, tuple[int, ...]]) -> dict[Names, Any]:
    """Lay out arrays of these shapes in one vector: the places of each."""
    starts = np.cumsum([0, *(math.prod(shape) for shape in shapes.values())])
    return {one: np.arange(*ends) for one, ends in zip(shapes, itertools.pairwise(starts), strict=True)}


def subsets(query: Names) -> list[Names]:
    """Return all sets of columns of a marginal but the empty one."""
    return [one for number in range(len(query)) for one in itertools.combinations(query, number + 1)]


def eliminate(factors: Sequence[tuple[Names, Array]], order: Names) -> tuple[Array, list[tuple[Names, str, Array]]]:
    """Sum over all columns, one after another; also return each column's table, by the columns that it depends on."""
    left = list(factors)
    conditionals = []
    total = jnp.float32(0)
    for name in order:
        mine = [factor for factor in left if name in factor[0]]
        left = [factor for factor in left if name not in factor[0]]
        given = tuple(other for other in reversed(order) if other != name and any(other in names for names, _ in mine))
        names = (*given, name)
        table = sum((_spread(factor, names) for factor in mine), jnp.float32(0))
        conditionals.append((given, name, table))
        rest = logsumexp(table, -1)
        if given:
            left.append((given, rest))
        else:
            total = total + rest
    return total, conditionals


def _spread(factor: tuple[Names, Array], names: Names) -> Array:
    """Return a factor's table with the axes of these names, those that it lacks of length 1."""
    of_table, table = factor
    axes = [of_table.index(name) for name in names if name in of_table]
    return jnp.transpose(table, axes).reshape(
        [table.shape[of_table.index(name)] if name in of_table else 1 for name in names]
    )


def drawn_codes(conditionals: Sequence[tuple[Names, str, Array]], number: int, key: Key) -> dict[str, Array]:
    """Draw columns in the reverse of the order in which they were eliminated."""
    codes: dict[str, Array] = {}
    for place, (given, name, table) in enumerate(reversed(conditionals)):
        logits = (
            table[tuple(codes[other] for other in given)] if given else jnp.broadcast_to(table, (number, table.size))
        )
        codes[name] = jax.random.categorical(jax.random.fold_in(key, place), logits)
    return codes
