"""The ledger: written before the look, replayed for free, and broken only by an error that names the line."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tacit import accounting, system
from tacit.accounting.mechanism import RESERVE, Budget, Mechanism, calibrate
from tacit.ledger import lines as ledger
from tacit.ledger import storage
from tacit.ledger.file import GENESIS, BudgetExceeded, Charge, Ledger, LedgerError, Line

RECIPE = Mechanism(rate=0.01, clip=1.0, noise_multiplier=2.0, steps=100)


WARM_UP = replace(RECIPE, steps=10)


def charge(first: int = 0, stop: int = 50, **changes: Any) -> Charge:
    values: dict[str, Any] = {
        "run": "run-1",
        "kind": "fit",
        "method": "vi",
        "mechanism": RECIPE,
        "first": first,
        "stop": stop,
        "tag": "tag-a",
        "unit": "record",
        "simulation": False,
    }
    return Charge(**{**values, **changes})


def warm_up(book: Ledger) -> Ledger:
    """Charge a first run, so that the others count by the steps looked at."""
    book.charge(charge(0, 10, run="run-0", mechanism=WARM_UP))
    return book


def total(*steps: int, delta: float = 1e-5) -> float:
    return accounting.spent([(0.01, 2.0, count) for count in steps], delta * (1 - RESERVE), "add-remove")


def steps_on(book: Ledger) -> list[tuple[int, int]]:
    return [(one.first, one.stop) for one in book.charges]


def state(to: Path) -> tuple[Path, Path]:
    """Keep a copy of the anchors of now."""
    anchors, copy = system.state_folder() / "anchors", to / "anchors"
    anchors.mkdir(parents=True, exist_ok=True)
    shutil.copytree(anchors, copy)
    return anchors, copy


def restore(kept: tuple[Path, Path]) -> None:
    """Put the anchors back that ``state`` kept."""
    shutil.rmtree(kept[0])
    shutil.copytree(kept[1], kept[0])


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture(params=["file", "memory"])
def book(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl" if request.param == "file" else None)


# Charge and replay


def test_a_new_ledger_has_spent_nothing(book: Ledger) -> None:
    assert book.spent(1e-5) == 0
    assert book.charges == ()
    assert book.head == GENESIS
    book.verify()


def test_the_same_look_is_free_the_second_time(book: Ledger) -> None:
    assert book.charge(charge()) is True
    head, spent = book.head, book.spent(1e-5)
    assert spent > 0
    assert book.charge(charge()) is False
    assert (book.head, book.spent(1e-5)) == (head, spent)


@pytest.mark.parametrize(
    "changes",
    [{"tag": "tag-b"}, {"method": "other"}, {"simulation": True}, {"run": "run-2"}],
    ids=lambda changes: next(iter(changes)),
)
def test_anything_else_is_charged_again(book: Ledger, changes: dict[str, object]) -> None:
    book.charge(charge())
    before = book.spent(1e-5)
    assert book.charge(charge(**changes)) is True
    assert book.spent(1e-5) > before


def test_part_of_a_look_is_free(book: Ledger) -> None:
    book.charge(charge(0, 50))
    assert book.charge(charge(0, 30)) is False
    assert book.charge(charge(20, 50)) is False
    book.charge(charge(50, 70))
    assert book.charge(charge(10, 65)) is False, "covered by two looks together"
    assert steps_on(book) == [(0, 50), (50, 70)]


def test_only_the_uncovered_steps_are_charged(book: Ledger) -> None:
    book.charge(charge(10, 20))
    book.charge(charge(40, 50))
    assert book.charge(charge(0, 60)) is True
    assert steps_on(book) == [(10, 20), (40, 50), (0, 10), (20, 40), (50, 60)]
    assert book.charge(charge(0, 60)) is False
    assert book.runs()["run-1"].steps == 60


def test_every_executed_step_is_on_the_ledger_once_for_each_tag() -> None:
    # The invariant of docs/proofs/replay.md, over all pairs and some triples of intervals.
    recipe = replace(RECIPE, steps=6)
    spans = [(a, b) for a in range(6) for b in range(a + 1, 7)]
    for one in spans:
        for two in spans:
            book = Ledger()
            for first, stop in (one, two, spans[(one[0] + 5 * two[1]) % len(spans)]):
                book.charge(charge(first, stop, mechanism=recipe))
                held = [step for low, high in steps_on(book) for step in range(low, high)]
                assert len(held) == len(set(held))
                assert set(range(first, stop)) <= set(held)


def test_runs_count_repeated_steps(book: Ledger) -> None:
    book.charge(charge(0, 50))
    book.charge(charge(30, 80, tag="tag-b"))
    book.charge(charge(0, 1, run="run-2", kind="ask", method="mean", mechanism=replace(RECIPE, steps=1)))
    runs = book.runs()
    assert list(runs) == ["run-1", "run-2"]
    assert (runs["run-1"].steps, runs["run-1"].repeated, runs["run-1"].charges) == (100, 20, 2)
    assert runs["run-1"].looked == RECIPE
    assert runs["run-2"].looked.steps == 1


def test_spent_is_the_accountants_total(book: Ledger) -> None:
    book.charge(charge(0, 50))
    assert book.spent(1e-6) == total(100, delta=1e-6), "the first run counts whole"
    book.charge(charge(50, 100))
    assert book.spent(1e-6) == total(100, delta=1e-6)
    book.charge(charge(0, 30, tag="tag-b"))
    assert book.spent(1e-6) == total(100, 30, delta=1e-6), "its repeated steps count apart"
    book.charge(charge(0, 10, run="run-2"))
    assert book.spent(1e-6) == total(100, 30, 10, delta=1e-6), "a later run counts as far as it went"
    book.charge(charge(0, 10, run="run-2", tag="tag-b"))
    assert book.spent(1e-6) == total(100, 30, 20, delta=1e-6)


def test_the_history_adds_up_run_by_run(book: Ledger) -> None:
    assert book.history(1e-6) == ()
    book.charge(charge(0, 50))
    book.charge(charge(0, 10, run="run-2"))
    book.charge(charge(50, 100))
    (one, first), (two, both) = book.history(1e-6)
    assert (one.run, one.steps, two.run, two.steps) == ("run-1", 100, "run-2", 10)
    assert (first, both) == (total(100, delta=1e-6), book.spent(1e-6))


def test_spent_needs_a_delta(book: Ledger) -> None:
    with pytest.raises(ValueError, match=r"write ledger\.spent\(delta=1e-5\)"):
        book.spent()


# What does not belong together


def test_one_adjacency(book: Ledger) -> None:
    book.charge(charge())
    other = replace(RECIPE, adjacency="replace-one")
    for act in (
        lambda: book.charge(charge(run="run-2", mechanism=other)),
        lambda: book.afford(other, "record"),
    ):
        with pytest.raises(LedgerError, match="adjacency 'replace-one', the ledger 'add-remove'"):
            act()
    assert len(book.charges) == 1


def test_one_unit(book: Ledger) -> None:
    book.charge(charge())
    with pytest.raises(LedgerError, match="unit of privacy 'patient', the ledger 'record'"):
        book.charge(charge(unit="patient"))
    assert len(book.charges) == 1


def test_one_recipe_for_each_run(book: Ledger) -> None:
    book.charge(charge())
    other = replace(RECIPE, noise_multiplier=1.0)
    with pytest.raises(LedgerError, match="another recipe"):
        book.charge(charge(50, 60, mechanism=other))
    with pytest.raises(LedgerError, match="another recipe"):
        book.charge(charge(50, 60, kind="ask"))
    assert book.charge(charge(0, 10, run="run-2", mechanism=other)) is True


def test_simulated_looks_count_too(book: Ledger) -> None:
    book.charge(charge(simulation=True))
    book.charge(charge(run="run-2"))
    assert [run.simulation for run in book.runs().values()] == [True, False]
    assert book.spent(1e-5) == total(100, 50)


@pytest.mark.parametrize(
    "changes",
    [
        {"run": ""},
        {"tag": " "},
        {"unit": 3},
        {"kind": "peek"},
        {"first": -1},
        {"first": 50},
        {"stop": 101},
        {"stop": 10.0},
        {"first": True},
        {"simulation": 0},
    ],
    ids=str,
)
def test_looks_that_make_no_sense(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="A charge"):
        charge(**changes)


def test_a_look_survives_json() -> None:
    one = charge(3, 7, simulation=True)
    assert Charge.from_dict(json.loads(json.dumps(one.to_dict()))) == one


# The cap


def test_the_cap_refuses_before_writing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    limit = total(10, 60)
    book = warm_up(Ledger(path, cap=Budget(limit, 1e-5)))
    book.charge(charge(0, 50))
    before = path.read_bytes()
    with pytest.raises(BudgetExceeded, match="cap is ε") as caught:
        book.charge(charge(50, 61))
    words = str(caught.value)
    assert f"{book.spent():.4g} is spent" in words
    assert "11 steps" in words
    assert f"make it {total(10, 61):.4g}" in words
    assert path.read_bytes() == before
    assert book.charge(charge(0, 50)) is False, "a replay is free even under a cap that is used up"
    assert book.charge(charge(50, 60)) is True
    assert book.spent() == limit


def test_only_what_is_new_counts_against_the_cap() -> None:
    book = warm_up(Ledger(cap=Budget(total(10, 60), 1e-5)))
    book.charge(charge(0, 50))
    assert book.charge(charge(0, 60)) is True


def test_a_calibrated_run_fits_a_cap_equal_to_its_budget() -> None:
    budget = Budget(1.0, 1e-5)
    recipe = calibrate(budget, rate=0.01, steps=500, clip=1.0)
    book = Ledger(cap=budget)
    book.afford(recipe, "record")
    assert book.charge(charge(0, 500, mechanism=recipe)) is True
    assert 0.98 <= book.spent() <= 1
    with pytest.raises(BudgetExceeded):
        book.charge(charge(0, 1, run="run-2", mechanism=recipe))


def test_a_first_run_that_may_begin_may_end() -> None:
    book = Ledger(cap=Budget(total(100), 1e-5))
    with pytest.raises(BudgetExceeded):
        book.charge(charge(0, 1, mechanism=replace(RECIPE, steps=101)))
    for first in range(0, 100, 20):
        assert book.charge(charge(first, first + 20)) is True
        assert book.spent() == total(100)


def test_afford_checks_a_whole_run(tmp_path: Path) -> None:
    limit = total(100)
    book = Ledger(tmp_path / "ledger.jsonl", cap=Budget(limit, 1e-5))
    book.afford(RECIPE, "record")
    with pytest.raises(BudgetExceeded, match="a run of 101 steps"):
        book.afford(replace(RECIPE, steps=101), "record")
    book.charge(charge(0, 50))
    with pytest.raises(BudgetExceeded):
        book.afford(RECIPE, "record")
    book.afford(RECIPE, "record", run="run-1")
    with pytest.raises(LedgerError, match="another recipe"):
        book.afford(replace(RECIPE, rate=0.02), "record", run="run-1")
    with pytest.raises(LedgerError, match="unit"):
        book.afford(RECIPE, "patient")
    assert steps_on(book) == [(0, 50)]


def test_the_cap_binds_later_openings(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    cap = Budget(1.0, 1e-5)
    Ledger(path, cap=cap)
    assert Ledger(path).cap == cap
    assert Ledger(path, cap=cap).cap == cap
    for other in (Budget(2.0, 1e-5), Budget(1.0, 1e-6), Budget(1.0, 1e-5, unit="patient")):
        with pytest.raises(LedgerError, match="A cap binds everyone"):
            Ledger(path, cap=other)


def test_a_cap_cannot_be_added_later(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(charge())
    with pytest.raises(LedgerError, match="has no cap"):
        Ledger(path, cap=Budget(1.0, 1e-5))


def test_a_cap_set_by_another_process_binds_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    early = Ledger(path)
    Ledger(path, cap=Budget(1e-6, 1e-5))
    with pytest.raises(BudgetExceeded):
        early.charge(charge())


def test_the_adjacency_can_be_fixed_beforehand(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path, adjacency="replace-one")
    with pytest.raises(LedgerError, match="adjacency"):
        Ledger(path).charge(charge())
    with pytest.raises(LedgerError, match="adjacency"):
        Ledger(path, adjacency="add-remove")
    with pytest.raises(ValueError, match="write one of"):
        Ledger(adjacency="neighbours")
    with pytest.raises(ValueError, match="write Budget"):
        Ledger(cap=1.0)  # type: ignore[arg-type]


# The file


def test_the_line_is_on_the_disk_before_charge_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    synced: list[tuple[str, int]] = []
    real = os.fsync

    def spy(file: int) -> None:
        name = os.readlink(f"/proc/self/fd/{file}")
        synced.append((Path(name).name, path.read_bytes().count(b"\n") if path.exists() else 0))
        real(file)

    monkeypatch.setattr(os, "fsync", spy)
    book = Ledger(path)
    book.charge(charge(0, 50))
    assert synced == [("ledger.jsonl", 2), (tmp_path.name, 2)], "the file with its line, then its folder"
    synced.clear()
    book.charge(charge(50, 60))
    assert synced == [("ledger.jsonl", 3)]
    synced.clear()
    assert book.charge(charge(50, 60)) is False
    assert synced == []
    # Another process may have been killed between its write and its fsync.
    assert Ledger(path).charge(charge(50, 60)) is False
    assert synced == [("ledger.jsonl", 3), (tmp_path.name, 3)]


def test_opening_creates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert Ledger(path).charges == ()
    assert not path.exists()
    with pytest.raises(LedgerError, match="does not exist"):
        Ledger(tmp_path / "nowhere" / "ledger.jsonl").charge(charge())


def test_a_path_that_cannot_be_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is a folder"):
        Ledger(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger(tmp_path / "file" / "ledger.jsonl")


def test_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    book.charge(charge(0, 50))
    book.charge(charge(50, 60))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["seq"] for line in lines] == [0, 1, 2]
    assert [line["prev"] for line in lines] == [GENESIS, lines[0]["hash"], lines[1]["hash"]]
    assert book.head == lines[2]["hash"]
    # The day and no more: the time between looks follows the number of records.
    assert all(date.fromisoformat(line["time"]) for line in lines)
    assert "format" in lines[0]["body"]["header"]
    assert Ledger(path).lines == book.lines


def test_killed_while_writing_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    book.charge(charge(0, 50))
    before, anchored = path.read_bytes(), state(tmp_path)
    book.charge(charge(50, 60))
    whole = path.read_bytes()
    for size in range(len(before), len(whole) + 1):
        path.write_bytes(whole[:size])
        restore(anchored)  # written after the line, so it did not know of it
        torn = Ledger(path)
        # The line without its newline is complete; counting it can only charge too much.
        kept = size >= len(whole) - 1
        assert steps_on(torn) == ([(0, 50), (50, 60)] if kept else [(0, 50)])
        assert path.read_bytes() == whole[:size], "reading changes nothing"
        assert torn.charge(charge(50, 60)) is not kept
        assert torn.charge(charge(60, 70)) is True
        assert steps_on(Ledger(path)) == [(0, 50), (50, 60), (60, 70)]
        assert path.read_bytes().startswith(before)
        assert path.read_bytes().endswith(b"\n")
        torn.verify()


def test_killed_while_writing_the_header_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    anchored = state(tmp_path)
    Ledger(path, cap=Budget(1.0, 1e-5))
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        restore(anchored)
        torn = Ledger(path, cap=Budget(1.0, 1e-5))
        assert torn.charge(charge()) is True
        assert Ledger(path).cap == Budget(1.0, 1e-5)


@pytest.mark.parametrize("tail", [b"\0" * 5000, b'{"body":{"look":' + b"\0" * 5000], ids=["zeros", "both"])
def test_a_power_failure_may_leave_zeros(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(charge(0, 50))
    before = path.read_bytes()
    path.write_bytes(before + tail)
    assert Ledger(path).charge(charge(50, 60)) is True
    assert steps_on(Ledger(path)) == [(0, 50), (50, 60)]
    assert b"\0" not in path.read_bytes()
    assert path.read_bytes().count(b"\n") == 3


def test_a_torn_line_that_another_process_cut_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    one = Ledger(path)
    one.charge(charge(0, 50))
    two = Ledger(path)
    path.write_bytes(path.read_bytes() + b'{"body":{"lo')
    assert len(one.charges) == 1
    assert two.charge(charge(50, 60)) is True
    assert steps_on(one) == [(0, 50), (50, 60)]
    path.write_bytes(path.read_bytes()[:-1])
    assert len(Ledger(path).charges) == 2
    third = Ledger(path)
    assert Ledger(path).charge(charge(60, 70)) is True
    assert len(third.charges) == 3, "the missing newline was added by the other"


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    for content in (b"my thesis", b"my thesis\n", b"{}", b"[1]\n", b'{"body":{"other":1}}'):
        path.write_bytes(content)
        with pytest.raises(LedgerError, match="Line 1"):
            Ledger(path)
        assert path.read_bytes() == content


def test_every_changed_byte_is_found_and_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    book.charge(charge(0, 50))
    book.charge(charge(50, 60))
    whole = path.read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == 10]
    for place in range(ends[-1]):
        for byte in {(whole[place] + 1) % 256, ord("7"), ord(" ")} - {whole[place]}:
            path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            number = 1 + sum(end < place for end in ends)
            with pytest.raises(LedgerError, match=rf"Line {number} of"):
                Ledger(path)


def test_a_line_in_another_form_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(charge())
    whole = path.read_bytes()
    for old, new in (
        (b'"rate":0.01,', b'"rate":0.010,'),
        (b'"run":', b'"run": '),
        (b'"unit"', b'"unit":"x","unit"'),
    ):
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(LedgerError, match="Line 2 of"):
            Ledger(path)


def test_a_line_rewritten_with_a_fitting_hash_breaks_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    book.charge(charge(0, 50))
    book.charge(charge(50, 60))
    lines = path.read_bytes().splitlines(keepends=True)
    old = book.lines[1]
    forged = Line.seal(1, old.time, {"look": charge(0, 5).to_dict()}, old.prev)
    lines[1] = ledger.canonical(forged.to_dict()) + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError, match=r"Line 3 of .* does not follow"):
        Ledger(path)


def test_lines_cannot_be_left_out_or_swapped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    for first in range(0, 40, 10):
        book.charge(charge(first, first + 10))
    lines = path.read_bytes().splitlines(keepends=True)
    for wrong, number in (
        (lines[1:], 1),
        ([lines[0], *lines[2:]], 2),
        ([*lines[:2], lines[3], lines[2], lines[4]], 3),
        ([*lines[:2], *lines[1:]], 3),
        ([lines[0], b"\n", *lines[1:]], 2),
    ):
        path.write_bytes(b"".join(wrong))
        with pytest.raises(LedgerError, match=rf"Line {number} of"):
            Ledger(path)


def test_a_consistent_line_must_still_make_sense(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(charge())
    good = path.read_bytes()
    last = Ledger(path).lines[-1]
    body = charge().to_dict()
    for wrong in (
        {"look": {**body, "stop": 101}},
        {"look": {**body, "unit": "patient"}},
        {"look": {name: value for name, value in body.items() if name != "tag"}},
        {"look": {**body, "extra": 1}},
        {"look": [1]},
        {"header": {"format": ledger.FORMAT}},
        {},
    ):
        line = Line.seal(2, last.time, wrong, last.hash)
        path.write_bytes(good + ledger.canonical(line.to_dict()) + b"\n")
        with pytest.raises(LedgerError, match="Line 3 of"):
            Ledger(path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    line = Line.seal(0, "2026-01-01T00:00:00+00:00", {"header": {"format": "tacit-ledger-9"}}, GENESIS)
    path.write_bytes(ledger.canonical(line.to_dict()) + b"\n")
    with pytest.raises(LedgerError, match="tacit-ledger-9"):
        Ledger(path)


def test_a_ledger_that_breaks_while_open_charges_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    book.charge(charge(0, 50))
    book.charge(charge(50, 60))
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for wrong in (b"".join(lines[:2]), b"", whole + b"junk\n", whole[:-5] + b'0"}\n', b"x" * len(whole)):
        path.write_bytes(wrong)
        with pytest.raises(LedgerError):
            book.charge(charge(60, 70))
        assert path.read_bytes() == wrong
    path.unlink()
    with pytest.raises(LedgerError, match="is gone"):
        book.charge(charge(60, 70))
    assert not path.exists()
    path.write_bytes(whole)
    assert book.charge(charge(60, 70)) is True


def test_verify_reads_everything_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    book.charge(charge(0, 50))
    book.charge(charge(50, 60))
    whole = path.read_bytes()
    book.verify()
    # The first look changed; the last line, which reading checks, is as it was.
    path.write_bytes(whole.replace(b'"first":0', b'"first":1'))
    with pytest.raises(LedgerError, match="Line 2"):
        book.verify()
    other = tmp_path / "other.jsonl"
    Ledger(other).charge(charge(0, 30))
    path.write_bytes(other.read_bytes())
    with pytest.raises(LedgerError):
        book.verify()


def test_a_full_disk_means_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    book.charge(charge(0, 50))
    before = path.read_bytes()
    real = system.write_at

    def full(file: int, data: bytes, offset: int) -> int:
        real(file, data[:20], offset)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(system, "write_at", full)
    with pytest.raises(LedgerError, match="No space left"):
        book.charge(charge(50, 60))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert book.charge(charge(50, 60)) is True


def test_a_write_in_small_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = system.write_at
    monkeypatch.setattr(system, "write_at", lambda file, data, offset: real(file, data[:7], offset))
    book = Ledger(tmp_path / "ledger.jsonl")
    book.charge(charge(0, 50))
    book.verify()
    assert steps_on(Ledger(tmp_path / "ledger.jsonl")) == [(0, 50)]


# A path that is given to another file


def swap(path: Path) -> None:
    """Put a copy in the file's place, as a synchronising program or an editor does."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.replace(copy, path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not replace a file that is open")
