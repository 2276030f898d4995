"""The border of the wall: what attacks through the public interface found, as tests that they fail now.

Each was a script that worked: two programs with one noise, questions that nobody paid for. (What a program may do
inside a step is in tests/engine/test_independence.py.)
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import platform
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit import system
from tacit.accounting.mechanism import Mechanism
from tacit.engine import alias, disk, files, random, shards, sizes
from tacit.engine import runner as engine
from tacit.engine.fetch import OnDisk
from tacit.engine.made_up import MadeUp
from tacit.engine.runner import Runner
from tacit.ledger.file import Ledger
from tacit.run.folder import Run
from tacit.types import Method, Requirement
from tacit.wall import border
from tacit.wall.data import PrivateData
from tests.conftest import with_constants_as_arguments

KEY = jax.random.key(0)
STEPS = 4
MECHANISM = Mechanism(rate=1.0, clip=1.0, noise_multiplier=3.0, steps=STEPS)
RECORDS = np.random.default_rng(0).normal(size=(70, 3)).astype(np.float32) / 4


def weighted(weights: np.ndarray) -> Method:
    """Release a weighted sum in every step; the weights are an array that the program holds."""
    held = jnp.asarray(weights, jnp.float32)
    return Method(
        lambda key: (jnp.int32(0), jnp.zeros((STEPS, held.size))),
        lambda state, record, key: record * held,
        lambda state, release, key: (state[0] + 1, state[1].at[state[0]].set(release.total)),
        lambda state, key: {"released": state[1]},
    )


def opened(method: Method, data: Any = RECORDS, **facts: Any) -> Runner:
    facts = {"ledgers": [Ledger()], "run": "test", "kind": "fit", "title": "test", "simulation": False} | facts
    return Runner(method, PrivateData(data, size=70), MECHANISM, secret=random.fixed(1), key=KEY, **facts)


def released(runner: Runner, method: Method) -> np.ndarray:
    start = jax.tree.map(jnp.asarray, method.init(KEY))
    return np.asarray(runner.advance(start, 0, STEPS)[1])


def test_two_programs_never_share_a_tag() -> None:
    """Of 64 entries: JAX prints arrays of up to 32 bytes in any case."""
    weights, records = np.ones(64), np.resize(RECORDS, (70, 64))
    changed = np.where(np.arange(64) == 17, 1.001, 1.0)
    tags = [opened(weighted(held), records).tag for held in (weights, weights.copy(), changed)]
    assert tags[0] == tags[1] != tags[2]
    if os.environ.get("JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS") == "1":  # and the text alone does not tell
        texts = [jax.jit(lambda x, held=held: x * held).lower(weights).as_text() for held in (weights, changed)]
        assert texts[0] == texts[1]


def test_the_same_where_constants_are_arguments() -> None:
    here = "tests/privacy/test_border.py::test_"
    names = ("two_programs_never_share_a_tag", "noise_does_not_cancel_even_if_the_tag_is_wrong")
    names += ("a_copied_run_with_one_entry_of_its_model_changed_is_another_look",)
    done = with_constants_as_arguments(*(f"{here}{name}" for name in names))
    assert done.returncode == 0, done.stdout[-3000:]


def test_noise_does_not_cancel_even_if_the_tag_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second line: the difference of two releases is that of two noises, not the exact difference of two sums."""
    monkeypatch.setattr(engine, "_tag", lambda *_: "the same for all")
    one, two = weighted(np.ones(3)), weighted(np.array([1, 1, 1.5]))
    first, again, other = (released(opened(method), method) for method in (one, weighted(np.ones(3)), two))
    np.testing.assert_array_equal(first, again)  # the same program: a replay
    # In every step, also in one that asks for no new fingerprint (the last). Noise has a deviation of 3, a difference
    # of two 4.2; two of them below .001 have a chance of 4e-8, and the secret is fixed.
    assert np.all(np.abs(first - other)[:, :2].max(1) > 0.001)


