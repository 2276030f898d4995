"""The command line on consoles that know no Greek letters, and files that are the same everywhere."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tacit
from tacit.accounting.mechanism import Budget, Mechanism
from tacit.ledger.file import Charge, Ledger

SOURCE = Path(str(tacit.__file__)).parent
CONSOLES = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "windows": {"PYTHONIOENCODING": "cp1252"},
    "C locale": {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
}
CODECS = {"ascii": "ascii", "windows": "cp1252", "C locale": "ascii"}


def tacit_says(console: str, *arguments: str) -> bytes:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHONIO"))}
    command = [sys.executable, "-m", "tacit", *arguments]
    return subprocess.run(command, env={**kept, **CONSOLES[console]}, check=True, stdout=subprocess.PIPE).stdout


@pytest.mark.parametrize("console", CONSOLES)
def test_greek_letters_are_spelt_out(console: str, tmp_path: Path) -> None:
    said = tacit_says(console, "explain", "--epsilon", "1", "--delta", "1e-6").decode(CODECS[console])
    assert said.startswith("epsilon = 1 at delta = 0.000001:")
    book = Ledger(tmp_path / "book.jsonl")
    recipe = Mechanism(rate=0.01, clip=1.5, noise_multiplier=2.0, steps=100)
    book.charge(Charge("run-1", "fit", "vi", recipe, 0, 100, "tag", "patient", False))
    tacit.Certificate.issue(ledger=book, run="run-1", budget=Budget(1.0, 1e-5, unit="patient"), slack=1e-12).save(
        tmp_path
    )
    assert "epsilon" in tacit_says(console, "certificate", "show", str(tmp_path)).decode(CODECS[console])


def test_what_machines_read_loses_no_letter(tmp_path: Path) -> None:
    said = tacit_says("ascii", "explain", "--epsilon", "1", "--delta", "1e-6", "--unit", "größe", "--json")
    assert json.loads(said)["unit"] == "größe"
    (tmp_path / "a.csv").write_text("größe,ε\n1,2\n", encoding="utf-8")
    draft = tacit_says("windows", "schema", "draft", str(tmp_path / "a.csv")).decode("utf-8")
    assert all(name in draft for name in ("größe", "ε"))


def test_a_schema_may_begin_with_the_mark_of_windows_editors(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_bytes(b"\xef\xbb\xbf[columns]\r\nage = {low = 0, high = 9}\r\n")
    assert list(tacit.Schema.read(tmp_path / "schema.toml").columns) == ["age"]


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: file.stem)
def test_every_text_file_is_opened_as_utf8(file: Path) -> None:
    """What is written is the same on all systems: the encoding is said, and so are the ends of lines."""
    if file.relative_to(SOURCE).parts[0] in ("wall", "engine", "ledger") or file.name == "ledger.py":
        pytest.skip("these read and write bytes")
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        said = {word.arg for word in node.keywords}
        where = f"line {node.lineno}"
        if name in ("read_text", "write_text"):
            assert "encoding" in said, where
        if name == "write_text":
            assert "newline" in said, where
        if name == "open" and isinstance(node.func, ast.Name):
            binary = any(isinstance(given, ast.Constant) and "b" in str(given.value) for given in node.args[1:])
            assert binary or said >= {"encoding", "newline"}, where
