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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.facts.schema import Schema
from tacit.methods.arguments import check_positive
from tacit.methods.cuts import Cut, cut, declared
from tacit.methods.hamiltonian import KEPT, draws_given
from tacit.methods.marginal_tables import Layout, Names, cells, drawn_codes, eliminate, feasible, maximal
from tacit.methods.running import Running, blend, start, uniform_average
from tacit.types import Array, Key, Method, MethodFor, Model, Plan, PyTree, Record, Release, Suggestions


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
    order, length = feasible(asked, sizes)
    tables = _Tables(columns, asked, order, length, prior_std)

    def build(plan: Plan) -> Method:
        return Method(
            tables.init,
            tables.contribute,
            tables.update,
            tables.draw,
            requirements=(declared(schema, columns),),
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
        self.layout = Layout.of(asked, self.sizes)
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
        number, statistics, noise = self.layout.statistics(tables.statistics, tables.noise_std)
        return MarginalsState(tables, draws_given(self.mean, self.prior, number, statistics, noise, 1 + sampling, key))

    def draw(self, state: MarginalsState, key: Key) -> dict[str, Array]:
        return self.layout.named(state.draws[jax.random.randint(key, (), 0, KEPT)])

    def log_normaliser(self, theta: Array) -> Array:
        return eliminate(self.layout.potentials(theta), self.order)[0]

    def synthesize(self, draw: dict[str, Array], number: int, key: Key) -> dict[str, Any]:
        codes = jax.jit(self.forward, static_argnums=1)(draw, number, key)
        return {
            name: column.decoded(np.asarray(codes[name]), jax.random.fold_in(key, place))
            for place, (name, column) in enumerate(self.columns.items())
        }

    def forward(self, draw: dict[str, Array], number: int, key: Key) -> dict[str, Array]:
        _, conditionals = eliminate(self.layout.potentials(self.layout.vector(draw)), self.order)
        return drawn_codes(conditionals, number, key)
