"""The border of the wall: what attacks through the public interface found, as tests that they fail now.

Each was a script that worked: two programs with one noise, questions that nobody paid for. (What a program may do
inside a step is in tests/wall/test_independence.py.)
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit import wall
from tacit.ledger import Ledger
from tacit.mechanism import Mechanism
from tacit.types import Method, Need
from tacit.wall import Door, random
from tacit.wall.data import PrivateData

KEY = jax.random.key(0)
STEPS = 4
MECHANISM = Mechanism(rate=1.0, clip=1.0, noise_multiplier=3.0, steps=STEPS)
RECORDS = np.random.default_rng(0).normal(size=(70, 3)).astype(np.float32) / 4


def weighted(weights: np.ndarray) -> Method:
    """Release a weighted sum in every step; the weights are an array that the program holds."""
    held = jnp.asarray(weights, jnp.float32)
    return Method(
        lambda key: (jnp.int32(0), jnp.zeros((STEPS, 3))),
        lambda state, record, key: record * held,
        lambda state, release, key: (state[0] + 1, state[1].at[state[0]].set(release.total)),
        lambda state, key: {"released": state[1]},
    )


def opened(method: Method, data: Any = RECORDS, **facts: Any) -> Door:
    facts = {"ledgers": [Ledger()], "run": "test", "kind": "fit", "title": "test", "simulation": False} | facts
    return Door(method, PrivateData(data, size=70), MECHANISM, secret=random.fixed(1), key=KEY, **facts)


def released(door: Door, method: Method) -> np.ndarray:
    start = jax.tree.map(jnp.asarray, method.init(KEY))
    return np.asarray(door.advance(start, 0, STEPS)[1])


@pytest.fixture(params=[False, True], ids=["constants in the text", "constants as arguments"])
def hoisted(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Both ways in which JAX keeps arrays that a program holds; the second is announced as its default."""
    before = jax.config.jax_use_simplified_jaxpr_constants
    jax.config.update("jax_use_simplified_jaxpr_constants", request.param)
    yield request.param
    jax.config.update("jax_use_simplified_jaxpr_constants", before)


def test_two_programs_never_share_a_tag(hoisted: bool) -> None:
    one, two = weighted(np.ones(3)), weighted(np.array([1, 1, 1.001]))
    assert opened(one).tag == opened(weighted(np.ones(3))).tag
    assert opened(one).tag != opened(two).tag


def test_noise_does_not_cancel_even_if_the_tag_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second line: the difference of two releases is that of two noises, not the exact difference of two sums."""
    monkeypatch.setattr(wall, "_tag", lambda *_: "the same for all")
    one, two = weighted(np.ones(3)), weighted(np.array([1, 1, 1.5]))
    first, again, other = (released(opened(method), method) for method in (one, weighted(np.ones(3)), two))
    np.testing.assert_array_equal(first, again)  # the same program: a replay
    # Noise has a deviation of 3, a difference of two 4.2; twelve of them below .01 together have a chance of 1e-28.
    assert np.abs(first - other)[:, :2].max() > 0.01


def test_noise_does_not_cancel_where_programs_part_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program does from its third step on shows in the fingerprint of the state that it meets there."""
    monkeypatch.setattr(wall, "_tag", lambda *_: "the same for all")

    def late(factor: float) -> Method:
        def contribute(state: Any, record: Any, key: Any) -> Any:
            return record * jnp.where(state[0] >= 2, factor, 1.0) * jnp.ones(3)

        return weighted(np.ones(3))._replace(contribute=contribute)

    one, two = (released(opened(late(factor)), late(factor)) for factor in (1.0, 1.5))
    np.testing.assert_array_equal(one[:2], two[:2])
    assert np.abs(one - two)[2:].min() > 1e-4
    exact = 0.5 * RECORDS.sum(0)
    assert np.abs((two - one)[2] - exact).max() > 0.05  # 1e-7: three normal numbers of deviation 4.2 within .05


def test_settings_of_jax_are_in_the_tag() -> None:
    before = opened(weighted(np.ones(3))).tag
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        assert opened(weighted(np.ones(3))).tag != before
    finally:
        jax.config.update("jax_default_matmul_precision", None)


# --- questions that nobody pays for ---------------------------------------------------------------------------


def asking(holds: Callable[[Any], Any], fixed: bool = False) -> Method:
    return weighted(np.ones(3))._replace(needs=(Need("a question", holds, fixed),))


