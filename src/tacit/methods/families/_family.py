"""What a conjugate family is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from tacit.methods.running import block_weights
from tacit.types import Array, Key, PyTree, Record, Requirement


class Family(NamedTuple):
    """A conjugate exponential family. Statistics are a dictionary of arrays, one for each block.

    Attributes
    ----------
    log_normaliser
        ``log_normaliser(statistics)``: log of the prior's mean of exp(n(m)' statistics), up to a constant.
    evidence
        ``evidence(expected, record)``: log of the sum over a record's latent variables of exp(expected' s), in which
        ``expected`` is shaped like the statistics. Runs inside the wall, and its gradient is what a record contributes.
    begin
        ``begin(key)``: statistics of made-up records, to start from.
    repair
        ``repair(statistics, noise_std)``: statistics that records could have, from noisy ones.
    draw
        ``draw(statistics, key)``: one draw of the parameters, a dictionary.
    bounds
        The largest or the usual norm of each block of a contribution, public: it decides how noise is shared.
    predict, requirements, synthesize
        As in ``tacit.Method`` and its model.
    refill
        ``refill(draw, noisy, noise_std, key)``: one draw of the statistics, given parameters, and statistics to which
        noise of known standard deviations was added. Optional: with it, intervals account for the noise.
    latent
        Whether a record has latent variables. Without, statistics never change, and one step is enough.
    """

    log_normaliser: Callable[[PyTree], Array]
    evidence: Callable[[PyTree, Record], Array]
    begin: Callable[[Key], PyTree]
    repair: Callable[[PyTree, PyTree], PyTree]
    draw: Callable[[PyTree, Key], dict[str, Array]]
    bounds: dict[str, float]
    predict: Callable[[dict[str, Array], PyTree, Key], PyTree] | None = None
    requirements: tuple[Requirement, ...] = ()
    latent: bool = True
    refill: Callable[[dict[str, Array], PyTree, PyTree, Key], PyTree] | None = None
    synthesize: Callable[[dict[str, Array], int, Key], dict[str, Any]] | None = None

    def weights(self) -> tuple[float, ...]:
        """Return the weights that share one release among the blocks with the least noise, in the order of names."""
        blocks = jax.eval_shape(self.begin, jax.random.key(0))
        if set(blocks) != set(self.bounds):
            raise ValueError(
                f"The statistics have the blocks {sorted(blocks)} and bounds are given for {sorted(self.bounds)}. "
                "Noise is shared among blocks by their bounds: pass one for each."
            )
        names = sorted(blocks)
        return block_weights([self.bounds[name] for name in names], [blocks[name].size for name in names])


FamilyFor = Callable[[Record], Family]
"""A family that must know the shape of a record first."""
