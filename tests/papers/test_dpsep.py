"""The studies of DP-SEP run, in quick mode, and what they committed is whole."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "papers" / "dpsep"
NEEDS_DATA = pytest.mark.skipif(not os.environ.get("TACIT_DATA"), reason="TACIT_DATA is not set: no UCI data to read")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixture", pytest.param("pbp", marks=NEEDS_DATA)])
def test_a_study_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--out", str(tmp_path)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert json.loads((tmp_path / "results" / f"{name}.json").read_text())["command"].startswith(
        f"python papers/dpsep/{name}.py"
    )
    assert "|" in (tmp_path / "results" / f"{name}.md").read_text()
    assert 5_000 < (tmp_path / "figures" / f"{name}.png").stat().st_size < 400_000


@pytest.mark.skipif(not (FOLDER / "results" / "mixture.json").exists(), reason="the study has no results yet")
def test_the_mixture_s_results_are_whole() -> None:
    numbers = json.loads((FOLDER / "results" / "mixture.json").read_text())
    for epsilon in ("1", "5", "50"):
        assert f"DP-SEP, ε = {epsilon}" in numbers
        assert f"DP-SEP, ε = {epsilon}, paper's reading, clip 1" in numbers
    # The paper's reading learns next to nothing in 100 passes: else the two were mixed up.
    assert np.median(numbers["SEP, paper's reading"]["F"]) > 10 * np.median(numbers["SEP"]["F"])


@pytest.mark.skipif(not (FOLDER / "results" / "pbp.json").exists(), reason="the study has no results yet")
def test_the_network_s_results_are_whole() -> None:
    tables = json.loads((FOLDER / "results" / "pbp.json").read_text())["tables"]
    assert tables
    for found in tables.values():
        trivial, free = (np.mean([pair[0] for pair in found[name]]) for name in ("mean of the target", "SEP"))
        assert free < trivial
        for name, pairs in found.items():
            assert np.isfinite(pairs).all(), name
