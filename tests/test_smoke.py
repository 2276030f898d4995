"""The smoke tier: what a user does first, once each. ``make matrix`` runs it on the wheel, for every Python it finds.

Nothing here compares numbers that secret noise is in, so nothing can fail by chance.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import tacit
from tacit.cli import main
from tests.test_docs import ROOT, python_blocks
from tests.test_every_method import COUNT, STEPS, TABLE

KEY = jax.random.key(0)
pytestmark = pytest.mark.slow  # make test has all of it, in more detail
SCHEMA = tacit.Schema(
    {"age": {"low": 18, "high": 100}, "ill": {"levels": [False, True]}, "cost": {"low": 0, "high": 10}},
    unit="patient",
    size=500,
)
FORMULA = tacit.formula("cost ~ age + ill", SCHEMA)


def patients() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    age, ill = random.uniform(20, 90, 500), random.random(500) < 0.3
    return {"age": age, "ill": ill, "cost": np.clip(0.05 * age + ill + random.normal(size=500), 0, 10)}


def fitted(data: tacit.PrivateData, **more: Any) -> tacit.Posterior:
    return tacit.fit(FORMULA, data, tacit.Budget(1.0, 1e-6, unit="patient"), progress=False, **more)


def test_the_readme_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shared: dict[str, object] = {"__name__": "readme"}
    for block in python_blocks((ROOT / "README.md").read_text(encoding="utf-8")):
        exec(compile(block, "README.md", "exec", dont_inherit=True), shared)
    assert (tmp_path / "certificate" / "certificate.html").exists()


def test_the_demo_of_the_installed_command(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; from tacit.cli import main; sys.exit(main(sys.argv[1:]))"]
    done = subprocess.run([*command, "demo", "--out", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "<html" in (tmp_path / "demo/report.html").read_text(encoding="utf-8")


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["age,ill,cost", *(f"{a:.1f},{i},{c:.2f}" for a, i, c in zip(*patients().values(), strict=True))]
    (tmp_path / "stays.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["schema", "draft", "stays.csv"]) == 0
    assert "age" in capsys.readouterr().out
    SCHEMA.write(tmp_path / "schema.toml")
    assert main(["schema", "check", "schema.toml", "--data", "stays.csv"]) == 0
    settings = ["--schema", "schema.toml", "--formula", "cost ~ age + ill", "--epsilon", "1", "--delta", "1e-6"]
    assert main(["fit", "stays.csv", *settings, "--out", "run"]) == 0
    assert main(["certificate", "verify", "run"]) == 0


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.usefixtures("quick_compiler")
def test_one_fit_of_every_method(name: str) -> None:
    row = TABLE[name]
    data = tacit.PrivateData(row.records, size=COUNT)
    posterior = tacit.fit(row.make(), data, tacit.Budget(5.0, 1e-2), rate=0.5, key=KEY, progress=False, steps=STEPS)
    assert posterior.certificate is not None
    posterior.certificate.verify(data.ledger)
    assert posterior.draws or posterior.point_estimates


def test_memory_and_disk_agree_and_a_run_is_resumed(tmp_path: Path) -> None:
    tacit.write_columns([patients()], SCHEMA, tmp_path / "records")
    one = fitted(tacit.PrivateData(patients(), SCHEMA), simulate=1, key=KEY)
    two = fitted(tacit.read_columns(tmp_path / "records"), simulate=1, key=KEY)
    for name, draws in one.draws.items():
        np.testing.assert_allclose(draws, two.draws[name], rtol=1e-4, atol=1e-5)
    ledger = tacit.Ledger(tmp_path / "ledger.jsonl", cap=tacit.Budget(2.0, 1e-6, unit="patient"))
    data = tacit.PrivateData(patients(), SCHEMA, ledger=ledger)
    first = fitted(data, run_dir=tmp_path / "run")
    charges = len(ledger.charges)
    again = fitted(data, run_dir=tmp_path / "run")
    assert charges == len(tacit.Ledger(tmp_path / "ledger.jsonl").charges) > 0
    np.testing.assert_array_equal(first.draws["age"], again.draws["age"])
    assert "not given" in tacit.Certificate.load(tmp_path / "run").verify(ledger)
    with pytest.raises(tacit.BudgetExceeded, match="cap"):
        tacit.ask(data, lambda record: 1.0, tacit.Budget(2.0, 1e-6, unit="patient"), clip=1.0)


def test_a_question_and_synthetic_records() -> None:
    data = tacit.PrivateData(patients(), SCHEMA)
    budget = tacit.Budget(1.0, 1e-6, unit="patient")
    count = tacit.ask(data, lambda record: 1.0, budget, clip=1.0, simulate=1)
    assert abs(float(count.value) - 500) < 8 * float(count.noise_std)
    made = tacit.fit(tacit.marginals(SCHEMA), data, budget, progress=False).synthesize(5, 2, key=KEY)
    assert [len(table["age"]) for table in made] == [5, 5]


def test_an_estimator() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is missing")
    from tacit.adapters.sklearn import PrivateLogisticRegression

    records = patients()
    inputs = np.stack([records["age"], records["ill"]], 1)
    model = PrivateLogisticRegression(bounds=([18, 0], [100, 1]), size=500, epsilon=1.0, delta=1e-6)
    model.fit(inputs, (records["cost"] > 4).astype(int))
    assert model.predict(inputs[:3]).shape == (3,)


def test_exchange_with_arviz(tmp_path: Path) -> None:
    pytest.importorskip("arviz", reason="ArviZ is missing")
    fitted(tacit.PrivateData(patients(), SCHEMA)).to_arviz().to_netcdf(tmp_path / "posterior.nc")
    assert (tmp_path / "posterior.nc").stat().st_size
