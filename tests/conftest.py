"""Helpers that several test files use."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tacit.ledger import Ledger
from tacit.mechanism import Mechanism
from tacit.types import Method
from tacit.wall import Door, random
from tacit.wall.data import PrivateData

# Tracing makes very many small objects that live on: cycles among them are looked for less often.
gc.set_threshold(50_000, 20, 100)
# Many tests open a door on the same program: compile it once. The folder is new for every run of the tests, and its
# name passes to the processes that are started, by pytest-xdist or by a test.
if "TACIT_TEST_PROGRAMS" not in os.environ:
    _PROGRAMS = tempfile.TemporaryDirectory(prefix="tacit-tests-")
    os.environ["TACIT_TEST_PROGRAMS"] = _PROGRAMS.name
os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["TACIT_TEST_PROGRAMS"]
os.environ["XDG_STATE_HOME"] = os.path.join(os.environ["TACIT_TEST_PROGRAMS"], "state")  # the list of trusted runs
jax.config.update("jax_compilation_cache_dir", os.environ["TACIT_TEST_PROGRAMS"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def _open_door(method: Method, data: PrivateData, mechanism: Mechanism, seed: int = 1, **facts: Any) -> Door:
    facts = {"ledgers": [Ledger()], "run": "test", "kind": "fit", "title": "test", "simulation": True} | facts
    return Door(method, data, mechanism, secret=random.fixed(seed), key=jax.random.key(0), **facts)


def _recorder(steps: int) -> Method:
    """Contribute the record itself, and write down the first coordinate of every release."""
    return Method(
        init=lambda key: (jnp.int32(0), jnp.zeros(steps)),
        contribute=lambda state, record, key: record,
        update=lambda state, release, key: (state[0] + 1, state[1].at[state[0]].set(release.total[0])),
        draw=lambda state, key: {"released": state[1]},
    )


@pytest.fixture(scope="session")
def open_door() -> Callable[..., Door]:
    """Open a Door with a fixed secret: open_door(method, data, mechanism, seed=1, ledgers=[...], ...)."""
    return _open_door


@pytest.fixture(scope="session")
def recorder() -> Callable[[int], Method]:
    """Make a method whose state is the list of what was released: recorder(steps)."""
    return _recorder


@pytest.fixture
def quick_compiler() -> Iterator[None]:
    """Compile without most optimisations: these programs run for a second, and compiling them takes ten."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def without_noise(sizes: Sequence[int], words: Any, keys: Any, fines: Any = None) -> list[Any]:
    """Stand in for the noise of the wall where a test takes it out."""
    return [jnp.zeros((1 if words.row is not None else len(words.rows), size), jnp.int32) for size in sizes]