def test_a_file_replaced_while_its_lock_is_waited_for_loses_no_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    book.charge(charge(0, 50))
    real, swaps = system.locked, [swap]

    @contextlib.contextmanager
    def late(file: int, **how: Any) -> Iterator[None]:
        if swaps and not how.get("shared"):
            swaps.pop()(path)
        with real(file, **how):
            yield

    monkeypatch.setattr(system, "locked", late)
    assert book.charge(charge(50, 60)) is True
    assert not swaps
    assert steps_on(Ledger(path)) == [(0, 50), (50, 60)]
    # Another content in its place is found, and an empty path under a ledger in use is not filled again.
    swaps.append(lambda path: os.replace(tmp_path / "other", path))
    Ledger(tmp_path / "other").charge(charge(0, 30))
    with pytest.raises(LedgerError, match="shortened or replaced"):
        book.charge(charge(60, 70))
    path = tmp_path / "third"
    Ledger(path).charge(charge(0, 50))
    book = Ledger(path)
    swaps.append(Path.unlink)
    with pytest.raises(LedgerError, match="is gone"):
        book.charge(charge(60, 70))


def test_a_file_that_is_replaced_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    book = Ledger(path)
    book.charge(charge(0, 50))
    monkeypatch.setattr(storage, "is_in_place", lambda path, file: False)
    open_files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    with pytest.raises(LedgerError, match="again and again"):
        book.charge(charge(50, 60))
    assert not open_files or len(os.listdir("/proc/self/fd")) == open_files
    monkeypatch.undo()
    assert steps_on(Ledger(path)) == [(0, 50)]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not replace a file that is open")
