"""The command ``schema``: draft one from a file's header, check one."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    schema = commands.add_parser("schema", help="draft or check the public facts about a record").add_subparsers(
        metavar="draft|check", required=True
    )
    draft = schema.add_parser(
        "draft",
        help="write a schema to fill in, from a file's header",
        description="Print a schema with the file's columns and blanks to fill in. Fill them in from public knowledge\n"
        "(a code book, common sense): bounds taken from the data would reveal it.",
        epilog="Example:  tacit schema draft patients.csv > schema.toml",
    )
    draft.add_argument("data", type=Path, help="a .csv or .parquet file")
    draft.set_defaults(run=_draft)
    check = schema.add_parser(
        "check",
        help="say in words what a schema declares, or what is wrong with it",
        description="Say in words what a schema declares, or what is wrong with it. With --data also seal the records\n"
        "by it, to see that they fit; nothing about them is shown and nothing is spent.",
        epilog="Example:  tacit schema check schema.toml",
    )
    check.add_argument("schema", type=Path, help="a TOML file")
    check.add_argument("--data", type=Path, help="the records, a .csv or .parquet file")
    check.set_defaults(run=_check)


def existing(path: Path) -> Path:
    """Return the path of a file that must be there."""
    if not path.is_file():
        raise FileNotFoundError(2, "no such file", str(path))
    return path


def read_schema(path: Path) -> Any:
    """Read a schema; an error names its file."""
    import tomllib

    from tacit.facts.schema import Schema

    try:
        return Schema.read(existing(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not TOML: {error}. Blanks of a draft are filled in, as in age = {{low = 0, high = 110}} or "
            'sex = {levels = ["f", "m"]}; lines that are not needed are taken out.'
        ) from error


def read_records(path: Path, schema: Any, ledger: Path | None = None) -> Any:
    """Seal the records of a file.

    Privacy: reads records; they come back sealed.
    """
    import tacit

    readers = {".csv": "read_csv", ".parquet": "read_parquet"}
    if existing(path).suffix not in readers:
        raise ValueError(f"{path} is not a .csv or .parquet file. Save the records as one of them.")
    return getattr(tacit, readers[path.suffix])(path, schema, ledger=ledger)


def _draft(chosen: argparse.Namespace) -> None:
    path = existing(chosen.data)
    from tacit.facts.files import draft

    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")  # it becomes a file, and TOML is in UTF-8
    print(draft(path))


def _check(chosen: argparse.Namespace) -> None:
    schema = read_schema(chosen.schema)
    print(schema.describe())
    if chosen.data is not None:
        read_records(chosen.data, schema)
        print("The records fit the schema.")