@pytest.mark.parametrize("broken", [False, True], ids=["as it is", "the tag is wrong"])
def test_a_copied_run_with_one_entry_of_its_model_changed_is_another_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """The demonstration: the difference of the two was the exact private sum, with one look on the ledger."""
    records = np.random.default_rng(1).normal(size=(70, 64)).astype(np.float32) / 16
    data = tacit.PrivateData(records, size=70, ledger=Ledger(tmp_path / "ledger.jsonl"))
    changed = np.where(np.arange(64) == 17, 1.001, 1.0)
    run, copied = tmp_path / "run", tmp_path / "copied"
    finish = Run.finish

    def keep_a_copy(self: Any, posterior: Any) -> None:
        if not copied.exists():
            shutil.copytree(run, copied)
            (copied / "checkpoint.npz").unlink()
        finish(self, posterior)

    monkeypatch.setattr(Run, "finish", keep_a_copy)
    if broken:
        monkeypatch.setattr(engine, "_tag", lambda *_: "f" * 64)

    def fitted(weights: np.ndarray, folder: Path) -> tacit.Posterior:
        held = jnp.asarray(weights, jnp.float32)
        method = Method(
            lambda key: jnp.zeros(64),
            lambda state, record, key: record * held,
            lambda state, release, key: release.total,
            lambda state, key: {"released": state},
        )
        budget = tacit.Budget(1.0, 1e-6)
        return tacit.fit(method, data, budget, rate=1.0, steps=1, clip=1.0, key=KEY, run_dir=folder, progress=False)

    one, two = fitted(np.ones(64), run), fitted(changed, copied)
    # 63 entries have the same exact sum. Their noises differ by a deviation of 6 or more: three within .001 have a
    # chance below 1e-7.
    difference = np.delete(two.draws["released"][0] - one.draws["released"][0], 17)
    assert np.sum(np.abs(difference) < 0.001) < 3
    if not broken:
        assert sum(charge.steps for charge in data.ledger.charges) == 2
        assert two.certificate is not None
        two.certificate.verify(data.ledger)
        assert two.certificate.mechanism.steps == 2


def test_noise_does_not_cancel_where_programs_part_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program does from its third step on shows in the fingerprint of the state that it meets there."""
    monkeypatch.setattr(engine, "_tag", lambda *_: "the same for all")

    def late(factor: float) -> Method:
        def contribute(state: Any, record: Any, key: Any) -> Any:
            return record * jnp.where(state[0] >= 2, factor, 1.0) * jnp.ones(3)

        return weighted(np.ones(3))._replace(contribute=contribute)

    one, two = (released(opened(late(factor)), late(factor)) for factor in (1.0, 1.5))
    np.testing.assert_array_equal(one[:2], two[:2])
    assert np.abs(one - two)[2:].min() > 1e-4
    exact = 0.5 * RECORDS.sum(0)
    assert np.abs((two - one)[2] - exact).max() > 0.05  # 1e-7: three normal numbers of deviation 4.2 within .05


def test_noise_does_not_cancel_where_programs_agree_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that differed once stay apart, though they do the same where they are compared next."""
    monkeypatch.setattr(engine, "_tag", lambda *_: "the same for all")

    def early(factor: float) -> Method:
        def contribute(state: Any, record: Any, key: Any) -> Any:
            return record * jnp.where(state[0] == 1, factor, 1.0) * jnp.ones(3)

        return weighted(np.ones(3))._replace(contribute=contribute)

    one, two = (released(opened(early(factor)), early(factor)) for factor in (1.0, 1.5))
    np.testing.assert_array_equal(one[0], two[0])
    assert np.abs(one - two)[1:].min() > 1e-4


def times_met(monkeypatch: pytest.MonkeyPatch, steps: int, size: int = 70) -> list[int]:
    """Take all steps of a run, and say at which of them the program was tried on made-up records."""
    met: list[int] = []
    fingerprint = MadeUp.fingerprint

    def noted(step: Any, state: Any, key: Any, thorough: bool) -> tuple[bytes, bool]:
        met.append(int(state[0]))
        return fingerprint(step, state, key, thorough)

    method = weighted(np.ones(3))
    method = method._replace(update=lambda state, release, key: (state[0] + 1, state[1]))
    mechanism = Mechanism(rate=1.0, clip=1.0, noise_multiplier=3.0, steps=steps)
    facts: dict[str, Any] = {"ledgers": [], "run": "t", "kind": "fit", "title": "t", "simulation": False}
    runner = Runner(method, PrivateData(RECORDS, size=size), mechanism, secret=random.fixed(1), key=KEY, **facts)
    with monkeypatch.context() as patch:
        patch.setattr(MadeUp, "fingerprint", noted)
        runner.advance(jax.tree.map(jnp.asarray, method.init(KEY)), 0, steps)
    return met


