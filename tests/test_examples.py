"""Every script in ``examples/`` runs to its end. In a file of its own, so that it runs beside the pages'."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import tacit
from tests.test_docs import EXAMPLES, NO_CERTIFICATE, name

REAL = ("election88", "radon")
"""On real tables, half a minute of processor time each; what they do is done on small ones by the others."""


@pytest.mark.filterwarnings(NO_CERTIFICATE)
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, marks=[pytest.mark.slow] if script.stem in REAL else [], id=name(script))
        for script in EXAMPLES
    ],
)
def test_an_example_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as left:
        if not str(left).startswith("skipped: set TACIT_DATA"):
            raise
        pytest.skip(str(left))
    certificates = list(tmp_path.rglob("certificate.json"))
    assert bool(certificates) == ("run_dir=" in script.read_text(encoding="utf-8"))
    for file in certificates:
        tacit.Certificate.load(file).verify()
