"""Tables from files, sealed as they are read: values go from the file into `PrivateData` and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.facts.column import Column, Level
from tacit.facts.files import escaped, header, import_arrow, none_on_error
from tacit.facts.schema import Schema
from tacit.wall.data import PrivateData

ABSENT = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
"""Cells of a CSV file that mean a missing value, unless a level of the column is written so; in lower case."""


def read_csv(
    path: str | os.PathLike[str],
    schema: Schema | str | os.PathLike[str],
    *,
    size: int | None = None,
    ledger: Any = None,
) -> PrivateData:
    r"""Read a CSV file straight into sealed records.

    The declared columns are read, and the one with the ids of units if there is one; all others stay in the file. Types
    come from the schema: every cell is read as text first. A cell is missing where it is blank or says NA, N/A, NaN,
    null, None or ? (and that is no declared level). The character between cells may be a comma, a semicolon, a tab or
    a bar, as in the first line.

    Privacy: reads records, into the wall. Errors name columns, never values or counts.

    Parameters
    ----------
    path
        A file in UTF-8 whose first line names the columns; it may be compressed (``.csv.gz``).
    schema
        The public facts, or the path of the TOML file that holds them.
    size, ledger
        As in `PrivateData`.

    Returns
    -------
    PrivateData
        The sealed records.

    Examples
    --------
    >>> import pathlib, tacit
    >>> _ = pathlib.Path("visits.csv").write_text("age,sex\n41,f\n67,m\n")
    >>> schema = tacit.Schema({"age": {"low": 0, "high": 110}, "sex": {"levels": ["f", "m"]}}, unit="patient")
    >>> data = tacit.read_csv("visits.csv", schema)
    """
    schema = _schema(schema)
    names, between = header(Path(path))
    wanted = _wanted(names, schema)
    shaped = [name for name in wanted if name in schema.columns and schema.columns[name].shape]
    if shaped:
        raise ValueError(
            f"The columns {shaped} are declared as arrays, and a cell of a CSV file holds one value. Use read_parquet, "
            "or declare one column for each number."
        )
    arrow = import_arrow()

    def table() -> dict[str, list[str]]:
        read = arrow.csv.read_csv(
            str(path),
            read_options=arrow.csv.ReadOptions(column_names=names, skip_rows=1),
            parse_options=arrow.csv.ParseOptions(delimiter=between, newlines_in_values=True),
            convert_options=arrow.csv.ConvertOptions(
                column_types=dict.fromkeys(wanted, arrow.string()),
                include_columns=wanted,
                strings_can_be_null=False,
            ),
        )
        return {name: read.column(name).to_pylist() for name in wanted}

    found = none_on_error(table)
    if found is None:
        raise ValueError(
            f"The file {str(path)!r} could not be read as a table. Lines may have more or fewer cells than the first "
            f"one (separated by {between!r}), a quotation mark may be missing, or the text is not in UTF-8. What "
            "stands there is private and not shown."
        )
    cells = {name: _texts(schema.columns.get(name), texts) for name, texts in found.items()}
    return PrivateData(cells, schema, size=size, ledger=ledger)


def read_parquet(
    path: str | os.PathLike[str],
    schema: Schema | str | os.PathLike[str],
    *,
    size: int | None = None,
    ledger: Any = None,
) -> PrivateData:
    """Read a Parquet file straight into sealed records.

    The declared columns are read, and the one with the ids of units if there is one; all others stay in the file.

    Privacy: reads records, into the wall. Errors name columns, never values or counts.

    Parameters
    ----------
    path
        A Parquet file.
    schema, size, ledger
        As in `read_csv`.

    Returns
    -------
    PrivateData
        The sealed records.

    Examples
    --------
    >>> import pyarrow, pyarrow.parquet, tacit
    >>> pyarrow.parquet.write_table(pyarrow.table({"age": [41, 67], "sex": ["f", "m"]}), "visits.parquet")
    >>> schema = tacit.Schema({"age": {"low": 0, "high": 110}, "sex": {"levels": ["f", "m"]}}, unit="patient")
    >>> data = tacit.read_parquet("visits.parquet", schema)
    """
    schema = _schema(schema)
    wanted = _wanted(header(Path(path))[0], schema)
    arrow = import_arrow()
    table = none_on_error(lambda: arrow.parquet.read_table(str(path), columns=wanted))
    if table is None:
        raise ValueError(f"The file {str(path)!r} is damaged: its columns cannot be read. Write it again.")
    return PrivateData(table, schema, size=size, ledger=ledger)


def _schema(schema: Any) -> Schema:
    if isinstance(schema, str | os.PathLike):
        return Schema.read(Path(schema))
    if not isinstance(schema, Schema):
        raise TypeError(
            f"The schema is of type {type(schema).__name__}. Pass a tacit.Schema, or the path of its TOML file; "
            "tacit.facts.files.draft(path) writes a draft of one."
        )
    return schema


def _wanted(names: list[str], schema: Schema) -> list[str]:
    """Choose the columns to read: those declared, and the ids of units."""
    wanted = [*schema.columns]
    if schema.unit not in wanted and (schema.unit in names or schema.max_records > 1):
        wanted.append(schema.unit)
    lacking = [name for name in wanted if name not in names]
    if lacking:
        # A first line that names none of the columns may be a record.
        known = len(lacking) < len(wanted)
        shown = (
            f"it has {names}" if known else "its first line names none of them, and is not shown: it may be a record"
        )
        raise ValueError(
            f"The file lacks the columns {lacking}; {shown}. Correct the names in the schema or the file's first line, "
            "or take the columns out of the schema."
        )
    twice = sorted({name for name in wanted if names.count(name) > 1})
    if twice:
        raise ValueError(f"The file has the columns {twice} more than once. Rename or drop the doubles.")
    return wanted


def _texts(column: Column | None, texts: list[str]) -> list[Any]:
    """Return the cells of a column, still private: levels as they were declared, None for what is missing."""
    if column is None or column.levels is None:
        return [None if text.strip().lower() in ABSENT else text for text in texts]
    level = _level(column)
    cells = {text: level(text) for text in set(texts)}
    return [cells[text] for text in texts]


def _level(column: Column) -> Callable[[str], Level | None]:
    """Return the function from text to a declared level; text that is none stays what it is, to be refused."""
    levels = column.levels or ()
    written: dict[str, Level] = {}
    for level in levels:
        text = str(level).lower() if isinstance(level, bool) else str(level).strip()
        # A table that tacit wrote has an apostrophe before text that a spreadsheet would run.
        if any(written.setdefault(form, level) != level for form in (text, str(escaped(str(level))).strip())):
            raise ValueError(
                f"Column {column.name!r} declares two levels that a CSV file writes alike. Rename one of them."
            )
    whole = any(isinstance(level, int) and not isinstance(level, bool) for level in levels)
    truth = any(isinstance(level, bool) for level in levels)

    def find(text: str) -> Level | None:
        text = text.strip()
        if text in written:
            return written[text]
        if truth and text.lower() in written:
            return written[text.lower()]
        number = none_on_error(lambda: float(text)) if whole else None
        if number is not None and number.is_integer() and str(int(number)) in written:
            return written[str(int(number))]  # a column of integers with gaps is often written 1.0
        return None if text.lower() in ABSENT else text

    return find
