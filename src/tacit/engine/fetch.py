"""Records on disk, read a subset at a time, ahead of the step that needs it.

    a thread     noise and subsets of the coming steps    the same secret bits as in memory
                 the records of these subsets             read from the files, into room for the largest subset
    the device   contributions, clip, integer sum, noise, update, of the steps before

What is handed over has a public shape, as in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, Shaped, UInt8, UInt32

from tacit.engine import alias, lattice, random
from tacit.engine.files import File, Stored
from tacit.engine.programs import Programs
from tacit.engine.step import Step
from tacit.types import Key, PyTree, State
from tacit.wall import trace
from tacit.wall.data import PrivateData
from tacit.wall.precision import single_precision

HANDED_AT_ONCE = 1 << 25
"""Bytes of records that are handed over at once: those of several steps, or a part of one."""
WORDS_AT_ONCE = 3 << 22
"""Random words drawn for the steps that are handed over at once."""
GROUP_STEPS, GROUPS = 512, 200
"""Steps handed over at once, at most, and the least number of groups in a run: while one is computed the next is
read, and what is drawn beyond the end of a segment is lost."""
COLD = 5e-6
"""Seconds a record; where reading takes longer, the disk is asked for all of a group's records at once beforehand."""


class Ahead(NamedTuple):
    """What is handed over for some steps, or for a part of one: noise, subsets, and the words of their records."""

    noise: list[Int32[Array, "steps _"]]
    subsets: Int32[Array, "steps width"]
    words: tuple[UInt32[Array, "steps width _"] | UInt8[Array, "steps width _"], ...]


