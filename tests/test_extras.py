"""What an installation holds: the base imports nothing else, and a missing extra is one sentence."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit import extras
from tacit.accounting.mechanism import Mechanism

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RECIPE = Mechanism(rate=0.1, clip=1.0, noise_multiplier=2.0, steps=10)


def plain(requirement: str) -> str:
    """Return the name of what is required, as package indexes compare names."""
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


BASE = {"jaxlib", *(plain(one) for one in PROJECT["dependencies"])}  # jaxlib comes with jax


def outer_imports(tree: ast.Module) -> Iterator[str]:
    """Return the packages that are imported when a file is: none within functions or for type checkers only."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("file", sorted((ROOT / "src/tacit").rglob("*.py")), ids=lambda file: file.stem)
def test_files_import_the_base_only(file: Path) -> None:
    # The adapter for scikit-learn asks for it in its __init__.
    base = BASE | {"scikit-learn"} if "adapters/sklearn" in file.as_posix() else BASE
    homes = packages_distributions()
    for name in set(outer_imports(ast.parse(file.read_text(encoding="utf-8")))) - {"tacit", *sys.stdlib_module_names}:
        assert {home.lower().replace("_", "-") for home in homes[name]} & base, f"{name} is not in the dependencies"


def test_the_table_of_extras_is_that_of_the_project() -> None:
    optional = PROJECT["optional-dependencies"]
    for package, (extra, _) in extras.EXTRAS.items():
        homes = {home.lower().replace("_", "-") for home in packages_distributions().get(package, [extra])}
        assert homes & {plain(one) for one in optional[extra]} or package not in sys.modules
        assert f"{extra}" in optional["all"][0]
    assert optional["formula"] == optional["tables"] == []  # old commands still work


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("arviz", lambda: tacit.Posterior({"w": np.zeros(3)}, None).to_arviz()),
        ("matplotlib", lambda: tacit.plots.plot_forest(tacit.Posterior({"w": np.zeros(3)}, None))),
        ("dp_accounting", RECIPE.event),
        ("dp_accounting", lambda: tacit.classical.rdp(RECIPE, 1e-5)),
        ("sklearn", lambda: importlib.import_module("tacit.adapters.sklearn")),
    ],
    ids=["arviz", "plots", "event", "rdp", "estimators"],
)
def test_a_missing_extra_is_one_sentence(package: str, use: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith("tacit.adapters.sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError) as caught:
        use()
    extra, name = extras.EXTRAS[package]
    said = rf"\S+ needs {name}, which is not installed; run: pip install \"tacit\[{extra}\]\""
    assert re.fullmatch(said, str(caught.value))


def test_what_an_installed_package_lacks_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half.py").write_text("import no_such_module_at_all\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        extras.need("This test", "half")


def test_networks_of_functions_need_no_equinox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "equinox", None)
    pair = (lambda key: {"w": np.zeros((3, 2), np.float32)}, lambda weights, x: x @ weights["w"])
    assert not tacit.network(pair).random
    with pytest.raises(TypeError, match=re.escape('pip install "tacit[networks]"')):
        tacit.network("a network")
