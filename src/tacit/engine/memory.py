"""Records in memory: several steps in one call of a program, while a thread draws for the next."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from tacit.engine import alias, lattice, random
from tacit.engine.programs import Programs
from tacit.engine.step import Step
from tacit.types import Key, PyTree, State
from tacit.wall import trace
from tacit.wall.data import PrivateData
from tacit.wall.precision import single_precision
from tacit.wall.storage import storage_of


class InMemory(Programs):
    """The programs over records in arrays of this process."""

    def __init__(self, step: Step, data: PrivateData, state: State, secret: Key, key: Key) -> None:
        self.step, self.storage, self._facts = step, storage_of(data._records), _facts(data)
        self._steps, self._draw = step.sizes.steps_per_call, None
        take, given = jax.jit(program_of(step), donate_argnums=0), step.draws.input_shapes(secret)
        lowered, self.text = trace.lower(take, state, 0, 0, 0, given, secret, key, self.storage.arrays)
        self._take = lowered.compile(compiler_options=step.sizes.options)
        if not step.sizes.external_words:
            numbers = jax.ShapeDtypeStruct((self._steps,), jnp.int32)
            drawing, text = trace.lower(jax.jit(step.draws.draw), secret, numbers)
            self.text += text
            self._draw = drawing.compile(compiler_options=step.sizes.options)
        self._begin()

    def _begin(self) -> None:
        self._room = self.step.draws.room_for(self._steps)
        self._drawn: tuple[int, Any] = (-1, None)

    def stream(self, secret: Key, tag: str, simulation: bool) -> Key:
        """Return the secret stream of a segment; what was drawn of another is forgotten."""
        self._drawn = (-1, None)
        found: Key = super().stream(secret, tag, simulation)
        return found

    def run(self, state: State, first: int, stop: int, stream: Key, key: Key) -> State:
        """Take charged steps of one segment.

        Privacy: reads records; only noisy sums leave.
        """
        together = self._steps
        begin = first if self._draw is None else first // together * together
        bounds = [*range(begin, stop, together), stop]
        state = jax.tree.map(jnp.copy, state)  # the program takes its memory over, and the caller's stays
        with ThreadPoolExecutor(1, "tacit-draw") as thread:
            ahead = self._draw is not None and thread.submit(self._drawn_from, stream, begin)
            for base, end in itertools.pairwise(bounds):
                state = jax.block_until_ready(state)
                if ahead:
                    given = ahead.result()
                    if end < stop:  # while these steps are computed
                        ahead = thread.submit(self._drawn_from, stream, end)
                else:
                    given = self._words_for(stream, base, end)
                state = self._take(state, base, max(base, first), end, given, stream, key, self.storage.arrays)
            return jax.block_until_ready(state)

    @single_precision
    def _drawn_from(self, stream: Key, base: int) -> Any:
        """Return the noise and subsets of a group of steps: they depend on no record."""
        if self._drawn[0] != base:  # a segment may end in the middle of what was drawn, and the next go on there
            assert self._draw is not None
            steps = np.arange(base, base + self._steps, dtype=np.int32)
            self._drawn = base, jax.block_until_ready(self._draw(stream, steps))
        return self._drawn[1]

    def _words_for(self, stream: Key, base: int, end: int) -> Any:
        """Return the random words of a group of steps.

        They are written over those of the group before, whose state was waited for: nothing reads them any more. By all
        cores at once: beside the steps, which need all of them, one core would hold up the others as long.
        """
        assert self._room is not None
        words, least = self._room
        self.step.draws.write_words(stream, range(base, end), words, least)
        return jax.device_put((words, least))

    def over(self, data: PrivateData) -> InMemory | None:
        """Return the same programs over other records of the same number, shape and declared size."""
        if _facts(data) != self._facts:
            return None
        other = copy.copy(self)
        other.storage = storage_of(data._records)
        other._begin()
        return other


def program_of(step: Step) -> Callable[..., State]:
    """Return the program that takes steps over arrays of records."""
    draws, together, external = step.draws, step.sizes.steps_per_call, step.sizes.external_words

    def take(
        state: State,
        base: Int32[Array, ""],
        first: Int32[Array, ""],
        stop: Int32[Array, ""],
        given: Any,
        secret: Key,
        key: Key,
        records: PyTree,
    ) -> State:
        """Take the steps first..stop-1; randomness belongs to the step, so the grouping changes no bit.

        ``given`` is what ``draw`` gives for so many steps from ``base`` on; or, where words are made outside of JAX,
        the words that it would draw for each of them, and the least of each group of words.
        """
        steps = base + jnp.arange(together)
        # For all steps at once: one by one a cipher takes as long.
        keys, record_key, more = (
            random.fold_in(key, steps),
            draws.record_keys(secret, steps),
            draws.more_keys(secret, steps),
        )

        def one(i: Array, state: State) -> State:
            noise, subsets = draws.made(alias.Words(given[0], i, given[1]), more[i][None]) if external else given
            row = jnp.int32(0) if external else i
            mine, noise = None if record_key is None else record_key[i], [block[row] for block in noise]
            total = sum_over(step, state, records, subsets, row, keys[i], mine, noise)
            return step.finish(state, total, keys[i])

        return jax.lax.fori_loop(first - base, stop - base, one, state)

    return take


def sum_over(
    step: Step,
    state: State,
    records: PyTree,
    subsets: Int32[Array, "steps width"],
    i: Array,
    key: Key,
    record_key: Key | None = None,
    noise: list[Int32[Array, "_"]] | None = None,
) -> list[lattice.Sum]:
    """Add up the subset of a step over arrays of records, to the noise, in whole units of the lattice."""

    def rows_at(positions: Int32[Array, "chunk"], _row: object, _first: object) -> PyTree:
        return jax.tree.map(lambda leaf: leaf.at[positions].get(mode="clip"), records)

    count = step.sizes.count
    return step.blocks.whole(step.sums.sum(state, rows_at, subsets, i, key, record_key, count, noise=noise))


def _facts(data: PrivateData) -> Any:
    """Return all of the data that a compiled program depends on."""
    shapes = jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), storage_of(data._records).arrays)
    return data._count, data._given, data.size, data.unit, shapes
