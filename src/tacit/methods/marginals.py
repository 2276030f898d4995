"""Private marginal tables, and a model of the whole record that fits them as well as the noise allows (NAPSU-MQ).

Räisä, Jälkö, Kaski, Honkela (2023), Noise-aware statistical inference with differentially private synthetic data.

    log p(x | theta) = sum over S of theta_S' a_S(x) - log Z(theta)       S: the columns of each marginal, and fewer
    each record contributes its cell of every marginal: one release of all tables T, noise of variance v in every cell
    t = statistics sum a(x) and number n of records, from T by least squares; their noise V is independent
    t | theta ~ N(n mu, n Sigma + V)        mu, Sigma: mean and covariance of a(x), derivatives of log Z
    theta_S ~ N(0, (prior_std / 2^(|S|-1))^2)       draws by Hamiltonian Monte Carlo, in units of the mode's curvature
    synthetic records: one column after another from p(x | a draw of theta)

The model of maximum entropy with these marginals, so nothing is assumed of the records beyond them. The posterior knows
both that records are a sample and that tables are noisy: without the second, intervals from synthetic data are too
narrow. Z is exact, by elimination of one column after another in a public order.

Where it leaves the paper: a_S are contrasts of levels, orthonormal in each column, so that the prior treats all levels
alike, and least squares has a closed form in which the many tables that hold a column share what they know about it.
The number of records is private, and estimated. Sigma is that at the mode, where the paper computes it in every step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from jax.scipy.special import logsumexp

from tacit.facts.column import Column
from tacit.facts.schema import Schema, levels_of
from tacit.methods.arguments import check_positive
from tacit.methods.running import Running, blend, start, uniform_average
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Requirement, Suggestions

BINS = 8
"""Numbers are cut into so many bins by default."""
CELLS, NUMBERS = 1 << 16, 1 << 26
"""The largest table that exact computations may need, and the largest with derivatives by all parameters."""
CLIMB, WARM, KEPT, LEAPS = 20, 200, 500, 8
"""Newton steps to the mode; transitions of the chain before draws are kept, draws kept, steps of each transition."""

Names = tuple[str, ...]


class MarginalsState(NamedTuple):
    """The averaged tables, and draws of all parameters in one vector each."""

    tables: Running
    draws: Array


def marginals(
    schema: Schema,
    queries: Sequence[Sequence[str]] | None = None,
    *,
    bins: Mapping[str, int | Sequence[float | int]] | None = None,
    prior_std: float = 3.0,
) -> MethodFor:
    """Fit a model of whole records to noisy marginal tables, for synthetic data whose analyses know of the noise.

    Privacy: public. Sees the schema only.

    Parameters
    ----------
    schema
        Of the records. Numbers are cut into bins between their bounds.
    queries
        The marginals: pairs of columns, or more or fewer of them, chosen without reading the records or by
        ``tacit.run.pairs.choose_pairs``; by default all pairs. An analysis of synthetic records is right as far as the
        marginals determine it: a regression needs all pairs of its columns.
    bins
        By column, how many bins of equal width, or their public edges; by default 8, and fewer for few whole numbers.
    prior_std
        Standard deviation of the prior of a column's own effects, on the scale of logarithms of probabilities; with
        every further column that effects are of it is halved.

    Returns
    -------
    MethodFor
        To be handed to ``tacit.fit``; the posterior can ``synthesize``. Draws are named by columns: ``"age:sex"``.

    Examples
    --------
    >>> import jax, numpy as np, tacit
    >>> schema = tacit.Schema({"age": {"low": 20, "high": 80}, "sex": {"levels": ["f", "m"]}}, size=200)
    >>> table = {"age": np.linspace(20, 80, 200), "sex": np.tile(["f", "m"], 100)}
    >>> method = tacit.marginals(schema, bins={"age": 3})
    >>> posterior = tacit.fit(method, tacit.PrivateData(table, schema), tacit.Budget(1.0, 1e-6), progress=False)
    >>> copies = posterior.synthesize(200, copies=20, key=jax.random.key(0))
    >>> sorted(copies[0])
    ['age', 'sex']
    """
    check_positive(prior_std=prior_std)
    columns = cut(schema, bins)
    asked = maximal(itertools.combinations(columns, 2) if queries is None else queries, columns)
    sizes = {name: column.size for name, column in columns.items()}
    order, largest = elimination(asked, sizes)
    sets = {one for query in asked for one in _within(query)}
    length = sum(math.prod(sizes[name] - 1 for name in one) for one in sets)
    if largest > CELLS or largest * length > NUMBERS:
        raise ValueError(
            f"Exact computations with these {len(asked)} marginals need a table of {largest} cells for {length} "
            f"parameters; {CELLS} cells are feasible, and {NUMBERS} for cells times parameters. Ask for fewer pairs "
            "(tacit.run.pairs.choose_pairs finds which matter), or cut numbers into fewer bins."
        )
    tables = _Tables(columns, asked, order, length, prior_std)
    need = Requirement(
        "The records must be sealed with the schema that the marginals are of: tacit.PrivateData(records, schema).",
        lambda record: jnp.all(jnp.array([column.holds(record[name]) for name, column in columns.items()])),
        facts=schema.columns,
    )

    def build(plan: Plan) -> Method:
        return Method(
            tables.init,
            tables.contribute,
            tables.update,
            tables.draw,
            requirements=(need,),
            validated="papers/synthetic",
            suggests=Suggestions(clip=math.sqrt(len(asked)), rate=1.0, steps=1),
            model=Model(synthesize=tables.synthesize),
        )

    return MethodFor(build)


class _Tables:
    """The method's functions, for columns that are cut into cells and the marginals that are asked for."""

    def __init__(self, columns: dict[str, Cut], asked: list[Names], order: Any, length: int, prior_std: float) -> None:
        self.columns, self.asked, self.order, self.length = columns, asked, order, length
        self.sizes = {name: column.size for name, column in columns.items()}
        self.layout = _Layout.of(asked, self.sizes)
        self.prior = jnp.asarray(prior_std**-2 * 4.0 ** (self.layout.orders - 1), jnp.float32)
        self.mean = jax.grad(self.log_normaliser)

    def init(self, key: Key) -> MarginalsState:
        tables = start({":".join(query): jnp.zeros([self.sizes[name] for name in query]) for query in self.asked})
        return MarginalsState(tables, jnp.zeros((KEPT, self.length)))

    def contribute(self, state: MarginalsState, record: Record, key: Key) -> PyTree:
        return cells(self.columns, self.asked, record)

    def update(self, state: MarginalsState, release: Release, key: Key) -> MarginalsState:
        tables = blend(state.tables, release, uniform_average)
        # What subsets add to the spread of a sample, if not all records were asked.
        sampling = (1 - release.rate) / release.rate / tables.step
        return MarginalsState(tables, self._chain(tables, 1 + sampling, key))

    def draw(self, state: MarginalsState, key: Key) -> dict[str, Array]:
        return self.layout.named(state.draws[jax.random.randint(key, (), 0, KEPT)])

    def log_normaliser(self, theta: Array) -> Array:
        return _eliminate(self.layout.potentials(theta), self.order)[0]

    def _chain(self, tables: Running, sampling: Array, key: Key) -> Array:
        """Draw from the posterior of theta, given the tables."""
        number, statistics, noise = self.layout.statistics(tables.statistics, tables.noise_std)
        number = jnp.maximum(number, 1.0)

        def believed(theta: Array) -> tuple[Array, Array, Array]:
            """Return the slope and the curvature at theta, with the precision of the statistics there."""
            mu, sigma = self.mean(theta), jax.jacfwd(self.mean)(theta)
            # An error in the number of records is one in all statistics, in proportion to mu.
            spread = number * sampling * sigma + jnp.diag(noise[1:]) + noise[0] * jnp.outer(mu, mu)
            factor = cho_factor(spread + jnp.eye(self.length) * 1e-3, lower=True)
            along = number * sigma
            slope = along @ cho_solve(factor, statistics - number * mu) - self.prior * theta
            curvature = along @ cho_solve(factor, along) + jnp.diag(self.prior)
            return slope, (curvature + curvature.T) / 2, factor[0]

        def climb(_: Array, found: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            theta, _, _ = found
            slope, curvature, root = believed(theta)
            change = cho_solve(cho_factor(curvature), slope)
            return theta + change * jnp.minimum(1, 2 / (jnp.max(jnp.abs(change)) + 1e-30)), curvature, root

        nothing = jnp.zeros(self.length), jnp.eye(self.length), jnp.eye(self.length)
        mode, curvature, root = jax.lax.fori_loop(0, CLIMB, climb, nothing)
        whiten = solve_triangular(root, jnp.eye(self.length), lower=True)
        axes = solve_triangular(jnp.linalg.cholesky(curvature), jnp.eye(self.length), lower=True)

        def energy(z: Array) -> tuple[Array, Array]:
            """Return minus the log posterior at a place in units of the curvature, and its slope."""
            theta = mode + z @ axes
            mu, differential = jax.linearize(self.mean, theta)
            rest = whiten @ (statistics - number * mu)
            slope = self.prior * theta - number * differential(rest @ whiten)
            return (rest @ rest + theta @ (self.prior * theta)) / 2, axes @ slope

        return mode + hamiltonian(energy, jnp.zeros(self.length), key) @ axes

    def synthesize(self, draw: dict[str, Array], number: int, key: Key) -> dict[str, Any]:
        codes = jax.jit(self.forward, static_argnums=1)(draw, number, key)
        return {
            name: column.decoded(np.asarray(codes[name]), jax.random.fold_in(key, place))
            for place, (name, column) in enumerate(self.columns.items())
        }

    def forward(self, draw: dict[str, Array], number: int, key: Key) -> dict[str, Array]:
        """Draw columns in the reverse of the order in which they were eliminated."""
        _, conditionals = _eliminate(self.layout.potentials(self.layout.vector(draw)), self.order)
        codes: dict[str, Array] = {}
        for place, (given, name, table) in enumerate(reversed(conditionals)):
            logits = (
                table[tuple(codes[other] for other in given)]
                if given
                else jnp.broadcast_to(table, (number, table.size))
            )
            codes[name] = jax.random.categorical(jax.random.fold_in(key, place), logits)
        return codes


def hamiltonian(energy: Callable[[Array], tuple[Array, Array]], z: Array, key: Key) -> Array:
    """Draw from exp(-energy) by Hamiltonian Monte Carlo in coordinates of about unit scale; the step is tuned first."""

    def transition(carry: tuple[Array, Array, Array, Array], step: Array) -> tuple[Any, Array]:
        z, value, slope, size = carry
        key_momentum, key_size, key_accept = jax.random.split(jax.random.fold_in(key, step), 3)
        momentum = jax.random.normal(key_momentum, z.shape)
        stride = size * jax.random.uniform(key_size, minval=0.6, maxval=1.0)

        def leap(_: Array, moving: Any) -> Any:
            z, momentum, _, slope = moving
            momentum = momentum - stride / 2 * slope
            z = z + stride * momentum
            value, slope = energy(z)
            return z, momentum - stride / 2 * slope, value, slope

        end, final, after, slope_after = jax.lax.fori_loop(0, LEAPS, leap, (z, momentum, value, slope))
        change = value + momentum @ momentum / 2 - after - final @ final / 2
        chance = jnp.nan_to_num(jnp.exp(jnp.minimum(change, 0)))
        accepted = jax.random.uniform(key_accept) < chance
        z, value, slope = jax.tree.map(
            lambda new, old: jnp.where(accepted, new, old), (end, after, slope_after), (z, value, slope)
        )
        pace = jnp.where(step < WARM, 2 / jnp.sqrt(step + 10.0), 0)
        size = jnp.clip(size * jnp.exp(pace * (chance - 0.8)), 1e-3, 1.5)
        return (z, value, slope, size), z

    value, slope = energy(z)
    begun = (z, value, slope, jnp.float32(1.6 * len(z) ** -0.25))
    return jax.lax.scan(transition, begun, jnp.arange(WARM + KEPT))[1][WARM:]


def cut(schema: Schema, bins: Mapping[str, int | Sequence[float | int]] | None = None) -> dict[str, Cut]:
    """Return every column of a schema as codes.

    Privacy: public.
    """
    _known(bins or {}, schema.columns)
    odd = [name for name in schema.columns if ":" in name]
    if odd:
        raise ValueError(
            f"The columns {odd} have a colon in their names, which joins those of a marginal. Rename them."
        )
    return {name: _cut(column, (bins or {}).get(name)) for name, column in schema.columns.items()}


def maximal(queries: Iterable[Sequence[str]], columns: Mapping[str, Cut]) -> list[Names]:
    """Return marginals in the order of the schema, without those that others hold; every column is in one.

    Privacy: public.
    """
    place = {name: number for number, name in enumerate(columns)}
    sets = {frozenset([query] if isinstance(query, str) else query) for query in queries}
    _known(frozenset().union(*sets), columns)
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


def _known(names: Iterable[str], columns: Mapping[str, Any]) -> None:
    unknown = sorted(set(names) - set(columns))
    if unknown:
        raise ValueError(f"The schema has no columns {unknown}. Those it has are {list(columns)}.")


def _contrasts(size: int) -> Any:
    """Return an orthonormal basis of what sums to 0 over so many levels: Helmert's."""
    lines = np.zeros((size, size - 1))
    for j in range(1, size):
        lines[:j, j - 1], lines[j, j - 1] = 1, -j
        lines[:, j - 1] /= math.sqrt(j * (j + 1))
    return lines


class _Layout(NamedTuple):
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
    def of(cls, queries: Sequence[Names], sizes: Mapping[str, int]) -> _Layout:
        sets = sorted(dict.fromkeys(one for query in queries for one in _within(query)), key=len)
        shapes = {one: tuple(sizes[name] - 1 for name in one) for one in sets}
        places = _ranges(shapes)
        orders = np.concatenate([np.full(len(places[one]), len(one)) for one in sets])
        asked = {query: tuple(sizes[name] for name in query) for query in queries}
        where = _ranges(asked)
        basis = np.zeros((sum(map(len, where.values())), len(orders)), np.float32)
        matrix, summed = basis.copy(), np.zeros((len(queries), len(orders)), np.float32)
        seen: set[Names] = set()
        for line, query in enumerate(queries):
            for one in _within(query):
                block = np.ones((1, 1))
                for name in query:
                    block = np.kron(block, _contrasts(sizes[name]) if name in one else np.ones((sizes[name], 1)))
                basis[np.ix_(where[query], places[one])] = block
                matrix[np.ix_(where[query], places[one])] = block if one not in seen else 0
                summed[line, places[one]] = math.prod(sizes[name] for name in query if name not in one)
                seen.add(one)
        return cls(shapes, places, orders, asked, where, basis, matrix, summed)

    def named(self, vector: Array) -> dict[str, Array]:
        return {":".join(one): vector[place].reshape(self.shapes[one]) for one, place in self.places.items()}

    def vector(self, named: Mapping[str, Array]) -> Array:
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


def _within(query: Names) -> list[Names]:
    """Return all sets of columns of a marginal but the empty one."""
    return [one for number in range(len(query)) for one in itertools.combinations(query, number + 1)]


def _eliminate(factors: Sequence[tuple[Names, Array]], order: Names) -> tuple[Array, list[tuple[Names, str, Array]]]:
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
