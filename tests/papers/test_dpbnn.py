"""The studies of the DP-BNN paper run, in quick mode, and what they committed is whole."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "papers" / "dpbnn"
NEEDS_DATA = pytest.mark.skipif(not os.environ.get("TACIT_DATA"), reason="TACIT_DATA is not set: no images to read")


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", ["regression", *(pytest.param(one, marks=NEEDS_DATA) for one in ("mnist", "family"))]
)
def test_a_study_runs(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("PEER_PYTHON", "not installed")
    monkeypatch.setattr(sys, "argv", [script, "--quick", "--out", str(tmp_path)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")
    numbers = json.loads((tmp_path / "results" / f"{script}.json").read_text())
    assert numbers["command"].startswith(f"python papers/dpbnn/{script}.py")
    assert "|" in (tmp_path / "results" / f"{script}.md").read_text()
    for figure in (tmp_path / "figures").glob("*.png"):
        assert 5_000 < figure.stat().st_size < 400_000


def test_committed_results_are_whole_and_printed() -> None:
    readme = (FOLDER / "README.md").read_text()
    results = {file.stem for file in (FOLDER / "results").glob("*.json")}
    assert {"regression", "mnist"} <= results
    for result in results:
        assert f"results/{result}.md" in readme
        # What the page prints is what the command wrote.
        assert (FOLDER / "results" / f"{result}.md").read_text().strip() in readme
    for figure in (FOLDER / "figures").glob("*.png"):
        assert figure.stat().st_size < 400_000
        assert f"figures/{figure.name}" in readme


def test_what_the_page_says_of_the_regression_is_so() -> None:
    """Private BBP and dropout are below the paper's error, and SGLD has it to three digits. All cover."""
    found = {name: _numbers("regression")[f"{name}, private"] for name in ("SGLD", "BBP", "MC dropout")}
    error = {name: float(np.median(values["inside"])) for name, values in found.items()}
    assert error["BBP"] <= 1.276
    assert error["MC dropout"] <= 0.682
    assert f"{error['SGLD']:.3f}" == "0.510"
    assert f"({error['SGLD']:.4f} before rounding)" in (FOLDER / "README.md").read_text()
    for values in found.values():
        assert len(values["inside"]) == 20
        assert 0.85 <= np.mean(values["coverage"]) <= 0.95


def test_private_networks_on_digits_are_as_good_as_asked() -> None:
    """At epsilon 1 all three methods are above the paper's accuracy, and calibrated."""
    found = _numbers("mnist")
    least = {"mlp, SGLD": 0.90, "mlp, BBP": 0.90, "mlp, MC dropout": 0.90, "cnn, SGLD": 0.95}
    for title, accuracy in least.items():
        one = found[f"mnist, {title}, normal, private"]
        assert one["epsilon"] <= 1
        assert one["accuracy"] >= accuracy
        assert one["ECE"] <= 0.03


def _numbers(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "results" / f"{name}.json").read_text())
    return found
