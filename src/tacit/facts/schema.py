"""Public facts about a record: its columns, their bounds and levels, and who is protected.

Everything here is declared by a person and may be published. Nothing in this file reads a record, so a
schema can be written, checked and shared before anyone has seen the data.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.facts.column import Column, Level, is_integer
from tacit.facts.text import check_text, toml, toml_key


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
    >>> import tacit
    >>> schema = tacit.Schema({"age": {"low": 0, "high": 110}, "sex": {"levels": ["f", "m"]}}, unit="patient")
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
        check_text(unit, "unit")
        if not is_integer(max_records) or max_records < 1:
            raise ValueError(
                f"max_records is {max_records!r}. It is how many records of one {unit} may count, a positive integer; "
                "write max_records = 1, or leave it out."
            )
        if max_records > 1 and unit in columns:
            raise ValueError(
                f"unit = {toml(unit)} names the column of ids, and the schema declares it as a column too. Ids are "
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
        head = [f"unit = {toml(self.unit)}"] + ([] if self.size is None else [f"size = {self.size}"])
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
        """Return the declared facts as plain values, fit for JSON.

        ``Schema(**schema.to_dict())`` gives back an equal schema.

        Privacy: public.
        """
        columns = {name: column.to_dict() for name, column in self.columns.items()}
        facts = {"columns": columns, "unit": self.unit, "size": self.size}
        return facts if self.max_records == 1 else {**facts, "max_records": self.max_records}

    def placeholder(self) -> dict[str, npt.NDArray[Any]]:
        """Return one public stand-in record: the middle of the bounds, the first of the levels.

        Privacy: public.
        """
        return {name: column.placeholder() for name, column in self.columns.items()}

    def describe(self) -> str:
        """Describe in words what the schema declares.

        Privacy: public.
        """
        size = "not declared" if self.size is None else f"{self.size} (declared)"
        counted = "records" if self.max_records == 1 else f"units, of at most {self.max_records} records each"
        lines = [f"Unit of privacy: {self.unit}. Number of {counted}: {size}.", "Columns:"]
        rules = {"refuse": "missing values are refused", "drop": "records with a missing value are dropped"}
        for column in self.columns.values():
            rule = rules.get(str(column.missing), f"missing values become {toml(column.missing)}")
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


def levels_of(levels: Iterable[Level], codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the levels that codes stand for; levels of several types stay what they are.

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
    if not is_integer(size) or size < 1:
        raise ValueError(
            f"size is {size!r}. It is the public number of records, a positive integer; leave it out if "
            "there is no number that may be published."
        )
    return int(size)


def _column(name: Any, facts: Any) -> Column:
    if not isinstance(name, str) or not name:
        raise ValueError(f"A column is named {name!r}. Column names are non-empty text.")
    check_text(name, "a column's name")
    if isinstance(facts, Column):
        return replace(facts, name=name)
    if not isinstance(facts, Mapping):
        raise TypeError(f"Column {name!r} is {facts!r}. Write {toml_key(name)} = {{low = 0, high = 110}}.")
    known = [f.name for f in fields(Column) if f.name != "name"]
    unknown = [key for key in facts if key not in known]
    if unknown:
        raise ValueError(f"Column {name!r} has the unknown entries {unknown}. A column may have {known}.")
    return Column(name=name, **facts)
