"""The journeys of the front door run, in quick mode, on the real tables."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "papers" / "front"


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("TACIT_DATA"), reason="set TACIT_DATA to the folder with the data sets")
def test_the_journeys_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["journeys", "--quick", "--out", str(tmp_path)])
    runpy.run_path(str(FOLDER / "journeys.py"), run_name="__main__")
    text = (tmp_path / "results" / "journeys.md").read_text(encoding="utf-8")
    for name in ("Adult", "SUPPORT2", "radon", "election88"):
        assert f"## {name}" in text
    assert "its figures mean nothing" in text


def test_the_results_are_of_the_whole_study() -> None:
    text = (FOLDER / "results" / "journeys.md").read_text(encoding="utf-8")
    assert "--quick" not in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Adult",
        "## SUPPORT2",
        "## radon",
        "## election88",
    ]
