"""What the version before has saved is read, verified, resumed and charged to: see tests/data/before/README.md."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tacit
from tacit import Certificate, Ledger, Posterior

SAVED = Path(__file__).parent / "data" / "before"
MADE = runpy.run_path(str(SAVED / "make.py"))
HOLDS = "The numbers are those that the certificate was issued for."


@pytest.fixture
def before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a copy of the saved runs, and a user who knows none of them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "before"
    shutil.copytree(SAVED, folder)
    (folder / "cut" / "secret.key").chmod(0o600)  # which a repository does not keep
    return folder


def fit(folder: Path, method: Any, **settings: Any) -> Posterior:
    posterior = tacit.fit(method, MADE["sealed"](), MADE["budget"](1.0), run_dir=folder, **settings)
    assert isinstance(posterior, Posterior)
    return posterior


def test_a_finished_run_is_read_and_verified(before: Path) -> None:
    folder = before / "finished"
    ledger, posterior = Ledger(folder / "ledger.jsonl"), Posterior.load(folder / "posterior.npz")
    certificate = Certificate.load(folder)
    assert certificate == posterior.certificate
    assert certificate.verify(ledger, posterior) == posterior.verify(ledger) == HOLDS
    assert certificate.to_json() == (folder / "certificate.json").read_text(encoding="utf-8")
    other = Posterior({name: value + 1 for name, value in posterior.draws.items()}, certificate)
    with pytest.raises(tacit.CertificateError, match="they were changed"):
        certificate.verify(ledger, other)


def test_a_finished_run_is_not_run_again(before: Path) -> None:
    folder = before / "finished"
    ledger, saved = (folder / "ledger.jsonl").read_bytes(), Posterior.load(folder / "posterior.npz")
    again = fit(folder, MADE["formula"](), progress=False, key=jax.random.key(0))
    assert (folder / "ledger.jsonl").read_bytes() == ledger
    assert all(np.array_equal(again.draws[name], saved.draws[name]) for name in saved.draws)
    assert again.predict({"age": np.asarray([30.0, 70.0])}, key=jax.random.key(1))["readmitted"].shape[-1] == 2


def test_a_run_that_was_cut_off_is_resumed(before: Path) -> None:
    folder = before / "cut"
    ledger = Ledger(folder / "ledger.jsonl")
    (run,) = ledger.runs()
    done = ledger.runs()[run].steps
    posterior = fit(folder, tacit.vi(MADE["model"]), **MADE["VI"])
    certificate = posterior.certificate
    assert certificate is not None
    assert certificate.run == run
    # The program has another tag on another machine or version: what was lost is then charged again, under new noise.
    assert ledger.runs()[run].steps - MADE["VI"]["steps"] in (0, 1)
    assert ledger.holds(run, MADE["VI"]["steps"])
    assert 0 < done < MADE["VI"]["steps"]
    assert posterior.verify(ledger) == HOLDS
    assert not (folder / "secret.key").exists()


def test_a_ledger_is_charged_further_under_its_cap(before: Path) -> None:
    path = before / "capped" / "ledger.jsonl"
    ledger = Ledger(path)
    answer = Certificate.load(before / "capped" / "answer")
    assert "were not given" in answer.verify(ledger)
    assert [run.kind for run in ledger.runs().values()] == ["ask", "fit", "ask"]
    assert ledger.lines[-2].note == {"kind": "checked, refused", "text": "records that do not suit a method"}
    assert ledger.cap == tacit.Budget(4.0, 1e-5, unit="patient")
    lines, spent = len(ledger.lines), ledger.spent()
    tacit.ask(MADE["sealed"](path), MADE["count"], MADE["budget"](0.5), clip=1.0).verify(ledger)
    assert len(ledger.lines) == lines + 1
    assert spent < ledger.spent() <= 4.0
    answer.verify(ledger)
    with pytest.raises(tacit.BudgetExceeded, match="Nothing was charged"):
        tacit.ask(MADE["sealed"](path), MADE["count"], MADE["budget"](4.0), clip=1.0)
