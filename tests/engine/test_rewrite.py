"""Contributions computed in a cheaper way are the same contributions, through the wall too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.accounting.mechanism import Mechanism
from tacit.engine import rewrite
from tacit.engine.memory import sum_over
from tacit.engine.step import Step
from tacit.types import Method, is_sparse
from tacit.wall import trace
from tacit.wall.data import PrivateData

pytestmark = pytest.mark.usefixtures("quick_compiler")
KEY = jax.random.key(0)


def both(contribution: Callable[..., Any], weights: Any, record: Any) -> tuple[list[Any], list[Any]]:
    """Return the leaves of a contribution as it is and as rewritten, compiled."""
    given = lambda state, record, key, record_key: contribution(state, record)  # noqa: E731
    plain = jax.jit(given)(weights, record, KEY, None)
    cheaper = jax.jit(rewrite.rewritten(given))(weights, record, KEY, None)
    return jax.tree.leaves(plain), jax.tree.leaves(cheaper, is_leaf=is_sparse)


def close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * max(np.abs(one).max(), 1e-30))


# --- convolutions -------------------------------------------------------------------------------------------

CONVOLUTIONS = {
    "plain": (2, {}),
    "strided and padded": (2, {"stride": 2, "padding": 3}),
    "uneven": (2, {"kernel_size": (2, 5), "stride": (3, 1), "padding": ((0, 2), (1, 0))}),
    "dilated": (2, {"dilation": 2}),
    "one axis": (1, {"stride": 2}),
    "three axes": (3, {}),
}


def convolutional(axes: int, **facts: Any) -> tuple[Any, Callable[..., Any]]:
    layer = eqx.nn.Conv(axes, 3, 5, **{"kernel_size": 3, "key": KEY} | facts)
    arrays, static = eqx.partition(layer, eqx.is_array)
    return arrays, jax.grad(lambda w, x: jnp.sum(jnp.sin(eqx.combine(w, static)(x))))


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_the_gradient_of_a_convolution_is_a_matrix_product(kind: str) -> None:
    axes, facts = CONVOLUTIONS[kind]
    weights, gradient = convolutional(axes, **facts)
    record = jax.random.normal(KEY, (3, *(11, 9, 8)[:axes]))
    for one, other in zip(*both(gradient, weights, record), strict=True):
        assert one.shape == other.shape
        close(one, other)
    cheaper = rewrite.rewritten(lambda state, record, key, record_key: gradient(state, record))
    equations = trace.flat(cheaper, weights, record, KEY, None).eqns
    # The convolution with the weights stays, with its features last; that of two arrays of the record's own is gone.
    (left,) = [equation for equation in equations if equation.primitive.name == "conv_general_dilated"]
    assert left.params["dimension_numbers"].lhs_spec == (0, axes + 1, *range(1, axes + 1))
    assert "dot_general" in [equation.primitive.name for equation in equations]


def test_what_has_the_state_on_a_side_stays_a_convolution() -> None:
    weights, gradient = convolutional(2)
    turned = jax.grad(lambda x, w: jnp.sum(jnp.sin(gradient(w, x).weight)))
    cheaper = rewrite.rewritten(lambda state, record, key, record_key: state + 0 * turned(state, weights).sum())
    names = [equation.primitive.name for equation in trace.flat(cheaper, jnp.ones((3, 8, 8)), 1.0, KEY, None).eqns]
    assert "conv_general_dilated" in names
    assert "dot_general" not in names


def test_groups_and_large_kernels_are_left_alone() -> None:
    layer = eqx.nn.Conv2d(4, 4, 3, groups=4, key=KEY)
    arrays, static = eqx.partition(layer, eqx.is_array)
    gradient = jax.grad(lambda w, x: jnp.sum(jnp.sin(eqx.combine(w, static)(x))))
    for one, other in zip(*both(gradient, arrays, jax.random.normal(KEY, (4, 9, 9))), strict=True):
        np.testing.assert_array_equal(one, other)
    weights, gradient = convolutional(2, kernel_size=12)
    for one, other in zip(*both(gradient, weights, jax.random.normal(KEY, (3, 14, 14))), strict=True):
        np.testing.assert_array_equal(one, other)


# --- tables -------------------------------------------------------------------------------------------------

WORDS, WIDTH = 1000, 8
TABLE = jax.random.normal(KEY, (WORDS, WIDTH))
EMBEDDING = eqx.nn.Embedding(WORDS, WIDTH, key=KEY)
LOOKUPS: dict[str, Callable[[Any, Any], Any]] = {
    "brackets": lambda table, words: table[words],
    "a place each": lambda table, words: jax.vmap(lambda word: table[word])(words),
    "take": lambda table, words: jnp.take(table, words, axis=0),
    "equinox": lambda table, words: jax.vmap(eqx.tree_at(lambda e: e.weight, EMBEDDING, table))(words),
    "one word": lambda table, words: table[words[0]][None],
    "on two axes": lambda table, words: table[words.reshape(2, -1)],
    "cast": lambda table, words: table[words.astype(jnp.int16)],
    "compiled": lambda table, words: jax.jit(lambda: table[words])(),
}
LISTS = {
    "apart": [3, 999, 0, 512],
    "repeated": [7, 7, 3, 7],
    "from the end": [-1, -1000, 999, 0],
    "outside": [5, 1000, -1001, 5],
}


@pytest.mark.parametrize("words", LISTS)
@pytest.mark.parametrize("lookup", LOOKUPS)
def test_the_gradient_of_a_table_is_kept_as_lines(lookup: str, words: str) -> None:
    def gradient(table: Any, words: Any) -> Any:
        return jax.grad(lambda table: jnp.sum(jnp.sin(jnp.cumsum(LOOKUPS[lookup](table, words), 0))))(table)

    (one,), (other,) = both(gradient, TABLE, jnp.asarray(LISTS[words]))
    assert is_sparse(other)
    assert other.values.shape[0] <= 4
    if not np.all(np.isfinite(one)):  # the forward pass gives NaN for a word that is not there
        assert not np.all(np.isfinite(other.values))
        return
    # The wall takes the first of several lines with the same index.
    first = np.asarray([i == list(other.index).index(index) for i, index in enumerate(other.index)])
    close(one, type(other)(other.index[first], other.values[first], other.count).dense())


def parts_of_a_column(words: Any) -> Any:
    """Add as many ones as the table is wide, below one another, from each of the words on."""
    numbers = jax.lax.ScatterDimensionNumbers((1,), (1,), (0,))
    return jax.lax.scatter_add(jnp.zeros((WORDS, WIDTH)), words[:, None], jnp.ones((len(words), WIDTH)), numbers)


def test_other_tables_stay_whole() -> None:
    words = jnp.arange(4)
    cases: dict[str, Callable[..., Any]] = {
        "small": lambda table, words: jax.grad(lambda t: jnp.sum(jnp.sin(t[words])))(table[:50]),
        "many words": lambda table, words: jax.grad(lambda t: jnp.sum(jnp.sin(t[jnp.tile(words, 200)])))(table),
        "used twice": lambda table, words: jax.grad(lambda t: jnp.sum(jnp.sin(t[words])) + jnp.sum(t**2))(table),
        "columns": lambda table, words: jax.grad(lambda t: jnp.sum(jnp.sin(t[:, words])))(table),
        "parts of lines": lambda table, words: jax.grad(lambda t: jnp.sum(jnp.sin(t[words, :3])))(table),
        "not zero before": lambda table, words: table.at[words].add(1.0),
        "set": lambda table, words: jnp.zeros_like(table).at[words].set(1.0),
        "parts of a column": lambda table, words: parts_of_a_column(words),
    }
    for name, contribution in cases.items():
        (one,), (other,) = both(contribution, TABLE, words)
        assert not is_sparse(other), name
        np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=name)


def test_a_table_of_one_column_with_single_cells() -> None:
    cell = lambda table, words: jnp.zeros((5000, 1)).at[words[0], 0].add(1.0)  # noqa: E731
    (one,), (other,) = both(cell, TABLE, jnp.arange(4))
    np.testing.assert_array_equal(one, other.dense() if is_sparse(other) else other)


# --- through the wall ---------------------------------------------------------------------------------------


class Reader(eqx.Module):
    """An embedding, a convolution over the words, two dense layers: one leaf of every kind."""

    embedding: eqx.nn.Embedding
    convolution: eqx.nn.Conv1d
    hidden: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self) -> None:
        keys = jax.random.split(KEY, 4)
        self.embedding = eqx.nn.Embedding(600, 8, key=keys[0])
        self.convolution = eqx.nn.Conv1d(8, 32, 3, key=keys[1])
        self.hidden = eqx.nn.Linear(32 * 4, 64, key=keys[2])
        self.out = eqx.nn.Linear(64, 3, key=keys[3])

    def __call__(self, words: Any) -> Any:
        seen = jax.nn.relu(self.convolution(jax.vmap(self.embedding)(words).T))
        return self.out(jax.nn.relu(self.hidden(seen.ravel())))


def reader() -> Method:
    arrays, static = eqx.partition(Reader(), eqx.is_array)

    def contribute(state: Any, record: Any, key: Any) -> Any:
        def loss(w: Any) -> Any:
            return -jax.nn.log_softmax(eqx.combine(w, static)(record["words"]))[record["y"]]

        return jax.grad(loss)(state)

    return Method(lambda key: arrays, contribute, lambda state, release, key: state, lambda state, key: {})


def records(count: int) -> dict[str, Any]:
    # Some words occur twice in a record, and many in several records.
    return {
        "words": np.asarray(jax.random.randint(jax.random.key(1), (count, 6), 0, 40), np.int32),
        "y": np.asarray(jax.random.randint(jax.random.key(2), (count,), 0, 3), np.int32),
    }


def sums(step: Step, given: Any) -> Any:
    count = len(given["y"])
    subset = np.minimum(np.arange(math.ceil(count / step.sizes.chunk) * step.sizes.chunk, dtype=np.int32), count)
    state = step.method.init(KEY)
    program = jax.jit(lambda given, subset: sum_over(step, state, given, subset[None], jnp.int32(0), KEY))
    return program(given, subset)


@pytest.mark.parametrize("clip", [0.3, 1e3])
def test_every_kind_of_leaf_in_one_step(clip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    given = records(40)
    mechanism = Mechanism(rate=0.5, clip=clip, noise_multiplier=1.0, steps=10)

    def step() -> Step:
        return Step(reader(), PrivateData(given, size=40), mechanism, reader().init(KEY))

    cheap = step()
    assert [leaf.count for leaf in cheap.contributions.sparse] == [600]
    assert cheap.contributions.factoring is not None
    assert (64, 128) in cheap.contributions.factoring.pairs
    found = cheap.release(sums(cheap, given)).total
    monkeypatch.setattr(rewrite, "rewritten", lambda contribution: contribution)
    monkeypatch.setattr("tacit.engine.outer.find", lambda *arguments, single_column: [None] * 7)
    whole = step()
    assert not whole.contributions.sparse
    assert whole.contributions.factoring is None
    wanted = whole.release(sums(whole, given)).total
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        # Both are within half a unit a record and within the few thousandths of the clip that they are drawn in.
        np.testing.assert_allclose(one, other, rtol=0.01, atol=40 * clip / cheap.radius)


def exact(totals: list[Any]) -> np.ndarray:
    return np.concatenate(
        [
            np.asarray(0 if total.high is None else total.high, np.int64) * 2**16 + np.asarray(total.low, np.int64)
            for total in totals
        ]
    )


def test_no_neighbour_is_further_away_than_the_radius() -> None:
    given = records(40)
    mechanism = Mechanism(rate=0.5, clip=0.05, noise_multiplier=1.0, steps=10)
    step = Step(reader(), PrivateData(given, size=40), mechanism, reader().init(KEY))
    whole = exact(sums(step, given))
    lengths = []
    for out in (0, 17, 39):
        fewer = jax.tree.map(lambda leaf, out=out: np.delete(leaf, out, 0), given)
        smaller = Step(reader(), PrivateData(fewer, size=40), mechanism, reader().init(KEY))
        lengths.append(math.sqrt(float(np.sum((whole - exact(sums(smaller, fewer))).astype(object) ** 2))))
    assert max(lengths) <= step.radius
    assert min(lengths) > 0.9 * step.radius  # the clip is small, so that all records are cut down to it
