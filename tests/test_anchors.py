"""Anchors: an older copy of a ledger, another file in its place or none is found by what is known outside of it."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit import BudgetExceeded, Ledger, cli, system
from tacit.accounting.mechanism import Budget
from tacit.ledger import anchors
from tacit.ledger import lines as ledger
from tacit.ledger.anchors import RUN_ANCHOR, Anchor
from tacit.ledger.certificate import Certificate
from tacit.ledger.lines import GENESIS, LedgerError, Line, canonical
from tacit.ledger.record import CertificateError
from tacit.ledger.storage import Storage
from tests.test_ledger import charge, steps_on, total

BUDGET = Budget(1.0, 1e-6)
SETTINGS: dict[str, Any] = {"rate": 0.5, "steps": 4, "clip": 1.0, "progress": False, "key": jax.random.key(0)}


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a state folder of its own; return where the anchors are."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder / "tacit" / "anchors"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def charged(path: Path, *stops: int, **given: Any) -> list[bytes]:
    """Charge a run up to one step after the other; returns the file as it was after each."""
    book, copies = Ledger(path, **given), []
    for first, stop in zip((0, *stops), stops, strict=False):
        book.charge(charge(first, stop))
        copies.append(path.read_bytes())
    return copies


def fit(ledger: Path | None, folder: Path | None = None, value: float = 0.5) -> tacit.Posterior:
    data = tacit.PrivateData(np.full((20, 2), value, np.float32), ledger=ledger)
    return tacit.fit(method(), data, BUDGET, run_dir=folder, **SETTINGS)


def method() -> tacit.Method:
    return tacit.Method(
        init=lambda key: jnp.zeros(2),
        contribute=lambda state, record, key: record,
        update=lambda state, release, key: state + release.total,
        draw=lambda state, key: {"sum": state},
    )


# An older copy


def test_an_older_copy_is_refused(path: Path) -> None:
    older, newest = charged(path, 50, 60)
    path.write_bytes(older)
    with pytest.raises(LedgerError, match=r"has 2 lines, and it had 3.*restore the newest copy, or, .*accept-loss"):
        Ledger(path)
    assert path.read_bytes() == older
    path.write_bytes(newest)
    assert Ledger(path).charge(charge(60, 70)) is True


def test_a_cap_is_not_won_back_by_an_older_copy(path: Path) -> None:
    charged(path, cap=Budget(total(100), 1e-5))
    older = path.read_bytes()
    Ledger(path).charge(charge(0, 100))
    with pytest.raises(BudgetExceeded):
        Ledger(path).charge(charge(0, 100, run="run-2"))
    path.write_bytes(older)
    for act in (lambda: Ledger(path), lambda: Ledger(path, cap=Budget(total(100), 1e-5))):
        with pytest.raises(LedgerError, match="older copy"):
            act()


def test_a_ledger_that_was_opened_before_its_file_went_back_charges_nothing(path: Path) -> None:
    early = Ledger(path, adjacency="add-remove")
    older = path.read_bytes()
    Ledger(path).charge(charge(0, 50))
    path.write_bytes(older)
    acts = (
        lambda: early.charge(charge(0, 50)),
        lambda: early.note("checked", "nothing"),
        lambda: early.afford(charge().mechanism, "record"),
    )
    for act in acts:
        with pytest.raises(LedgerError, match="older copy"):
            act()
    assert path.read_bytes() == older


def test_an_older_copy_that_went_on_elsewhere_is_refused(path: Path, state: Path) -> None:
    older, _ = charged(path, 50, 60)
    path.write_bytes(older)
    aside = state.rename(state.with_name("aside"))  # another user, or another machine
    charged_elsewhere = Ledger(path)
    charged_elsewhere.charge(charge(0, 10, run="run-2"))
    charged_elsewhere.charge(charge(10, 20, run="run-2"))
    shutil.rmtree(state)
    aside.rename(state)
    with pytest.raises(LedgerError, match=r"Line 3 of .* is not the one that was written"):
        Ledger(path)


def test_a_ledger_ahead_of_its_anchor_goes_on(path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Killed between the line and the anchor: the line counts, and the anchor follows with the next charge.
    charged(path, 50)
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "_move_anchors", lambda book: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Ledger(path).charge(charge(50, 60))
    book = Ledger(path)
    assert (book.anchored, len(book.lines)) == (2, 3)
    assert book.charge(charge(50, 60)) is False, "a replay: but records are read after it"
    assert book.anchored == 3
    assert book.charge(charge(60, 70)) is True
    assert book.anchored == 4


# A file that is gone, or another


def test_a_deleted_ledger_is_not_begun_anew(path: Path) -> None:
    early = Ledger(path)
    charged(path, 50, cap=Budget(total(100), 1e-5))
    path.unlink()
    cap = Budget(9.0, 1e-5)
    for act in (
        lambda: Ledger(path),
        lambda: Ledger(path, cap=cap),
        lambda: early.charge(charge()),
        lambda: early.head,
    ):
        with pytest.raises(LedgerError, match=r"had 2 lines and is gone.*accept-loss"):
            act()
        assert not path.exists()


def test_a_cap_that_nobody_spent_of_is_not_lost_with_its_file(path: Path) -> None:
    Ledger(path, cap=Budget(1e-6, 1e-5))
    path.unlink()
    with pytest.raises(LedgerError, match="had 1 lines and is gone"):
        Ledger(path).charge(charge())
    path.touch()
    with pytest.raises(LedgerError, match="had 1 lines and is gone or empty"):
        Ledger(path).charge(charge())


def test_another_ledger_in_its_place_is_refused(path: Path, tmp_path: Path) -> None:
    charged(path, 50, cap=Budget(1.0, 1e-5))
    fresh = tmp_path / "fresh.jsonl"
    Ledger(fresh, cap=Budget(1.0, 1e-5)).charge(charge(0, 50))
    os.replace(fresh, path)
    with pytest.raises(LedgerError, match="is another ledger than the one that is known, which had 2 lines"):
        Ledger(path)


def test_two_ledgers_of_one_day_and_cap_are_two(tmp_path: Path) -> None:
    one, two = (Ledger(tmp_path / name, cap=Budget(1.0, 1e-5)) for name in ("one", "two"))
    one.charge(charge(0, 50))
    assert two.charge(charge(0, 50)) is True
    assert one.lines[0].hash != two.lines[0].hash
    assert (one.anchored, two.anchored) == (2, 2)


# Copies


def test_a_ledger_that_was_moved_goes_on(path: Path, tmp_path: Path) -> None:
    charged(path, 50)
    moved = tmp_path / "elsewhere" / "ledger.jsonl"
    moved.parent.mkdir()
    path.rename(moved)
    assert Ledger(moved).charge(charge(50, 60)) is True
    assert steps_on(Ledger(moved)) == [(0, 50), (50, 60)]
    (tmp_path / "link").symlink_to(moved)
    assert Ledger(tmp_path / "link").charge(charge(60, 70)) is True
    with pytest.raises(LedgerError, match="had 4 lines and is gone"):
        Ledger(path)


def test_of_two_copies_only_the_newest_goes_on(path: Path, tmp_path: Path) -> None:
    charged(path, 50)
    copy = tmp_path / "copy.jsonl"
    shutil.copy(path, copy)
    assert Ledger(copy).charge(charge(50, 60)) is True
    with pytest.raises(LedgerError, match="older copy"):
        Ledger(path).charge(charge(50, 60))


def test_two_copies_cannot_be_charged_at_once(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charged(path, 50)
    copy = tmp_path / "copy.jsonl"
    shutil.copy(path, copy)
    mine, move = Ledger(path), Storage._move_anchors

    def late(storage: Storage) -> None:
        if storage is mine._storage:  # the copy is charged between this line and its anchor, under another lock
            Ledger(copy).charge(charge(50, 70))
        move(storage)

    monkeypatch.setattr(Storage, "_move_anchors", late)
    with pytest.raises(LedgerError, match=r"Line 3 of .* is not the one that was written"):
        mine.charge(charge(50, 60))
    known = Anchor.of(Ledger(copy).lines)
    assert known is not None
    assert known.head == anchors.at(path).head  # type: ignore[union-attr]


def test_another_machine_begins_with_what_it_is_given(path: Path, state: Path) -> None:
    older, newest = charged(path, 50, 60)
    shutil.rmtree(state)
    path.write_bytes(newest)
    assert Ledger(path).anchored == 0
    assert Ledger(path).charge(charge(60, 70)) is True
    assert Ledger(path).anchored == 4
    path.write_bytes(older)
    with pytest.raises(LedgerError, match="older copy"):
        Ledger(path)


def _charge_some(path: Path, name: str, count: int) -> None:
    book = Ledger(path)
    for first in range(count):
        book.charge(charge(first, first + 1, run=name))
        assert book.anchored >= len(book._known.lines)


def test_two_processes_never_move_an_anchor_back(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_charge_some, args=(path, name, 25)) for name in ("one", "two")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert Ledger(path).anchored == 51


# The state folder


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_anchors_are_this_users_alone(path: Path, state: Path) -> None:
    charged(path, 50)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    files = [file for file in state.iterdir() if file.name != ".lock"]
    assert sorted(file.name.split("-")[0] for file in files) == ["ledger", "path"]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in state.iterdir())


@pytest.mark.parametrize("damage", ["torn", "other fields", "other types", "a link", "readable by others"])
def test_an_anchor_that_cannot_be_trusted_is_no_permission(path: Path, state: Path, damage: str) -> None:
    charged(path, 50)
    (file,) = state.glob("ledger-*")
    content = file.read_bytes()
    if damage == "a link":
        file.rename(state / "aside")
        file.symlink_to(state / "aside")
    elif damage == "readable by others":
        file.chmod(0o644)
    else:
        fields = json.loads(content)
        other = {"other fields": {"lines": 1}, "other types": {**fields, "lines": "1"}}.get(damage)
        file.write_bytes(content[:20] if damage == "torn" else json.dumps(other).encode())
    with pytest.raises(LedgerError, match=r"not known whether .* is whole.*Restore it, or remove it"):
        Ledger(path)
    file.unlink()
    assert Ledger(path).charge(charge(50, 60)) is True


def test_without_a_state_folder_the_certificate_says_so(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))  # where no folder can be made
        certificate = fit(path).certificate
        assert certificate is not None
        assert any("could not be noted outside" in caveat for caveat in certificate.caveats)
    certificate = fit(path).certificate
    assert certificate is not None
    assert not any("could not be noted outside" in caveat for caveat in certificate.caveats)


def test_a_full_disk_leaves_the_anchor_behind_and_no_worse(
    path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged(path, 50)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(system, "atomic_write", full)
        assert Ledger(path).charge(charge(50, 60)) is True
    assert Ledger(path).anchored == 2
    assert Ledger(path).charge(charge(60, 70)) is True
    assert Ledger(path).anchored == 4
    assert {file.suffix for file in state.iterdir()} <= {".json", ""}


def test_a_ledger_of_an_earlier_version_is_known_by_its_first_look(path: Path, tmp_path: Path) -> None:
    header = Line.seal(0, "2026-01-01", {"header": {"format": ledger.FORMAT}}, GENESIS)
    old = canonical(header.to_dict()) + b"\n"
    other = tmp_path / "other.jsonl"
    for file in (path, other):
        file.write_bytes(old)
    assert anchors.identity(Ledger(path).lines) == ""
    copies = charged(path, 50, 60)
    Ledger(other).charge(charge(0, 30, run="run-2"))  # the same header, and another ledger
    assert (Ledger(path).anchored, Ledger(other).anchored) == (3, 2)
    for older in (old, copies[0]):
        path.write_bytes(older)
        with pytest.raises(LedgerError, match=r"older copy|another ledger"):
            Ledger(path)


# A loss that is accepted


def test_a_loss_is_accepted_in_words_and_stays_on_the_ledger(path: Path) -> None:
    older, newest = charged(path, 50, 60)
    with pytest.raises(ValueError, match="no loss to accept"):
        Ledger.accept_loss(path, "No reason.")
    assert path.read_bytes() == newest
    path.write_bytes(older)
    for reason in (" ", "a\u202eb"):
        with pytest.raises(ValueError, match="reason that can be read"):
            Ledger.accept_loss(path, reason)
    book = Ledger.accept_loss(path, "The disk failed.")
    (loss,) = book.losses
    assert (loss.reason, loss.lost) == ("The disk failed.", "the ledger had 3 lines, and 2 of them were there")
    assert Ledger(path).charge(charge(50, 60)) is True
    assert Ledger(path).anchored == len(book.lines) == 4
    for wrong in (older, newest):  # neither the old history nor what was there before the loss was accepted
        path.write_bytes(wrong)
        with pytest.raises(LedgerError, match="older copy"):
            Ledger(path)


def test_a_ledger_that_is_gone_goes_on_under_its_cap(path: Path) -> None:
    cap = Budget(total(100), 1e-5)
    charged(path, 50, cap=cap, adjacency="add-remove")
    path.unlink()
    book = Ledger.accept_loss(path, "Deleted by mistake.")
    assert (book.cap, book.adjacency) == (cap, "add-remove")
    assert [line.lost for line in Ledger(path).losses] == ["the ledger had 2 lines, and 0 of them were there"]
    with pytest.raises(LedgerError, match="A cap binds everyone"):
        Ledger(path, cap=Budget(9.0, 1e-5))


def test_every_loss_is_named_where_another_older_ledger_was_put_in_its_place(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    older, _ = charged(other, 10, 20)
    charged(path, 50, 60, 70)
    path.write_bytes(older)
    Ledger.accept_loss(path, "Mixed up.")
    assert [line.lost for line in Ledger(path).losses] == [
        "the ledger had 4 lines, and 0 of them were there",
        "the ledger had 3 lines, and 2 of them were there",
    ]


def test_certificates_after_a_loss_name_it(path: Path) -> None:
    fit(path)
    path.unlink()
    Ledger.accept_loss(path, "Deleted by mistake.")
    certificate = fit(path).certificate
    assert certificate is not None
    certificate.verify(Ledger(path))
    assert "Deleted by mistake." in certificate.to_markdown()


def test_the_command_line_shows_and_accepts(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older, _ = charged(path, 50, 60)
    assert cli.main(["ledger", "show", str(path), "--delta", "1e-5"]) == 0
    assert "anchor knows 3 of its 3 lines" in capsys.readouterr().out
    path.write_bytes(older)
    assert cli.main(["ledger", "show", str(path), "--delta", "1e-5"]) == 1
    assert "accept-loss" in capsys.readouterr().err
    assert cli.main(["ledger", "accept-loss", str(path), "--reason", "The disk failed."]) == 0
    assert "2 of them were there" in capsys.readouterr().out
    assert cli.main(["ledger", "show", str(path), "--delta", "1e-5"]) == 0
    assert "The disk failed." in capsys.readouterr().out
    assert cli.main(["ledger", "show", str(path), "--delta", "1e-5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["anchored"] == 3


# Runs and certificates


def test_the_anchor_is_written_after_the_line_and_before_records_are_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read = tmp_path / "run", tacit.engine.runner.Runner._advance
    seen: list[int] = []

    def spy(runner: Any, *given: Any) -> Any:
        lines = path.read_bytes().count(b"\n")
        of_run = json.loads((run / RUN_ANCHOR).read_bytes())
        assert (Ledger(path).anchored, of_run["lines"], of_run["head"]) == (lines, lines, Ledger(path).head)
        seen.append(lines)
        return read(runner, *given)

    monkeypatch.setattr(tacit.engine.runner.Runner, "_advance", spy)
    fit(path, run)
    assert seen == [2, 3, 4, 5]


@pytest.mark.parametrize("private", [True, False], ids=["the run's own", "the data's"])
def test_a_run_folder_is_an_anchor_without_a_state_folder(
    path: Path, tmp_path: Path, state: Path, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    file = run / "ledger.jsonl" if private else path
    advance, copies = tacit.engine.runner.Runner._advance, []

    def dies(runner: Any, *given: Any) -> Any:
        copies.append(file.read_bytes())
        if len(copies) == 3:
            raise KeyboardInterrupt
        return advance(runner, *given)

    with monkeypatch.context() as patch:
        patch.setattr(tacit.engine.runner.Runner, "_advance", dies)
        with pytest.raises(KeyboardInterrupt):
            fit(None if private else path, run)
    shutil.rmtree(state)
    (run / "checkpoint.npz").unlink()  # which would ask for the lines of its own steps
    older, newest = copies[1], copies[2]
    for wrong in (older, None):
        file.unlink() if wrong is None else file.write_bytes(wrong)
        with pytest.raises(
            LedgerError, match=r"a ledger that had 4 lines, and .* lacks some of them. Restore its newest"
        ):
            fit(None if private else path, run)
        assert file.exists() == (wrong is not None)
    file.write_bytes(newest)
    assert fit(None if private else path, run).certificate is not None


def test_a_certificate_is_an_anchor_that_others_keep(path: Path, tmp_path: Path, state: Path) -> None:
    fit(path)
    older = path.read_bytes()
    certificate = fit(path, value=0.25).certificate
    assert certificate is not None
    certificate.save(tmp_path)
    shutil.rmtree(state)
    path.write_bytes(older)
    book = Ledger(path)  # nothing on this machine knows better
    with pytest.raises(CertificateError, match="The ledger has 5 lines but had 9"):
        Certificate.load(tmp_path).verify(book)


# A run's own ledger


def test_a_run_folder_that_was_removed_leaves_its_path_free(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fit(None, folder)
    shutil.rmtree(folder)
    assert fit(None, folder).certificate is not None


def test_a_run_s_own_ledger_that_is_put_back_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fit(None, folder)
    book = folder / "ledger.jsonl"
    lines = book.read_bytes().splitlines(keepends=True)
    book.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerError, match="older copy"):
        Ledger(book)


def test_a_ledger_with_a_cap_in_a_run_folder_is_missed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}", encoding="utf-8")
    charged(folder / "ledger.jsonl", 1, cap=BUDGET)
    (folder / "ledger.jsonl").unlink()
    with pytest.raises(LedgerError, match="is gone"):
        Ledger(folder / "ledger.jsonl")


def test_an_anchor_that_a_power_failure_emptied_is_none(path: Path, state: Path) -> None:
    copies = charged(path, 1, 2)
    for file in state.glob("ledger-*.json"):
        file.write_bytes(b"")
    path.write_bytes(copies[0])
    Ledger(path)
