"""Records kept apart: what mixes them is found on the batched program, whatever it is made of; what does not is proved.

python -m tests.engine.test_independence 100000      the study: random programs, half of them leaky
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from tacit.accounting.mechanism import Mechanism
from tacit.engine import random, rewrite
from tacit.engine.independence import Along, apart
from tacit.engine.step import Step
from tacit.types import Method, Plan
from tacit.wall.data import PrivateData
from tests.engine.test_places import models
from tests.test_every_method import TABLE

KEY = jax.random.key(0)
RECORDS, WIDTH = 12, 6
Function = Callable[[jax.Array], Any]


def proved(function: Function, *, width: int = WIDTH, records: int = RECORDS) -> bool:
    """Whether the analysis proves that a function of one record, batched by JAX, keeps records apart."""
    closed = jax.make_jaxpr(lambda x: jax.tree.leaves(jax.vmap(function)(x)))(jnp.ones((records, width)))
    return apart(closed, [Along(0)], records)


def leaking(rule: Callable[[jax.Array], jax.Array]) -> Function:
    """Make a function of one record that, batched, does to the whole batch what ``rule`` says."""

    @jax.custom_batching.custom_vmap
    def leak(x: jax.Array) -> jax.Array:
        return x

    @leak.def_vmap
    def batched(count: int, record_key: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
        return rule(x), True

    return leak


def scanned(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda total, row: (total + row, total), jnp.zeros(x.shape[1:]), x)[1]


def until_all_are_done(x: jax.Array) -> jax.Array:
    """Halve every row until all are small: how often shows in each of them."""
    return jax.lax.while_loop(lambda y: jnp.any(jnp.abs(y).max(1) > 1), lambda y: y / 2, x)


def chosen_for_all(x: jax.Array) -> jax.Array:
    return jax.lax.cond(x.sum() > 0, lambda: x, lambda: -x)


def neighbour(x: jax.Array) -> jax.Array:
    return x.at[jnp.arange(len(x)) + 1].get(mode="clip")


def key_of(x: jax.Array) -> jax.Array:
    """Make a key of the first two numbers' bits."""
    return jax.random.wrap_key_data(jax.lax.bitcast_convert_type(x[:2], jnp.uint32), impl="threefry2x32")


LEAKS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "largest": lambda x: jnp.broadcast_to(x.max(0), x.shape),
    "mean": lambda x: x - x.mean(0),
    "sum": lambda x: x + x.sum(0, keepdims=True),
    "roll": lambda x: jnp.roll(x, 1, 0),
    "reverse": lambda x: x[::-1],
    "sort": lambda x: jnp.sort(x, 0),
    "cumulative": lambda x: jnp.cumsum(x, 0),
    "scan": scanned,
    "neighbour, clamped": neighbour,
    "first": lambda x: x[:1] + 0 * x,
    "reshape": lambda x: x.reshape(x.shape[1], x.shape[0]).T if x.ndim == 2 else x.reshape(-1)[::-1].reshape(x.shape),
    "product": lambda x: (x @ x.T) @ x,
    "covariance": lambda x: x @ (x.T @ x),
    "loop until all are done": until_all_are_done,
    "choice for all": chosen_for_all,
    "gather": lambda x: x[jnp.argsort(x[:, 0])],
    "scatter": lambda x: jnp.zeros_like(x).at[0].add(x.sum(0)),
    "update": lambda x: jax.lax.dynamic_update_slice(x, x[:1], (1, 0)),
    "softmax": lambda x: jax.nn.softmax(x, 0),
    "window": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 1), (1, 1), "SAME"),
    "fft": lambda x: jnp.abs(jnp.fft.fft(x, axis=0)),
    "convolution": lambda x: jnp.convolve(x[:, 0], jnp.ones(3), "same")[:, None] + 0 * x,
    "top": lambda x: x + jax.lax.top_k(x[:, 0], 1)[0],
    "inverse": lambda x: jnp.linalg.solve(jnp.eye(len(x)) + x @ x.T, x),
    "key of two records": lambda x: jax.random.normal(key_of(x[:, 0]), x.shape),
    "keys of columns": lambda x: jax.vmap(lambda y: jax.random.normal(key_of(y), (len(x),)))(x.T).T,
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_rule_that_mixes_records_is_found(name: str) -> None:
    assert not proved(leaking(LEAKS[name]))


def collatz(x: jax.Array) -> jax.Array:
    """Loop as often as this record says."""
    return jax.lax.while_loop(lambda y: jnp.abs(y).max() > 0.1, lambda y: y / 2, x)


def counted(x: jax.Array) -> jax.Array:
    times = jnp.clip(jnp.abs(x[0]) * 10, 0, 20).astype(jnp.int32)
    return jax.lax.fori_loop(0, times, lambda i, y: jnp.sin(y) + i, x)


