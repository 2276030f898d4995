"""``import tacit`` is light, and every public name is where the table, the type checker and ``__all__`` say."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import tacit
from tacit import _moved


def test_importing_it_imports_no_jax() -> None:
    program = "import sys, tacit; assert not {'jax', 'numpy'} & set(sys.modules); assert 'fit' in dir(tacit)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_type_checkers_and_the_table_agree() -> None:
    tree = ast.parse(Path(str(tacit.__file__)).read_text(encoding="utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == {name: f"tacit.{home}" for name, home in tacit._HOME.items()}
    assert sorted(tacit.__all__) == sorted(imported)


def test_every_name_is_there() -> None:
    for name, home in tacit._HOME.items():
        module = importlib.import_module(f"tacit.{home}")
        assert getattr(tacit, name) is getattr(module, name)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tacit.nonsense


@pytest.mark.parametrize("first", ["tacit.run.fit", "tacit.run.select", "tacit.run.rehearse", "tacit.run.ep"])
def test_a_function_stays_one_when_its_file_is_imported(first: str) -> None:
    name = first.removeprefix("tacit.run.")
    assert isinstance(importlib.import_module(first).__dict__[name], FunctionType)
    assert isinstance(getattr(tacit, name), FunctionType)


@pytest.mark.parametrize(("old", "new"), _moved.MOVED.items())
def test_modules_of_the_version_before_are_found_with_a_warning(old: str, new: str) -> None:
    for name in [name for name in sys.modules if name == old]:
        del sys.modules[name]
    with pytest.warns(DeprecationWarning, match=f"{old} is now {new}"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert module.__spec__ is not None
    assert module.__spec__.name == new


@pytest.mark.parametrize("old", tacit._DEPRECATED)
def test_names_of_the_version_before_are_found_with_a_warning(old: str) -> None:
    module, new = tacit._DEPRECATED[old]
    with pytest.warns(DeprecationWarning, match=f"tacit.{old} is now tacit"):
        assert getattr(tacit, old) is getattr(importlib.import_module(f"tacit.{module}"), new)


def test_a_module_below_one_that_moved_is_the_same_module() -> None:
    for name in [name for name in sys.modules if name.startswith("tacit.compat")]:
        del sys.modules[name]
    with pytest.warns(DeprecationWarning, match="tacit.adapters"):
        module = importlib.import_module("tacit.compat.d3p.svi")
    assert module is importlib.import_module("tacit.adapters.d3p.svi")
