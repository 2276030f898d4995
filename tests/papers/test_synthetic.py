"""The study of synthetic Adult: its shared program is ``tacit.fit``; what it committed is whole and holds."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tacit

FOLDER = Path(__file__).parents[2] / "papers" / "synthetic"


@pytest.fixture
def census(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    for name in ("census", "study"):  # other papers have a study module of the same name
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("census")
    for name in ("census", "study"):
        sys.modules.pop(name, None)


def made_up(census: Any, count: int, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        name: random.integers(int(column.low), int(column.high) + 1, count)
        if column.levels is None
        else random.choice(column.levels, count)
        for name, column in census.SCHEMA.columns.items()
    }


def test_the_regression_is_the_textbook_one(census: Any) -> None:
    table = made_up(census, 3000, 0)
    w, variance = census.regression(census.counted(table))
    assert len(w) == len(census.COEFFICIENTS) == 16
    flags = [np.ones(3000)]
    for name in census.REGRESSORS:
        if name in census.BINS:
            code = np.searchsorted(census.BINS[name], table[name], side="right")
        else:
            code = np.array([census.SCHEMA.columns[name].levels.index(value) for value in table[name]])
        flags += [code == level for level in range(1, census.SIZES[name])]
    x = np.stack(flags, 1).astype(float)
    chance = 1 / (1 + np.exp(-x @ w))
    # At the maximum the score is zero, and the variances are those of the inverse information.
    assert np.abs(x.T @ ((table["income"] == ">50K") - chance)).max() < 1e-6
    np.testing.assert_allclose(variance, np.diag(np.linalg.inv((x * (chance * (1 - chance))[:, None]).T @ x)))


@pytest.mark.slow
def test_the_shared_program_gives_the_bits_of_fit(census: Any) -> None:
    first, second = (tacit.PrivateData(made_up(census, 300, seed), census.SCHEMA) for seed in (1, 2))
    queries = [("sex", "income"), ("race", "income")]
    shared = census.Repeated(queries, first).fit(second, 2)
    method = tacit.marginals(census.SCHEMA, queries, bins=census.BINS)
    alone = tacit.fit(method, second, census.PARTS[1], key=jax.random.key(2), simulate=2, progress=False)
    for name, draws in alone.draws.items():
        np.testing.assert_array_equal(shared.draws[name], draws)


@pytest.mark.slow
@pytest.mark.skipif("TACIT_DATA" not in os.environ, reason="set TACIT_DATA to the folder with adult.csv.gz")
def test_the_study_runs(census: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", ["census", "--quick", "--out", str(tmp_path)])
    census.main()
    numbers = json.loads((tmp_path / "results" / "census.json").read_text())
    assert numbers["command"] == "python papers/synthetic/census.py"
    assert 5_000 < (tmp_path / "figures" / "census.png").stat().st_size < 250_000


def test_committed_results_are_whole_and_hold() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert (FOLDER / "results" / "census.md").read_text().strip() in readme  # what the page prints is what was written
    assert "figures/census.png" in readme
    assert (FOLDER / "figures" / "census.png").stat().st_size < 250_000
    releases = json.loads((FOLDER / "results" / "census.json").read_text())["releases"]
    ours = list(releases["triples"].values())
    assert len(ours) == 100
    assert np.mean([one["combined"]["covered"] for one in ours]) >= 0.92
    assert max(one["epsilon"] for one in ours) <= 1.0
