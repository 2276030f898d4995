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


def test_importing_it_imports_no_jax() -> None:
    program = "import sys, tacit; assert not {'jax', 'numpy'} & set(sys.modules); assert 'fit' in dir(tacit)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_type_checkers_and_the_table_agree() -> None:
    tree = ast.parse(Path(str(tacit.__file__)).read_text(encoding="utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: f"{node.module}.{alias.name}" if node.module == "tacit.methods" else node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {name: f"tacit.{home}" for name, home in tacit._HOME.items()}
    assert sorted(tacit.__all__) == sorted(imported)


def test_every_name_is_there() -> None:
    for name, home in tacit._HOME.items():
        module = importlib.import_module(f"tacit.{home}")
        assert getattr(tacit, name) is getattr(module, name, module)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tacit.nonsense


@pytest.mark.parametrize("first", ["tacit.fit", "tacit.select", "tacit.rehearse", "tacit.ep"])
def test_a_function_stays_one_when_its_file_is_imported(first: str) -> None:
    assert isinstance(importlib.import_module(first).__dict__[first.removeprefix("tacit.")], FunctionType)
    assert isinstance(getattr(tacit, first.removeprefix("tacit.")), FunctionType)
