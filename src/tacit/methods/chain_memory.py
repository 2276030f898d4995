"""What is remembered of a chain: its last places, and mean predictions over all of them for inputs that are watched."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.methods.networks import Network, Weights
from tacit.types import Array, Key, PyTree

KEPT_NUMBERS = 1 << 24
"""All remembered places together hold at most so many numbers by default, but there are ten places at least."""


class Memory(NamedTuple):
    """The places that are kept, each new one in the room of the oldest, and mean predictions by name."""

    kept: Weights
    watched: PyTree


class Places:
    """Which places of a network's chain are remembered: the last ``keep`` of every ``thin``-th after the burn-in.

    Predictions for ``watch`` are averaged over all of these, those that are no longer kept included.
    """

    def __init__(self, net: Network, keep: int | None, thin: int, burn_in: int, watch: PyTree) -> None:
        if (keep is not None and keep < 1) or thin < 1:
            raise ValueError(f"keep is {keep} and thin is {thin}; both must be at least 1.")
        self.net, self.keep, self.thin, self.burn_in, self.watch = net, keep, thin, burn_in, watch

    def start(self, weights: Weights, key: Key) -> Memory:
        """Return a memory of nothing."""
        numbers = sum(leaf.size for leaf in jax.tree.leaves(weights))
        keep = max(10, min(50, KEPT_NUMBERS // numbers)) if self.keep is None else self.keep
        kept = jax.tree.map(lambda leaf: jnp.zeros((keep, *leaf.shape), leaf.dtype), weights)
        return Memory(kept, jax.tree.map(jnp.zeros_like, self._seen(weights, key)))

    def update(self, memory: Memory, weights: Weights, step: Array, key: Key) -> Memory:
        """Take a step's place into the memory; those in between are written over by the next that counts."""
        late = step - self.burn_in
        place = (jnp.maximum(late, 0) // self.thin) % _room(memory)
        kept = jax.tree.map(lambda kept, leaf: kept.at[place].set(leaf), memory.kept, weights)

        def averaged() -> PyTree:
            share = 1 / jnp.maximum(late // self.thin + 1, 1)
            return jax.tree.map(lambda mean, new: mean + share * (new - mean), memory.watched, self._seen(weights, key))

        watched = jax.lax.cond(late % self.thin == self.thin - 1, averaged, lambda: memory.watched)
        return Memory(kept, watched)

    def draw(self, memory: Memory, step: Array, key: Key) -> Weights:
        """Draw one of the places that are kept after so many steps."""
        filled = jnp.clip((step - self.burn_in - 1) // self.thin + 1, 1, _room(memory))
        place = jax.random.randint(key, (), 0, filled)
        return jax.tree.map(lambda kept: kept[place], memory.kept)

    def points(self, memory: Memory) -> dict[str, PyTree]:
        """Return the mean predictions, named as a posterior's points."""
        return {f"watched {name}": value for name, value in memory.watched.items()}

    def _seen(self, weights: Weights, key: Key) -> PyTree:
        if self.watch is None:
            return {}
        means = self.net.predict(weights, self.watch, key, None)
        return {name: value for name, value in means.items() if name != "y"}


def _room(memory: Memory) -> int:
    """Return how many places are kept."""
    return len(jax.tree.leaves(memory.kept)[0])
