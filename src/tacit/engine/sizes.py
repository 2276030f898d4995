"""The sizes of a step: every shape that is compiled, from public numbers and the number of records."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import jax

from tacit.accounting.mechanism import Mechanism
from tacit.engine import alias, clip, lattice, random, sample
from tacit.types import is_sparse
from tacit.wall.layout import Layout

CHUNK_NUMBERS = 1 << 18
"""Contributions held at once, in numbers: what fits a core's cache."""
BY_JAX = random.BY_CHACHA
"""Random words of a step up to which JAX draws them and makes noise and subsets of them; OpenSSL is faster from there
on, and what is made of its words is made in the step."""
DRAWN_AT_ONCE = 1 << 19
"""Random words that JAX draws at once."""
HANDED_OVER = 128
"""Steps for which noise and subsets are handed over at once, at most."""
SEGMENTS = 50
"""A run stops this many times: for the ledger, the checkpoint, the progress bar, and to tie noise to the program."""
QUICK = 1 << 28
"""A run whose contributions have fewer numbers in all takes less time than compiling it: it is compiled quickly."""
QUICK_OPTIONS = {"xla_cpu_use_fusion_emitters": False}
"""Options for such a run. XLA's code for fused loops takes a quarter of the compiler's time; JAX 0.11 and later have
no other."""
GIVEN_AT_ONCE = 3 << 23
"""Random words handed over at once: those of several steps, since each call costs the program new memory."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a step.

    Attributes
    ----------
    count
        How many records there are, which is private.
    chunk, expected_chunks
        Records that contribute at once, and the chunks of a subset of the expected size.
    group
        How many chunks are added to a low limb before it is carried over.
    tail
        Records of the last chunk of a step where so few are left; zero where all have a chunk's.
    full_batch
        Whether all records take part in every step.
    room, width
        Records in the largest subset; the same in whole chunks.
    words, word_groups
        Random words of a step, and groups of them of which the least is reported.
    external_words
        Whether those words are made outside of JAX.
    steps_drawn, steps_per_call
        Steps whose noise and subsets are drawn at once, and steps of one call of the program.
    options
        Options for the compiler.
    """

    count: int
    chunk: int
    expected_chunks: int
    group: int
    tail: int
    full_batch: bool
    room: int
    width: int
    words: int
    word_groups: int
    external_words: bool
    steps_drawn: int
    steps_per_call: int
    options: dict[str, bool]

    @classmethod
    def of(
        cls,
        mechanism: Mechanism,
        layout: Layout,
        radius: int,
        factoring: clip.Factoring | None,
        count: int,
        expected: float | None,
    ) -> Sizes:
        """Return the sizes of the steps of a run; ``expected`` is the declared size of a subset, or None."""
        if factoring is None:
            chunk = _chunk(layout, radius, 128.0 if expected is None else expected)
            group = lattice.group(chunk, radius)
        else:
            chunk, group = factoring.chunk, factoring.group
        full_batch = mechanism.rate == 1 or not count
        room = sample.room(count, mechanism.rate) if mechanism.rate < 1 and count else count
        # With no records at all there is still one chunk, empty: neighbours must not differ in whether a step works.
        width = max(1, math.ceil(room / chunk)) * chunk
        digits = 0 if full_batch else sample.digits_for(count)
        words = 2 * layout.dimension + room * digits
        external = words > BY_JAX
        # A segment has noise of its own: what is drawn beyond its end is drawn in vain.
        segment = segment_of(mechanism.steps)
        drawn = max(1, min(HANDED_OVER, segment, DRAWN_AT_ONCE // words))
        given = max(1, min(64, segment, GIVEN_AT_ONCE // words))
        # From public numbers only.
        quick = expected is not None and mechanism.steps * expected * layout.length < QUICK
        return cls(
            count=count,
            chunk=chunk,
            expected_chunks=max(1, -(-int(expected or 0) // chunk)),
            group=group,
            # A second size makes the program twice as long to compile.
            tail=factoring.tail if factoring and not quick else 0,
            full_batch=full_batch,
            room=room,
            width=width,
            words=words,
            word_groups=-(-words // alias.GROUP),
            external_words=external,
            steps_drawn=drawn,
            steps_per_call=given if external else drawn,
            options={name: value for name, value in QUICK_OPTIONS.items() if quick and is_known(name, value)},
        )


def segment_of(steps: int) -> int:
    """Return how many steps a segment of a run has."""
    return -(-steps // SEGMENTS)


def _chunk(layout: Layout, radius: int, expected: float) -> int:
    # From public numbers only: a program whose shapes followed the private number of records could round the
    # contributions of all records differently on neighbouring data.
    wanted = max(64, clip.full_chunk(expected))
    exact = (lattice.LOW_ROOM if any(map(is_sparse, layout.leaves)) else (1 << 31) - 1) // (radius + 1)
    return max(1, min(wanted, max(64, CHUNK_NUMBERS // max(1, layout.length)), exact))


@functools.cache
def is_known(option: str, value: bool) -> bool:
    """Return whether the compiler of this JAX knows an option: there is no list to look it up in."""
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(lambda: 0, compiler_options={option: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
