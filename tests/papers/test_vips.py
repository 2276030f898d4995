"""The studies of the VIPS paper run, in quick mode, and what they committed is whole."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "papers" / "vips"
NEEDS_DATA = pytest.mark.skipif(not os.environ.get("TACIT_DATA"), reason="TACIT_DATA is not set: no records to read")


@pytest.mark.parametrize(
    "script",
    [
        "compositions",
        *(pytest.param(name, marks=[NEEDS_DATA, pytest.mark.slow]) for name in ("belief_net", "lda", "logistic")),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning:sklearn")
def test_a_study_runs(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setattr(sys, "argv", [script, "--quick", "--out", str(tmp_path)])
    monkeypatch.setattr(sys, "path", list(sys.path))
    runpy.run_path(str(FOLDER / f"{script}.py"), run_name="__main__")
    numbers = json.loads((tmp_path / "results" / f"{script}.json").read_text())
    assert numbers["command"] == f"python papers/vips/{script}.py"
    assert "|" in (tmp_path / "results" / f"{script}.md").read_text()
    assert 5_000 < (tmp_path / "figures" / f"{script}.png").stat().st_size < 250_000


def test_committed_results_are_whole_and_small() -> None:
    readme = (FOLDER / "README.md").read_text()
    results = {file.stem for file in (FOLDER / "results").glob("*.json")}
    assert {"belief_net", "compositions", "lda", "logistic"} <= results
    for result in results:
        assert json.loads((FOLDER / "results" / f"{result}.json").read_text())
        assert f"results/{result}.md" in readme
        # What the page prints is what the command wrote.
        assert (FOLDER / "results" / f"{result}.md").read_text().strip() in readme
    for figure in (FOLDER / "figures").glob("*.png"):
        assert figure.stat().st_size < 250_000
        assert f"figures/{figure.name}" in readme


def test_a_belief_networks_columns_are_not_mixed_up() -> None:
    numbers = _numbers("belief_net")
    for units in (50, 100):
        free = numbers[f"K {units}, no privacy"]
        private = numbers[f"K {units}, ε = 1"]
        assert set(private) == set(free)
        # Worse than no privacy, better than no hidden units.
        for size, values in private.items():
            assert numbers["marginal"] < min(values) <= max(values) < max(free[size])


def test_compositions_are_ordered_and_labelled() -> None:
    numbers = _numbers("compositions")
    assert {name for name, valid in numbers["valid"].items() if not valid} == {
        "VIPS recipe",
        "VIPS recipe, as the paper counts",
    }
    for curves in numbers["noise_multiplier"].values():
        for name, values in curves.items():
            assert values == sorted(values, reverse=True), name
            # PLD is the tightest of the valid ones; only an invalid one may ask for less.
            assert not numbers["valid"][name] or all(
                value >= 0.999 * best for value, best in zip(values, curves["PLD"], strict=True)
            )


def test_private_topics_are_within_a_quarter_of_the_fit_without_privacy() -> None:
    found = _numbers("lda")["perplexity"]
    for steps, private in found["private"].items():
        public = found["public"][steps]
        assert len(private) == len(public) > 1
        assert sum(public) < sum(private) < 1.25 * sum(public)


def test_logistic_regression_is_near_the_fit_without_privacy_and_above_its_peer() -> None:
    found = _numbers("logistic")
    assert max(found["objective perturbation"]["1.0"]) < min(found["tacit.logistic"]["1.0"])
    assert min(found["tacit.logistic"]["1.0"]) > found["not private, variational"] - 0.02


def _numbers(result: str) -> dict:
    return json.loads((FOLDER / "results" / f"{result}.json").read_text())
