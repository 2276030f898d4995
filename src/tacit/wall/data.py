"""Sealed records: the wall reads them, and nobody else does."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Shaped

from tacit.facts.column import Column
from tacit.facts.files import none_on_error
from tacit.facts.schema import Schema, checked_size
from tacit.types import PyTree, Record
from tacit.wall.precision import single_precision
from tacit.wall.storage import Storage
from tacit.wall.units import Unit, group

_INT32 = np.iinfo(np.int32)


def _sealed(what: str) -> Callable[..., NoReturn]:
    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError(
            f"PrivateData is sealed: {what}. Its public facts are shown by print(data); "
            "a noisy count or mean is bought with tacit.ask(...)."
        )

    return refuse


@final
class PrivateData:
    """Records that only the private step can read.

    Privacy: reads records. Errors name columns, never values or counts.

    Parameters
    ----------
    records
        A pytree (dictionary, tuple, named tuple, list) of arrays whose leading axis counts the records, or a
        table (pandas, Arrow). A list of numbers is an array; a list of arrays is a list of columns, not of
        records. Everything is copied.
    schema
        The public facts. Records are then a dictionary or a table with exactly its columns: numbers are moved
        inside their bounds, levels become codes, missing values follow each column's rule. One more column may be
        there, named like the schema's unit: it holds the ids of the units, of which the first ``max_records`` records
        each are kept, and is forgotten then. Without a schema the shapes and types of the arrays, but not the number of
        records, are the public facts.
    size
        A public number of units, if there is one; it sets defaults only. Taken from the schema if left out.
    ledger
        The ledger in which every access is written, or the path of one. By default it is kept in memory, where it
        adds up the accesses of this process only.

    Attributes
    ----------
    schema, size, unit, max_records, ledger
        As declared; ``unit`` is who is protected.
    shards
        Into how many shards the records are dealt out (`tacit.distribute`), or None.
    placeholder
        One public stand-in record, without the leading axis.

    Examples
    --------
    >>> import numpy as np, tacit
    >>> schema = tacit.Schema({"age": {"low": 0, "high": 110}}, unit="patient", size=1000)
    >>> tacit.PrivateData({"age": np.full(973, 50.0)}, schema)
    PrivateData(columns: age real [0, 110]; unit: patient; number of records: sealed (declared: 1000))
    """

    __slots__ = (
        *("__weakref__", "_count", "_given", "_records", "_stand_in"),
        *("ledger", "max_records", "placeholder", "schema", "shards", "size", "unit"),
    )

    # For the wall alone. With no records at all one placeholder stands in, so that compiled code has
    # something to gather from; the count, which is 0 then, keeps it from ever being drawn.
    _records: PyTree
    _count: int
    _given: int  # before records were dropped: the length of an array that a model may have captured
    _stand_in: PyTree  # for one unit, as stored: the placeholder, or a Unit of placeholders
    schema: Schema | None
    shards: int | None
    size: int | None
    unit: str
    max_records: int
    ledger: Any
    placeholder: Record

    @single_precision
    def __init__(
        self, records: Any, schema: Schema | None = None, *, size: int | None = None, ledger: Any = None
    ) -> None:
        if hasattr(self, "_count"):
            _sealed("the records cannot be replaced")()
        if not isinstance(schema, Schema | None):
            raise TypeError(
                f"The schema is of type {type(schema).__name__}. Write tacit.Schema({{...}}); "
                "several arrays are given together, as PrivateData((x, y))."
            )
        elsewhere = isinstance(records, Storage)
        columns = {} if elsewhere else _columns(records)
        if isinstance(records, Storage):
            arrays: Any = records
            placeholder, stand_in, max_records = records.placeholder, records.stand_in, records.max_records
        elif schema is None:
            arrays = _without_schema(columns)
            stand_in = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), arrays)
            placeholder, max_records = stand_in, 1
            if isinstance(arrays, Unit):
                placeholder = jax.tree.map(lambda leaf: leaf[0], stand_in.records)
                max_records = len(stand_in.present)
        else:
            arrays, ids = _with_schema(columns, schema)
            placeholder, max_records = jax.tree.map(jnp.asarray, schema.placeholder()), schema.max_records
            stand_in = placeholder
            if ids is not None:
                arrays = group(arrays, ids, max_records, schema.placeholder())
            if isinstance(arrays, Unit):
                repeated = jax.tree.map(lambda leaf: jnp.stack([leaf] * max_records), placeholder)
                stand_in = Unit(repeated, jnp.ones(max_records, bool))
        count = arrays.count if elsewhere else len(jax.tree.leaves(arrays)[0])
        if ledger is None or isinstance(ledger, str | os.PathLike):
            from tacit.ledger.file import Ledger

            ledger = Ledger(ledger)
        stored = arrays if count else jax.tree.map(lambda leaf: leaf[None], stand_in)
        facts = {
            # JAX may share memory with these arrays: they are copies that nobody else holds.
            "_records": stored if elsewhere else jax.device_put(stored),
            "_count": count,
            "_given": count if schema is None or elsewhere else len(columns[next(iter(schema.columns))]),
            "_stand_in": stand_in,
            "shards": records.number if isinstance(records, Storage) else None,
            "schema": schema,
            "size": checked_size(size) or (schema.size if schema else None),
            "unit": schema.unit if schema else "record",
            "max_records": max_records,
            "ledger": ledger,
            "placeholder": placeholder,
        }
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)

    def __repr__(self) -> str:
        if self.schema is not None:
            columns = [str(column) for column in self.schema.columns.values()]
        else:
            columns = [f"{name} {leaf.dtype} {leaf.shape}" for name, leaf in _named_leaves(self.placeholder)]
        declared = "" if self.size is None else f" (declared: {self.size})"
        counted = "records" if self.max_records == 1 else f"units of at most {self.max_records} records"
        return f"PrivateData(columns: {', '.join(columns)}; unit: {self.unit}; number of {counted}: sealed{declared})"

    def __dir__(self) -> list[str]:
        # inspect.getmembers and notebook inspectors fetch the value of every name they are told of.
        return ["ledger", "max_records", "placeholder", "schema", "shards", "size", "unit"]

    __setattr__ = __delattr__ = _sealed("its attributes cannot be changed")
    __len__ = __bool__ = _sealed("the number of records is private")
    __getitem__ = __contains__ = _sealed("records cannot be looked up")
    __iter__ = __reversed__ = _sealed("records cannot be gone through one by one")
    __array__ = _sealed("it cannot be turned into an array")
    # Python's default __getstate__ would hand over every slot.
    __reduce__ = __reduce_ex__ = __getstate__ = _sealed("it cannot be pickled, since the file would hold the records")
    __copy__ = __deepcopy__ = _sealed("it cannot be copied; pass the same object on")


def _columns(records: Any) -> Any:
    """Return a table as a dictionary of its columns; leave other records as they are."""
    if hasattr(records, "column_names") and hasattr(records, "to_pandas"):  # an Arrow table
        records = none_on_error(records.to_pandas)
    if isinstance(records, Mapping):
        return dict(records)
    if hasattr(records, "columns") and not isinstance(records, tuple):  # a data frame
        names = [str(name) for name in records.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"The table has the columns {twice} more than once. Rename or drop the doubles.")
        return {str(name): records[name] for name in records.columns}
    return records


def _without_schema(records: Any) -> PyTree:
    leaves = [(name, _plain(name, leaf)) for name, leaf in _named_leaves(records)]
    if not leaves:
        raise ValueError("The records hold no arrays. Pass arrays whose leading axis counts the records.")
    _check_lengths(leaves)
    structure = jax.tree.structure(records, is_leaf=_is_leaf)
    return jax.tree.unflatten(structure, [leaf for _, leaf in leaves])


def _with_schema(
    columns: Any, schema: Schema
) -> tuple[dict[str, Shaped[np.ndarray, "n ..."]], Shaped[np.ndarray, " n"] | None]:
    """Return the columns as they are stored, and the number of each record's unit where the records say."""
    if not isinstance(columns, dict):
        raise TypeError("With a schema the records are a dictionary or a table, with the schema's columns.")
    lacking = [name for name in schema.columns if name not in columns]
    if lacking:
        raise ValueError(
            f"The schema declares the columns {lacking}, and the records have only {list(columns)}. "
            "Correct the name, or take the column out of the schema."
        )
    unit_column = schema.unit if schema.unit in columns and schema.unit not in schema.columns else None
    if unit_column is None and schema.max_records > 1:
        raise ValueError(
            f"The schema says that a {schema.unit} may have {schema.max_records} records, but the records have no "
            f"column {schema.unit!r} that tells which belong together. Add it, or name the column of ids: unit = ..."
        )
    extra = [name for name in columns if name not in (*schema.columns, unit_column)]
    if extra:
        raise ValueError(
            f"The records have the columns {extra}, which the schema does not declare. Leaving them out in "
            f"silence would hide a misspelt name; declare them, or pass records[{list(schema.columns)}] only."
        )
    cells = {name: _cells(column, columns[name]) for name, column in schema.columns.items()}
    _check_lengths(list(cells.items()))
    encoded = {name: _encode(column, cells[name]) for name, column in schema.columns.items()}
    # Whether a record is dropped depends on that record alone, so neighbouring data sets stay neighbours.
    kept = np.logical_and.reduce([keep for _, keep in encoded.values()])
    ids = None if unit_column is None else _ids(unit_column, columns[unit_column], len(kept))[kept]
    return {name: values[kept] for name, (values, _) in encoded.items()}, ids


