"""The model of marginals: exact sums, least squares, a calibrated posterior, and records made from it."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import tacit
from tacit.methods import marginal_tables as module
from tacit.methods.cuts import cut
from tacit.types import Plan, Release

KEY = jax.random.key(0)
SCHEMA = tacit.Schema(
    {"a": {"levels": ["x", "y"]}, "b": {"levels": [1, 2, 3]}, "c": {"low": 0, "high": 1}, "d": {"levels": ["u", "v"]}}
)
BINS = {"c": 2}
QUERIES = [("a", "b", "c"), ("c", "d")]
# The page docs/synthetic.md and a row of tests/test_every_method.py run in every submission.
pytestmark = pytest.mark.slow


def parts(queries: Any = QUERIES) -> tuple[Any, Any, Any]:
    columns = cut(SCHEMA, BINS)
    sizes = {name: column.size for name, column in columns.items()}
    asked = module.maximal(queries, columns)
    return module.Layout.of(asked, sizes), module.elimination(asked, sizes), sizes


def joint(layout: Any, theta: Any, sizes: dict[str, int]) -> np.ndarray:
    """Write out the log potential of every kind of record."""
    whole = np.zeros(tuple(sizes.values()))
    names = list(sizes)
    for query, table in layout.potentials(theta):
        shape = [sizes[name] if name in query else 1 for name in names]
        whole = whole + np.asarray(table, np.float64).reshape(shape)
    return whole


@pytest.mark.parametrize("queries", [QUERIES, list(itertools.combinations("abcd", 2)), [("a", "d")], []])
def test_elimination_sums_over_all_kinds_of_records(queries: Any) -> None:
    layout, (order, _), sizes = parts(queries)
    theta = jax.random.normal(KEY, layout.orders.shape)
    log_normaliser = lambda theta: module.eliminate(layout.potentials(theta), order)[0]  # noqa: E731
    whole = joint(layout, theta, sizes)
    value, mean = jax.jit(jax.value_and_grad(log_normaliser))(theta)
    assert float(value) == pytest.approx(float(jax.scipy.special.logsumexp(jnp.asarray(whole))), abs=1e-4)
    # The derivative is the mean of the contrasts: those of expected tables.
    chances = np.exp(whole - whole.max())
    chances /= chances.sum()
    names = list(sizes)
    tables = {
        ":".join(query): chances.sum(tuple(i for i, name in enumerate(names) if name not in query))
        for query in layout.queries
    }
    number, statistics, _ = jax.jit(layout.statistics)(tables, {name: jnp.float32(1) for name in tables})
    assert float(number) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(statistics, mean, atol=1e-5)


def test_statistics_are_least_squares() -> None:
    layout, _, _ = parts([("a", "b"), ("a", "c"), ("b", "c"), ("d",)])
    generator = np.random.default_rng(1)
    tables = {":".join(query): generator.normal(size=shape) for query, shape in layout.queries.items()}
    stds = {name: 1.0 + place for place, name in enumerate(tables)}
    number, statistics, noise = jax.jit(layout.statistics)(tables, stds)
    # A table is its basis times what is summed, over the squared lengths of the basis; n's basis is 1 / cells.
    blocks, values, scales = [], [], []
    for line, (query, shape) in enumerate(layout.queries.items()):
        cells = np.prod(shape)
        summed = layout.summed[line]
        basis = layout.basis[layout.cells[query]] / np.maximum(summed, 1)
        blocks.append(np.concatenate([np.full((cells, 1), 1 / cells), basis], 1))
        values.append(tables[":".join(query)].ravel())
        scales.append(np.full(cells, stds[":".join(query)]))
    scale = np.concatenate(scales)
    design, value = np.concatenate(blocks) / scale[:, None], np.concatenate(values) / scale
    found, *_ = np.linalg.lstsq(design, value, rcond=None)
    np.testing.assert_allclose(np.append(number, statistics), found, atol=1e-4)
    np.testing.assert_allclose(noise, np.diag(np.linalg.inv(design.T @ design)), rtol=1e-3)


def test_a_chain_of_pairs_needs_small_tables_only() -> None:
    sizes = dict.fromkeys("abcdefgh", 4)
    chain = [tuple(pair) for pair in itertools.pairwise(sizes)]
    assert module.elimination(chain, sizes)[1] == 16
    assert module.elimination(list(itertools.combinations(sizes, 2)), sizes)[1] == 4**8


def test_the_posterior_covers() -> None:
    """360 intervals of nominal 90%, correlated within 40 data sets: outside 0.84 to 0.96 is a false alarm in 1000."""
    schema = tacit.Schema({name: {"levels": [0, 1, 2] if name == "b" else [0, 1]} for name in "abc"})
    method = tacit.marginals(schema, prior_std=1.0)(Plan(schema.placeholder()))
    sizes = {"a": 2, "b": 3, "c": 2}
    layout = module.Layout.of(module.maximal(itertools.combinations("abc", 2), cut(schema)), sizes)
    runs, number, noise = 40, 500, 12.0
    prior = 1.0 * 2.0 ** -(layout.orders - 1.0)

    def one(key: Any) -> tuple[Any, Any]:
        """Draw parameters from the prior, records from them, noisy tables, and the posterior."""
        keys = jax.random.split(key, 4)
        theta = prior * jax.random.normal(keys[0], layout.orders.shape)
        potentials = layout.potentials(theta)
        whole = sum(module._spread(factor, ("a", "b", "c")) for factor in potentials)
        cell = jax.random.categorical(keys[1], whole.ravel(), shape=(number,))
        table = jnp.zeros(whole.size).at[cell].add(1).reshape(whole.shape)
        clean = {"a:b": table.sum(2), "a:c": table.sum(1), "b:c": table.sum(0)}
        names = dict(zip(clean, jax.random.split(keys[2], 3), strict=True))
        noisy = {name: t + noise * jax.random.normal(names[name], t.shape) for name, t in clean.items()}
        release = Release(noisy, {name: jnp.float32(noise) for name in noisy}, jnp.float32(1), noisy)
        return theta, method.update(method.init(KEY), release, keys[3]).draws

    theta, draws = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(5), runs))
    low, high = np.quantile(draws, (0.05, 0.95), axis=1)
    inside = (low < theta) & (theta < high)
    assert inside.size == 360
    assert 0.84 < inside.mean() < 0.96
    # And they learned something: much narrower than the prior for what many records tell.
    assert np.mean((high - low)[:, layout.orders == 1]) < 0.5 * 2 * 1.645


def test_made_up_records_follow_the_model_and_the_schema() -> None:
    """Chi-squared with 23 degrees of freedom: a false alarm in a thousand."""
    layout, _, sizes = parts()
    method = tacit.marginals(SCHEMA, QUERIES, bins=BINS)(Plan(SCHEMA.placeholder()))
    theta = jax.random.normal(KEY, layout.orders.shape)
    table = method.model.synthesize(layout.named(theta), 20000, jax.random.key(1))  # type: ignore[misc]
    assert list(table) == list(SCHEMA.columns)
    assert set(table["a"]) == {"x", "y"}
    assert set(table["b"]) == {1, 2, 3}
    assert table["c"].min() >= 0
    assert table["c"].max() <= 1
    assert len(np.unique(table["c"])) > 1000
    codes = [
        np.searchsorted(["x", "y"], table["a"]),
        table["b"] - 1,
        (table["c"] >= 0.5).astype(int),
        np.searchsorted(["u", "v"], table["d"]),
    ]
    counts = np.zeros(tuple(sizes.values()))
    np.add.at(counts, tuple(codes), 1)
    whole = joint(layout, theta, sizes)
    chances = np.exp(whole - whole.max())
    expected = 20000 * chances / chances.sum()
    assert ((counts - expected) ** 2 / expected).sum() < stats.chi2.ppf(0.999, counts.size - 1)
    tacit.PrivateData(table, SCHEMA)  # is a table that the schema accepts


def test_numbers_are_cut_by_public_edges_and_come_back_whole() -> None:
    schema = tacit.Schema(
        {"age": {"low": 17, "high": 90, "kind": "integer"}, "n": {"low": 0, "high": 2, "kind": "integer"}}
    )
    cuts = cut(schema, {"age": [30, 40]})
    assert [int(code) for code in cuts["age"].code(jnp.array([17, 29, 30, 39, 40, 90]))] == [0, 0, 1, 1, 2, 2]
    assert cuts["n"].size == 3
    for name, codes in (("age", 3), ("n", 3)):
        back = cuts[name].decoded(np.repeat(np.arange(codes), 500), KEY)
        assert (np.asarray(cuts[name].code(jnp.asarray(back))) == np.repeat(np.arange(codes), 500)).all()
        assert back.dtype == np.int64
    assert cuts["age"].decoded(np.full(5000, 2), KEY).max() == 90
    assert set(cuts["n"].decoded(np.arange(3), KEY)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("queries", "bins", "message"),
    [
        ([("a", "z")], None, r"no columns \['z'\]"),
        (None, {"z": 3}, r"no columns \['z'\]"),
        (None, {"a": 3}, "needs no bins"),
        (None, {"c": 1}, "at least 2"),
        (None, {"c": [0.5, 0.2]}, "rising edges"),
        (None, {"c": 10**5}, "tacit.run.pairs.choose_pairs"),
    ],
)
def test_errors_say_what_to_write(queries: Any, bins: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tacit.marginals(SCHEMA, queries, bins=bins)


def test_levels_of_several_types_come_back_as_they_are() -> None:
    schema = tacit.Schema({"a": {"levels": ["one", 2]}, "b": {"levels": [1]}})
    assert cut(schema)["a"].decoded(np.array([0, 1]), KEY).tolist() == ["one", 2]
    with pytest.raises(ValueError, match="colon"):
        tacit.marginals(tacit.Schema({"a:b": {"levels": [0, 1]}}))


def test_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match="a column of its own"):
        tacit.marginals(tacit.Schema({"x": {"low": 0, "high": 1, "shape": [3]}}))