class OnDisk(Programs):
    """The programs for records on disk, and the thread that draws and reads for the coming steps meanwhile.

    Several steps are handed over at once; a step with more records than that is handed over in parts, which add up
    exactly.
    """

    def __init__(self, step: Step, data: PrivateData, state: State, secret: Key, key: Key) -> None:
        self.step = step
        self.storage: Stored = data._records
        sizes, stored = step.sizes, self.storage
        fits = HANDED_AT_ONCE // max(1, stored.stride)
        self.parted = sizes.full_batch or sizes.width > fits
        self.width = min(sizes.width, max(1, fits // sizes.chunk) * sizes.chunk)
        # Subsets of many steps lie closer in the file, and a page is looked up once for all of them.
        run = max(1 if sizes.external_words else 64, step.mechanism.steps // GROUPS)
        most = min(GROUP_STEPS, run, WORDS_AT_ONCE // sizes.words, fits // sizes.width)
        self.together = 1 if self.parted else max(1, most)
        self._rooms = [[_room(self.together, self.width, file) for file in stored.files] for _ in range(2)]
        self._words = step.draws.room_for(self.together)
        self._cold = False
        self._drawn: tuple[int, Any, Any] = (-1, None, None)
        steps = jax.ShapeDtypeStruct((self.together,), jnp.int32)
        given: Any = self._words and tuple(jax.ShapeDtypeStruct(room.shape, jnp.uint32) for room in self._words)
        ahead = self.shapes()
        lowered = [trace.lower(jax.jit(self._draw_for), secret, steps, given)]
        if self.parted:
            totals = jax.eval_shape(step.blocks.zero)
            lowered.append(trace.lower(jax.jit(self._add_part), state, totals, 0, 0, ahead, secret, key))
            lowered.append(trace.lower(jax.jit(self._finish), state, totals, 0, ahead.noise, key))
        else:
            lowered.append(trace.lower(jax.jit(self._take), state, 0, 0, ahead, secret, key))
        self.text = "".join(text for _, text in lowered)
        self._draw, *self.programs = [one.compile(compiler_options=sizes.options) for one, _ in lowered]

    def shapes(self) -> Any:
        """Return the public shapes of what is handed over."""
        noise: Any = [jax.ShapeDtypeStruct((self.together, size), jnp.int32) for size in self.step.blocks.sizes]
        subsets: Any = jax.ShapeDtypeStruct((self.together, self.width), jnp.int32)
        words: Any = tuple(jax.ShapeDtypeStruct(room.shape, room.dtype) for room in self._rooms[0])
        return Ahead(noise, subsets, words)

    def run(self, state: State, first: int, stop: int, stream: Key, key: Key) -> State:
        """Take charged steps. A group's memory is written again two groups later, when what it was for is done.

        Privacy: reads records; only noisy sums leave.
        """
        self.storage.unchanged()
        with ThreadPoolExecutor(1, "tacit-fetch") as thread:
            coming: Future[tuple[Ahead, bool]] = thread.submit(self._group, stream, first, stop, 0, 0)
            start, part, turn, totals = first, 0, 0, None
            while start < stop:
                ahead, last = coming.result()
                state, totals = jax.block_until_ready((state, totals))
                turn = 1 - turn
                next_start, next_part = (start + self.together, 0) if last else (start, part + 1)
                if next_start < stop:
                    coming = thread.submit(self._group, stream, next_start, stop, next_part, turn)
                if not self.parted:
                    state = self.programs[0](state, start, min(next_start, stop), ahead, stream, key)
                else:
                    totals = self.step.blocks.zero() if totals is None else totals
                    begin = part * self.width // self.step.sizes.chunk
                    totals = self.programs[0](state, totals, start, begin, ahead, stream, key)
                    if last:
                        state, totals = self.programs[1](state, totals, start, ahead.noise, key), None
                start, part = next_start, next_part
            state = jax.block_until_ready(state)
        # Before anything leaves: what was read is what was hashed.
        self.storage.unchanged()
        return state

    def _take(self, state: State, first: Any, stop: Any, ahead: Ahead, secret: Key, key: Key) -> State:
        """Take steps whose noise, subsets and records are given: the same bits as from memory."""
        step, steps = self.step, first + jnp.arange(self.together)
        keys, record_key = random.fold_in(key, steps), step.draws.record_keys(secret, steps)

        def one(i: Array, state: State) -> State:
            mine = None if record_key is None else record_key[i]
            noise = [block[i] for block in ahead.noise]
            totals = step.sums.sum(
                state, self._rows(ahead), ahead.subsets, i, keys[i], mine, self.storage.count, noise=noise
            )
            return step.finish(state, step.blocks.whole(totals), keys[i])

        return jax.lax.fori_loop(0, stop - first, one, state)

    def _add_part(
        self, state: State, totals: Any, t: Any, begin: Any, ahead: Ahead, secret: Key, key: Key
    ) -> list[lattice.Sum]:
        """Add a part of a step's subset, from a chunk on, to its exact sum."""
        step, steps = self.step, jnp.asarray(t)[None]
        record_key = step.draws.record_keys(secret, steps)
        more = step.sums.sum(
            state, self._rows(ahead), ahead.subsets, jnp.int32(0), random.fold_in(key, steps)[0],
            None if record_key is None else record_key[0], self.storage.count, begin,
        )  # fmt: skip
        return list(map(lattice.plus, totals, more))

    def _finish(self, state: State, totals: Any, t: Any, noise: list[Int32[Array, "1 _"]], key: Key) -> State:
        noisy = [lattice.add(total, block[0]) for total, block in zip(totals, noise, strict=True)]
        return self.step.finish(state, self.step.blocks.whole(noisy), random.fold_in(key, jnp.asarray(t)[None])[0])

    def _rows(self, ahead: Ahead) -> Callable[[Array, Any, Array], PyTree]:
        def rows(positions: Array, row: Any, first: Array) -> PyTree:
            size = len(positions)
            parts = (jax.lax.dynamic_slice(held, (row, first, 0), (1, size, held.shape[2])) for held in ahead.words)
            return self.storage.records([part[0] for part in parts])

        return rows

    def _draw_for(self, secret: Key, steps: Any, given: Any) -> tuple[list[Array], Array | None]:
        words = None if given is None else alias.Words(given[0], None, given[1])
        noise, subsets = self.step.draws.draw(secret, steps, words)
        return noise, None if self.step.sizes.full_batch else subsets  # of a full batch they are known, and many

    @single_precision
    def _group(self, secret: Key, first: int, stop: int, part: int, turn: int) -> tuple[Ahead, bool]:
        """Draw and read for some steps, or for a part of one; and say whether that was its last."""
        if self._drawn[0] != first or not part:
            steps = np.arange(first, first + self.together, dtype=np.int32)
            if self._words is not None:
                self.step.draws.write_words(secret, range(first, min(first + self.together, stop)), *self._words)
            noise, subsets = jax.block_until_ready(self._draw(secret, steps, self._words))
            self._drawn = first, noise, None if subsets is None else np.asarray(subsets)
        _, noise, places = self._drawn
        begin, count = part * self.width, self.storage.count
        if places is None:
            here = np.minimum(np.arange(begin, begin + self.width, dtype=np.int32), count)[None]
            last = begin + self.width >= count
        else:
            here = places[:, begin : begin + self.width]
            here = np.pad(here, ((0, 0), (0, self.width - here.shape[1])), constant_values=count)
            last = not self.parted or begin + self.width >= int(np.count_nonzero(places < count))
        rooms = self._rooms[turn]
        started = time.perf_counter()
        mine = here[: min(self.together, stop - first)].reshape(-1)
        slots = np.flatnonzero(mine < count)
        for file, room in zip(self.storage.files, rooms, strict=True):
            if places is None:
                file.read(begin, len(slots), room[0, : len(slots)])
            else:
                file.gather(mine[slots], room.reshape(-1, file.width), slots, cold=self._cold)
        self._cold = time.perf_counter() - started > COLD * (1 + len(slots))
        return Ahead(noise, jnp.asarray(here), tuple(map(jax.device_put, rooms))), last


def _room(steps: int, width: int, file: File) -> Shaped[np.ndarray, "steps width words"]:
    size = steps * width * file.stride
    memory = random.room(-(-size // 4)).view(np.uint8)
    return memory[:size].view(file.word).reshape(steps, width, file.width)
