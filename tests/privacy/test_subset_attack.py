"""Attacks on the subsets that the wall really draws: single records, pairs, sizes, and one step after another.

Whoever samples otherwise than the accountant assumes is found out here: passes over shuffled records, subsets of one
size, subsets that are cut short, subsets that are kept. Seeds are fixed; each verdict has a false-alarm rate of 1e-6.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.accounting.mechanism import Mechanism
from tacit.engine import random
from tacit.engine.step import Step
from tacit.types import Method
from tacit.wall.data import PrivateData

COUNT, RATE, DRAWS = 6, 0.3, 30_000
LEVEL = 1e-6


def verdicts(members: np.ndarray, rate: float) -> dict[str, float]:
    """Return p-values of: inclusions are those of independent coins, (draws, records) of them."""
    draws, count = members.shape
    single = min(stats.binomtest(int(n), draws, rate).pvalue for n in members.sum(0)) * count
    pairs = list(itertools.combinations(range(count), 2))
    both = min(stats.binomtest(int((members[:, i] & members[:, j]).sum()), draws, rate**2).pvalue for i, j in pairs)
    sizes = np.bincount(members.sum(1), minlength=count + 1)
    size = stats.chisquare(sizes, stats.binom.pmf(np.arange(count + 1), count, rate) * draws).pvalue
    every = np.bincount(members @ (1 << np.arange(count)), minlength=1 << count)
    wanted = np.array([rate ** k.bit_count() * (1 - rate) ** (count - k.bit_count()) for k in range(1 << count)])
    subset = stats.chisquare(every, wanted * draws).pvalue
    # The same record in one step and in the next: disjoint pairs of steps, so that the counts are of independent coins.
    first, second = members[0 : draws - 1 : 2], members[1:draws:2]
    again = stats.binomtest(int((first & second).sum()), first.size, rate**2).pvalue
    return {"single": single, "pairs": both * len(pairs), "size": size, "subset": subset, "next": again}


@pytest.fixture(scope="module")
def drawn() -> np.ndarray:
    """Return who is in the subset of each of many steps, as ``Step.draw`` gives it to the sum."""
    method = Method(
        init=lambda key: jnp.zeros(2),
        contribute=lambda state, record, key: record,
        update=lambda state, release, key: state,
        draw=lambda state, key: {},
    )
    data = PrivateData(np.zeros((COUNT, 2), np.float32), size=COUNT)
    step = Step(method, data, Mechanism(RATE, 1.0, 1.0, DRAWS), jnp.zeros(2))
    subsets = np.asarray(jax.jit(step.draws.draw)(random.fixed(11), jnp.arange(DRAWS))[1])
    members = (subsets[:, :, None] == np.arange(COUNT)).sum(1)
    assert members.max() == 1  # nobody twice
    assert set(np.unique(subsets)) == set(range(COUNT + 1))  # the number of records is the filler
    return members.astype(bool)


def test_the_subsets_are_those_of_independent_coins(drawn: np.ndarray) -> None:
    found = verdicts(drawn, RATE)
    assert min(found.values()) > LEVEL, found


def shuffled(drawn: np.ndarray) -> np.ndarray:
    """Take passes over the records in a shuffled order, two at a time: each is in every third step."""
    generator = np.random.default_rng(0)
    order = np.concatenate([generator.permutation(COUNT) for _ in range(DRAWS // 3)]).reshape(-1, 2)
    return (order[:, :, None] == np.arange(COUNT)).any(1)


def cut_short(drawn: np.ndarray) -> np.ndarray:
    """Drop whatever goes beyond three records."""
    return drawn & (np.cumsum(drawn, axis=1) <= 3)


def kept(drawn: np.ndarray) -> np.ndarray:
    """Use every subset twice."""
    return np.repeat(drawn[: DRAWS // 2], 2, axis=0)


def another_rate(drawn: np.ndarray) -> np.ndarray:
    """Sample at a rate that is 5% higher."""
    return np.random.default_rng(1).random(drawn.shape) < 1.05 * RATE


def tied(drawn: np.ndarray) -> np.ndarray:
    """Let the last two records go together."""
    return np.concatenate([drawn[:, :-1], drawn[:, -2:-1]], axis=1)


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (shuffled, {"size", "next"}),
        (cut_short, {"single", "size"}),
        (kept, {"next"}),
        (another_rate, {"single"}),
        (tied, {"pairs", "size"}),
    ],
)
def test_the_attack_finds_other_samplers(
    drawn: np.ndarray, fault: Callable[[np.ndarray], np.ndarray], seen: set[str]
) -> None:
    found = verdicts(fault(drawn), RATE)
    assert all(found[name] < LEVEL for name in seen), found
