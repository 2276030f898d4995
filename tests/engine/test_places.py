"""A contribution has the same bits at every place of a chunk, on every processor, and the fast way is the one taken.

``python -m tests.engine.test_places`` prints the models that are not alike at every place: run it with
``XLA_FLAGS=--xla_cpu_max_isa=AVX2``, or in an emulator of another processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.accounting.mechanism import Mechanism
from tacit.engine import rewrite
from tacit.engine.step import Step
from tacit.types import Method, Plan, Release
from tacit.wall.data import PrivateData

KEY = jax.random.key(0)
ROOT = Path(__file__).parents[2]


def summed(contribute: Callable[[Any, Any], Any], start: Any) -> Method:
    """Make a method of a contribution from a public state and a record."""

    def update(state: Any, release: Release, key: Any) -> Any:
        return state

    return Method(
        lambda key: start, lambda state, record, key: contribute(state, record), update, lambda s, k: {"s": s}
    )


def weights(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape) / np.sqrt(shape[-1]), jnp.float32)


def recurrent(state: Any, record: Any) -> Any:
    """Return the gradient of a recurrent network with a dense layer on both sides of its products."""

    def loss(state: Any) -> Any:
        def step(hidden: Any, x: Any) -> tuple[Any, None]:
            return jnp.tanh(state["across"] @ hidden + x @ state["in"]), None

        hidden, _ = jax.lax.scan(step, jnp.zeros(24), record["x"])
        return jnp.sum((state["out"] @ hidden - record["y"]) ** 2)

    return jax.grad(loss)(state)


def attention(state: Any, record: Any) -> Any:
    """Return the gradient of one head of attention."""

    def loss(state: Any) -> Any:
        query, key, value = (record["x"] @ state[name] for name in ("query", "key", "value"))
        return jnp.sum((jax.nn.softmax(query @ key.T) @ value - record["y"]) ** 2)

    return jax.grad(loss)(state)


def network(*sizes: int) -> Any:
    return tacit.network(eqx.nn.MLP(sizes[0], sizes[-1], sizes[1], 1, key=KEY), "categorical")


def models() -> dict[str, tuple[Any, dict[str, np.ndarray]]]:
    """Return methods, each with a few records that say shapes and types."""
    random = np.random.default_rng(0)
    series = {
        "x": random.normal(size=(4, 6, 10)).astype(np.float32),
        "y": random.normal(size=(4, 5)).astype(np.float32),
    }
    words = {"x": series["x"], "y": random.normal(size=(4, 6, 12)).astype(np.float32)}
    digits = {"x": random.normal(size=(4, 784)).astype(np.float32), "y": np.arange(4, dtype=np.int32)}
    columns = {"x": random.normal(size=(4, 20)).astype(np.float32), "y": np.arange(4, dtype=np.int32) % 2}
    recurrence = {"across": weights(24, 24), "in": weights(10, 24), "out": weights(5, 24)}
    heads = {"query": weights(10, 8), "key": weights(10, 8), "value": weights(10, 12)}
    return {
        "belief network": (tacit.belief_net(20), {"image": np.zeros((4, 28, 28), bool)}),
        "dense network": (tacit.sgd(network(784, 64, 10)), digits),
        "recurrent network": (summed(recurrent, recurrence), series),
        "attention": (summed(attention, heads), words),
        "regression": (tacit.glm(prior_std=1.0), columns),
    }


def unlike() -> Iterator[str]:
    """Name the models whose records are evaluated one by one, at three sizes of chunks, since places matter."""
    for name, (method, records) in models().items():
        for size in (4, 128, 256):
            data = PrivateData(records, size=size)
            built = method if isinstance(method, Method) else method(Plan(data.placeholder, size))
            recipe = Mechanism(1.0, built.suggests.clip or 1.0, 1.0, 1, weights=built.suggests.weights)
            step = Step(built, data, recipe, built.init(KEY))
            if not step.contributions.slot_invariant:
                yield f"{name}, chunks of {step.sizes.chunk}"


def test_no_place_matters_here() -> None:
    assert list(unlike()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="instruction sets are those of /proc/cpuinfo")
@pytest.mark.parametrize("name", ["AVX", "AVX2", "AVX512"])
def test_no_place_matters_with_fewer_instructions(name: str) -> None:
    """In a process of its own: the compiler looks at its flags once."""
    if name.lower() not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"this processor has no {name}")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_max_isa={name}"
    command = [sys.executable, "-m", "tests.engine.test_places"]
    done = subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


# --- records first --------------------------------------------------------------------------------------------

RECORDS = 37  # as long as nothing else is


def products(function: Callable[..., Any], *arguments: Any) -> list[tuple[int, ...]]:
    """Return the shapes of all matrix products in a traced function, inside of loops and branches too."""

    def inside(jaxpr: Any) -> Iterator[tuple[int, ...]]:
        for equation in jaxpr.eqns:
            if equation.primitive.name == "dot_general":
                yield equation.outvars[0].aval.shape
            held = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda value: hasattr(value, "eqns"))
            for value in held:
                if hasattr(value, "eqns"):
                    yield from inside(value)

    return list(inside(jax.make_jaxpr(function)(*arguments)))


def looped(state: Any, x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(state @ y), x)


def while_looped(state: Any, x: Any) -> Any:
    return jax.lax.while_loop(lambda y: jnp.sum(state @ y) > 100, lambda y: state @ y / 2, x)


def branched(state: Any, x: Any) -> Any:
    return jax.lax.cond(jnp.sum(state) > 0, lambda: state @ x, lambda: x @ state)


def scanned(state: Any, x: Any) -> Any:
    return jax.lax.scan(lambda y, _: (jax.jit(jnp.matmul)(state, y), y @ state), x, None, length=3)


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "right": lambda state, x: state @ x,
    "left": lambda state, x: x @ state,
    "axes on both sides": lambda state, x: jnp.einsum("ab,bc->ac", state, x[:, None] * jnp.arange(3.0)),
    "several axes": lambda state, x: jnp.einsum("ab,cbd->acd", state, jnp.outer(x, x)[None] * jnp.ones((2, 1, 1))),
    "several precisions": lambda state, x: jnp.matmul(state, x, precision=("highest", "default")),
    "both": lambda state, x: jnp.outer(x, x) @ (state @ x),
    "loop": looped,
    "while": while_looped,
    "branch": branched,
    "scan": scanned,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_records_are_rows_of_the_left_factor(name: str) -> None:
    function = FUNCTIONS[name]
    state = weights(5, 5)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(RECORDS, 5)), jnp.float32)

    def plain(state: Any, record: Any, key: Any, record_key: Any) -> Any:
        return function(state, record)

    changed = rewrite.rewritten(plain)

    def batched(state: Any, x: Any) -> Any:
        return jax.vmap(lambda one: changed(state, one, KEY, None))(x)

    shapes = products(batched, state, x)
    assert shapes
    assert all(shape[0] == RECORDS for shape in shapes if RECORDS in shape), shapes
    found, expected = batched(state, x), jax.vmap(lambda one: function(state, one))(x)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=2e-5, atol=1e-6), found, expected)


def test_as_jax_batches_them_records_come_last() -> None:
    shapes = products(jax.vmap(FUNCTIONS["right"], (None, 0)), weights(5, 5), jnp.ones((RECORDS, 5)))
    assert shapes == [(5, RECORDS)]


if __name__ == "__main__":
    print(json.dumps(list(unlike())))