def encode(records: Any, schema: Schema) -> dict[str, Shaped[np.ndarray, "n ..."]]:
    """Return records as they are stored under a schema: numbers inside their bounds, levels as codes.

    Privacy: for records that are public or made up. Sealed ones are refused.
    """
    if isinstance(records, PrivateData):
        _sealed("it cannot be turned into arrays")()
    return _with_schema(_columns(records), schema)[0]


def _ids(name: str, raw: Any, count: int) -> Shaped[np.ndarray, " n"]:
    """Number the units in the order in which they come; the ids themselves are not kept."""
    cells = [cell.strip() if isinstance(cell, str) else cell for cell in _array(name, raw, object).tolist()]
    if len(cells) != count:
        _check_lengths([(name, np.empty(len(cells))), ("the other columns", np.empty(count))])
    if any(_is_absent(cell) for cell in cells):
        raise ValueError(
            f"The column {name!r} of ids has missing values. Nobody knows whose records those are, so nobody could be "
            "protected; fill in the id of every record's unit."
        )
    numbers: dict[Any, int] = {}
    found = none_on_error(lambda: np.asarray([numbers.setdefault(cell, len(numbers)) for cell in cells], np.int64))
    if found is None:
        raise TypeError(f"The column {name!r} of ids has values that cannot be compared. Pass text or integers.")
    return found  # type: ignore[no-any-return]


