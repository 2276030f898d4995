"""The command ``papers``: the reproductions, which live in a clone beside the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the parser."""
    papers = commands.add_parser(
        "papers",
        help="list and run the reproductions of the papers (from a clone)",
        description="List the reproductions of the papers, or run one: each table or figure is one script. They are\n"
        "not in the installed package, so this works in a clone of the repository.",
        epilog="Examples:\n  tacit papers\n  tacit papers vips/logistic --help",
    )
    papers.add_argument("study", nargs="?", help="which to run, such as vips/logistic (default: list them all)")
    papers.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to the study")
    papers.set_defaults(run=_papers)


def _papers(chosen: argparse.Namespace) -> None:
    folder = _folder()
    studies = {
        f"{file.parent.name}/{file.stem}": said
        for file in sorted(folder.glob("*/*.py"))
        if (said := _study(file)) is not None
    }
    if chosen.study is None:
        for name, said in studies.items():
            print(f"{name:24}{said}")
        print("\nRun one:  tacit papers NAME [its arguments]; what it does and found is in papers/*/README.md")
        return
    if chosen.study not in studies:
        raise ValueError(f"There is no study {chosen.study!r}; tacit papers lists them.")
    import subprocess

    code = subprocess.call([sys.executable, str(folder / f"{chosen.study}.py"), *chosen.arguments])
    if code:
        raise RuntimeError(f"The study {chosen.study} ended with exit code {code}.")


def _folder() -> Path:
    """Find the clone: the working folder, one above it, or where the package was installed from."""
    places = (Path.cwd(), *Path.cwd().parents, *Path(__file__).parents)
    for place in places:
        if (place / "papers").is_dir() and (place / "src" / "tacit").is_dir():
            return place / "papers"
    raise ValueError("The papers are not in the installed package: run this in a clone of tacit's repository.")


def _study(file: Path) -> str | None:
    """Return the first line of a script's docstring, or None for what is no script of its own."""
    import ast

    text = file.read_text(encoding="utf-8")
    if "__main__" not in text or "peer" in file.stem:
        return None
    said = ast.get_docstring(ast.parse(text)) or ""
    return said.partition("\n")[0]