def drawn(x: jax.Array) -> jax.Array:
    key = jax.random.fold_in(KEY, jnp.abs(x[0] * 100).astype(jnp.int32))
    return x + jax.random.normal(key, x.shape) + jax.random.gamma(key, jnp.abs(x) + 1) + jax.random.permutation(key, x)


MATRIX = jnp.asarray(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)), jnp.float32)
HONEST: dict[str, Function] = {
    "itself": lambda x: x,
    "constant": lambda x: jnp.ones(3),
    "product": lambda x: MATRIX @ jnp.tanh(x @ MATRIX),
    "outer": lambda x: jnp.outer(x, x) @ x,
    "sort": lambda x: jnp.sort(x)[::-1],
    "argsort": lambda x: x[jnp.argsort(x)],
    "cumulative": lambda x: jnp.cumsum(x) / jnp.cumprod(x),
    "softmax": jax.nn.softmax,
    "logsumexp": lambda x: jax.nn.logsumexp(x),
    "one hot": lambda x: jax.nn.one_hot(jnp.argmax(x), WIDTH) * x,
    "gather": lambda x: MATRIX[jnp.argmax(x)] + x[jnp.argmin(x)],
    "scatter": lambda x: jnp.zeros(20).at[jnp.abs(x * 5).astype(jnp.int32)].add(x),
    "update": lambda x: jax.lax.dynamic_update_slice(x, x[:2], (jnp.argmax(x),)),
    "slice": lambda x: jax.lax.dynamic_slice(x, (jnp.argmax(x),), (2,)),
    "set": lambda x: x.at[2].set(x[0]).at[1:3].multiply(2.0),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, y: MATRIX @ y + i, x),
    "loop of this record's length": collatz,
    "loop of this record's number": counted,
    "scan": lambda x: jax.lax.scan(lambda y, a: (y + a, y * a), 0.0, x)[1],
    "scan, backwards": lambda x: jax.lax.scan(lambda y, a: (y * a, y), x[0], x, reverse=True),
    "choice": lambda x: jax.lax.cond(x[0] > 0, lambda: x, lambda: -x),
    "switch": lambda x: jax.lax.switch(jnp.argmax(x) % 3, [lambda: x, lambda: -x, lambda: x * 2]),
    "public choice": lambda x: jax.lax.cond(MATRIX[0, 0] > 0, lambda: x, lambda: -x),
    "gradient": jax.grad(lambda x: jnp.sum(jax.nn.gelu(MATRIX @ x) ** 2)),
    "hessian": jax.hessian(lambda x: jnp.sum(jnp.sin(MATRIX @ x))),
    "jit": jax.jit(lambda x: jax.jit(jnp.sin)(x) + 1),
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(MATRIX @ x)),
    "vmap": lambda x: jax.vmap(lambda a, row: a * row)(x, MATRIX),
    "random": drawn,
    "rbg, of a public key": lambda x: x + jax.random.normal(jax.random.key(0, impl="rbg"), x.shape),
    "random, of bits": lambda x: jax.random.normal(key_of(x), x.shape),
    "convolution": lambda x: jnp.convolve(x, jnp.ones(3), "same"),
    "two convolutions": lambda x: jnp.convolve(x, x[:3], "same"),
    "window": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2,), (1,), "SAME"),
    "cholesky": lambda x: jnp.linalg.cholesky(jnp.outer(x, x) + 10 * jnp.eye(WIDTH)),
    "solve": lambda x: jnp.linalg.solve(jnp.outer(x, x) + 10 * jnp.eye(WIDTH), x),
    "public solve": lambda x: jax.scipy.linalg.solve_triangular(jnp.tril(MATRIX) + 3 * jnp.eye(WIDTH), x, lower=True),
    "eigenvalues": lambda x: jnp.linalg.eigvalsh(jnp.outer(x, x)),
    "singular values": lambda x: jnp.linalg.svd(jnp.outer(x, x) + MATRIX, compute_uv=False),
    "fft": lambda x: jnp.abs(jnp.fft.rfft(x)),
    "top": lambda x: jax.lax.top_k(x, 2)[0],
    "pad": lambda x: jnp.pad(x, (1, 2))[1:],
    "concatenate": lambda x: jnp.concatenate([x, jnp.ones(2), x]),
    "split": lambda x: jnp.split(x, 3)[1],
    "reshape": lambda x: x.reshape(2, 3).T.reshape(-1),
    "special": lambda x: jax.scipy.special.gammaln(jnp.abs(x)) + jax.scipy.special.digamma(jnp.abs(x) + 1),
    "quantile": lambda x: jnp.quantile(x, 0.3),
    "interpolation": lambda x: jnp.interp(x, jnp.arange(5.0), jnp.arange(5.0) ** 2),
    "search": lambda x: jnp.searchsorted(jnp.arange(5.0), x),
    "integers": lambda x: (x > 0).astype(jnp.int32) << 2,
    "nan": lambda x: jnp.where(jnp.isfinite(x), jnp.log(x), 0.0),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_keeps_records_apart_is_proved(name: str) -> None:
    assert proved(HONEST[name])


