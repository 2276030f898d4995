"""Public facts about a record: its columns, their bounds and levels, and who is protected.

Everything here is declared by a person and may be published. Nothing in this file reads a record, so a
schema can be written, checked and shared before anyone has seen the data.
"""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Level = str | int | bool

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a record: a bounded number, or a category with declared levels.

    Privacy: public.

    Parameters
    ----------
    low, high
        Bounds of a number. Values outside are moved to the nearer bound when the records are sealed.
    kind
        ``"real"`` (the default for numbers), ``"integer"`` (values are rounded) or ``"category"`` (implied by
        ``levels``).
    levels
        The levels of a category, coded 0, 1, ... in this order: text, integers or booleans.
    shape
        The shape of an array-valued column, such as ``(28, 28)``; its entries share the bounds or levels.
    missing
        What to do with a missing value: ``"refuse"`` (an error), ``"drop"`` (the record contributes nothing),
        or the number or level to put in its place.
    name
        The column's name. `Schema` fills it in.
    """

    low: float | None = None
    high: float | None = None
    kind: str = ""
    levels: tuple[Level, ...] | None = None
    shape: tuple[int, ...] = ()
    missing: Level | float = "refuse"
    name: str = ""

    def __post_init__(self) -> None:
        # Normalised once, here, so that equal facts compare equal and write the same TOML.
        put = object.__setattr__
        put(self, "kind", self.kind or ("real" if self.levels is None else "category"))
        if self.kind not in ("real", "integer", "category"):
            raise self._error(f'is of kind {self.kind!r}. Write kind = "real", "integer" or "category"')
        put(self, "shape", self._checked_shape(self.shape))
        if self.kind == "category":
            put(self, "levels", self._checked_levels(self.levels))
        else:
            low, high = self._checked_bounds()
            put(self, "low", low)
            put(self, "high", high)
        put(self, "missing", self._checked_missing(self.missing))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type in which values are stored: float32 for real numbers, int32 for integers and codes."""
        return np.dtype(np.float32 if self.kind == "real" else np.int32)

    def placeholder(self) -> npt.NDArray[Any]:
        """Give one public stand-in value: the middle of the bounds, or the first level.

        Privacy: public.
        """
        middle = 0.0
        if self.low is not None and self.high is not None:
            middle = (self.low + self.high) / 2
        return np.full(self.shape, middle if self.kind == "real" else round(middle), dtype=self.dtype)

    def to_dict(self) -> dict[str, Any]:
        """Give the declared facts as plain values; what is at its default is left out.

        Privacy: public.
        """
        if self.levels is not None:
            facts: dict[str, Any] = {"levels": list(self.levels)}
        else:
            facts = {"low": self.low, "high": self.high}
        if self.kind == "integer":
            facts["kind"] = self.kind
        if self.shape:
            facts["shape"] = list(self.shape)
        if self.missing != "refuse":
            facts["missing"] = self.missing
        return facts

    def to_toml(self, **changes: Any) -> str:
        """Give the column's line of a schema file, with some facts changed if wanted (for error messages).

        Privacy: public.
        """
        body = ", ".join(f"{key} = {_toml(value)}" for key, value in (self.to_dict() | changes).items())
        return f"{_toml_key(self.name)} = {{{body}}}"

    def __str__(self) -> str:
        if self.levels is not None:
            shown = [_shown(level) for level in self.levels[:6]]
            more = [] if len(self.levels) <= 6 else [f"... {len(self.levels)} levels"]
            facts = f"category ({', '.join(shown + more)})"
        else:
            facts = f"{self.kind} [{_plain(self.low)}, {_plain(self.high)}]"
        return f"{_shown(self.name)} {facts}" + (f" shape {self.shape}" if self.shape else "")

    def _error(self, what: str, kind: type[Exception] = ValueError) -> Exception:
        return kind(f"Column {self.name!r} {what}.")

    def _checked_shape(self, shape: Any) -> tuple[int, ...]:
        sides = (shape,) if _is_integer(shape) else _listed(shape)
        if sides is None or not all(_is_integer(side) and side > 0 for side in sides):
            raise self._error(f"has shape {shape!r}. Write a fixed array shape such as shape = [28, 28]")
        return tuple(int(side) for side in sides)

    def _checked_bounds(self) -> tuple[float, float]:
        if self.levels is not None:
            raise self._error(f"is of kind {self.kind!r} and has levels. Write either bounds or levels")
        if self.low is None or self.high is None:
            lacking = "bounds" if self.low is self.high else "lower bound" if self.low is None else "upper bound"
            raise self._error(
                f"has no {lacking}. Bounds taken from the data would reveal it; "
                f"write {_toml_key(self.name or 'age')} = {{low = 0, high = 110}} in the schema"
            )
        for bound in (self.low, self.high):
            if not _is_number(bound):
                raise self._error(f"has the bound {bound!r}. Bounds are numbers; write low = 0, high = 110")
            if not abs(bound) <= float(np.finfo(np.float32).max):  # so that NaN is caught too
                raise self._error(
                    f"has the bound {bound}. The bounds fix how much one record can matter; "
                    "write finite bounds that you know without looking at the data"
                )
            if self.kind == "integer" and (bound != int(bound) or not _INT32.min <= bound <= _INT32.max):
                raise self._error(f"is an integer with the bound {bound}. Write integers that fit 32 bits")
        # Adding zero turns -0.0 into 0.0.
        low, high = (int(b) if self.kind == "integer" else float(b) + 0.0 for b in (self.low, self.high))
        if not (np.float32(low) < np.float32(high) if self.kind == "real" else low < high):
            raise self._error(
                f"has low = {_plain(low)} and high = {_plain(high)}. "
                "The lower bound must be below the upper one, in 32-bit precision"
            )
        return low, high

    def _checked_levels(self, levels: Any) -> tuple[Level, ...]:
        if self.low is not None or self.high is not None:
            raise self._error("has levels and bounds. Write levels for a category, bounds for a number")
        declared = _listed(levels)
        if not declared:
            raise self._error(
                "has no levels. Levels taken from the data would reveal it; "
                f'write {_toml_key(self.name or "sex")} = {{levels = ["f", "m"]}} in the schema'
            )
        plain = tuple(level.item() if isinstance(level, np.generic) else level for level in declared)
        for level in plain:
            if not isinstance(level, Level):
                raise self._error(f"has the level {level!r}. Levels are text, integers or booleans", TypeError)
            if isinstance(level, str):
                _check_text(level, f"a level of column {self.name!r}")
        if len(set(plain)) < len(plain):
            raise self._error(
                "declares a level twice (true equals 1, false equals 0). A level has one code; list it once"
            )
        return plain

    def _checked_missing(self, rule: Any) -> Level | float:
        rule = rule.item() if isinstance(rule, np.generic) else rule
        if isinstance(rule, str) and rule in ("refuse", "drop"):
            # Under the rule "refuse" a level of that name does no harm: nothing is changed in silence.
            if rule == "drop" and self.levels is not None and rule in self.levels:
                raise self._error('has a level "drop", so that missing = "drop" is unclear. Rename the level')
            return rule
        if self.levels is not None:
            if isinstance(rule, Level) and rule in self.levels:
                return self.levels[self.levels.index(rule)]
            choice = "one of its levels"
        else:
            assert self.low is not None
            assert self.high is not None
            fits = _is_number(rule) and self.low <= rule <= self.high
            if fits and (self.kind == "real" or rule == int(rule)):
                return int(rule) if self.kind == "integer" else float(rule) + 0.0
            choice = "a number of its kind between its bounds"
        raise self._error(f'has missing = {rule!r}. Write missing = "refuse", "drop", or {choice}')


