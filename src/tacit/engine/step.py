"""A private step, as it is compiled: sizes, what is drawn, contributions, their sum, the release."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from tacit.accounting.mechanism import Mechanism
from tacit.engine import lattice
from tacit.engine.blocks import Blocks
from tacit.engine.contributions import Contributions
from tacit.engine.draws import Draws
from tacit.engine.made_up import MadeUp
from tacit.engine.sizes import Sizes
from tacit.engine.sums import Sums
from tacit.types import Key, Method, Release, State
from tacit.wall.data import PrivateData


class Step:
    """The parts of a step, which ``tacit.engine.programs`` compiles for the place where the records are.

    Attributes
    ----------
    radius, unit
        Of the lattice: the clip is so many units.
    shares
        In how many shares the noise is added, one for each shard.
    sizes, blocks, draws, contributions, sums, made_up
        See the modules of these names.
    """

    def __init__(
        self, method: Method, data: PrivateData, mechanism: Mechanism, state: State, key: Key | None = None
    ) -> None:
        self.method, self.mechanism = method, mechanism
        self.shares = data.shards or 1
        self.radius = lattice.radius(mechanism.noise_multiplier, self.shares)
        self.unit = mechanism.clip / self.radius
        expected = None if data.size is None else mechanism.rate * data.size / self.shares
        self.contributions = Contributions(method, mechanism, self.radius, state, data._stand_in, expected)
        layout, factoring = self.contributions.layout, self.contributions.factoring
        sizes = Sizes.of(mechanism, layout, self.radius, factoring, data._count, expected)
        self.made_up = MadeUp(self.contributions, sizes, data._stand_in)
        start = jax.jit(lambda key: arrays(method.init(key)))(jax.random.key(0))
        alike, same = self.made_up.slots_are_alike(start, jax.random.key(1) if key is None else key)
        if not alike:
            self.contributions.one_at_a_time()
            # Compiled anew: a fingerprint is of the program that runs.
            self.made_up = MadeUp(self.contributions, sizes, data._stand_in)
        self.sizes = sizes if same else replace(sizes, tail=0)
        # The sums of several shards are added up: there one limb need not hold them.
        narrow = factoring is not None and factoring.narrow and data.shards is None
        self.blocks = Blocks(self.contributions.shape, layout, self.contributions.outers, factoring, narrow=narrow)
        self.draws = Draws(self.sizes, self.blocks, mechanism.rate, per_record_key=method.per_record_key)
        self.sums = Sums(self.contributions, self.blocks, self.sizes)

    @property
    def dimension(self) -> int:
        """How many numbers are released."""
        return self.contributions.layout.dimension

    def release(self, totals: list[lattice.Sum]) -> Release:
        """Return what is released of a noisy sum."""
        return self.blocks.release(totals, self.unit, self.mechanism.rate, self.shares)

    def finish(self, state: State, totals: list[lattice.Sum], key: Key) -> State:
        """Update the state by a noisy sum."""
        return arrays(self.method.update(state, self.release(totals), key))


def arrays(state: State) -> State:
    """Return a state whose leaves are arrays."""
    return jax.tree.map(jnp.asarray, state)
