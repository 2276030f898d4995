"""Made-up records: what a program does with them is looked at where nothing may be learnt of real ones."""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from tacit.engine import clip, random
from tacit.engine.contributions import Contributions
from tacit.engine.sizes import Sizes
from tacit.types import Key, PyTree, State


class MadeUp:
    """A chunk of made-up records, and keys of their own: public numbers, the same for every data set."""

    def __init__(self, contributions: Contributions, sizes: Sizes, stand_in: PyTree) -> None:
        self.contributions, self.sizes = contributions, sizes
        rng = np.random.default_rng(0)  # of NumPy, which need not be compiled
        chunk, per_record_key = sizes.chunk, contributions.method.per_record_key

        def made_up(leaf: Array) -> np.ndarray:
            shape, dtype = (chunk, *np.shape(leaf)), np.asarray(leaf).dtype
            if jnp.issubdtype(dtype, jnp.floating):
                return rng.standard_normal(shape).astype(dtype)
            # Zeros and ones suit labels; larger numbers reach further lines of a table, which is public or is added to.
            most = max([16, *(leaf.count for leaf in contributions.sparse)])
            levels = np.where(np.arange(chunk) % 4 < 2, 2, most).reshape(-1, *[1] * (len(shape) - 1))
            return rng.integers(0, levels, shape).astype(dtype)

        self.rows = jax.tree.map(made_up, stand_in)
        self.record_key = random.fold_in(random.fixed(0), jnp.arange(chunk)) if per_record_key else None

    @functools.cached_property
    def _clipped(self) -> Callable[..., clip.Scaled]:
        return jax.jit(self.contributions.clipped, compiler_options=self.sizes.options)

    def fingerprint(self, state: State, key: Key, thorough: bool) -> tuple[bytes, bool]:
        """Hash what the program makes of made-up records at a state; and say whether places matter there, if asked.

        Privacy: public: no record takes part.
        """
        here = self._clipped(state, self.rows, key, self.record_key)
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(here):
            digest.update(np.ascontiguousarray(leaf).view(np.uint8).data if leaf.size else b"")
        asked = thorough and self.contributions.slot_invariant
        return digest.digest(), not asked or self._same(here, state, key, _turned(self.sizes.chunk, 1))

    def _same(self, here: clip.Scaled, state: State, key: Key, places: np.ndarray) -> bool:
        """Whether made-up records at other places of a chunk, or of a smaller one, give the same bits."""
        rows, record_key = jax.tree.map(operator.itemgetter(places), (self.rows, self.record_key))
        there = self._clipped(state, rows, key, record_key)
        pairs = zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True)
        return all(np.array_equal(np.asarray(one)[places], np.asarray(other)) for one, other in pairs)

    def slots_are_alike(self, state: State, key: Key) -> tuple[bool, bool]:
        """Check that a contribution depends neither on its place in a chunk nor on the chunk's size.

        Removing a record moves the others to other places. If a place changed the last bits of a contribution, all of
        them would change; such a method is run one record at a time instead (docs/proofs/clipping.md).
        """
        here = self._clipped(state, self.rows, key, self.record_key)
        if not self.contributions.slot_invariant:  # the program could not be proved to keep records apart
            return False, False
        chunk, tail = self.sizes.chunk, self.sizes.tail
        alike = all(self._same(here, state, key, _turned(chunk, turn)) for turn in (1, chunk // 2 + 1))
        ends = np.arange(chunk)[:tail], np.arange(chunk)[-tail:]
        return alike, bool(tail) and alike and all(self._same(here, state, key, end) for end in ends)


def _turned(count: int, turn: int) -> np.ndarray:
    return np.roll(np.arange(count), turn)