def of_method(method: Any, records: dict[str, np.ndarray]) -> bool:
    """Whether the records of a method are proved apart, as the wall evaluates it."""
    data = PrivateData(records, size=len(next(iter(records.values()))))
    built = method if isinstance(method, Method) else method(Plan(data.placeholder, RECORDS))
    contribution = rewrite.rewritten(built.contribution)
    state = jax.eval_shape(built.init, KEY)
    rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((RECORDS, *leaf.shape), leaf.dtype), data.placeholder)
    record_key = jax.eval_shape(lambda: jax.random.split(random.fixed(0), RECORDS))
    closed = jax.make_jaxpr(
        lambda state, rows, record_key: jax.tree.leaves(
            jax.vmap(lambda row, mine: contribution(state, row, KEY, mine))(rows, record_key)
        )
    )(state, rows, record_key)
    public, private = len(jax.tree.leaves(state)), len(jax.tree.leaves(rows))
    return apart(closed, [*[None] * public, *[Along(0)] * (private + 1)], RECORDS)


METHODS = {**{name: (row.make, row.records) for name, row in TABLE.items()}}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_proved(name: str) -> None:
    make, records = METHODS[name]
    assert of_method(make(), records)


@pytest.mark.parametrize("name", models())
def test_larger_models_are_proved(name: str) -> None:
    assert of_method(*models()[name])


# --- what an attacker tries -----------------------------------------------------------------------------------


def summed(contribute: Callable[[Any], Any]) -> Method:
    return Method(
        lambda key: jnp.zeros(()),
        lambda state, record, key: contribute(record),
        lambda state, release, key: state,
        lambda state, key: {"state": state},
    )


def step_of(contribute: Callable[[Any], Any], count: int = 70) -> tuple[Step, PrivateData]:
    values = np.random.default_rng(0).normal(size=(count, 2)).astype(np.float32)
    values[0] = 25
    data = PrivateData(values, size=count)
    return Step(summed(contribute), data, Mechanism(1.0, 1.0, 4.0, 1), jnp.zeros(())), data


def test_a_rule_for_batches_gets_one_record_at_a_time() -> None:
    """One record more moved the sum by 25 clips, by a maximum over the chunk that no order of records shows."""
    step, data = step_of(lambda x: leaking(LEAKS["largest"])(x) / 100)
    assert not step.contributions.slot_invariant
    integers = np.asarray(
        step.contributions.integers(jnp.zeros(()), np.resize(data._records, (step.sizes.chunk, 2)), KEY)
    )
    without = np.resize(data._records, (step.sizes.chunk, 2))
    without[0] = 0
    fewer = np.asarray(step.contributions.integers(jnp.zeros(()), without, KEY))
    assert np.array_equal(integers[1:70], fewer[1:70])


def test_an_rbg_key_becomes_one_whose_draws_do_not_see_the_batch() -> None:
    key = jax.random.key(7, impl="rbg")
    changed = random.normalised(key)
    assert jax.random.key_impl(changed) == "threefry2x32"
    assert jnp.array_equal(jax.random.key_data(changed), jax.random.key_data(random.normalised(key)))
    assert random.normalised(KEY) is KEY
    # And one that a model makes itself, of a record:
    record_key = functools.partial(jax.random.key, impl="rbg")

    def drawing(x: jax.Array) -> jax.Array:
        return jax.random.normal(record_key(jnp.abs(x[0] * 100).astype(jnp.int32)), (2,))

    assert not proved(drawing)  # whatever the dynamic check sees
    step, _ = step_of(drawing)
    assert not step.contributions.slot_invariant


