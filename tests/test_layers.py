"""Imports go down only: a file imports its own package and those below, also within functions and for type checkers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tacit

SOURCE = Path(tacit.__file__).parent
LAYERS = (
    "extras system types",
    "facts",
    "accounting",
    "ledger",
    "wall",
    "engine",
    "models",
    "methods",
    "results",
    "run",
    "adapters",
    "cli datasets testing __init__ __main__",
)
"""Lowest first."""
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}
UPWARD = {
    ("results/plots.py", "run"): "what plot_rehearsal takes; for type checkers only",
    ("results/posterior.py", "adapters"): "Posterior.to_arviz is where users of ArviZ look; within the function only",
}
"""Exceptions, and why."""
FILES = sorted(file.relative_to(SOURCE).as_posix() for file in SOURCE.rglob("*.py"))


def room(place: str) -> str:
    """Return the package, or the module outside of the packages, that a file is in."""
    return place.removesuffix(".py").split("/")[0]


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the packages of tacit that a file imports from; "__init__" for tacit itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute, so that they can be read here"
        if isinstance(node, ast.ImportFrom) and node.module == "tacit":
            yield from (alias.name if alias.name in LEVEL else "__init__" for alias in node.names)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from ([*name.split("."), "__init__"][1] for name in names if name.split(".")[0] == "tacit")


def upward(place: str, source: str) -> set[str]:
    """Return what a file imports from above its own layer."""
    return {name for name in imported(ast.parse(source)) if LEVEL[name] > LEVEL[room(place)]}


@pytest.mark.parametrize("place", [file for file in FILES if file != "__init__.py"])
def test_imports_go_down_only(place: str) -> None:
    allowed = {name for file, name in UPWARD if file == place}
    assert upward(place, (SOURCE / place).read_text(encoding="utf-8")) == allowed


@pytest.mark.parametrize(
    "source",
    [
        "from tacit.engine import Runner",
        "from tacit import wall",
        "import tacit.run.pairs",
        "import tacit",
        "from tacit import fit",
        "def f():\n    from tacit.results.posterior import Posterior",
    ],
)
def test_the_rule_can_fail(source: str) -> None:
    assert upward("accounting/losses.py", source)
    assert not upward("cli/runs.py", source)


def test_every_package_says_what_lives_there() -> None:
    for file in (SOURCE / place for place in FILES if place.endswith("/__init__.py")):
        assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), file