@pytest.mark.parametrize("replay", [False, True])
def test_a_file_replaced_while_a_line_is_synced_means_no_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replay: bool
) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(charge(0, 50))
    book, real, before = Ledger(path), system.flush_to_disk, path.read_bytes()
    copy = tmp_path / "copy"
    copy.write_bytes(before)

    def slow(file: int) -> None:
        real(file)
        if copy.exists():
            os.replace(copy, path)

    monkeypatch.setattr(system, "flush_to_disk", slow)
    with pytest.raises(LedgerError, match="No record is read"):
        book.charge(charge(0, 50) if replay else charge(50, 60))
    assert path.read_bytes() == before
    # The file that is there now is not known to be on the disk, so even a replay brings it there first.
    synced: list[int] = []
    monkeypatch.setattr(system, "flush_to_disk", lambda file: synced.append(file) or real(file))
    assert book.charge(charge(0, 50)) is False
    assert len(synced) == 1
    assert book.charge(charge(50, 60)) is True
    assert steps_on(Ledger(path)) == [(0, 50), (50, 60)]


# Several at once


def _append(path: Path, name: str, count: int) -> None:
    book = Ledger(path)
    for first in range(count):
        assert book.charge(charge(first, first + 1, run=name)) is True


def test_two_processes_append_to_one_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_append, args=(path, name, 60)) for name in ("one", "two")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    book = Ledger(path)
    book.verify()
    assert {name: run.steps for name, run in book.runs().items()} == {"one": 60, "two": 60}
    assert len(book.lines) == 121


