"""What docstrings must have: of public names at the top everything, and examples that run; of others a summary."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tacit

SOURCE = Path(tacit.__file__).parent
FILES = sorted(file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py") if file.name != "_moved.py")
VERBS = frozenset(
    (  # noqa: SIM905
        "Add Announce Append Apply Ask Attack Audit Average Begin Bound Broadcast Build Calibrate Call Certify Change "
        "Charge Check Choose Clip Cluster Combine Commit Compare Compose Compute Continue Convert Copy Create Cut "
        "Decide Deprecate Describe Draw Encode Estimate Evaluate Exit Explain Express Fill Find Fit Flush Follow "
        "Forget Form Format Hash Import Index Invert Issue Join Keep List Load Lock Lower Make Map Mark Merge Mix Move "
        "Multiply Name Normalize Note Open Order Plot Predict Prefetch Prepare Print Put Raise Read Rearrange "
        "Recompute Record Reduce Refuse Regress Rehearse Release Remove Repair Replace Report Request Require "
        "Restore Resume Return Round Run Sample Save Scale Seal Select Serve Set Shorten Show Shuffle Sign Simulate "
        "Solve Sort Split Start Store Sum Summarise Synthesize Tabulate Take Temper Test Trace Train Translate Turn "
        "Update Use Validate Verify Wait Warn Wrap Write Yield "
    ).split()
)
"""What the first word of a summary may be; a new verb in the imperative is added here."""


def sections(docstring: str) -> set[str]:
    """Return the names of the sections of a docstring, and "Privacy" where it says what that is."""
    named = set(re.findall(r"^(\w+)\n-{3,}$", docstring, re.MULTILINE))
    return named | ({"Privacy"} if re.search(r"^Privacy: \S", docstring, re.MULTILINE) else set())


def described(docstring: str) -> set[str]:
    """Return the names that the sections of a docstring describe."""
    lines = re.findall(r"^(\w[\w, ]*)\n    \S", docstring, re.MULTILINE)
    return {name for line in lines for name in line.split(", ")}


def parameters(value: object) -> set[str]:
    if isinstance(value, type) and issubclass(value, Exception):
        return set()
    return {name for name in inspect.signature(value).parameters if not name.startswith("_")}  # type: ignore[arg-type]


def lacking(value: object) -> set[str]:
    """Return what the docstring of a public name lacks."""
    docstring = inspect.getdoc(value) or ""
    found, wanted = sections(docstring), {"Privacy", "Examples"}
    if inspect.isfunction(value):
        wanted.add("Returns")
    if parameters(value) and not (isinstance(value, type) and "Attributes" in found):
        wanted |= {"Parameters", *parameters(value)}
    return wanted - found - described(docstring)


@pytest.mark.parametrize("name", tacit.__all__)
def test_public_names_say_what_they_take_and_return_and_reveal(name: str) -> None:
    assert not lacking(getattr(tacit, name))


def test_what_is_lacking_is_found() -> None:
    def bare(x: int, y: int) -> int:
        """Return x.

        Parameters
        ----------
        x
            A number.
        """
        return x

    assert lacking(bare) == {"Privacy", "Examples", "Returns", "y"}


@pytest.mark.parametrize("name", tacit.__all__)
def test_examples_run_as_they_are_printed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    docstring = inspect.getdoc(getattr(tacit, name)) or ""
    example = doctest.DocTestParser().get_doctest(docstring, {"__name__": "example"}, name, None, 0)
    assert not doctest.DocTestRunner(verbose=False, optionflags=doctest.REPORT_ONLY_FIRST_FAILURE).run(example).failed


def functions(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """Yield the public functions and methods of a module with their docstrings; no properties."""
    for one in node.body:
        if isinstance(one, ast.ClassDef) and not one.name.startswith("_"):
            yield from functions(one, f"{one.name}.")
        elif isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and not is_property(one):
            yield prefix + one.name, ast.get_docstring(one)


def is_property(function: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


@pytest.mark.parametrize("file", FILES)
def test_summaries_begin_with_a_verb(file: str) -> None:
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    assert not [
        name for name, docstring in functions(tree) if (docstring or "none").split()[0].rstrip(",:") not in VERBS
    ]