def _plain(name: str, leaf: Any) -> Shaped[np.ndarray, "n ..."]:
    """Copy one array without a schema to one of the three types that are stored."""
    values = _array(name, leaf)
    if values.dtype == np.bool_:
        return values.copy()
    if jnp.issubdtype(values.dtype, np.integer):
        if values.size and (values.min() < _INT32.min or values.max() > _INT32.max):
            raise ValueError(f"{name!r} has integers that do not fit 32 bits. Rescale them, or pass real numbers.")
        return values.astype(np.int32)
    if jnp.issubdtype(values.dtype, np.floating):
        with np.errstate(all="ignore"):
            values = values.astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError(
                f"{name!r} has missing or infinite values (in 32 bits). Their meaning must be declared; "
                'pass a Schema with a rule such as missing = "drop" for the column, or clean the values.'
            )
        return values
    raise TypeError(
        f"{name!r} has values of type {_type(values)}; records are real numbers, integers or booleans. "
        "For text, pass a Schema that declares the levels: {levels = [...]}."
    )


def _cells(column: Column, raw: Any) -> Shaped[np.ndarray, "n ..."]:
    """Return a declared column's values as one array, still as they came."""
    # A list is taken as objects: NumPy would turn ["a", 1] into text and [True, 2] into integers.
    values = _array(column.name, raw, object if isinstance(raw, list | tuple) else None)
    if column.shape and values.dtype == object and values.ndim == 1:  # a table's cells may hold arrays
        blank = np.full(column.shape, None)
        values = _array(column.name, [blank if _is_absent(cell) else cell for cell in values], object)
    if column.shape and values.shape == (0,):
        values = values.reshape(0, *column.shape)
    if values.shape[1:] != column.shape:
        theirs = list(values.shape[1:] or column.shape)
        raise ValueError(
            f"Column {column.name!r} is declared with shape {column.shape}, and its values have another. "
            f"Pass values of that shape, or declare theirs: {column.to_toml(shape=theirs)}."
        )
    return values


def _encode(
    column: Column, cells: Shaped[np.ndarray, "n ..."]
) -> tuple[Shaped[np.ndarray, "n ..."], Bool[np.ndarray, " n"]]:
    """Return a declared column's values as they are stored, and which records the column keeps."""
    if cells.dtype.kind in "cmM":
        raise TypeError(
            f"Column {column.name!r} has values of type {_type(cells)}. Pass real numbers (for a date, the "
            "days since a public one), or text for the levels of a category."
        )
    values = _codes(column, cells) if column.levels is not None else _numbers(column, cells)
    absent = np.isnan(values)
    filler: Any = column.missing
    if column.missing in ("refuse", "drop"):
        filler = column.placeholder().flat[0]
    elif column.levels is not None:
        filler = column.levels.index(filler)
    if column.missing == "refuse" and absent.any():
        raise ValueError(
            f"Column {column.name!r} has missing values, and its rule is to refuse them. "
            f"Write {column.to_toml(missing='drop')} in the schema, or the value to put in their place."
        )
    stored = np.where(absent, filler, values).astype(column.dtype)
    lost = absent.any(axis=tuple(range(1, absent.ndim)))
    return stored, ~lost if column.missing == "drop" else np.ones(len(cells), bool)


