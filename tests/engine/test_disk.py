"""Records on disk: the same bits as in memory, whatever the size, and files that change are not read."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.accounting.mechanism import Mechanism
from tacit.engine import disk, fetch, files, sizes
from tacit.engine.fetch import OnDisk
from tacit.engine.runner import Runner
from tacit.ledger.file import Ledger
from tacit.types import Method, Requirement

pytestmark = pytest.mark.usefixtures("quick_compiler")
COUNT = 700
SCHEMA = tacit.Schema(
    {
        "x": {"low": -2, "high": 2, "shape": [3]},
        "y": {"levels": ["no", "yes"]},
        "n": {"low": 0, "high": 9, "kind": "integer"},
    },
    unit="patient",
    size=COUNT,
)
MECHANISM = Mechanism(0.1, 1.5, 1.0, 150)


def table() -> dict[str, Any]:
    random = np.random.default_rng(1)
    x = random.normal(size=(COUNT, 3)).astype(np.float32)
    return {"x": x, "y": np.where(x[:, 0] > 0, "yes", "no"), "n": random.integers(0, 10, COUNT)}


def slope(per_record_key: bool = False) -> Method:
    """Follow the gradient of a logistic regression; with a key of each record's own if wanted."""

    def score(w: Any, record: Any) -> Any:
        return (record["y"] - jax.nn.sigmoid(record["x"] @ w)) * record["x"] + 0.1 * record["n"]

    def noisy(w: Any, record: Any, _: Any, mine: Any) -> Any:
        return score(w, record) + jax.random.uniform(mine, (3,))

    return Method(
        init=lambda key: jnp.zeros(3),
        contribute=noisy if per_record_key else lambda w, record, _: score(w, record),
        update=lambda w, release, _: w + 0.1 * jnp.tanh(release.full),
        draw=lambda w, _: {"w": w},
        per_record_key=per_record_key,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    whole = table()
    parts = ({name: values[a : a + 250] for name, values in whole.items()} for a in range(0, COUNT, 250))
    tacit.write_columns(parts, SCHEMA, tmp_path / "records")
    return tmp_path / "records"


def run(runner: Runner, cuts: tuple[int, ...] = (0, 150)) -> np.ndarray:
    state = jnp.zeros(3)
    for first, stop in itertools.pairwise(cuts):
        state = runner.advance(state, first, stop)
    return np.asarray(state)


@pytest.mark.parametrize(
    ("way", "per_record_key"),
    [
        ("mapped", False),
        ("windows", False),
        ("places", False),
        pytest.param("mapped", True, marks=pytest.mark.slow),
    ],
)
def test_on_disk_and_in_memory_give_the_same_bits(
    folder: Path, open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, way: str, per_record_key: bool
) -> None:
    """Same key, same subsets, noise and sums: three segments of groups of 64 steps, whatever way rows are read."""
    monkeypatch.setattr(disk, "MAPPED", 1 << 30 if way == "mapped" else 0)
    monkeypatch.setattr(fetch, "COLD", 1.0 if way == "mapped" else 0.0)
    monkeypatch.setattr(files, "FAR", 1 << 18 if way == "windows" else 0)
    monkeypatch.setattr(files, "WINDOW", 4096)
    looked = []
    by_windows = files.File._gather_by_windows
    monkeypatch.setattr(files.File, "_gather_by_windows", lambda *given: (looked.append(1), by_windows(*given)))
    stored = tacit.read_columns(folder)
    assert stored._records.files[0].stays == (way == "mapped")
    assert "sealed" in repr(stored)
    memory = open_runner(slope(per_record_key), tacit.PrivateData(table(), SCHEMA), MECHANISM)
    fetched = open_runner(slope(per_record_key), stored, MECHANISM)
    assert isinstance(fetched._programs, OnDisk)
    whole = run(memory)
    assert np.isfinite(whole).all()
    assert whole.any()
    assert np.array_equal(run(fetched), whole)
    assert np.array_equal(run(fetched, (0, 1, 70, 150)), whole)
    assert bool(looked) == (way == "windows")


def test_records_are_found_wherever_they_stand_and_memory_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 300_000  # more than sixteen bits tell apart
    values = np.arange(20 * count, dtype=np.int32).reshape(count, 20)
    np.save(tmp_path / "x.npy", values)
    monkeypatch.setattr(files, "WINDOW", 1 << 20)
    file = tacit.read_columns(tmp_path, mapped=0)._records.files[0]
    assert not file.stays
    random = np.random.default_rng(0)
    places = random.permutation(np.append(random.integers(0, count, 5000), [0, count - 1, count - 1])).astype(np.int32)
    slots = random.permutation(6000)[: len(places)]
    out = np.full((6000, 20), 7, np.uint32)
    file.gather(places, out, slots, cold=False)
    assert np.array_equal(out[slots].view(np.int32), values[places])
    assert (np.delete(out, slots, axis=0) == 7).all(), "nothing else is written"
    if os.path.exists("/proc/self/smaps"):
        text = Path("/proc/self/smaps").read_text().split(str(tmp_path / "x.npy"))
        held = [int(part.split("Rss:")[1].split()[0]) for part in text[1:]]
        assert held
        assert sum(held) < 1024, "kilobytes of 24 MB"
    none = np.zeros(0, np.int32)
    file.gather(none, out, none, cold=False)


@pytest.mark.parametrize("words", [0, 1 << 14])
def test_groups_of_steps_are_sized_by_the_run(
    folder: Path, open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, words: int
) -> None:
    """Cheap words are drawn for at least 64 steps; those of OpenSSL for no more than a part of a segment."""
    monkeypatch.setattr(sizes, "BY_JAX", words)
    mechanism = dataclasses.replace(MECHANISM, steps=800)
    runner = open_runner(slope(), tacit.read_columns(folder), mechanism)
    assert runner._programs.together == (64 if words else 4)
    assert (runner._programs._words is None) == bool(words)
    memory = open_runner(slope(), tacit.PrivateData(table(), SCHEMA), mechanism)
    assert np.array_equal(run(runner, (0, 5)), run(memory, (0, 5)))


def test_what_is_handed_over_is_the_subset(folder: Path, open_runner: Callable[..., Runner]) -> None:
    stored = tacit.read_columns(folder)
    runner = open_runner(slope(), stored, MECHANISM)
    fetch, draw = runner._programs, jax.jit(runner._step.draws.draw)
    assert fetch.together == 64
    sealed, sizes = tacit.PrivateData(table(), SCHEMA)._records, []
    for start in (0, 64):
        ahead, last = fetch._group(runner._stream, start, 100, 0, 0)
        assert last
        noise, subsets = draw(runner._stream, jnp.arange(start, start + 64))
        assert all(np.array_equal(*both) for both in zip(noise, ahead.noise, strict=True))
        assert np.array_equal(subsets, ahead.subsets)
        columns = jax.tree.map(np.asarray, stored._records.records(ahead.words))
        for i in range(min(64, 100 - start)):
            mine = np.asarray(subsets[i])[np.asarray(subsets[i]) < COUNT]
            sizes.append(len(mine))
            for name, values in sealed.items():
                assert np.array_equal(columns[name][i, : len(mine)], np.asarray(values)[mine])
    # Sizes are binomial: the mean of 100 is beyond six standard errors once in a billion; the key is fixed.
    assert abs(np.mean(sizes) - 70) < 6 * np.sqrt(63 / 100)


def products() -> Method:
    """Contribute an outer product, which the wall sums by its factors, and what its own key says."""
    return Method(
        init=lambda key: (jnp.zeros((70, 80)), jnp.zeros(2)),
        contribute=lambda state, record, key, record_key: (
            jnp.outer(jnp.sin(jnp.arange(70) * record["x"][0]), jnp.cos(jnp.arange(80) * record["x"][1])),
            jax.random.uniform(record_key, (2,)),
        ),
        update=lambda state, release, key: release.total,
        draw=lambda state, key: {"w": state[0]},
        per_record_key=True,
    )


@pytest.mark.parametrize("rate", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_step_in_parts_is_the_step(
    folder: Path, open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch, rate: float
) -> None:
    """A subset that is handed over in parts adds up to the same integers, outer products and own keys included.

    At the smaller rate half of the subsets end with a chunk of another size.
    """
    monkeypatch.setattr(sizes, "QUICK", 0)
    mechanism = Mechanism(rate, 1.5, 1.0, 4)
    start = products().init(jax.random.key(0))
    memory = open_runner(products(), tacit.PrivateData(table(), SCHEMA), mechanism)
    assert memory._step.contributions.factoring is not None
    assert memory._step.sizes.tail
    monkeypatch.setattr(fetch, "HANDED_AT_ONCE", memory._step.sizes.chunk * 20)
    parts = open_runner(products(), tacit.read_columns(folder), mechanism)
    assert parts._programs.parted
    assert parts._programs.width < memory._step.sizes.width
    one, other = (runner.advance(start, 0, 4) for runner in (memory, parts))
    assert all(np.array_equal(*both) for both in zip(one, other, strict=True))


@pytest.mark.slow
def test_long_contributions_and_everyone(
    folder: Path, open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words given by OpenSSL, one step at a time; and the rate at which every record takes part."""
    everyone = Mechanism(1.0, 1.5, 1.0, 3)
    stored, sealed = tacit.read_columns(folder), tacit.PrivateData(table(), SCHEMA)
    assert np.array_equal(
        run(open_runner(slope(), stored, everyone), (0, 3)), run(open_runner(slope(), sealed, everyone), (0, 3))
    )
    monkeypatch.setattr(sizes, "BY_JAX", 4)
    alone = open_runner(slope(), stored, MECHANISM)
    assert alone._step.sizes.external_words
    assert alone._programs.together == 1
    assert np.array_equal(run(alone, (0, 5)), run(open_runner(slope(), sealed, MECHANISM), (0, 5)))


def test_the_tag_is_made_of_the_content(folder: Path, tmp_path: Path, open_runner: Callable[..., Runner]) -> None:
    """Not of the file's time or name: a changed value with everything put back gives another tag, so other noise."""
    runner = open_runner(slope(), tacit.read_columns(folder), MECHANISM, simulation=False)
    again = open_runner(slope(), tacit.read_columns(folder), MECHANISM, simulation=False)
    assert runner.tag == again.tag
    file = folder / "records.npy"
    before = file.stat()
    os.chmod(file, 0o600)
    with file.open("r+b") as out:
        out.seek(-1, os.SEEK_END)
        out.write(b"\0" if file.read_bytes()[-1] else b"\1")
    os.chmod(file, 0o400)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert file.stat().st_size == before.st_size
    with pytest.raises(ValueError, match="outside its declared bounds"):
        tacit.read_columns(folder)  # the last byte made the integer far too large: seal without the schema
    (folder / "schema.toml").unlink()
    changed = open_runner(slope(), tacit.read_columns(folder, size=COUNT), MECHANISM, simulation=False)
    assert changed._text == runner._text
    assert changed.tag != runner.tag
    assert not np.array_equal(jax.random.key_data(changed._stream), jax.random.key_data(runner._stream))


def test_files_that_change_are_not_read(folder: Path, open_runner: Callable[..., Runner]) -> None:
    ledger = Ledger()
    runner = open_runner(slope(), tacit.read_columns(folder), MECHANISM, ledgers=[ledger])
    runner.advance(jnp.zeros(3), 0, 2)
    os.chmod(folder / "records.npy", 0o600)
    with (folder / "records.npy").open("r+b") as out:
        out.seek(-1, os.SEEK_END)
        out.write(b"\0")
    with pytest.raises(RuntimeError, match="changed since they were sealed"):
        runner.advance(jnp.zeros(3), 2, 4)
    assert [(charge.first, charge.stop) for charge in ledger.charges] == [(0, 2), (2, 4)]  # the line comes first


def test_the_ledger_is_charged_before_a_record_is_fetched(
    folder: Path, open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger()
    runner = open_runner(slope(), tacit.read_columns(folder), MECHANISM, ledgers=[ledger])

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.File, "gather", stop)
    with pytest.raises(KeyboardInterrupt):
        runner.advance(jnp.zeros(3), 0, 2)
    assert [(charge.first, charge.stop) for charge in ledger.charges] == [(0, 2)]


def test_a_run_on_disk_is_resumed_for_free(folder: Path, tmp_path: Path) -> None:
    def fit(run: str, stop: int | None = None) -> Any:
        data = tacit.read_columns(folder, ledger=tmp_path / f"{run}.jsonl")
        budget = tacit.Budget(1.0, 1e-6, unit="patient")
        return tacit.fit(slope(), data, budget, rate=0.1, steps=100, clip=1.5, run_dir=tmp_path / run, progress=False)

    calls = iter(range(100))
    original = Runner._advance

    def killed(self: Runner, state: Any, first: int, stop: int) -> Any:
        after = original(self, state, first, stop)
        if next(calls) == 20:
            raise KeyboardInterrupt
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "_advance", killed)
        with pytest.raises(KeyboardInterrupt):
            fit("run")
    posterior = fit("run")
    ledger = Ledger(tmp_path / "run.jsonl")
    assert sum(charge.steps for charge in ledger.charges) == 100
    posterior.certificate.verify(ledger)


def test_own_npy_files_without_a_schema(tmp_path: Path, open_runner: Callable[..., Runner]) -> None:
    random = np.random.default_rng(0)
    records = {"x": random.normal(size=(90, 3)).astype(np.float32), "b": random.random(90) < 0.5}
    for name, values in records.items():
        np.save(tmp_path / f"{name}.npy", values)
    method = Method(
        lambda key: jnp.zeros(3),
        lambda w, record, _: jnp.where(record["b"], record["x"], 0.0),
        lambda w, release, _: w + release.total,
        lambda w, _: {"w": w},
        requirements=(Requirement("x is small.", lambda record: jnp.all(jnp.abs(record["x"]) < 100)),),
    )
    both = [
        run(open_runner(method, data, MECHANISM), (0, 9))
        for data in (tacit.read_columns(tmp_path), tacit.PrivateData(records))
    ]
    assert np.array_equal(*both)
    other = method._replace(
        requirements=(Requirement("x is tiny.", lambda record: jnp.all(jnp.abs(record["x"]) < 0.1)),)
    )
    fewer = [
        run(open_runner(other, data, MECHANISM), (0, 9))
        for data in (tacit.read_columns(tmp_path), tacit.PrivateData(records))
    ]
    assert np.array_equal(*fewer)
    assert not np.array_equal(fewer[0], both[0])


def test_needs_are_checked_in_every_block(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK", 64)
    stored = tacit.read_columns(folder)._records
    seen = np.concatenate([np.asarray(block["x"]) for block in stored.blocks()])
    whole = np.asarray(tacit.PrivateData(table(), SCHEMA)._records["x"])
    assert {row.tobytes() for row in seen} == {row.tobytes() for row in whole}


def _bad() -> Iterator[tuple[str, Any, str]]:
    yield "x", np.zeros((4, 2)), "float32"
    yield "x", np.asarray([1.0, np.nan], np.float32), "missing or infinite"
    yield "x", np.asfortranarray(np.zeros((4, 2), np.float32)), "C order"
    yield "x", np.asarray(["a"]), "float32"
    yield "x", np.float32(1), "C order"


@pytest.mark.parametrize(("name", "values", "message"), list(_bad()))
def test_what_cannot_be_records_is_refused(tmp_path: Path, name: str, values: Any, message: str) -> None:
    np.save(tmp_path / f"{name}.npy", values)
    with pytest.raises((ValueError, TypeError), match=message):
        tacit.read_columns(tmp_path)


def test_errors_of_folders(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no npy files"):
        tacit.read_columns(tmp_path)
    with pytest.raises(FileExistsError, match="already"):
        tacit.write_columns([], SCHEMA, folder)
    with pytest.raises(ValueError, match="differ in the columns"):
        tacit.read_columns(folder, tacit.Schema({"x": {"low": 0, "high": 1}}))
    with pytest.raises(ValueError, match="ids"):
        tacit.write_columns([{**table(), "patient": np.arange(COUNT)}], SCHEMA, tmp_path / "other")
    assert not list((tmp_path / "other").iterdir()), "what was converted so far does not stay behind"
    grouped = tacit.Schema({"a": {"low": 0, "high": 1}}, unit="patient", max_records=2)
    with pytest.raises(ValueError, match="not grouped"):
        tacit.write_columns([], grouped, tmp_path / "other")
    np.save(tmp_path / "a.npy", np.zeros(3, np.float32))
    np.save(tmp_path / "b.npy", np.zeros(4, np.float32))
    with pytest.raises(ValueError, match="leading axis"):
        tacit.read_columns(tmp_path)


def test_parquet_is_converted_once(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    schema = tacit.Schema({"a": {"low": 0, "high": 1, "missing": "drop"}, "c": {"levels": ["u", "v"]}})
    columns = {"a": [0.5, None, 7.0, -1.0], "c": ["u", "v", "v", "u"], "name": ["A", "B", "C", "D"]}
    pyarrow.parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    tacit.write_columns(tmp_path / "t.parquet", schema, tmp_path / "records")
    stored, sealed = tacit.read_columns(tmp_path / "records"), tacit.read_parquet(tmp_path / "t.parquet", schema)
    (block,) = stored._records.blocks()
    for name, values in sealed._records.items():
        assert np.array_equal(block[name], values)
    assert (tmp_path / "records" / "records.npy").stat().st_mode & 0o777 == 0o400
