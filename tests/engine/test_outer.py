"""Outer products: what is recognised, what is not, and that taking leaves apart changes no contribution."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.example_libraries import stax

from tacit.accounting.mechanism import Mechanism
from tacit.engine import outer, random
from tacit.engine.memory import program_of, sum_over
from tacit.engine.step import Step
from tacit.types import Method, SparseRows
from tacit.wall.data import PrivateData

KEY = jax.random.key(0)
N, P, Q, R = 6, 90, 100, 70
X = jax.random.normal(KEY, (N, P))
WEIGHTS = {"a": 0.1 * jax.random.normal(KEY, (P, Q)), "b": jnp.ones(Q), "c": 0.1 * jax.random.normal(KEY, (Q, R))}
recognising = pytest.mark.usefixtures("quick_compiler")  # a matter of the trace, not of the compiled code
ACTIVATIONS: list[Callable[[Any], Any]] = [jax.nn.relu, jax.nn.softplus, jnp.tanh, jax.nn.sigmoid, jax.nn.gelu]


def checked(contribute: Callable[..., Any], weights: Any = WEIGHTS, x: Any = X) -> list[tuple[int, int] | None]:
    """Say which leaves were taken apart, having checked that sums of products and plain leaves are right."""
    every = jax.vmap(contribute, (None, 0))
    outers = outer.find(every, weights, x)
    split = jax.jit(lambda weights, x: outer.split(every, weights, x).values)(weights, x)
    for product, value, leaf in zip(outers, split, jax.tree.leaves(every(weights, x)), strict=True):
        if product is None:
            np.testing.assert_allclose(value, leaf, rtol=1e-4, atol=1e-5)
            continue
        assert value.left.shape == (len(x), product.rows)
        assert value.right.shape == (len(x), product.columns)
        for i in (0, len(x) - 1):  # every record's own product, and the sum, in the leaf's own layout
            one = product.leaf(np.outer(value.left[i], value.right[i]))
            np.testing.assert_allclose(one, leaf[i], rtol=1e-4, atol=1e-5 * np.abs(leaf).max())
        total = product.leaf(np.einsum("np,nq->pq", *value))
        np.testing.assert_allclose(total, leaf.sum(0), rtol=1e-4, atol=1e-4 * np.abs(leaf).max())
    return [product and (product.rows, product.columns) for product in outers]


def dense(activation: Callable[[Any], Any], rows: bool = False) -> Callable[..., Any]:
    """A network of two layers, on a vector or on a batch of one, as models written for batches see a record."""

    def loss(w: Any, x: Any) -> Any:
        x = x[None] if rows else x
        return jnp.sum(jnp.sin(activation(x @ w["a"] + w["b"]) @ w["c"]))

    return loss


@recognising
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("rows", [False, True])
def test_weights_of_dense_layers(activation: Callable[[Any], Any], rows: bool) -> None:
    assert checked(jax.grad(dense(activation, rows))) == [(P, Q), None, (Q, R)]


@recognising
@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, lambda f: jax.jit(jax.checkpoint(jax.jit(f)))])
def test_calls_are_opened_up(wrap: Callable[..., Any]) -> None:
    assert checked(jax.grad(wrap(dense(jax.nn.relu, rows=True)))) == [(P, Q), None, (Q, R)]
    assert checked(wrap(jax.grad(dense(jax.nn.softplus)))) == [(P, Q), None, (Q, R)]


@recognising
def test_custom_derivatives_are_opened_up() -> None:
    @jax.custom_vjp
    def layer(w: Any, x: Any) -> Any:
        return x @ w

    layer.defvjp(lambda w, x: (x @ w, (w, x)), lambda saved, d: (jnp.outer(saved[1], d), saved[0] @ d))

    @jax.custom_jvp
    def bent(x: Any) -> Any:
        return jnp.sin(x)

    bent.defjvp(lambda x, t: (jnp.sin(*x), jnp.cos(*x) * t[0]))
    assert checked(jax.grad(lambda w, x: jnp.sum(bent(layer(w["a"], x))))) == [(P, Q), None, None]


@recognising
def test_equinox_and_stax() -> None:
    mlp = eqx.nn.MLP(P, R, Q, 2, activation=jax.nn.softplus, key=KEY)
    arrays, static = eqx.partition(mlp, eqx.is_array)
    loss = lambda w, x: jnp.sum(eqx.combine(w, static)(x) ** 2)  # noqa: E731
    assert checked(jax.grad(loss), arrays) == [(Q, P), None, (Q, Q), None, (R, Q), None]
    assert checked(jax.grad(eqx.filter_jit(loss)), arrays) == [(Q, P), None, (Q, Q), None, (R, Q), None]
    start, apply = stax.serial(
        stax.Dense(Q), stax.Softplus, stax.FanOut(2), stax.parallel(stax.Dense(R), stax.Dense(R))
    )
    weights = start(KEY, (-1, P))[1]
    loss = lambda w, x: jnp.sum(sum(apply(w, x[None])) ** 2)  # noqa: E731
    assert [pair for pair in checked(jax.grad(loss), weights) if pair] == [(P, Q), (Q, R), (Q, R)]


@recognising
def test_what_rearranges_or_scales_is_looked_through() -> None:
    def product(x: Any) -> Any:
        return jnp.outer(x, jnp.cos(x[:80]))

    cases: dict[str, Callable[..., Any]] = {
        "as it is": lambda w, x: product(x),
        "turned": lambda w, x: product(x).T,
        "flat": lambda w, x: product(x).ravel(),
        "folded": lambda w, x: product(x).T.reshape(8, 10, 1, P),
        "axes of one": lambda w, x: jnp.squeeze(product(x)[:, None, :, None], 1),
        "cast": lambda w, x: product(x).astype(jnp.float16).astype(jnp.float32) * 0 + product(x),
        "negated": lambda w, x: -product(x),
        "scaled by a number": lambda w, x: 3 * product(x) / 7,
        "scaled by a public array": lambda w, x: product(x) * jnp.sum(w["b"]),
        "scaled by each record's own number": lambda w, x: x[0] * product(x) / (1 + x[1] ** 2),
        "einsum": lambda w, x: jnp.einsum("a,b->ba", x, jnp.cos(x[:80])),
        "three axes": lambda w, x: x[:60].reshape(6, 1, 10) * jnp.cos(x[:80])[None, :, None],
        "by broadcasting": lambda w, x: jnp.broadcast_to(x[:, None], (P, 80)) * jnp.cos(x[:80]),
    }
    found = {name: checked(contribute) for name, contribute in cases.items()}
    assert found.pop("cast") == [None]  # a sum of two
    assert found.pop("three axes") == [(60, 80)]
    assert {tuple(sorted(pair)) for (pair,) in found.values()} == {(80, P)}


@recognising
def test_what_is_not_an_outer_product_stays_as_it_is() -> None:
    cases: dict[str, Callable[..., Any]] = {
        "two products": lambda w, x: jnp.outer(x, x) + jnp.outer(jnp.sin(x), x),
        "weights used twice": lambda w, x: jax.grad(lambda a: jnp.sum(jnp.tanh(jnp.stack([x, x * x]) @ a)))(w["a"]),
        "in a loop": lambda w, x: jax.lax.fori_loop(0, 3, lambda _, c: c + jnp.outer(x, x), jnp.zeros((P, P))),
        "bent": lambda w, x: jnp.sin(jnp.outer(x, x)),
        "divided through": lambda w, x: 1 / (3 + jnp.outer(x, x)),
        "masked": lambda w, x: jnp.where(w["a"] > 0, jnp.outer(x, jnp.ones(Q) * x[0]), 0),
        "scaled unequally": lambda w, x: jnp.outer(x, jnp.cos(x)) * w["a"][:, :P],
        "a long vector": lambda w, x: jnp.tile(x, 100),
        "small": lambda w, x: jnp.outer(x[:50], x[:50]),
        "single_column": lambda w, x: jnp.outer(jnp.tile(x, 50), x[:3]),
        "whole numbers": lambda w, x: jnp.outer(jnp.int32(x), jnp.int32(10 * x)),
        "whole numbers, cast": lambda w, x: jnp.outer(jnp.int32(x), jnp.int32(10 * x)).astype(jnp.float32),
        "the same for all": lambda w, x: w["a"],
        "cut": lambda w, x: jnp.outer(x, x)[:70],
    }
    for name, contribute in cases.items():
        assert checked(contribute) == [None], name


@recognising
def test_any_other_leaf_is_a_single_column_product() -> None:
    """Of the array that it is made of by rearranging and scaling, and of each record's number."""
    cases: dict[str, tuple[Callable[..., Any], Any]] = {
        "a regression's gradient": (lambda w, x: jax.grad(lambda b: jax.nn.log_sigmoid(x @ b))(w["b"][:P]), X),
        "scaled": (lambda w, x: -3 * x * jnp.sum(x) / (1 + x[0] ** 2), X),
        "rearranged": (lambda w, x: (2 * x).reshape(9, 10).T[None], X),
        "as it is": (lambda w, x: x, X),
        "bent": (lambda w, x: jnp.sin(x) * x[0], jnp.sin(X)),
        "a small product": (lambda w, x: x[0] * jnp.outer(x[:3], x[:4]), None),
        "the same for all": (lambda w, x: w["b"], None),
    }
    for name, (contribute, held) in cases.items():
        every = jax.vmap(contribute, (None, 0))
        leaves = jax.tree.leaves(every(WEIGHTS, X))
        outers = outer.find(every, WEIGHTS, X, single_column=True)
        values = jax.jit(lambda w, x, every=every: outer.split(every, w, x, single_column=True).values)(WEIGHTS, X)
        for product, value, leaf in zip(outers, values, leaves, strict=True):
            assert product is not None
            if product.columns > 1:
                continue
            assert product.rows == leaf[0].size
            assert value.right.shape == (N, 1)
            if held is not None:
                np.testing.assert_allclose(value.left, held, rtol=1e-6, err_msg=name)
            for i in (0, N - 1):
                one = product.leaf(np.outer(value.left[i], value.right[i]))
                np.testing.assert_allclose(one, leaf[i], rtol=1e-4, atol=1e-5, err_msg=name)
            total = product.leaf(np.einsum("np,nq->pq", *value))
            np.testing.assert_allclose(total, leaf.sum(0), rtol=1e-3, atol=1e-4, err_msg=name)
    assert outer.find(jax.vmap(lambda x: jnp.int32(x)), X, single_column=True) == [None], (
        "whole numbers are exact as they are"
    )