@pytest.mark.filterwarnings("ignore")
def test_a_call_out_of_a_rule_for_batches_is_refused() -> None:
    seen: list[Any] = []

    def shown(x: jax.Array) -> jax.Array:
        jax.debug.callback(seen.append, x)
        return x

    with pytest.raises(ValueError, match="calls out of the compiled program"):
        step_of(leaking(shown))
    assert seen == []

    def answered(x: jax.Array) -> jax.Array:
        return jax.pure_callback(lambda y: (seen.append(y), y)[1], jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(ValueError, match="calls out of the compiled program"):
        step_of(leaking(answered))
    assert seen == []


def test_a_primitive_of_someone_s_own_is_not_trusted_by_its_name() -> None:
    mine = Primitive("add")
    mine.def_impl(lambda x: x)
    mine.def_abstract_eval(lambda x: x)
    batching.primitive_batchers[mine] = lambda given, axes: (mine.bind(given[0]), axes[0])
    mlir.register_lowering(mine, mlir.lower_fun(lambda x: jnp.sort(x, 0), multiple_results=False))
    assert not proved(lambda x: mine.bind(x))


def test_what_was_checked_is_what_is_compiled() -> None:
    """A contribution that mixes records from its second trace on is never traced a second time."""
    traces = itertools.count()

    def turncoat(x: jax.Array) -> jax.Array:
        return leaking(LEAKS["largest"])(x) if next(traces) > 20 else x

    step, data = step_of(turncoat)
    rows = np.resize(data._records, (step.sizes.chunk, 2))
    first = jax.jit(step.contributions.integers)(jnp.zeros(()), rows, KEY)
    for _ in range(30):
        next(traces)
    before = next(traces)
    assert jnp.array_equal(first, jax.jit(lambda *given: step.contributions.integers(*given))(jnp.zeros(()), rows, KEY))
    assert next(traces) == before + 1


def test_a_loop_that_is_not_frozen_is_found_beside_one_that_is() -> None:
    assert proved(collatz)

    def thawed(x: jax.Array) -> jax.Array:
        return jax.lax.while_loop(lambda y: jnp.any(jnp.abs(y).max(1) > 0.1), lambda y: y / 2, x)

    def half_thawed(x: jax.Array) -> jax.Array:
        def body(y: jax.Array) -> jax.Array:
            return jnp.where((jnp.abs(y).max(1) > 0.2)[:, None], y / 2, y)  # another test than the loop's

        return jax.lax.while_loop(lambda y: jnp.any(jnp.abs(y).max(1) > 0.1), body, x)

    assert not proved(leaking(thawed))
    assert not proved(leaking(half_thawed))


# --- random programs ------------------------------------------------------------------------------------------

ALONE: list[Function] = [
    *(HONEST[name] for name in ("product", "sort", "argsort", "cumulative", "softmax", "update", "set", "loop")),
    *(HONEST[name] for name in ("loop of this record's length", "loop of this record's number", "scan", "choice")),
    *(HONEST[name] for name in ("switch", "gradient", "jit", "checkpoint", "vmap", "convolution", "nan", "window")),
    *(HONEST[name] for name in ("two convolutions", "solve", "public solve", "reshape", "random", "outer")),
]


def shaped(x: jax.Array) -> jax.Array:
    """Bring whatever a part returns back to the width of a record."""
    flat = jnp.ravel(jnp.asarray(x, jnp.float32))
    return jnp.resize(flat, WIDTH)


def program(seed: int) -> tuple[Function, bool]:
    """Make a random program of parts, every other one with a leak at a random place, depth and kind."""
    generator = np.random.default_rng(seed)
    leaky = seed % 2 == 1
    parts = [ALONE[i] for i in generator.integers(0, len(ALONE), generator.integers(1, 5))]
    if leaky:
        rule = LEAKS[list(LEAKS)[generator.integers(len(LEAKS))]]
        parts.insert(int(generator.integers(0, len(parts) + 1)), _hidden(leaking(rule), generator.integers(6)))

    def run(x: jax.Array) -> jax.Array:
        for part in parts:
            x = shaped(part(x)) + 0.5 * x
        return x

    return run, leaky


def _hidden(leak: Function, how: int) -> Function:
    """Put a leak inside of something else."""
    ways: list[Function] = [
        leak,
        jax.jit(leak),
        lambda x: jax.lax.fori_loop(0, 2, lambda _, y: leak(y), x),
        lambda x: jax.lax.cond(MATRIX[0, 0] > 0, lambda: leak(x), lambda: leak(x * 2)),
        lambda x: jax.lax.scan(lambda y, _: (leak(y), None), x, None, length=2)[0],
        lambda x: x * leak(jnp.sin(x)),
    ]
    return ways[how]


@pytest.mark.parametrize("block", range(6))
def test_random_programs(block: int) -> None:
    """300 with every commit in all; ``python -m tests.engine.test_independence 100000`` is the study."""
    for seed in range(50 * block, 50 * (block + 1)):
        run, leaky = program(seed)
        assert proved(run) != leaky, seed


def study(count: int) -> int:
    """Print how many of so many programs were judged wrongly."""
    wrong = []
    for seed in range(count):
        run, leaky = program(seed)
        if proved(run) == leaky:
            wrong.append((seed, leaky))
        if seed % 1000 == 999:
            jax.clear_caches()
            print(f"{seed + 1} programs, wrong: {wrong}", flush=True)
    passed = [seed for seed, leaky in wrong if leaky]
    refused = [seed for seed, leaky in wrong if not leaky]
    print(f"{count} programs, half of them leaky: {len(passed)} leaks passed, {len(refused)} honest ones were refused")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(study(int(sys.argv[1]) if len(sys.argv) > 1 else 300))
