"""Repeat and select behind the wall: a secret number of runs, of which only the best is shown (docs/proofs/select.md).

charge the whole selection                              one line, on the disk before the first access
K = Poisson(repeats), drawn again while it is 0         secret
K times: a candidate at random, its whole run with noise of its own, its score
the run with the best score                             all that leaves
"""

from __future__ import annotations

import random as simulated
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import NamedTuple

from tacit.engine import random
from tacit.engine.runner import Runner
from tacit.types import State

BITS = 128
"""Thresholds for the number of runs are rounded to so many bits, which moves its law by less than 2**-115."""


class Best(NamedTuple):
    """The place of the candidate that came out best, and the state its run ended in."""

    place: int
    state: State


def best_of(
    runners: Sequence[Runner],
    starts: Sequence[State],
    score: Callable[[State], float],
    *,
    seed: int | None = None,
) -> Best:
    """Run candidates a secret number of times and return the best run, by a score of what it released.

    Privacy: reads records, after one charge for the whole selection. Runs other than the best leave no trace but time.

    Parameters
    ----------
    runners
        One for each candidate; all with the same recipe, ledgers and run, of the kind "select".
    starts
        The public state in which each candidate's run begins.
    score
        Of the state in which a run ended: the larger the better. Public, like the state.
    seed
        Fixes the number of runs, the candidates and the noise of a simulation.
    """
    first = runners[0]
    charge, ledgers = replace(first._charge, tag=secrets.token_hex(32)), first._ledgers
    if (
        any(runner._charge != first._charge or runner._ledgers != ledgers for runner in runners)
        or charge.kind != "select"
    ):
        raise ValueError(
            "The candidates of a selection must have one recipe, ledger and run. This is a mistake of tacit."
        )
    if first._programs.processes > 1:
        raise ValueError(
            "A selection makes a secret number of runs, on which several processes cannot agree without telling it. "
            "Run it in one process."
        )
    if charge.simulation != (seed is not None):
        raise ValueError(
            "A selection with a fixed seed is a simulation, and one without is none. This is a mistake of tacit."
        )
    for ledger in ledgers:
        ledger.charge(charge)
    assert charge.mechanism.repeats is not None
    chance = secrets.SystemRandom() if seed is None else simulated.Random(seed)
    best: tuple[float, Best] | None = None
    for _ in range(draw_number(charge.mechanism.repeats, chance)):
        place = chance.randrange(len(runners))
        runner = runners[place]
        runner.rekey(random.fresh() if seed is None else random.fixed(chance.getrandbits(32)))
        state = runner._advance(starts[place], 0, charge.mechanism.steps)
        value = score(state)
        if best is None or value > best[0]:
            best = value, Best(place, state)
    assert best is not None
    return best[1]


def draw_number(repeats: float, chance: simulated.Random) -> int:
    """Draw the number of runs: Poisson with this mean, and again while it is 0.

    Privacy: secret.
    """
    steps = thresholds(repeats)
    while True:
        drawn = chance.getrandbits(BITS)
        number = sum(drawn >= step for step in steps)
        if number:
            return number


def thresholds(repeats: float) -> list[int]:
    """Return the Poisson distribution function in units of 2**-BITS, rounded down, up to where it is 1."""
    with localcontext() as context:
        context.prec = 80
        mean, unit = Decimal(repeats), Decimal(2) ** BITS
        chance = (-mean).exp()
        total, steps = chance, list[int]()
        while (step := int(total * unit)) < 2**BITS and (len(steps) < mean or int(chance * unit)):
            steps.append(step)
            chance *= mean / len(steps)
            total += chance
        return steps