def test_threads_append_to_one_ledger(book: Ledger) -> None:
    def work(name: str) -> None:
        for first in range(20):
            book.charge(charge(first, first + 1, run=name))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    book.verify()
    assert len(book.charges) == 60


def test_two_openings_share_the_cap(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    one = warm_up(Ledger(path, cap=Budget(total(10, 60), 1e-5)))
    two = Ledger(path)
    assert one.charge(charge(0, 40)) is True
    with pytest.raises(BudgetExceeded):
        two.charge(charge(40, 80))
    assert two.charge(charge(0, 40)) is False, "the other's look is a replay here"


def test_killed_at_random_moments(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    script = """
import sys
from tacit.ledger.file import Ledger, Charge
from tacit.accounting.mechanism import Mechanism
recipe = Mechanism(rate=0.01, clip=1.0, noise_multiplier=2.0, steps=100000)
book = Ledger(sys.argv[1])
start = len(book.charges)
for step in range(start, 100000):
    book.charge(Charge("run-1", "fit", "vi", recipe, step, step + 1, "tag", "record", False))
    print(step, flush=True)
"""
    for patience in (1, 7, 23):
        child = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        for _ in range(patience):
            last = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        child.wait()
        child.stdout.close()
        done = int(rest[-1]) if rest else last
        held = [one.first for one in Ledger(path).charges]
        assert held == list(range(len(held)))
        assert done < len(held) <= done + 2, "every look that was allowed is on the ledger"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_nothing_is_written_to_a_file_that_somebody_planted(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    planted, theirs = tmp_path / "secret.key.guessed.partial", tmp_path / "theirs"
    theirs.touch()
    if kind == "file":
        planted.touch(mode=0o666)
    else:
        planted.symlink_to(theirs)
    with pytest.raises(OSError, match="could not be written"):
        system.atomic_write(tmp_path / "secret.key", lambda file: file.write(b"secret"), 0o600)
    assert theirs.read_bytes() == b""
    assert not (tmp_path / "secret.key").exists()


def test_only_what_is_left_of_one_file_is_removed(tmp_path: Path) -> None:
    for name in ("secret.key", "secret.key.01.partial", "mine.partial", "run.json.02.partial"):
        (tmp_path / name).touch()
    system.remove_partial(tmp_path / "secret.key")
    assert {file.name for file in tmp_path.iterdir()} == {"secret.key", "mine.partial", "run.json.02.partial"}