def test_short_segments_ask_for_few_fingerprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fingerprint takes as long as a chunk of records: in short runs it is asked for in seven segments of fifty."""
    assert times_met(monkeypatch, 50) == [0, 1, 2, 4, 8, 16, 32]
    assert times_met(monkeypatch, 50 * engine.LONG_SEGMENT) == [
        *range(0, 50 * engine.LONG_SEGMENT, engine.LONG_SEGMENT)
    ]
    # Steps of many chunks, by the declared size.
    assert times_met(monkeypatch, 5, size=10**7) == [0, 1, 2, 3, 4]


def test_steps_are_taken_in_order_under_their_noise() -> None:
    """The noise of a segment belongs to all that was met before it."""
    method = weighted(np.ones(3))
    start = jax.tree.map(jnp.asarray, method.init(KEY))
    runner, resumed = opened(method), opened(method)
    whole = runner.advance(start, 0, STEPS)
    again = runner.advance(start, 0, STEPS)
    np.testing.assert_array_equal(whole[1], again[1])
    three = runner.advance(start, 0, 3)
    np.testing.assert_array_equal(runner.advance(three, 3, STEPS)[1], whole[1])
    np.testing.assert_array_equal(runner.advance(three, 3, STEPS)[1], whole[1])  # the last segment once more
    runner.advance(start, 0, 1)
    with pytest.raises(ValueError, match="does not follow"):
        runner.advance(three, 3, STEPS)
    interrupted = opened(method)
    interrupted.advance(start, 0, 3)
    resumed.resume_chain(interrupted.chain)
    np.testing.assert_array_equal(resumed.advance(three, 3, STEPS)[1], whole[1])


# --- what is in the tag, one thing at a time ------------------------------------------------------------------


def tag_of(records: Any = RECORDS, key: Any = KEY, secret: int = 1, program: str = "text", origin: bytes = b"") -> str:
    return engine._tag(random.fixed(secret), key, records, program, origin)


PACKAGES = ("tacit", "jax", "jaxlib", "numpyro", "numpy", "cryptography")
VARIABLES = ("XLA_FLAGS", "NPROC", "PJRT_NPROC", "OMP_NUM_THREADS", "TF_XLA_FLAGS")
Patch = pytest.MonkeyPatch


def upgraded(package: str) -> Callable[[Patch], None]:
    found = importlib.metadata.version

    def change(patch: Patch) -> None:
        patch.setattr(importlib.metadata, "version", lambda name: "99.0" if name == package else found(name))

    return change


SURROUNDINGS: dict[str, Callable[[Patch], None]] = {
    **{f"version of {package}": upgraded(package) for package in PACKAGES},
    "version of Python": lambda patch: patch.setattr(platform, "python_version", lambda: "99.0"),
    "device": lambda patch: patch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="another")]),
    "system": lambda patch: patch.setattr(platform, "platform", lambda: "another"),
    "cores": lambda patch: patch.setattr(system, "cores", lambda: [10**6]),
    "processor": lambda patch: patch.setattr(engine, "_processor", lambda: ["another"]),
    **{name: (lambda patch, name=name: patch.setenv(name, "another")) for name in VARIABLES},
}


def in_memory(patch: Patch) -> Any:
    return RECORDS


def on_disk(patch: Patch) -> Any:
    stored = object.__new__(files.Stored)
    object.__setattr__(stored, "digest", b"of every byte")
    return stored


def in_shards(patch: Patch) -> Any:
    dealt = object.__new__(shards.Shards)
    dealt.mine, dealt.digests = [0], [b"of every byte"]
    return dealt


@pytest.mark.parametrize("place", [in_memory, on_disk, in_shards])
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_each_of_the_surroundings_is_in_the_tag(monkeypatch: Patch, place: Callable[[Patch], Any], name: str) -> None:
    records = place(monkeypatch)
    before = tag_of(records)
    with monkeypatch.context() as patch:
        SURROUNDINGS[name](patch)
        assert tag_of(records) != before
    assert tag_of(records) == before


@pytest.mark.parametrize("place", [in_memory, on_disk, in_shards])
def test_each_of_the_facts_of_a_run_is_in_the_tag(monkeypatch: Patch, place: Callable[[Patch], Any]) -> None:
    records = place(monkeypatch)
    changes: list[dict[str, Any]] = [{"key": jax.random.key(1)}, {"program": "other"}, {"origin": b"a state"}]
    changes += [{"secret": 2}]
    found = [tag_of(records, **change) for change in ({}, *changes)]
    assert len(set(found)) == len(found)


def test_records_are_in_the_tag_with_their_shapes_and_types() -> None:
    others = [RECORDS.reshape(35, 6), RECORDS.view(np.int32), RECORDS + np.float32(1e-6), {"x": RECORDS, "y": RECORDS}]
    found = [tag_of(records) for records in (RECORDS, *others)]
    assert len(set(found)) == len(found)


def test_settings_of_jax_are_in_the_tag() -> None:
    before = tag_of()
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        assert tag_of() != before
    finally:
        jax.config.update("jax_default_matmul_precision", None)
    assert tag_of() == before


PARTS: dict[str, Callable[[Patch], None]] = {
    "options of the compiler": lambda patch: patch.setattr(sizes, "QUICK_OPTIONS", {"xla_cpu_enable_fast_math": False}),
    "words at once": lambda patch: patch.setattr(random, "WORDS_AT_ONCE", 2 * random.WORDS_AT_ONCE),
    "words in a group": lambda patch: patch.setattr(alias, "GROUP", 2 * alias.GROUP),
    "segments": lambda patch: patch.setattr(sizes, "SEGMENTS", 49),
    "long segments": lambda patch: patch.setattr(engine, "LONG_SEGMENT", 99),
}


@pytest.mark.parametrize("name", PARTS)
def test_each_part_of_a_step_is_in_the_tag(monkeypatch: Patch, name: str) -> None:
    before = opened(weighted(np.ones(3))).tag
    PARTS[name](monkeypatch)
    assert opened(weighted(np.ones(3))).tag != before


def test_the_declared_size_is_in_the_tag_where_it_decides_when_fingerprints_are_taken() -> None:
    """Otherwise a replay under another size would be free and meet other noise, though the program is the same."""
    method = weighted(np.ones(3))
    facts: dict[str, Any] = {"ledgers": [], "run": "t", "kind": "fit", "title": "t", "simulation": False}
    data = [PrivateData(RECORDS, size=size) for size in (10**6, 2 * 10**6)]
    one, two = (Runner(method, here, MECHANISM, secret=random.fixed(1), key=KEY, **facts) for here in data)
    assert one._step.sizes.chunk == two._step.sizes.chunk
    assert one._step.sizes.expected_chunks != two._step.sizes.expected_chunks
    assert one.tag != two.tag


def test_the_program_of_the_start_is_in_the_tag() -> None:
    method = weighted(np.ones(3))
    other = method._replace(init=lambda key: (jnp.int32(0), jnp.ones((STEPS, 3))))
    assert opened(method).tag != opened(other).tag


# --- questions that nobody pays for ---------------------------------------------------------------------------


def asking(holds: Callable[[Any], Any], fixed: bool = False) -> Method:
    return weighted(np.ones(3))._replace(requirements=(Requirement("a question", holds, fixed),))


@pytest.mark.parametrize("fixed", [False, True])
def test_a_need_of_the_caller_s_answers_no_question(fixed: bool) -> None:
    """Ten refusals bracketed the largest value to a tenth. A record that does not fit now contributes nothing."""
    largest = float(np.abs(RECORDS).max())
    for bound in (0.5 * largest, 2 * largest):
        ledger = Ledger()
        opened(asking(lambda record, bound=bound: jnp.abs(record).max() < bound, fixed), ledgers=[ledger])
        assert ledger.lines == ()


def test_a_need_of_the_caller_s_answers_no_question_of_units() -> None:
    """What sums over the records of a unit is tacit's own code, and must not lend its name to the caller's."""
    columns = {"x": {"low": -2, "high": 2, "shape": [3]}}
    schema = tacit.Schema(columns, unit="person", max_records=2, size=35)
    data = PrivateData({"x": RECORDS, "person": np.arange(70) // 2}, schema)
    method = weighted(np.ones(3))._replace(contribute=lambda state, record, key: record["x"])
    for bound in (0.5, 2.0):
        book = Ledger()
        need = Requirement("a question", lambda record, bound=bound: jnp.abs(record["x"]).max() < bound, fixed=True)
        facts: dict[str, Any] = {"ledgers": [book], "run": "t", "kind": "fit", "title": "t", "simulation": True}
        Runner(method._replace(requirements=(need,)), data, MECHANISM, secret=random.fixed(1), key=KEY, **facts)
        assert book.lines == ()


def handed_on(record: Any, need: Requirement) -> Any:
    return need.predicate(record)


def test_a_need_that_was_handed_to_a_function_of_tacit_s_is_the_caller_s(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = tacit.sites.BINARY, Requirement("theirs", lambda record: True)
    monkeypatch.setattr(handed_on, "__code__", handed_on.__code__.replace(co_filename=engine.__file__))
    assert border._is_ours(functools.partial(handed_on, need=ours))
    assert not border._is_ours(functools.partial(handed_on, need=theirs))
    assert not border._is_ours(functools.partial(handed_on, theirs.predicate))
    assert not border._is_ours(theirs.predicate)


@pytest.mark.parametrize("declared", [False, True])
def test_without_a_schema_a_posterior_says_what_may_have_been_left_out(declared: bool) -> None:
    records = {"x": RECORDS, "y": np.arange(70) % 3}
    columns = {"x": {"low": -2, "high": 2, "shape": [3]}, "y": {"low": 0, "high": 2, "kind": "integer"}}
    data = PrivateData(records, tacit.Schema(columns) if declared else None, size=70)
    method = tacit.sep(tacit.sites.softmax(3))
    found = tacit.fit(method, data, tacit.Budget(1.0, 1e-6), steps=2, key=KEY, simulate=1, progress=False)
    assert ("counted for nothing. y must be a class" in (found.warning or "")) is not declared


def test_a_record_that_does_not_fit_contributes_nothing() -> None:
    runner = opened(asking(lambda record: record[0] > 0))
    rows = np.resize(RECORDS, (runner._step.sizes.chunk, 3))
    integers = np.asarray(runner._step.contributions.integers((jnp.int32(0), jnp.zeros((STEPS, 3))), rows, KEY))
    assert np.array_equal(np.any(integers != 0, axis=1), rows[:, 0] > 0)


def test_a_need_of_tacit_s_own_is_noted_when_it_refuses() -> None:
    data = PrivateData({"x": np.zeros((20, 3), np.float32), "y": np.full(20, 2)}, size=20)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"Some record is not what the method needs\. y must be 0 or 1"):
            tacit.fit(tacit.glm(prior_std=1.0), data, tacit.Budget(1.0, 1e-5), progress=False)
    notes = [line.body["note"] for line in data.ledger.lines if "note" in line.body]
    assert [note["kind"] for note in notes] == ["checked, refused"] * 2
    assert data.ledger.charges == ()


def test_the_number_of_records_shows_in_no_refusal() -> None:
    """Arrays of many lengths in one model, and which of them is refused, gave the number in ten calls."""
    for count in (69, 70, 71):
        held = jnp.ones((count, 2))
        method = weighted(np.ones(3))
        contribute = method.contribute
        leaky = method._replace(contribute=lambda s, r, k, held=held, c=contribute: c(s, r, k) + 0 * held.sum())
        data = PrivateData(RECORDS, size=100)
        facts: dict[str, Any] = {"ledgers": [], "run": "t", "kind": "fit", "title": "t", "simulation": True}
        Runner(leaky, data, MECHANISM, secret=random.fixed(1), key=KEY, **facts)


def test_a_ledger_with_notes_is_read_again(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "ledger.jsonl")
    book.note("checked, refused", "records that do not suit glm")
    shutil.copy(tmp_path / "ledger.jsonl", tmp_path / "copy.jsonl")
    again = Ledger(tmp_path / "copy.jsonl")
    again.verify()
    assert [line.body for line in again.lines][1] == {
        "note": {"kind": "checked, refused", "text": "records that do not suit glm"}
    }
    assert again.spent(1e-5) == 0


# --- places, files --------------------------------------------------------------------------------------------


def placed(x: jax.Array, begun: Any) -> jax.Array:
    """Add the place to a record, once ``begun``: apart from all others, and yet not a function of the record."""

    @jax.custom_batching.custom_vmap
    def itself(x: jax.Array, begun: Any) -> jax.Array:
        return x

    @itself.def_vmap
    def batched(count: int, record_key: list[bool], x: jax.Array, begun: Any) -> tuple[jax.Array, bool]:
        return x + jnp.where(begun, jnp.arange(count, dtype=jnp.float32)[:, None], 0), True

    return itself(x, begun)


def test_a_contribution_that_depends_on_its_place_is_found() -> None:
    method = weighted(np.ones(3))
    assert opened(method)._step.contributions.slot_invariant
    assert not opened(
        method._replace(contribute=lambda state, x, key: placed(x, state[0] >= 0))
    )._step.contributions.slot_invariant


def test_a_fingerprint_is_of_the_program_that_runs() -> None:
    """Where places matter records are taken one at a time, and so are the made-up ones."""
    method = weighted(np.ones(3))
    runner = opened(method._replace(contribute=lambda state, x, key: placed(x, state[0] >= 0)))
    plain = opened(method._replace(contribute=lambda state, x, key: x))
    start = jax.tree.map(jnp.asarray, method.init(KEY))
    found = [one._step.made_up.fingerprint(start, KEY, False)[0] for one in (runner, plain)]
    assert found[0] == found[1]


def test_a_contribution_that_depends_on_its_place_later_releases_nothing() -> None:
    method = weighted(np.ones(3))._replace(contribute=lambda state, x, key: placed(x, state[0] >= 2))
    runner = opened(method)
    assert runner._step.contributions.slot_invariant
    start = jax.tree.map(jnp.asarray, method.init(KEY))
    state = runner.advance(start, 0, 2)
    with pytest.raises(RuntimeError, match="depends on its place"):
        runner.advance(state, 2, 3)


def test_a_file_that_changes_while_steps_are_taken_releases_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", RECORDS)
    data = tacit.read_columns(tmp_path, size=70)
    method = weighted(np.ones(3))
    method = method._replace(contribute=lambda state, record, key: record["x"])
    facts: dict[str, Any] = {"ledgers": [], "run": "t", "kind": "fit", "title": "t", "simulation": True}
    runner = Runner(method, data, MECHANISM, secret=random.fixed(1), key=KEY, **facts)
    assert isinstance(runner._programs, OnDisk)
    group = runner._programs._group

    def meanwhile(*given: Any) -> Any:
        found = group(*given)
        np.save(tmp_path / "x.npy", RECORDS + 1)
        return found

    monkeypatch.setattr(runner._programs, "_group", meanwhile)
    with pytest.raises(RuntimeError, match="changed since they were sealed"):
        released(runner, method)


@pytest.mark.parametrize("kind", ["link", "link to nothing", "open file"])
def test_records_are_written_to_no_file_that_somebody_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Also where the names that are drawn can be foreseen: a file that is there already is not written to."""
    schema = tacit.Schema({"x": {"low": -2, "high": 2, "shape": [3]}})
    table = {"x": RECORDS}
    folder, theirs = tmp_path / "records", tmp_path / "theirs"
    folder.mkdir()
    monkeypatch.setattr(secrets, "token_hex", lambda count: "0" * 2 * count)
    foreseen = "records.npy.0000000000000000.partial"
    for name in ("records.partial", foreseen):
        if kind == "open file":  # kept under another name, as whoever has it open keeps it
            theirs.touch(mode=0o666)
            os.link(theirs, folder / name)
        else:
            if kind == "link":
                theirs.touch(mode=0o666)
            (folder / name).symlink_to(theirs)
    tacit.write_columns([table], schema, folder)  # what has the name of a part of ours is removed first
    assert not (folder / "records.npy").is_symlink()
    assert (folder / "records.npy").stat().st_nlink == 1
    assert not theirs.exists() or theirs.read_bytes() == b""
    (folder / "records.npy").unlink()
    remove = disk.remove_partial

    def planted_meanwhile(path: Path) -> None:
        remove(path)
        (folder / foreseen).symlink_to(theirs)

    monkeypatch.setattr(disk, "remove_partial", planted_meanwhile)
    with pytest.raises(FileExistsError):
        tacit.write_columns([table], schema, folder)
    assert not theirs.exists() or theirs.read_bytes() == b""