@recognising
def test_a_batch_of_one_record_is_not_taken_apart() -> None:
    assert outer.find(jax.vmap(lambda x: jnp.outer(x, x)), X[:1]) == [None]


# --- through the wall ---------------------------------------------------------------------------------------


def network(batch_of_one: bool = False) -> Method:
    """Descend the loss of ``dense``."""
    gradient = jax.grad(dense(jax.nn.softplus, batch_of_one))
    return Method(
        init=lambda key: WEIGHTS,
        contribute=lambda state, record, key: gradient(state, record),
        update=lambda state, release, key: jax.tree.map(lambda w, g: w - 1e-3 * g, state, release.total),
        draw=lambda state, key: {},
    )


def step_of(method: Method, count: int = 40, size: int | None = 40, **facts: Any) -> Step:
    mechanism = Mechanism(**{"rate": 0.5, "clip": 1.0, "noise_multiplier": 1.0, "steps": 10} | facts)
    return Step(method, PrivateData(np.zeros((count, P), np.float32), size=size), mechanism, method.init(KEY))


def totals(step: Step, records: Any, method: Method) -> Any:
    subset = np.minimum(
        np.arange(math.ceil(len(records) / step.sizes.chunk) * step.sizes.chunk, dtype=np.int32), len(records)
    )
    program = jax.jit(
        lambda records, subset: step.release(sum_over(step, WEIGHTS, records, subset[None], jnp.int32(0), KEY)).total
    )
    return program(records, subset)


