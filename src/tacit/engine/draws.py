"""Noise and random subsets of the steps of a run, from the words of each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

from tacit.engine import alias, lattice, random, sample
from tacit.engine.blocks import Blocks
from tacit.engine.sizes import Sizes
from tacit.types import Key


class Draws:
    """What is drawn for a step; it belongs to the secret and the step's number, so the grouping changes no bit.

    Parameters
    ----------
    sizes, blocks
        How many words, records and numbers there are.
    rate
        Of the subsets.
    per_record_key
        Whether the method wants a key for each record.
    """

    def __init__(self, sizes: Sizes, blocks: Blocks, rate: float, *, per_record_key: bool) -> None:
        self.sizes, self.blocks, self.per_record_key = sizes, blocks, per_record_key
        self.gaps = () if sizes.full_batch else sample.gap_tables(rate, sample.digits_for(sizes.count))

    def draw(
        self, secret: Key, steps: Int32[Array, "steps"], words: alias.Words | None = None
    ) -> tuple[list[Int32[Array, "steps _"]], Int32[Array, "_ width"]]:
        """Draw the noise (in ``blocks``) and subsets of some steps; a step's depend on the secret and its number."""
        if words is None:
            keys = random.fold_in(secret, 2 * steps)
            words = alias.Words(jax.vmap(lambda key: jax.random.bits(key, (self.sizes.words,), jnp.uint32))(keys))
        return self.made(words, self.more_keys(secret, steps))

    def made(self, words: alias.Words, more: Key) -> tuple[list[Int32[Array, "steps _"]], Int32[Array, "_ width"]]:
        """Make noise and subsets of words."""
        return lattice.noise(self.blocks.sizes, words, more, self.blocks.fines), self._subsets(words, more)

    def _subsets(self, words: alias.Words, more: Key) -> Int32[Array, "_ width"]:
        count, width, drawn = self.sizes.count, self.sizes.width, self.sizes.room
        if self.sizes.full_batch:
            return jnp.minimum(jnp.arange(width, dtype=jnp.int32), count)[None]
        # Their words come last: the noise is that of its place, however many records there are.
        digits = alias.draw(self.gaps, drawn, words, more, start=2 * sum(self.blocks.sizes))
        return jnp.pad(sample.subsets(digits, count), ((0, 0), (0, width - drawn)), constant_values=count)

    def more_keys(self, secret: Key, steps: Int32[Array, "steps"]) -> Key:
        """Return the keys of further bits, where a word does not decide."""
        return random.fold_in(secret, 2 * steps + 1)

    def record_keys(self, secret: Key, steps: Int32[Array, "steps"]) -> Key | None:
        """Return the secret key of each step, from which its records get theirs; None where the method wants none."""
        if not self.per_record_key:
            return None
        # Noise and subsets come from children by fold_in, of which none is left: these are children of a split.
        return random.fold_in(jax.random.split(secret, 1)[0], steps)

    def room_for(self, steps: int) -> tuple[Any, Any] | None:
        """Return memory for the words of some steps and the least of each group, where they are made outside of JAX."""
        sizes = self.sizes
        both = (sizes.words, sizes.word_groups)
        return (random.room(steps, both[0]), random.room(steps, both[1])) if sizes.external_words else None

    def write_words(self, secret: Key, steps: range, words: Any, least: Any) -> None:
        """Write the words that noise and subsets of some steps are made of."""
        random.words(random.to_bytes(secret), [2 * step for step in steps], words, least, alias.GROUP)

    def input_shapes(self, secret: Key) -> Any:
        """Return the public shapes of what a call of the program is given: words, or what was drawn of them."""
        together, sizes = self.sizes.steps_per_call, self.sizes
        if sizes.external_words:
            both = (sizes.words, sizes.word_groups)
            return tuple(jax.ShapeDtypeStruct((together, size), jnp.uint32) for size in both)
        return jax.eval_shape(self.draw, secret, jax.ShapeDtypeStruct((together,), jnp.int32))
