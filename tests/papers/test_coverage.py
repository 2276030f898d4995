"""The coverage study runs, in quick mode; its shared program is ``tacit.fit``; what it committed is whole."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tacit

FOLDER = Path(__file__).parents[2] / "papers" / "coverage"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    for name in ("coverage", "study"):  # other papers have a study module of the same name
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("coverage")
    for name in ("coverage", "study"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_the_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", ["coverage", "--quick", "--out", str(tmp_path)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "study", raising=False)
    runpy.run_path(str(FOLDER / "coverage.py"), run_name="__main__")
    numbers = json.loads((tmp_path / "results" / "coverage.json").read_text())
    assert numbers["command"] == "python papers/coverage/coverage.py"
    assert "glm" in (tmp_path / "results" / "coverage.md").read_text()
    assert 5_000 < (tmp_path / "figures" / "coverage.png").stat().st_size < 250_000
    sys.modules.pop("study", None)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("TACIT_DATA"), reason="TACIT_DATA is not set: no records to read")
@pytest.mark.usefixtures("study")
@pytest.mark.parametrize("name", ["records", "auto", "rehearsal", "guides"])
def test_the_other_studies_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--out", str(tmp_path)])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    written = (tmp_path / "results" / f"{name}.md").read_text()
    assert written.startswith(f"`python papers/coverage/{name}.py`")


def test_the_shared_program_gives_the_bits_of_fit(study: Any) -> None:
    first, second = (study.regression("bernoulli", "plain", seed, 200)[0] for seed in (1, 2))
    budget = tacit.Budget(1.0, 1e-5)
    program = study.Repeated(tacit.glm(), first, budget)
    program.fit(first, 1)
    shared = program.fit(second, 2)["w"]
    sealed = tacit.PrivateData(second, size=200)
    alone = tacit.fit(tacit.glm(), sealed, budget, key=jax.random.key(2), simulate=2, progress=False)
    np.testing.assert_array_equal(shared, np.asarray(alone.draws["w"], np.float64))


def test_the_non_private_posterior_covers(study: Any) -> None:
    """240 intervals of nominal 90%: below 0.8 or above 0.97 is a false alarm in a thousand."""
    for likelihood in study.SIZES:
        inside = []
        for seed in range(22):
            records, truth = study.regression(likelihood, "plain", seed, 800)
            inside.append(study.Interval.of_normal(*study.not_private(likelihood, records)).holds(truth))
        assert 0.8 < np.mean(inside) < 0.97


@pytest.mark.parametrize("name", ["coverage", "records", "auto"])
def test_the_page_prints_what_was_written(name: str) -> None:
    readme = (FOLDER / "README.md").read_text()
    assert (FOLDER / "results" / f"{name}.md").read_text().strip() in readme
    assert f"figures/{name}.png" in readme
    assert (FOLDER / "figures" / f"{name}.png").stat().st_size < 250_000


@pytest.mark.parametrize("name", ["guides", "rehearsal"])
def test_the_page_prints_the_tables_without_a_picture(name: str) -> None:
    assert (FOLDER / "results" / f"{name}.md").read_text().strip() in (FOLDER / "README.md").read_text()


def test_committed_results_hold() -> None:
    cells = json.loads((FOLDER / "results" / "coverage.json").read_text())["cells"]
    wanted = ("glm, ", "conjugate, bernoulli, chances", "vi Laplace, ")
    ours = {cell: found for cell, found in cells.items() if cell.startswith(wanted)}
    assert len(ours) == 30
    for cell, found in ours.items():
        assert np.mean(found["covered"]) > np.mean(found["free"]) - 0.03, cell