@recognising
@pytest.mark.parametrize(("clip", "weights"), [(0.3, (0.5, 2.0, 3.0)), (1e3, None)])
def test_taken_apart_or_not_the_sum_is_the_same(
    monkeypatch: pytest.MonkeyPatch, clip: float, weights: tuple[float, ...] | None
) -> None:
    records = np.asarray(jax.random.normal(jax.random.key(1), (40, P)))
    apart = step_of(network(), clip=clip, weights=weights)
    assert apart.contributions.factoring is not None
    assert apart.contributions.factoring.pairs == ((P, Q), (Q, 1), (Q, R))
    assert apart.contributions.factoring.plain == 0
    found = totals(apart, records, network())
    monkeypatch.setattr(outer, "find", lambda *arguments, single_column: [None] * 3)
    whole = step_of(network(), clip=clip, weights=weights)
    assert whole.contributions.factoring is None
    wanted = totals(whole, records, network())
    # Both are within half a unit a record and within the few thousandths of the clip that they are drawn in.
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.01, atol=40 * clip / apart.radius)


@recognising
def test_records_one_at_a_time_give_the_same_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of(network())
    assert step.contributions.slot_invariant
    records = jax.random.normal(jax.random.key(1), (step.sizes.chunk, P))
    together = jax.jit(step.contributions.clipped)(WEIGHTS, records, KEY)
    step.contributions.slot_invariant = False
    alone = jax.jit(lambda *given: step.contributions.clipped(*given))(WEIGHTS, records, KEY)
    for one, other in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max(initial=0))


