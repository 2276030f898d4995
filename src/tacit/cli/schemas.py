"""The command ``schema``: draft one from a file's header, check one."""

from __future__ import annotations

import argparse
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


def _draft(chosen: argparse.Namespace) -> None:
    from tacit.cli.runs import existing
    from tacit.schema import draft

    print(draft(existing(chosen.data)))


def _check(chosen: argparse.Namespace) -> None:
    from tacit.cli.runs import existing, read
    from tacit.schema import Schema

    schema = Schema.read(existing(chosen.schema))
    print(schema.describe())
    if chosen.data is not None:
        read(existing(chosen.data), schema)
        print("The records fit the schema.")
