"""Sizes that a reader can hold: files, classes and functions, and no passage that stands twice."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import tacit

SOURCE = Path(tacit.__file__).parent
LINES_OF_A_FILE, LINES_OF_A_CLASS, LINES_OF_A_FUNCTION, LINES_OF_A_FACTORY = 500, 200, 80, 120
LINES_OF_A_METHOD = 150
LINES_TWICE, NAMES = 6, 45
TREES = {
    file.relative_to(SOURCE).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in SOURCE.rglob("*.py")
}


def length(node: ast.stmt) -> int:
    """Return the number of lines of a definition, its docstring left out."""
    first = node.body[0] if isinstance(node, ast.ClassDef | ast.FunctionDef) else None
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring = first.end_lineno - first.lineno + 1 if first and is_docstring and first.end_lineno else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - docstring


def limit(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how long a function may be: a factory holds the functions that it makes, each of which is counted too."""
    is_factory = any(isinstance(inner, ast.FunctionDef) for inner in node.body)
    return LINES_OF_A_FACTORY if is_factory else LINES_OF_A_FUNCTION


def too_long(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield definitions that are too long."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and length(node) > LINES_OF_A_CLASS:
            yield node.name, length(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length(node) > limit(node):
            yield node.name, length(node)


def code_lines(file: Path) -> list[tuple[int, str]]:
    """Return the lines of a file that count: no blanks, comments, imports or lone punctuation.

    Nor the code of a docstring's example, which must run by itself.
    """
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    kept = ((number, " ".join(line.split())) for number, line in lines)
    return [
        (number, line)
        for number, line in kept
        if any(letter.isalnum() for letter in line) and not line.startswith(("#", "import ", "from ", ">>>", "... "))
    ]


def longer(places: Iterable[str], lines: int) -> dict[str, int]:
    """Return the files that have more lines than that, with how many they have."""
    lengths = {place: len((SOURCE / place).read_text(encoding="utf-8").splitlines()) for place in places}
    return {place: length for place, length in lengths.items() if length > lines}


def test_no_file_is_longer_than_one_sitting() -> None:
    assert not longer(TREES, LINES_OF_A_FILE)


def test_a_method_is_read_beside_the_papers_box() -> None:
    """The file of each public method, docstrings included; ``network`` is what methods take, and none itself."""
    modules = {getattr(tacit, name).__module__ for name in tacit.__all__ if name != "network"}
    files = {f"{module.removeprefix('tacit.').replace('.', '/')}.py" for module in modules if ".methods." in module}
    assert {"methods/glm.py", "methods/sep.py", "methods/sgd.py", "methods/vi.py"} < files < set(TREES)
    assert not longer(files, LINES_OF_A_METHOD)


def test_no_class_or_function_is_longer_than_a_page() -> None:
    assert not {f"{place}: {name}": lines for place, tree in TREES.items() for name, lines in too_long(tree)}


def test_no_passage_stands_twice() -> None:
    places: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for place in TREES:
        lines = code_lines(SOURCE / place)
        for start in range(len(lines) - LINES_TWICE + 1):
            run = lines[start : start + LINES_TWICE]
            places[tuple(text for _, text in run)].add(f"{place}:{run[0][0]}")
    assert not sorted(sorted(found) for found in places.values() if len(found) > 1)


def test_there_are_few_names_at_the_top() -> None:
    assert len(tacit.__all__) <= NAMES
