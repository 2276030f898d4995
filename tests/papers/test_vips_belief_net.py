"""The study of belief networks runs, in quick mode, and what it committed is whole."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "papers" / "vips"
NEEDS_DATA = pytest.mark.skipif(not os.environ.get("TACIT_DATA"), reason="TACIT_DATA is not set: no MNIST to read")


@NEEDS_DATA
@pytest.mark.slow
def test_the_study_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", ["belief_net", "--quick", "--out", str(tmp_path)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    runpy.run_path(str(FOLDER / "belief_net.py"), run_name="__main__")
    numbers = json.loads((tmp_path / "results" / "belief_net.json").read_text())
    assert 0.5 < numbers["marginal"] < 1
    assert "|" in (tmp_path / "results" / "belief_net.md").read_text()
    assert 5_000 < (tmp_path / "figures" / "belief_net.png").stat().st_size < 250_000


@pytest.mark.skipif(not (FOLDER / "results" / "belief_net.json").exists(), reason="the study has no results yet")
def test_committed_results_are_whole_and_small() -> None:
    numbers = json.loads((FOLDER / "results" / "belief_net.json").read_text())
    assert numbers["command"] == "python papers/vips/belief_net.py"
    for units in (50, 100):
        free = numbers[f"K {units}, no privacy"]
        for delta in ("0.0001", "1e-05"):
            private = numbers[f"K {units}, δ = {delta}"]
            assert set(private) == set(free)
            # Worse than no privacy, better than no hidden units: else a column was mixed up.
            for size, values in private.items():
                assert numbers["marginal"] < min(values) <= max(values) < max(free[size])
    assert (FOLDER / "figures" / "belief_net.png").stat().st_size < 250_000
