"""Records on disk: tables are converted once, and sealed where they lie, more of them than memory holds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tacit import system
from tacit.engine.files import BLOCK, Stored, opened
from tacit.facts.files import import_arrow, none_on_error
from tacit.facts.schema import Schema
from tacit.system import partial_of, remove_partial
from tacit.wall.data import PrivateData, _columns, _with_schema

MAPPED = 1 << 30
"""Files up to this size stay mapped into memory: records are found some twenty times as fast. Of larger ones what was
looked at is let go again, so that what is resident does not grow with them."""


def write_columns(source: Any, schema: Schema, folder: str | os.PathLike[str]) -> None:
    """Convert a table to records on disk, once, for `read_columns`; memory holds a part of it at a time.

    Numbers are moved inside their bounds, levels become codes, missing values follow each column's rule, as in
    `PrivateData`. The folder is readable by its owner only. It holds the records as they are: guard it like the table.

    Privacy: reads records, and writes them to a file. Errors name columns, never values or counts.

    Parameters
    ----------
    source
        The path of a Parquet file, or tables (dictionaries, data frames, Arrow tables) one after the other.
    schema
        The public facts. Each record must be a unit of its own: there is no column of ids.
    folder
        Where to write; it must not hold records yet.

    Returns
    -------
    None
        The folder holds the records, and ``schema.toml``.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> schema = tacit.Schema({"age": {"low": 0, "high": 110}}, unit="patient")
    >>> tacit.write_columns([{"age": np.full(100, 50.0)}], schema, "columns")
    """
    if schema.max_records > 1:
        raise ValueError(
            f"The schema says that a {schema.unit} may have {schema.max_records} records. Records on disk are not "
            "grouped; pass one record for each unit, or use read_parquet, which holds them in memory."
        )
    folder = Path(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / "records.npy"
    if file.exists():
        raise FileExistsError(f"The folder {str(folder)!r} holds records already. Read them, or choose another folder.")
    remove_partial(file)  # what a conversion left that was killed
    partial = partial_of(file)
    try:
        _convert(source, schema, partial)
    except BaseException:
        partial.unlink(missing_ok=True)  # it holds records
        raise
    schema.write(folder / "schema.toml")
    os.chmod(partial, 0o400)
    os.replace(partial, file)


def read_columns(
    folder: str | os.PathLike[str],
    schema: Schema | None = None,
    *,
    size: int | None = None,
    ledger: Any = None,
    mapped: int | None = None,
) -> Any:
    """Seal records that stay on disk: a folder of npy files, larger than memory if need be.

    Each file has the records along its leading axis: one column named like the file, or a structured type with several.
    Types are float32, int32 and bool. All files are read once, to check and to hash them. Nobody may write to them
    while they are in use.

    Privacy: reads records, into the wall. Errors name columns, never values or counts.

    Parameters
    ----------
    folder
        What `write_columns` wrote, or files of your own.
    schema
        The public facts; by default those in the folder's ``schema.toml``, if it is there. Values outside the bounds
        are refused here: `write_columns` is what moves them.
    size, ledger
        As in `PrivateData`.
    mapped
        Files up to so many bytes stay mapped into memory, by default 1 GB. It is faster, and what was looked at counts
        as resident until the system wants the memory back. Of larger ones it is let go of after each group of steps.

    Returns
    -------
    PrivateData
        The sealed records.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> schema = tacit.Schema({"age": {"low": 0, "high": 110}}, unit="patient")
    >>> tacit.write_columns([{"age": np.full(100, 50.0)}], schema, "columns")
    >>> data = tacit.read_columns("columns")
    """
    folder = Path(folder)
    paths = sorted(folder.glob("*.npy"))
    if not paths:
        raise FileNotFoundError(f"There are no npy files in {str(folder)!r}. Write them with tacit.write_columns.")
    if schema is None and (folder / "schema.toml").exists():
        schema = Schema.read(folder / "schema.toml")
    files = [opened(path, MAPPED if mapped is None else mapped) for path in paths]
    names = [field.name for file in files for field in file.fields]
    if len(set(names)) < len(names):
        raise ValueError(f"The files in {str(folder)!r} hold a column twice: {sorted(names)}. Leave one of them out.")
    if len({file.count for file in files}) > 1:
        raise ValueError("The files differ in their leading axis, so it is unclear which values belong to one record.")
    return PrivateData(Stored(files, schema), schema, size=size, ledger=ledger)


def _convert(source: Any, schema: Schema, partial: Path) -> None:
    dtype = np.dtype([(name, column.dtype, column.shape) for name, column in schema.columns.items()])
    count = 0
    with os.fdopen(system.create(partial, 0o600), "wb") as out:
        _header(out, dtype, 0)
        for table in _tables(source, schema):
            columns = _columns(table)
            if isinstance(columns, dict) and schema.unit in columns and schema.unit not in schema.columns:
                raise ValueError(
                    f"The table has a column {schema.unit!r} of ids. Records on disk are not grouped; leave it out if "
                    f"each record is a {schema.unit} of its own, or use read_parquet."
                )
            encoded, _ = _with_schema(columns, schema)
            rows = np.empty(len(next(iter(encoded.values()))), dtype)
            for name, values in encoded.items():
                rows[name] = values
            out.write(rows.tobytes())
            count += len(rows)
        out.seek(0)
        _header(out, dtype, count)
        out.flush()
        system.flush_to_disk(out.fileno())


def _tables(source: Any, schema: Schema) -> Iterable[Any]:
    if not isinstance(source, str | os.PathLike):
        return source
    arrow = import_arrow()
    file = none_on_error(lambda: arrow.parquet.ParquetFile(str(source)))
    if file is None:
        raise ValueError(f"The file {str(source)!r} is not a Parquet file, or there is none.")
    lacking = [name for name in schema.columns if name not in file.schema_arrow.names]
    if lacking:
        raise ValueError(f"The file lacks the columns {lacking}, which the schema declares. Correct one of them.")
    wanted = [*schema.columns]
    if schema.unit in file.schema_arrow.names and schema.unit not in wanted:
        wanted.append(schema.unit)  # and is refused
    return (arrow.Table.from_batches([part]) for part in file.iter_batches(BLOCK, columns=wanted))


def _header(out: Any, dtype: np.dtype[Any], count: int) -> None:
    # NumPy pads the header so that the number of records can grow in place.
    facts = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(out, facts)
