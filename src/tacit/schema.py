"""Public facts about a record: its columns, their bounds and levels, and who is protected.

Everything here is declared by a person and may be published. Nothing in this file reads a record, so a
schema can be written, checked and shared before anyone has seen the data.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
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
        Who is protected, in one word: ``"patient"``. One record belongs to one unit.
    size
        A *public* number of records, if there is one. It sets defaults only, and is never compared with the
        data.

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

    def __init__(self, columns: Mapping[str, Any], unit: str = "record", size: int | None = None) -> None:
        if not isinstance(columns, Mapping) or not columns:
            raise ValueError(
                "The schema has no columns. They say what a record may hold; "
                'write Schema({"age": {"low": 0, "high": 110}}) or a [columns] table in TOML.'
            )
        if not isinstance(unit, str) or not unit.strip():
            raise ValueError(f'unit is {unit!r}. It says who is protected; write unit = "patient".')
        _check_text(unit, "unit")
        # Frozen: the mapping is a read-only view of a dictionary that nobody else holds.
        built = {name: _column(name, facts) for name, facts in columns.items()}
        object.__setattr__(self, "columns", MappingProxyType(built))
        object.__setattr__(self, "unit", unit)
        object.__setattr__(self, "size", checked_size(size))

    @classmethod
    def from_toml(cls, text: str) -> Schema:
        """Read a schema from TOML text.

        Privacy: public.
        """
        facts = tomllib.loads(text)
        unknown = sorted(set(facts) - {f.name for f in fields(cls)})
        if unknown:
            raise ValueError(
                f"The schema has the unknown entries {unknown}. At the top stand unit and size; "
                "columns are written below a [columns] line."
            )
        return cls(facts.pop("columns", {}), **facts)

    def to_toml(self) -> str:
        """Write the schema as TOML text; `from_toml` gives back an equal schema.

        Privacy: public.
        """
        head = [f"unit = {_toml(self.unit)}"] + ([] if self.size is None else [f"size = {self.size}"])
        return "\n".join([*head, "", "[columns]", *(column.to_toml() for column in self.columns.values()), ""])

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """Read a schema from a TOML file.

        Privacy: public.
        """
        return cls.from_toml(Path(path).read_bytes().decode("utf-8"))

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
        return {"columns": columns, "unit": self.unit, "size": self.size}

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
        lines = [f"Unit of privacy: {self.unit}. Number of records: {size}.", "Columns:"]
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
        return f"Schema(columns: {columns}; unit: {self.unit}{size})"

    def __hash__(self) -> int:
        return hash((frozenset(self.columns.items()), self.unit, self.size))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a dictionary cannot be pickled; the facts can.
        return (Schema, (dict(self.columns), self.unit, self.size))


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