@pytest.mark.parametrize("fixed", [False, True])
def test_a_need_of_the_caller_s_answers_no_question(fixed: bool) -> None:
    """Ten refusals bracketed the largest value to a tenth. A record that does not fit now contributes nothing."""
    largest = float(np.abs(RECORDS).max())
    for bound in (0.5 * largest, 2 * largest):
        ledger = Ledger()
        opened(asking(lambda record, bound=bound: jnp.abs(record).max() < bound, fixed), ledgers=[ledger])
        assert ledger.lines == ()


def test_a_record_that_does_not_fit_contributes_nothing() -> None:
    door = opened(asking(lambda record: record[0] > 0))
    rows = np.resize(RECORDS, (door._step.chunk, 3))
    integers = np.asarray(door._step.integers((jnp.int32(0), jnp.zeros((STEPS, 3))), rows, KEY))
    assert np.array_equal(np.any(integers != 0, axis=1), rows[:, 0] > 0)


def test_a_need_of_tacit_s_own_is_noted_when_it_refuses() -> None:
    data = PrivateData({"x": np.zeros((20, 3), np.float32), "y": np.full(20, 2)}, size=20)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"Some record is not what the method needs\. y must be 0 or 1"):
            tacit.fit(tacit.natural(prior_std=1.0), data, tacit.Budget(1.0, 1e-5), progress=False)
    notes = [line.body["note"] for line in data.ledger.lines if "note" in line.body]
    assert [note["kind"] for note in notes] == ["checked, refused"] * 2
    assert data.ledger.looks == ()


def test_the_number_of_records_shows_in_no_refusal() -> None:
    """Arrays of many lengths in one model, and which of them is refused, gave the number in ten calls."""
    for count in (69, 70, 71):
        held = jnp.ones((count, 2))
        method = weighted(np.ones(3))
        contribute = method.contribute
        leaky = method._replace(contribute=lambda s, r, k, held=held, c=contribute: c(s, r, k) + 0 * held.sum())
        data = PrivateData(RECORDS, size=100)
        facts: dict[str, Any] = {"ledgers": [], "run": "t", "kind": "fit", "title": "t", "simulation": True}
        Door(leaky, data, MECHANISM, secret=random.fixed(1), key=KEY, **facts)


def test_a_ledger_with_notes_is_read_again(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "ledger.jsonl")
    book.note("checked, refused", "records that do not suit natural")
    shutil.copy(tmp_path / "ledger.jsonl", tmp_path / "copy.jsonl")
    again = Ledger(tmp_path / "copy.jsonl")
    again.verify()
    assert [line.body for line in again.lines][1] == {
        "note": {"kind": "checked, refused", "text": "records that do not suit natural"}
    }
    assert again.spent(1e-5) == 0


# --- places, files --------------------------------------------------------------------------------------------


def placed(x: jax.Array, begun: Any) -> jax.Array:
    """Add the place to a record, once ``begun``: apart from all others, and yet not a function of the record."""

    @jax.custom_batching.custom_vmap
    def itself(x: jax.Array, begun: Any) -> jax.Array:
        return x

    @itself.def_vmap
    def batched(count: int, own: list[bool], x: jax.Array, begun: Any) -> tuple[jax.Array, bool]:
        return x + jnp.where(begun, jnp.arange(count, dtype=jnp.float32)[:, None], 0), True

    return itself(x, begun)


def test_a_contribution_that_depends_on_its_place_is_found() -> None:
    method = weighted(np.ones(3))
    assert opened(method)._step.alike
    assert not opened(method._replace(contribute=lambda state, x, key: placed(x, state[0] >= 0)))._step.alike


def test_a_contribution_that_depends_on_its_place_later_releases_nothing() -> None:
    method = weighted(np.ones(3))._replace(contribute=lambda state, x, key: placed(x, state[0] >= 2))
    door = opened(method)
    assert door._step.alike
    start = jax.tree.map(jnp.asarray, method.init(KEY))
    state = door.advance(start, 0, 2)
    with pytest.raises(RuntimeError, match="depends on its place"):
        door.advance(state, 2, 3)


def test_a_file_that_changes_while_steps_are_taken_releases_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", RECORDS)
    data = tacit.read_columns(tmp_path, size=70)
    method = weighted(np.ones(3))
    method = method._replace(contribute=lambda state, record, key: record["x"])
    facts: dict[str, Any] = {"ledgers": [], "run": "t", "kind": "fit", "title": "t", "simulation": True}
    door = Door(method, data, MECHANISM, secret=random.fixed(1), key=KEY, **facts)
    assert door._fetch is not None
    group = door._fetch._group

    def meanwhile(*given: Any) -> Any:
        found = group(*given)
        np.save(tmp_path / "x.npy", RECORDS + 1)
        return found

    monkeypatch.setattr(door._fetch, "_group", meanwhile)
    with pytest.raises(RuntimeError, match="changed since they were sealed"):
        released(door, method)