@recognising
def test_batches_of_one_and_own_keys_are_taken_apart_too() -> None:
    assert step_of(network(batch_of_one=True)).contributions.factoring is not None
    noisy = network()._replace(
        contribute=lambda state, record, key, record_key: jax.grad(dense(jax.nn.relu))(
            state, record + 0.1 * jax.random.normal(record_key, (P,))
        ),
        per_record_key=True,
    )
    step = step_of(noisy)
    assert step.contributions.factoring is not None
    assert step.contributions.slot_invariant


@recognising
def test_a_last_chunk_of_another_size_is_taken_only_where_it_changes_no_contribution() -> None:
    """The number of records that are computed together must not matter: here it does, by a thousandth each."""
    counted = jax.custom_batching.custom_vmap(lambda x: x)

    @counted.def_vmap
    def rule(size: int, _: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
        return x * (1 + 1e-3 * size), True

    plain = network()
    moved = plain._replace(contribute=lambda state, record, key: plain.contribute(state, counted(record), key))
    for method, size in ((plain, 152), (moved, 0)):
        data = PrivateData(np.zeros((300, P), np.float32), size=300)
        step = Step(method, data, Mechanism(0.5, 1.0, 1.0, 10**6), WEIGHTS)
        assert step.contributions.factoring is not None
        assert step.contributions.factoring.tail == 152
        assert step.contributions.slot_invariant
        assert step.sizes.tail == size
    short = Step(plain, data, Mechanism(0.5, 1.0, 1.0, 10), WEIGHTS)
    assert not short.sizes.tail, "what is soon done is not compiled for two sizes"


def test_with_a_smaller_last_chunk_sums_are_what_they_are_without() -> None:
    """At every size of a subset at which the chunks change, beyond those summed by products too, own keys included."""
    method = network()._replace(
        contribute=lambda state, record, key, record_key: {
            "product": jnp.outer(record[:60], record[20:]),
            "lines": SparseRows(
                jnp.abs(1e3 * record[:1]).astype(jnp.int32) % 50, jax.random.uniform(record_key, (1, 3)), 50
            ),
        },
        update=lambda state, release, key: state,
        per_record_key=True,
    )
    records = jax.random.normal(jax.random.key(1), (600, P))
    step = Step(method, PrivateData(np.asarray(records), size=300), Mechanism(0.5, 1.0, 1.0, 10**6), WEIGHTS)
    factoring, chunk, tail = step.contributions.factoring, step.sizes.chunk, step.sizes.tail
    assert factoring is not None
    assert (chunk, factoring.tail, factoring.chunks) == (176, 152, 2)
    if not tail:
        pytest.skip("this compiler rounds contributions by the size of their chunk, so one size is taken (JAX 0.10.0)")
    added = functools.partial(sum_over, step, WEIGHTS)
    with_tail = jax.jit(lambda subset: added(records, subset, jnp.int32(0), KEY, random.fixed(3)))
    with_tail(jnp.zeros((1, 704), jnp.int32))
    step.sums.sizes = replace(step.sizes, tail=0)
    without = jax.jit(lambda subset: added(records, subset, jnp.int32(0), KEY, random.fixed(3)))
    gamma = chunk * 2.0**-24
    edges = (0, tail, chunk, chunk + tail, 2 * chunk, 2 * chunk + tail)
    for size in sorted({max(0, edge + by) for edge in edges for by in (-1, 0, 1)}):
        subset = jnp.where(jnp.arange(704) < size, jnp.arange(704), 600).astype(jnp.int32)[None]
        plain, *products, lines = zip(with_tail(subset), without(subset), strict=True)
        for one, other in (plain, lines):
            assert np.array_equal(one.high, other.high)
            assert np.array_equal(one.low, other.low)
        assert size == 0 or np.any(lines[0].low)
        for one, other in products:
            moved = np.linalg.norm(np.asarray(one.low - other.low, float))
            assert moved <= 4 * gamma * chunk * step.radius + np.sqrt(len(one.low)) * (1 + 2 * 2.0**-factoring.fine)


def sizes(text: str) -> set[int]:
    """Return the number of elements of every array named in a compiled program."""
    shapes = re.findall(r"[a-z]+\d+\[([\d,]+)\]", text)
    return {math.prod(int(size) for size in shape.split(",")) for shape in shapes}


def test_no_array_holds_every_record_s_product(monkeypatch: pytest.MonkeyPatch) -> None:
    def arrays(step: Step) -> set[int]:
        secret = random.fixed(1)
        inputs = WEIGHTS, 0, 0, 1, step.draws.input_shapes(secret), secret, KEY, np.zeros((40, P), np.float32)
        return sizes(jax.jit(program_of(step)).lower(*inputs).compile().as_text())

    apart = step_of(network())
    each = {apart.sizes.chunk * P * Q, apart.sizes.chunk * Q * R, apart.sizes.chunk * apart.dimension}
    assert not each & arrays(apart)
    monkeypatch.setattr(outer, "find", lambda *arguments, single_column: [None] * 3)
    whole = step_of(network())
    assert {whole.sizes.chunk * P * Q, whole.sizes.chunk * Q * R, whole.sizes.chunk * whole.dimension} & arrays(whole)


def test_the_memory_of_a_step_does_not_follow_the_records() -> None:
    temporary = []
    for count in (5000, 100_000):  # gaps between records have as many digits
        step = step_of(network(), count, count, rate=20 / count)
        secret = random.fixed(1)
        inputs = WEIGHTS, 0, 0, 1, step.draws.input_shapes(secret), secret, KEY, np.zeros((count, P), np.float32)
        temporary.append(jax.jit(program_of(step)).lower(*inputs).compile().memory_analysis().temp_size_in_bytes)
    assert temporary[1] < 1.05 * temporary[0]


@recognising
def test_a_weight_far_from_the_clip_is_not_taken_apart() -> None:
    step = step_of(network(), weights=(2.0**50, 1.0, 1.0), clip=2.0**-40)
    assert step.contributions.factoring is not None
    assert step.contributions.factoring.pairs == ((Q, 1), (Q, R))
