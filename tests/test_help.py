"""Every example that the command line's help gives runs as printed, and so do the README's commands, on the base alone.

The fits draw secret noise, so no number is compared: nothing here can fail by chance.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.cli import main, parser

ROOT = Path(__file__).parents[1]
OPTIONAL = ("arviz", "dp_accounting", "equinox", "h5netcdf", "joblib", "matplotlib", "sklearn", "xarray")
"""What the extras bring."""
SCHEMA = """unit = "patient"
size = 400

[columns]
age = {low = 18, high = 100}
sex = {levels = ["f", "m"]}
readmitted = {levels = ["no", "yes"]}
"""
MODEL = """
import numpyro
import numpyro.distributions as dist

def model(age, sex, readmitted=None):
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    with numpyro.plate("patients", age.shape[0]):
        numpyro.sample("readmitted", dist.Bernoulli(logits=slope * (age - 60) / 15), obs=readmitted)
"""


def leaves(whole: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Return the parsers of all commands, those of groups such as ``certificate`` taken apart."""
    below = [action.choices for action in whole._actions if isinstance(action, argparse._SubParsersAction)]
    for choices in below:
        for one in choices.values():
            yield from leaves(one)
    if not below:
        yield whole


def examples(whole: argparse.ArgumentParser) -> list[list[str]]:
    """Return the arguments of every example in a command's help."""
    lines = (whole.epilog or "").replace("\\\n", " ").splitlines()
    found = [re.sub(r"^(Examples?:)? *", "", line) for line in lines]
    return [shlex.split(line.split(" > ")[0])[1:] for line in found if line.startswith("tacit ")]


def patients() -> str:
    """Make up records, as CSV."""
    random = np.random.default_rng(0)
    rows = zip(
        random.integers(20, 95, 400), random.choice(["f", "m"], 400), random.choice(["no", "yes"], 400), strict=True
    )
    return "\n".join(["age,sex,readmitted", *(f"{age},{sex},{again}" for age, sex, again in rows), ""])


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, where only what every installation has can be imported."""
    for name in OPTIONAL:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command, which must succeed, and give what it printed."""
    code = main(arguments)
    said = capsys.readouterr()
    assert code == 0, (arguments, said.err)
    return said.out


COMMANDS = {command.prog.removeprefix("tacit "): command for command in leaves(parser())}


@pytest.mark.usefixtures("quick_compiler", "base")
def test_the_demo_needs_no_extra(capsys: pytest.CaptureFixture[str]) -> None:
    (arguments,) = examples(COMMANDS["demo"])
    run(arguments, capsys)
    assert {file.name for file in Path("demo").iterdir()} >= {"report.html", "certificate.html", "posterior.npz"}


@pytest.mark.usefixtures("quick_compiler", "base")
def test_the_examples_run_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def honest(method: None, records: None, claim: Any, runs: int, inside: bool, **_: Any) -> np.ndarray:
        return np.random.default_rng(int(inside)).normal(0, claim.noise_multiplier, runs)

    # What the audit does to the wall itself takes long, and is in privacy/test_audit_wall.py.
    monkeypatch.setattr(importlib.import_module("tacit.run.audit"), "canary_scores", honest)
    files = {"schema.toml": SCHEMA, "model.py": MODEL, "tables.py": "from tacit import marginals\n"}
    for name, text in {**files, "patients.csv": patients()}.items():
        Path(name).write_text(text, encoding="utf-8")
    for name, command in COMMANDS.items():
        assert examples(command), f"tacit {name} --help has no example"
        for arguments in examples(command) if name != "demo" else ():
            if "accept-loss" in arguments:
                Path(arguments[2]).unlink()  # nothing else is a loss
            run(arguments, capsys)


FILLED = """unit = "patient"
size = 400

[columns]
age = {low = 18, high = 100}
diabetes = {levels = ["no", "yes"]}
readmitted = {levels = ["no", "yes"]}
"""


@pytest.mark.usefixtures("quick_compiler", "base")
def test_the_commands_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("tacit ")]
    assert [line.split()[1] for line in lines] == ["demo", "schema", "schema", "fit", "certificate"]
    columns = patients().replace("sex", "diabetes", 1).replace(",f,", ",no,").replace(",m,", ",yes,")
    Path("stays.csv").write_text(columns, encoding="utf-8")
    _, draft, *rest = (shlex.split(line.split(" > ")[0], comments=True)[1:] for line in lines)
    said = run(draft, capsys)
    assert all(name in said for name in tomllib.loads(FILLED)["columns"])
    Path("schema.toml").write_text(FILLED, encoding="utf-8")  # the blanks of the draft, filled in
    for arguments in rest:
        run(arguments, capsys)
