"""The list of mutants cannot rot: each edit fits the source of today, and each named test is one of every commit."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.mutants import MUTANTS, ROOT, SOURCE, Mutant, edited

OUTER = {"adapters/sklearn/base.py", "cli/runs.py", "wall/tables.py"}
"""Files whose faults may be left to ``make test``."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault)
def test_the_edit_fits_and_the_tests_are_there(mutant: Mutant) -> None:
    assert edited(mutant) != (SOURCE / mutant.file).read_text(encoding="utf-8")
    ast.parse(edited(mutant))
    for test in mutant.tests:
        file, name = test.split("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        (found,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name.split("[")[0])
        assert not any("slow" in ast.unparse(mark) for mark in found.decorator_list), "not a test of every commit"
        assert mutant.file in OUTER or not test.startswith(LONG), "make quick must find it too"


@pytest.mark.parametrize("start", LONG)
def test_what_is_called_long_is_there(start: str) -> None:
    file, _, name = start.partition("::")
    assert list(ROOT.glob(f"{file}*"))
    assert not name or f"\ndef {name.split('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8")


def test_the_page_lists_twenty_at_least_and_none_is_alive() -> None:
    assert len({mutant.fault for mutant in MUTANTS}) == len(MUTANTS) >= 20
    text = (Path(__file__).parent / "results" / "mutants.md").read_text(encoding="utf-8")
    listed = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert set(listed) <= {mutant.fault for mutant in MUTANTS}  # run anew what was changed
    assert len(listed) == len(set(listed)) >= 20
    assert "**" not in text
