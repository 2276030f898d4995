"""A key of its own for each record: secret, fresh in every step, tied to nothing but the secret stream."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.accounting.mechanism import Mechanism
from tacit.engine import lattice, random
from tacit.engine.made_up import MadeUp
from tacit.engine.memory import program_of, sum_over
from tacit.engine.runner import Runner
from tacit.engine.step import Step
from tacit.types import Method
from tacit.wall.data import PrivateData
from tests.conftest import without_noise

KEY = jax.random.key(5)
WIDTH, STEPS, COUNT = 3, 6, 7
MECHANISM = Mechanism(1.0, 4.0, 0.5, STEPS)


def drawn(width: int = WIDTH) -> Method:
    """Contribute the record plus a draw from its own key, and write down every release."""
    return Method(
        init=lambda key: (jnp.int32(0), jnp.zeros((STEPS, width))),
        contribute=lambda state, record, key, record_key: (
            record + jax.random.uniform(record_key, (width,), minval=-1.0)
        ),
        update=lambda state, release, key: (state[0] + 1, state[1].at[state[0]].set(release.total)),
        draw=lambda state, key: {},
        per_record_key=True,
    )


def step_of(method: Method, count: int = COUNT, mechanism: Mechanism = MECHANISM) -> Step:
    data = PrivateData(np.zeros((count, WIDTH), np.float32), size=COUNT)
    return Step(method, data, mechanism, method.init(KEY))


def slots(step: Step, secret: int, t: int) -> Any:
    """Return the own keys of the first chunk of a step, as ``_sum`` makes them."""
    record_key = step.draws.record_keys(random.fixed(secret), jnp.asarray([t]))
    assert record_key is not None
    return random.fold_in(record_key[0], jnp.arange(step.sizes.chunk))


def words(keys: Any) -> list[bytes]:
    return [row.tobytes() for row in np.asarray(jax.random.key_data(keys)).reshape(-1, 8)]


@pytest.mark.usefixtures("quick_compiler")
def test_records_of_the_same_content_get_different_draws() -> None:
    step = step_of(drawn())
    rows = np.zeros((step.sizes.chunk, WIDTH), np.float32)
    integers = np.asarray(jax.jit(step.contributions.integers)(step.method.init(KEY), rows, KEY, slots(step, 1, 0)))
    assert len(np.unique(integers, axis=0)) == step.sizes.chunk
    # The draws are uniform on (-1, 1), and at this clip none is cut.
    numbers = integers.ravel() * step.unit
    assert stats.kstest(numbers, stats.uniform(-1, 2).cdf).pvalue > 1e-6


@pytest.mark.usefixtures("quick_compiler")
def test_no_two_keys_of_a_run_are_the_same() -> None:
    # Steps, slots, the two keys of each step behind noise, subset and ties, and the secret itself.
    step = step_of(drawn())
    secret = random.fixed(1)
    record_key = [key for t in range(5) for key in words(slots(step, 1, t))]
    parents = words(step.draws.record_keys(secret, jnp.arange(5)))
    others = words(random.fold_in(secret, jnp.arange(64))) + words(secret)
    ties = words(random.fold_in(random.fold_in(secret, jnp.int32(1)), jnp.arange(64)))
    everything = record_key + parents + others + ties
    assert len(set(everything)) == len(everything) == 5 * step.sizes.chunk + 5 + 65 + 64


@pytest.mark.usefixtures("quick_compiler")
def test_the_keys_follow_the_secret_and_never_the_public_key(
    open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lattice, "noise", without_noise)
    data = PrivateData(np.ones((COUNT, WIDTH), np.float32), size=COUNT)
    found = {}
    for seed, public in itertools.product((1, 2), (3, 4)):
        runner = open_runner(drawn(), data, MECHANISM, seed)
        # In a simulation the stream is the secret; a real run binds it to the tag, and so to the public key.
        runner._key = jax.random.key(public)
        state = drawn().init(KEY)
        found[seed, public] = np.asarray(runner.advance(state, 0, STEPS)[1])
        assert np.array_equal(found[seed, public], runner.advance(state, 0, STEPS)[1])  # a replay gives the same bits
        halfway = runner.advance(runner.advance(state, 0, 2), 2, STEPS)
        assert np.array_equal(found[seed, public], halfway[1])
    assert np.array_equal(found[1, 3], found[1, 4])
    assert np.array_equal(found[2, 3], found[2, 4])
    both = np.concatenate([found[1, 3], found[2, 3]])
    assert len(np.unique(both, axis=0)) == 2 * STEPS  # no noise here: steps and secrets differ by these draws alone


def test_a_record_that_keeps_its_key_keeps_its_integers() -> None:
    """The coupling of the proof: keys go with the records, and one record's removal changes no other's integers."""
    step = step_of(drawn())
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(step.sizes.chunk, WIDTH)).astype(np.float32)
    record_key, program = slots(step, 1, 0), jax.jit(step.contributions.integers)
    state = step.method.init(KEY)
    here = np.asarray(program(state, rows, KEY, record_key))
    for gone in (0, 1, step.sizes.chunk // 2, step.sizes.chunk - 1):
        left = np.append(np.delete(np.arange(step.sizes.chunk), gone), gone)
        assert np.array_equal(program(state, rows[left], KEY, record_key[left]), here[left])
    # Keys that stay with the slots instead change every record behind the one removed: they must not be public.
    moved = np.roll(np.arange(step.sizes.chunk), -1)
    assert not np.any(np.all(np.asarray(program(state, rows[moved], KEY, record_key)) == here[moved], axis=1))


@pytest.mark.usefixtures("quick_compiler")
def test_every_slot_draws_by_the_same_law() -> None:
    step = step_of(drawn())
    rows = np.zeros((step.sizes.chunk, WIDTH), np.float32)
    program = jax.jit(lambda t: step.contributions.integers(step.method.init(KEY), rows, KEY, slots(step, 1, t)))
    numbers = np.stack([np.asarray(program(t)) for t in range(200)]) * step.unit
    for slot in (0, 1, step.sizes.chunk // 2, step.sizes.chunk - 1):
        assert stats.kstest(numbers[:, slot].ravel(), stats.uniform(-1, 2).cdf).pvalue > 1e-6
    # Neighbouring slots and steps are not correlated: of 600 pairs, a quarter is six standard deviations.
    assert abs(np.corrcoef(numbers[:, 0].ravel(), numbers[:, 1].ravel())[0, 1]) < 0.25
    assert abs(np.corrcoef(numbers[1:, 0].ravel(), numbers[:-1, 0].ravel())[0, 1]) < 0.25


def test_draws_do_not_make_slots_unlike(monkeypatch: pytest.MonkeyPatch) -> None:
    # Own keys travel with the records in the check; otherwise every method that uses them would fail it.
    assert step_of(drawn()).contributions.slot_invariant
    monkeypatch.setattr(MadeUp, "slots_are_alike", lambda *_: (False, False))
    slow = step_of(drawn())
    assert not slow.contributions.slot_invariant
    record_key = slots(slow, 1, 0)
    rows = np.zeros((slow.sizes.chunk, WIDTH), np.float32)
    one_by_one = np.asarray(jax.jit(slow.contributions.integers)(slow.method.init(KEY), rows, KEY, record_key))
    slow.contributions.slot_invariant = True
    slow.contributions._traced.clear()
    assert np.array_equal(
        one_by_one, jax.jit(slow.contributions.integers)(slow.method.init(KEY), rows, KEY, record_key)
    )


def test_the_sum_of_a_subset_in_several_chunks_uses_a_key_for_every_slot() -> None:
    method, count = drawn(), 150
    data = PrivateData(np.zeros((count, WIDTH), np.float32), size=1)
    step = Step(method, data, MECHANISM, method.init(KEY))
    assert step.sizes.chunk == 64
    subset = np.minimum(np.arange(192, dtype=np.int32), count)[None]
    record_key = random.fixed(3)
    (total,) = jax.jit(functools.partial(sum_over, step))(
        method.init(KEY), data._records, subset, jnp.int32(0), KEY, record_key
    )
    keys = random.fold_in(record_key, jnp.arange(count))
    each = [
        np.asarray(
            step.contributions.integers(
                method.init(KEY), np.zeros((64, WIDTH), np.float32), KEY, keys[np.arange(i, i + 64) % count]
            )
        )
        for i in (0, 64, 128)
    ]
    expected = np.concatenate(each)[:count].sum(0)
    assert np.array_equal(np.asarray(total.high) * 65536 + np.asarray(total.low), expected)


@pytest.mark.usefixtures("quick_compiler")
def test_a_method_with_own_keys_goes_through_the_same_checks(open_runner: Callable[..., Runner]) -> None:
    data = PrivateData(np.ones((60, WIDTH), np.float32), size=60)
    held = jnp.zeros((60, WIDTH))
    leaky = drawn()._replace(contribute=lambda state, record, key, record_key: record + held[0] + held.sum())
    with pytest.raises(ValueError, match="as many rows"):
        open_runner(leaky, data, MECHANISM)

    def prints(state: Any, record: Any, key: Any, record_key: Any) -> Any:
        jax.debug.print("{}", record)
        return record

    with pytest.raises(ValueError, match="contribute calls out"):
        open_runner(drawn()._replace(contribute=prints), data, MECHANISM)


@pytest.mark.usefixtures("quick_compiler")
def test_without_own_keys_nothing_is_drawn_for_them() -> None:
    plain = drawn()._replace(contribute=lambda state, record, key: record, per_record_key=False)
    assert step_of(plain).draws.record_keys(random.fixed(1), jnp.arange(3)) is None
    assert Method(*[None] * 4).per_record_key is False  # type: ignore[arg-type]
    # The program has no third family of keys: one split more is one cipher more.
    ciphers = {}
    for method in (plain, drawn()):
        step = step_of(method)
        secret = random.fixed(1)
        given, rows = step.draws.input_shapes(secret), np.zeros((COUNT, WIDTH), np.float32)
        inputs = method.init(KEY), 0, 0, 1, given, secret, KEY, rows
        ciphers[method.per_record_key] = jax.jit(program_of(step)).lower(*inputs).as_text().count("stablehlo.while")
    assert ciphers[False] < ciphers[True]
