"""Secret subsets: Poisson ones, and those of a fixed size."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from tacit.adapters.d3p import random
from tacit.adapters.d3p.keys import chacha_key, key_of_words, random_words
from tacit.engine import alias, sample
from tacit.types import Array, Key


def secret_key(rng_suite: Any, key: Any) -> Key:
    """Return the ChaCha20 key that a key of any suite stands for."""
    return chacha_key(key) if rng_suite is random else key_of_words(rng_suite.random_bits(key, 32, (8,)))


@functools.cache
def rate_for(count: int, size: int) -> float:
    """Return a rate at which a Poisson subset has fewer than ``size`` records with probability at most OVERFULL."""
    rate = size / count
    while rate < 1 and sample.room(count, 1 - rate) > count - size:
        rate *= 1.05
    return min(rate, 1.0)


def draw_subset(secret: Key, count: int, rate: float, slots: int) -> tuple[Array, Array]:
    """Draw a Poisson subset into random slots and return its size; empty slots hold ``count``.

    Given its size a Poisson subset is uniform, and so is a random part of it: batches of a fixed size are drawn here
    too. Slots are random because a removed record must not move the others: floats may round differently in each.
    """
    digits, room = (sample.digits_for(count), sample.room(count, rate)) if rate < 1 else (0, count)
    more, (words, order, place) = random_words(secret, digits * room, 4 * room, 4 * slots)
    drawn = jnp.arange(count, dtype=jnp.int32)
    if rate < 1:
        columns = alias.draw(sample.gap_tables(rate, digits), room, alias.Words(words[None]), more)
        drawn = sample.subsets(columns, count)[0]
    chosen = shuffled(order, drawn, drawn == count)[:slots]
    padded = jnp.pad(chosen, (0, slots - chosen.size), constant_values=count)
    return shuffled(place, padded), jnp.sum(drawn < count)


def shuffled(words: Array, values: Array, last: Any = False) -> Array:
    """Order values by random words of 128 bits, which do not tie, those marked ``last`` at the end."""
    marks = jnp.broadcast_to(last, values.shape).astype(jnp.uint32)
    return jax.lax.sort((marks, *words.reshape(4, -1), values), num_keys=5)[-1]
