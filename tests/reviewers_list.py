"""The reviewer's list in docs/wall.md: ``python -m tests.reviewers_list`` prints it, from what the reference imports.

Modules are followed from ``tacit.wall.reference`` through every import in their source, inside of functions too. A
package's own file counts only where something is imported from it by name: what else stands in it takes no part, which
tests/test_reference.py shows by a run in which those files are empty.
"""

from __future__ import annotations

import ast
from pathlib import Path

import tacit

SOURCE = Path(tacit.__file__).parent
FIRST = "tacit.wall.reference"
STEP = tuple(f"tacit.wall.{name}" for name in ("clip", "keys", "reference", "samplers", "step", "streams"))
"""The private step itself, with its samplers and its noise."""
SEALED = ("tacit.wall.",)
"""How records are sealed, and what is refused before the first look."""
LIMIT = 1000
"""Lines that the private step may have."""


def file_of(module: str) -> Path | None:
    """Return the file of a module, or None if there is no such module."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def imports(module: str) -> set[str]:
    """Return the modules of tacit from which a module imports."""
    found = set()
    file = file_of(module)
    assert file is not None
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = _for_types_only(tree)
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.split(".")[0] == "tacit"}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tacit":
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                found.add(whole if file_of(whole) else node.module)
    return found


def _for_types_only(tree: ast.AST) -> set[int]:
    """Return the identities of the nodes that only type checkers see."""
    blocks = [one for one in ast.walk(tree) if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"]
    return {id(node) for block in blocks for node in ast.walk(block)}


def closure(first: str = FIRST) -> list[str]:
    """Return every module that takes part in the reference, itself included."""
    found, open_ = set(), {first}
    while open_:
        module = open_.pop()
        found.add(module)
        open_ |= imports(module) - found
    return sorted(found)


def lines_of(module: str) -> int:
    file = file_of(module)
    assert file is not None
    return len(file.read_text(encoding="utf-8").splitlines())


def table() -> str:
    """Return the list as docs/wall.md shows it."""
    modules = closure()
    step = [module for module in modules if module.startswith(STEP)]
    sealed = [module for module in modules if module.startswith(SEALED) and module not in step]
    rest = [module for module in modules if module not in (*step, *sealed)]
    rows = ["| what | module | lines |", "|---|---|---|"]
    for what, part in (
        ("the private step", step),
        ("sealing and refusing", sealed),
        ("public facts, accounting", rest),
    ):
        for module in part:
            file = file_of(module)
            assert file is not None
            rows.append(f"| {what} | `{file.relative_to(SOURCE.parent)}` | {lines_of(module)} |")
        rows.append(f"| | **together** | **{sum(map(lines_of, part))}** |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
