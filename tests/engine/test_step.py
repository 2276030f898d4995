"""Steps of large contributions: their random words come from OpenSSL, and every bit is what it would be without."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.accounting.mechanism import Mechanism
from tacit.engine import alias, random, sizes
from tacit.engine.runner import Runner
from tacit.engine.step import Step
from tacit.ledger.file import Ledger
from tacit.types import Method
from tacit.wall.data import PrivateData

LONG = 5000
MECHANISM = Mechanism(0.5, 1.5, 1.0, 6)


def long() -> Method:
    """Contribute a long vector made of the record and its own key, and add up what is released."""
    return Method(
        init=lambda key: jnp.zeros(LONG),
        contribute=lambda state, record, key, record_key: jnp.sin(
            record[0] * jnp.arange(LONG) + jax.random.uniform(record_key) + 1e-3 * state
        ),
        update=lambda state, release, key: 0.9 * state + release.total,
        draw=lambda state, key: {"total": state},
        per_record_key=True,
    )


def data() -> PrivateData:
    return PrivateData(np.random.default_rng(1).normal(size=(12, 1)).astype(np.float32), size=12)


def everything(runner: Runner, cuts: list[int]) -> np.ndarray:
    state = jnp.zeros(LONG)
    for first, stop in itertools.pairwise(cuts):
        state = runner.advance(state, first, stop)
    return np.asarray(state)


@pytest.fixture(autouse=True)
def _one_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let several steps of these short runs be drawn at once: no more are than a segment has."""
    monkeypatch.setattr(sizes, "SEGMENTS", 1)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "BY_JAX", 2 * LONG)  # and the subset needs words too


@pytest.mark.parametrize("alone", [False, True])
def test_cutting_a_run_into_segments_changes_no_bit(
    open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    monkeypatch.setattr(sizes, "BY_JAX", 2 * LONG if alone else 1 << 20)
    monkeypatch.setattr(sizes, "HANDED_OVER", 4)
    ledger = Ledger()
    runner = open_runner(long(), data(), MECHANISM, 3, ledgers=[ledger])
    assert runner._step.sizes.external_words == alone
    whole = everything(runner, [0, 6])
    assert np.isfinite(whole).all()
    assert np.array_equal(everything(runner, [0, 1, 4, 6]), whole)
    assert np.array_equal(everything(runner, [0, 6]), whole), "nor does going back"
    assert sum(charge.stop - charge.first for charge in ledger.charges) == 6, "replays are free"
    # What was drawn under one secret is not handed over under another.
    runner.rekey(random.fixed(4))
    assert np.array_equal(everything(runner, [5, 6]), everything(open_runner(long(), data(), MECHANISM, 4), [5, 6]))


@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize("given", [1, 2, 4])
def test_however_many_steps_words_are_given_for_the_bits_are_the_same(
    alone: None, open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, given: int
) -> None:
    """Their memory is used again: were it written over while it is read, steps would change."""
    whole = everything(open_runner(long(), data(), MECHANISM, 3), [0, 6])
    monkeypatch.setattr(sizes, "GIVEN_AT_ONCE", given * open_runner(long(), data(), MECHANISM, 3)._step.sizes.words)
    runner = open_runner(long(), data(), MECHANISM, 3)
    assert runner._step.sizes.steps_per_call == given
    for cuts in ([0, 6], [0, 1, 4, 6]):
        assert np.array_equal(everything(runner, cuts), whole)


def test_given_the_words_of_the_step_noise_and_subsets_are_those_it_draws(alone: None) -> None:
    step = Step(long(), data(), MECHANISM, jax.ShapeDtypeStruct((LONG,), jnp.float32))
    secret = random.fixed(3)
    for t in range(3):
        words = np.asarray(jax.random.bits(jax.random.fold_in(secret, 2 * t), (1, step.sizes.words), jnp.uint32))
        least = np.minimum.reduceat(words, range(0, step.sizes.words, alias.GROUP), axis=1)
        inside = step.draws.draw(secret, jnp.asarray([t]))
        given = step.draws.draw(
            secret, jnp.asarray([t]), alias.Words(jnp.asarray(words), jnp.int32(0), jnp.asarray(least))
        )
        pairs = zip(jax.tree.leaves(inside), jax.tree.leaves(given), strict=True)
        assert all(np.array_equal(one, other) for one, other in pairs)


@pytest.mark.usefixtures("quick_compiler")
def test_the_ledger_is_charged_before_words_are_drawn(
    alone: None, open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger()
    runner = open_runner(long(), data(), MECHANISM, 3, ledgers=[ledger])

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(random, "words", stop)
    with pytest.raises(KeyboardInterrupt):
        runner.advance(jnp.zeros(LONG), 0, 2)
    assert [(charge.first, charge.stop) for charge in ledger.charges] == [(0, 2)]
