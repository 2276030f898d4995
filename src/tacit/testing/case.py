"""What a method is tried on, and comparisons of what it returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.accounting.mechanism import Mechanism
from tacit.run.plan import suited_clip
from tacit.types import Key, Method, Plan, PyTree, Record, State
from tacit.wall.data import PrivateData
from tacit.wall.keys import fixed, to_bytes
from tacit.wall.step import Reference

EXTREMES = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-38, 0.0)
"""What numbers of a record are replaced by, one record each."""
SEED, RATE = 1, 0.5


class MethodError(AssertionError):
    """A method does not do what it must: what was found, why it matters, and what to write."""


@dataclass(frozen=True, eq=False)
class Case:
    """A method built for its plan, and what it is tried on."""

    method: Method
    rebuild: Callable[[], Method]
    plan: Plan
    data: PrivateData
    records: PyTree
    count: int
    steps: int
    tolerance: float
    random_draws: bool
    observed: tuple[str, ...]
    key: Key

    @functools.cached_property
    def start(self) -> State:
        """The state before the first step."""
        return jax.jit(lambda key: jax.tree.map(jnp.asarray, self.method.init(key)))(self.key)

    @property
    def mechanism(self) -> Mechanism:
        """A recipe with noise as large as one contribution."""
        clip = suited_clip(self.method, self.plan)
        return Mechanism(RATE, clip, 1.0, self.steps, weights=self.method.suggests.weights)

    @functools.cached_property
    def end(self) -> State:
        """The state after all steps, with noise in it."""
        return self.after(self.records, self.count)

    @functools.cached_property
    def _reference(self) -> Reference:
        return Reference(
            self.method, self.mechanism, self.plan.placeholder, self.start,
            count=max(self.count, len(EXTREMES)), record=self.record, key=self.key,
        )  # fmt: skip

    def record(self, place: int) -> Record:
        """Return one of the records."""
        return record_at(self.records, place)

    @functools.cached_property
    def _batch(self) -> Callable[[State, PyTree, Key], PyTree]:
        # The state is an argument, so that the program is compiled once for all states.
        each = lambda state, record, mine: self.method.contribution(state, record, self.key, mine)  # noqa: E731
        return jax.jit(jax.vmap(each, (None, 0, 0)))

    def contributions(self, state: State, records: PyTree) -> PyTree:
        """Return the contributions of all records, computed as one batch."""
        return self._batch(state, records, jax.random.split(self.key, len(jax.tree.leaves(records)[0])))

    def after(self, records: PyTree, count: int) -> State:
        """Return the state after all steps on the first ``count`` records, by the reference."""
        state, reference = self.start, self._reference
        reference.count, reference.everyone = count, not count
        reference.record = functools.partial(record_at, records)
        for step in range(self.steps):
            state = reference.advance(state, to_bytes(fixed(SEED)), step)
        return state

    def draw(self, state: State) -> dict[str, Any]:
        """Return one draw together with the point estimates, as a model's functions are given them."""
        points = self.method.point_estimates(state) if self.method.point_estimates else {}
        return {**self.method.draw(state, self.key), **points}


def record_at(records: PyTree, place: int) -> Record:
    """Return one of several records."""
    return jax.tree.map(lambda leaf: leaf[place], records)


def finite(tree: PyTree) -> bool:
    """Return whether all numbers of a tree are finite."""
    return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(tree))


def same_bits(one: PyTree, two: PyTree) -> bool:
    """Return whether two trees hold the same bits."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def apart(one: PyTree, two: PyTree, tolerance: float) -> str:
    """Name the first leaf in which two trees differ by more than the tolerance; empty if there is none."""
    leaves = jax.tree_util.tree_leaves_with_path(one)
    for (path, a), b in zip(leaves, jax.tree.leaves(two), strict=True):
        first, second = np.asarray(a, float), np.asarray(b, float)
        scale = max(1.0, float(np.abs(first).max(initial=0)))
        if not ((first == second) | (np.abs(first - second) <= tolerance * scale)).all():
            return jax.tree_util.keystr(path) or "its only leaf"
    return ""


def shapes(tree: PyTree) -> str:
    """Describe the shapes and types of a tree by the names of its leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return (
        ", ".join(f"{jax.tree_util.keystr(path)} {leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves) or "nothing"
    )


def traced(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Trace a function of the method and return the shapes of its result."""
    try:
        with jax.checking_leaks():
            return jax.eval_shape(lambda *given: function(*given), *arguments)
    except Exception as error:
        first = str(error).strip().splitlines()[0][:300]
        raise MethodError(
            f"{name} cannot be compiled ({type(error).__name__}: {first}). The wall runs it inside one compiled "
            "program, where numbers are known by shape only and nothing may be kept outside of what is returned. Write "
            "jnp for np, jnp.where for if, and return what is to be remembered as part of the state."
        ) from error