@dataclass(frozen=True, init=False, repr=False)
class Schema:
    """Public facts about a record: its columns, the unit that is protected, perhaps the number of records.

    Privacy: public.

    Parameters
    ----------
    columns
        A mapping from names to `Column`, or to its arguments: ``{"age": {"low": 0, "high": 110}}``.
    unit
        Who is protected, in one word: ``"patient"``. One record belongs to one unit. A table may have a column of that
        name, with the ids of its units; it is not one of ``columns``.
    size
        A *public* number of units, if there is one. It sets defaults only, and is never compared with the data.
    max_records
        How many records of a unit count: the first ones in the table, as many as this. They make one contribution
        together. With more than one, the table must have the ids of its units.

    Examples
    --------
    >>> schema = Schema({"age": {"low": 0, "high": 110}, "sex": {"levels": ["f", "m"]}}, unit="patient")
    >>> print(schema.to_toml())
    unit = "patient"
    <BLANKLINE>
    [columns]
    age = {low = 0, high = 110}
    sex = {levels = ["f", "m"]}
    <BLANKLINE>
    """

    columns: Mapping[str, Column]
    unit: str = "record"
    size: int | None = None
    max_records: int = 1

    def __init__(
        self, columns: Mapping[str, Any], unit: str = "record", size: int | None = None, max_records: int = 1
    ) -> None:
        if not isinstance(columns, Mapping) or not columns:
            raise ValueError(
                "The schema has no columns. They say what a record may hold; "
                'write Schema({"age": {"low": 0, "high": 110}}) or a [columns] table in TOML.'
            )
        if not isinstance(unit, str) or not unit.strip():
            raise ValueError(f'unit is {unit!r}. It says who is protected; write unit = "patient".')
        _check_text(unit, "unit")
        if not _is_integer(max_records) or max_records < 1:
            raise ValueError(
                f"max_records is {max_records!r}. It is how many records of one {unit} may count, a positive integer; "
                "write max_records = 1, or leave it out."
            )
        if max_records > 1 and unit in columns:
            raise ValueError(
                f"unit = {_toml(unit)} names the column of ids, and the schema declares it as a column too. Ids are "
                "not modelled, and are forgotten once records are grouped; take it out of [columns]."
            )
        # Frozen: the mapping is a read-only view of a dictionary that nobody else holds.
        built = {name: _column(name, facts) for name, facts in columns.items()}
        object.__setattr__(self, "columns", MappingProxyType(built))
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "size", checked_size(size))
        object.__setattr__(self, "max_records", int(max_records))

    @classmethod
    def from_toml(cls, text: str) -> Schema:
        """Read a schema from TOML text.

        Privacy: public.
        """
        facts = tomllib.loads(text)
        unknown = sorted(set(facts) - {f.name for f in fields(cls)})
        if unknown:
            raise ValueError(
                f"The schema has the unknown entries {unknown}. At the top stand unit, size and max_records; "
                "columns are written below a [columns] line."
            )
        return cls(facts.pop("columns", {}), **facts)

    def to_toml(self) -> str:
        """Write the schema as TOML text; `from_toml` gives back an equal schema.

        Privacy: public.
        """
        head = [f"unit = {_toml(self.unit)}"] + ([] if self.size is None else [f"size = {self.size}"])
        head += [] if self.max_records == 1 else [f"max_records = {self.max_records}"]
        return "\n".join([*head, "", "[columns]", *(column.to_toml() for column in self.columns.values()), ""])

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """Read a schema from a TOML file.

        Privacy: public.
        """
        return cls.from_toml(Path(path).read_bytes().decode("utf-8-sig"))

    def write(self, path: str | Path) -> None:
        """Write the schema to a TOML file.

        Privacy: public.
        """
        Path(path).write_bytes(self.to_toml().encode("utf-8"))

    def to_dict(self) -> dict[str, Any]:
        """Give the declared facts as plain values, fit for JSON.

        ``Schema(**schema.to_dict())`` gives back an equal schema.

        Privacy: public.
        """
        columns = {name: column.to_dict() for name, column in self.columns.items()}
        facts = {"columns": columns, "unit": self.unit, "size": self.size}
        return facts if self.max_records == 1 else {**facts, "max_records": self.max_records}

    def placeholder(self) -> dict[str, npt.NDArray[Any]]:
        """Give one public stand-in record: the middle of the bounds, the first of the levels.

        Privacy: public.
        """
        return {name: column.placeholder() for name, column in self.columns.items()}

    def describe(self) -> str:
        """Say in words what the schema declares.

        Privacy: public.
        """
        size = "not declared" if self.size is None else f"{self.size} (declared)"
        counted = "records" if self.max_records == 1 else f"units, of at most {self.max_records} records each"
        lines = [f"Unit of privacy: {self.unit}. Number of {counted}: {size}.", "Columns:"]
        rules = {"refuse": "missing values are refused", "drop": "records with a missing value are dropped"}
        for column in self.columns.values():
            rule = rules.get(str(column.missing), f"missing values become {_toml(column.missing)}")
            lines.append(f"  {column}; {rule}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.describe()

    def __repr__(self) -> str:
        columns = ", ".join(str(column) for column in self.columns.values())
        size = "" if self.size is None else f"; size: {self.size}"
        several = "" if self.max_records == 1 else f", at most {self.max_records} records each"
        return f"Schema(columns: {columns}; unit: {self.unit}{several}{size})"

    def __hash__(self) -> int:
        return hash((frozenset(self.columns.items()), self.unit, self.size, self.max_records))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a dictionary cannot be pickled; the facts can.
        return (Schema, (dict(self.columns), self.unit, self.size, self.max_records))


def draft(path: str | Path) -> str:
    """Write a draft of a schema for a CSV or Parquet file, to be filled in by someone who knows what it may hold.

    Only the names come from the file, and from Parquet the types that its header declares. No record is read: a type
    that was guessed from values would be a fact about them, as bounds and levels would be. So the draft has blanks, and
    does not pass as a schema until each column has one line.

    Privacy: public, as the header of a file is. A file without a header has a record in its place, and is refused where
    that can be told.
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
        lines += [f"# {_toml_key(name)} = {forms[kind]}" for kind in wanted]
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
    """Give the names of a file's columns, and for a CSV file the character between them.

    Privacy: public, as the header of a file is. Of a CSV file the first line is looked at, and nothing else.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {str(path)!r}. Give the path of a CSV or Parquet file.")
    arrow = import_arrow()
    if path.suffix == ".parquet":
        names = quietly(lambda: arrow.parquet.read_schema(path).names)
        if names is None:
            raise ValueError(f"The file {str(path)!r} is not a Parquet file. For comma-separated text use read_csv.")
        return list(names), ""

    def first_line() -> str:
        with arrow.input_stream(str(path)) as stream:
            start = stream.read(1 << 20)
        return start.decode("utf-8-sig", "ignore").splitlines()[0] if b"\0" not in start else ""

    line = quietly(first_line)
    if not line:
        raise ValueError(
            f"The file {str(path)!r} has no first line of text. Give a CSV file in UTF-8 whose first line names the "
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


def quietly(function: Callable[[], Any]) -> Any:
    """Call a conversion, or give None: its error may quote a record, also as the context of a later error.

    Privacy: keeps what an error says to itself.
    """
    try:
        return function()
    except Exception:
        return None


def levels_of(levels: Iterable[Level], codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give the levels that codes stand for; levels of several types stay what they are.

    Privacy: public.
    """
    levels = list(levels)
    alike = len({type(level) for level in levels}) == 1
    return np.asarray(levels, None if alike else object)[codes]


def checked_size(size: Any) -> int | None:
    """Check a declared public number of records.

    Privacy: public.
    """
    if size is None:
        return None
    if not _is_integer(size) or size < 1:
        raise ValueError(
            f"size is {size!r}. It is the public number of records, a positive integer; leave it out if "
            "there is no number that may be published."
        )
    return int(size)


def _column(name: Any, facts: Any) -> Column:
    if not isinstance(name, str) or not name:
        raise ValueError(f"A column is named {name!r}. Column names are non-empty text.")
    _check_text(name, "a column's name")
    if isinstance(facts, Column):
        return replace(facts, name=name)
    if not isinstance(facts, Mapping):
        raise TypeError(f"Column {name!r} is {facts!r}. Write {_toml_key(name)} = {{low = 0, high = 110}}.")
    known = [f.name for f in fields(Column) if f.name != "name"]
    unknown = [key for key in facts if key not in known]
    if unknown:
        raise ValueError(f"Column {name!r} has the unknown entries {unknown}. A column may have {known}.")
    return Column(name=name, **facts)


def _listed(value: Any) -> tuple[Any, ...] | None:
    # Text is iterable too, but levels = "fm" is a slip and not two levels.
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str | Mapping) else None


def _shown(value: Level) -> str:
    text = str(value)
    return text if text.isprintable() and text else _toml(text)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float | np.floating) or _is_integer(value)


def _plain(number: float | None) -> str:
    # 110.0 is written 110, as a person would; reading it back gives the same float.
    if isinstance(number, float) and number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    return repr(number)


def _check_text(text: str, what: str) -> None:
    # Lone surrogates are the one kind of text that neither TOML nor UTF-8 can hold.
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"The text {text!r}, {what}, is not valid Unicode and cannot be written to a file.")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the delete character, which TOML wants escaped as well.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(_toml(entry) for entry in value) + "]"
    return _plain(value)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)
