"""Every example that the command line's help gives runs as printed, and so do the README's commands.

The fits draw secret noise, so no number is compared. The audit's example can fail by chance: once in a thousand.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tacit.cli import main, parser

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
    """Give the parsers of all commands, those of groups such as ``certificate`` taken apart."""
    below = [action.choices for action in whole._actions if isinstance(action, argparse._SubParsersAction)]
    for choices in below:
        for one in choices.values():
            yield from leaves(one)
    if not below:
        yield whole


def examples(whole: argparse.ArgumentParser) -> list[list[str]]:
    """Give the arguments of every example in a command's help."""
    lines = (whole.epilog or "").replace("\\\n", " ").splitlines()
    found = [re.sub(r"^(Examples?:)? *", "", line) for line in lines]
    return [shlex.split(line.split(" > ")[0])[1:] for line in found if line.startswith("tacit ")]


def patients() -> str:
    """Make up records, as CSV."""
    random = np.random.default_rng(0)
    rows = zip(random.integers(20, 95, 400), random.choice(["f", "m"], 400), random.choice(["no", "yes"], 400), strict=True)
    return "\n".join(["age,sex,readmitted", *(f"{age},{sex},{again}" for age, sex, again in rows), ""])


@pytest.mark.usefixtures("quick_compiler")
def test_the_examples_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"schema.toml": SCHEMA, "model.py": MODEL, "tables.py": "from tacit import marginals\n"}
    for name, text in {**files, "patients.csv": patients()}.items():
        Path(name).write_text(text, encoding="utf-8")
    for command in leaves(parser()):
        given = examples(command)
        assert given, f"{command.prog} --help has no example"
        for arguments in given:
            assert main(arguments) == 0, (arguments, capsys.readouterr().err)