def _numbers(column: Column, cells: Shaped[np.ndarray, "n ..."]) -> Shaped[np.ndarray, "n ..."]:
    """Return numbers of the declared kind inside the declared bounds, NaN where one is missing."""
    numeric = any(jnp.issubdtype(cells.dtype, kind) for kind in (np.bool_, np.integer, np.floating))
    flat = cells if numeric else [np.nan if _is_absent(cell) else cell for cell in cells.reshape(-1).tolist()]
    # Large float32 arrays stay as they are; integers need float64, in which every int32 bound is exact.
    exact = np.float32 if cells.dtype == np.float32 and column.kind == "real" else np.float64
    values = none_on_error(lambda: np.asarray(flat, exact))
    if values is None or values.size != cells.size:
        raise TypeError(
            f"Column {column.name!r} is declared as a number and has values that are not. "
            "Convert them, or declare a category: {levels = [...]}."
        )
    values = np.rint(values) if column.kind == "integer" else values
    clamped: np.ndarray = np.clip(values, column.low, column.high).reshape(cells.shape)
    return clamped


def _codes(column: Column, cells: Shaped[np.ndarray, "n ..."]) -> Shaped[np.ndarray, "n ..."]:
    """Return the codes of the declared levels, NaN where one is missing."""
    codes = {level: float(code) for code, level in enumerate(column.levels or ())}
    flat = cells.reshape(-1).tolist()
    found = none_on_error(lambda: [codes[v] if v in codes else np.nan if _is_absent(v) else None for v in flat])
    if found is None or None in found:
        raise ValueError(
            f"Column {column.name!r} has a value that is none of its {len(codes)} declared levels (it is "
            'private and not shown; 1 and "1" are different levels). Correct the records, or add the level: '
            f"{column.to_toml()}."
        )
    return np.asarray(found, np.float64).reshape(cells.shape)


def _array(name: str, raw: Any, dtype: Any = None) -> Shaped[np.ndarray, "n ..."]:
    def read() -> Any:
        if isinstance(raw, np.ma.MaskedArray) and np.ma.is_masked(raw):
            # Masked values are missing; np.asarray would bring back what the mask hides.
            return np.where(np.ma.getmaskarray(raw), np.asarray(None), raw.data)
        return np.asarray(raw, dtype)

    values = none_on_error(read)
    if values is None or values.ndim == 0:
        raise TypeError(
            f"{name!r} is not an array with a leading axis of records. Pass one array, list or table column "
            "for each variable, with one entry per record."
        )
    return values  # type: ignore[no-any-return]


def _type(values: Shaped[np.ndarray, "..."]) -> str:
    # Not the dtype itself: that of text tells the length of the longest value.
    return values.dtype.type.__name__


def _check_lengths(leaves: list[tuple[str, Shaped[np.ndarray, "..."]]]) -> None:
    (first, leaf), *others = leaves
    odd = [name for name, other in others if len(other) != len(leaf)]
    if odd:
        raise ValueError(
            f"Records of unequal length: {odd} and {first!r} differ in their leading axis, so it is unclear "
            "which values belong to one record. Every array needs one entry per record."
        )


def _named_leaves(tree: PyTree) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_leaf)
    return [(jax.tree_util.keystr(path, simple=True, separator=".") or "records", leaf) for path, leaf in leaves]


def _is_leaf(node: Any) -> bool:
    """Say whether a node is an array in the form of (nested) lists of numbers, or an absent one."""
    scalars = isinstance(node, list) and all(np.isscalar(entry) or _is_leaf(entry) for entry in node)
    return node is None or scalars


def _is_absent(value: Any) -> bool:
    """Say whether a value is missing: None, NaN, blank text, or pandas' NA or NaT."""
    if isinstance(value, float | np.floating | str):
        return not value.strip() if isinstance(value, str) else bool(np.isnan(value))
    # By name, since pandas need not be installed.
    return value is None or type(value).__name__ in ("NAType", "NaTType")
