"""What the header of a file says of a table, and how cells are written to one.

Only names and declared types are read here; records are read by the wall.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tacit.facts.text import toml_key


def draft(path: str | Path) -> str:
    """Write a draft of a schema for a CSV or Parquet file, to be filled in by someone who knows what it may hold.

    Only the names come from the file, and from Parquet the types that its header declares. No record is read: a type
    that was guessed from values would be a fact about them, as bounds and levels would be. So the draft has blanks, and
    does not pass as a schema until each column has one line.

    Privacy: public, as the header of a file is. A file without a header has a record in its place, and is refused where
    that can be seen.
    """
    names, kinds = list(header(path)[0]), {}
    if str(path).endswith(".parquet"):
        kinds = _parquet_kinds(path)
    odd = [name for name in names if not name or re.fullmatch(r"[-+.\d].*", name)]
    if odd or len(set(names)) < len(names):
        raise ValueError(
            "The first line of the file does not look like the names of its columns: it has blanks, numbers or doubles."
            " It is not shown, since it may be a record; write the names into the first line."
        )
    forms = {
        "real": "{low = , high = }",
        "integer": '{kind = "integer", low = , high = }',
        "category": "{levels = []}",
    }
    lines = _DRAFT.splitlines()
    for name in names:
        lines.append("")
        wanted = [kinds[name]] if name in kinds else list(forms)
        lines += [f"# {toml_key(name)} = {forms[kind]}" for kind in wanted]
    return "\n".join([*lines, ""])


_DRAFT = """\
# A draft: names only. Nothing below was taken from the values in the file.
#
# Who is protected. If a person may have several records, name the column of their ids, take that column out below, say
# how many records of one person may count.
unit = "record"
# max_records = 1
# About how many units there are, if that may be published.
# size =

[columns]
# For each column keep ONE line, take off its "#", and fill in the blanks from what you know without the data: a code
# book, a form, the law, common sense. Bounds and levels read off the data would tell the world its extremes and its
# rarest members; values outside the bounds you write are moved to them, and levels you did not write are refused.
# A column that you do not need is left out. Missing values: add missing = "drop", or the value to put instead."""


def header(path: str | Path) -> tuple[list[str], str]:
    """Return the names of a file's columns, and for a CSV file the character between them.

    Privacy: public, as the header of a file is. Of a CSV file the first line is looked at, and nothing else.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {str(path)!r}. Pass the path of a CSV or Parquet file.")
    arrow = import_arrow()
    if path.suffix == ".parquet":
        names = none_on_error(lambda: arrow.parquet.read_schema(path).names)
        if names is None:
            raise ValueError(f"The file {str(path)!r} is not a Parquet file. For comma-separated text use read_csv.")
        return list(names), ""

    def first_line() -> str:
        with arrow.input_stream(str(path)) as stream:
            start = stream.read(1 << 20)
        return start.decode("utf-8-sig", "ignore").splitlines()[0] if b"\0" not in start else ""

    line = none_on_error(first_line)
    if not line:
        raise ValueError(
            f"The file {str(path)!r} has no first line of text. Pass a CSV file in UTF-8 whose first line names the "
            "columns."
        )
    between = max(",;\t|", key=line.count)
    names = next(csv.reader([line], delimiter=between))
    return [unescaped(name.strip()) for name in names], between


# A sign alone, such as + for a positive test, is no formula.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20].", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def escaped(cell: Any) -> Any:
    """Return a cell as it is written to a CSV file: behind an apostrophe if a spreadsheet would run it as a formula.

    Numbers stay as they are, also those written as text. ``unescaped`` is the inverse.

    Privacy: of the cell.
    """
    if not isinstance(cell, str) or not _FORMULA.match(cell) or _NUMBER.fullmatch(cell):
        return cell
    return f"'{cell}"


def unescaped(text: str) -> str:
    """Return a cell of a CSV file without the apostrophe that ``escaped`` put before it.

    Privacy: of the cell.
    """
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def import_arrow() -> Any:
    """Import pyarrow with what tables need of it; it takes a moment, so only when a table is read.

    Privacy: public.
    """
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    return pyarrow


def _parquet_kinds(path: str | Path) -> dict[str, str]:
    arrow = import_arrow()
    kinds = {}
    for field in arrow.parquet.read_schema(path):
        if arrow.types.is_floating(field.type) or arrow.types.is_decimal(field.type):
            kinds[field.name] = "real"
        elif arrow.types.is_integer(field.type):
            kinds[field.name] = "integer"
        elif not arrow.types.is_temporal(field.type) and not arrow.types.is_nested(field.type):
            kinds[field.name] = "category"
    return kinds


def none_on_error(function: Callable[[], Any]) -> Any:
    """Call a conversion, or return None: its error may quote a record, also as the context of a later error.

    Privacy: keeps what an error says to itself.
    """
    try:
        return function()
    except Exception:
        return None
