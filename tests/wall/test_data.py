"""Sealed records: what is stored, what is refused, and that nothing of it can be seen from outside."""

from __future__ import annotations

import copy
import datetime
import decimal
import functools
import inspect
import json
import pickle
import sys
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from tacit.facts.schema import Schema
from tacit.wall.data import PrivateData

CANARY = 73519482  # fits 32 bits, and occurs nowhere else in this file's messages
AGE = {"low": 0, "high": 110}


def sealed(values: Any, **facts: Any) -> np.ndarray:
    """Seal one column and open it as the wall would: the records that count."""
    data = PrivateData({"x": values}, Schema({"x": facts}))
    stored = np.asarray(data._records["x"])
    assert stored.shape[0] == max(data._count, 1)
    return stored[: data._count]


class Pair(NamedTuple):
    x: Any
    y: Any


# --- without a schema ---------------------------------------------------------------------------------------


def test_a_pytree_keeps_its_structure_and_gets_the_stored_types() -> None:
    records = {
        "pair": Pair(np.arange(6.0).reshape(3, 2), jnp.arange(3)),
        "list": [np.array([True, False, True]), np.zeros((3, 2, 2), np.float16)],
        "numbers": [[1, 2], [3, 4], [5, 6]],
        "byte": np.array([1, 2, 255], np.uint8),
        "half": jnp.ones(3, jnp.bfloat16),
        "series": pd.Series([1.5, 2.5, 3.5], index=[7, 8, 9]),
    }
    data = PrivateData(records)
    stored = data._records
    assert data._count == 3
    assert isinstance(stored["pair"], Pair)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(stored))
    np.testing.assert_array_equal(stored["pair"].x, records["pair"].x)
    np.testing.assert_array_equal(stored["numbers"], records["numbers"])
    np.testing.assert_array_equal(stored["byte"], [1, 2, 255])
    np.testing.assert_array_equal(stored["series"], [1.5, 2.5, 3.5])
    types_of = jax.tree.map(lambda leaf: leaf.dtype.name, stored)
    assert types_of == {
        "pair": Pair("float32", "int32"),
        "list": ["bool", "float32"],
        "numbers": "int32",
        "byte": "int32",
        "half": "float32",
        "series": "float32",
    }
    placeholder = data.placeholder
    assert jax.tree.map(lambda leaf: (1, *leaf.shape[1:]), stored) == jax.tree.map(
        lambda leaf: (1, *leaf.shape), placeholder
    )
    assert jax.tree.map(lambda leaf: leaf.dtype.name, placeholder) == types_of
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(placeholder))
    assert (data.schema, data.size, data.unit) == (None, None, "record")
    assert (data.ledger.path, data.ledger.charges) == (None, ())


@pytest.mark.parametrize("records", [np.ones((4, 2)), [[1.0, 1.0]] * 4, (np.ones(4),), [np.ones(4), np.ones(4)]])
def test_other_containers(records: Any) -> None:
    data = PrivateData(records)
    assert data._count == 4
    assert all(np.all(leaf == 1) for leaf in jax.tree.leaves(data._records))


def test_a_table_without_a_schema_is_a_dictionary_of_its_columns() -> None:
    data = PrivateData(pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5], 3: [True, False]}))
    assert {name: leaf.dtype.name for name, leaf in data._records.items()} == {
        "a": "int32",
        "b": "float32",
        "3": "bool",
    }
    assert repr(data) == (
        "PrivateData(columns: 3 bool (), a int32 (), b float32 (); unit: record; number of records: sealed)"
    )


def test_mappings_and_odd_paths() -> None:
    data = PrivateData(types.MappingProxyType({"a.b": np.ones(2), "a": {"b": np.zeros(2)}}))
    np.testing.assert_array_equal(data._records["a.b"], [1, 1])
    np.testing.assert_array_equal(data._records["a"]["b"], [0, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_missing_and_infinite_values_need_a_schema(bad: float) -> None:
    with pytest.raises(ValueError, match=r"'x' has missing or infinite values.*Schema.*missing = \"drop\""):
        PrivateData({"x": np.array([1.0, bad]), "y": np.ones(2)})


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint32])
def test_integers_must_fit_32_bits(dtype: Any) -> None:
    with pytest.raises(ValueError, match="do not fit 32 bits"):
        PrivateData(np.array([2**31], dtype))
    assert PrivateData(np.array([2**31 - 1], dtype))._records[0] == 2**31 - 1


@pytest.mark.parametrize(
    "values",
    [
        np.ones(2, complex),
        np.array(["a", "b"]),
        ["a", "b"],
        [1, None],
        np.array([1, object()], object),
        np.array(["2020-01-01"], "datetime64[D]"),
        np.zeros(2, [("a", float)]),
        np.ma.masked_array([1.0, 2.0], [True, False]),
    ],
)
def test_other_types_need_a_schema(values: Any) -> None:
    with pytest.raises(TypeError, match=r"'x' has values of type .* levels"):
        PrivateData({"x": values})


def test_an_unmasked_masked_array_is_an_array() -> None:
    np.testing.assert_array_equal(PrivateData(np.ma.masked_array([1.0, 2.0]))._records, [1, 2])


@pytest.mark.parametrize(
    "values",
    [None, 3.0, "records.csv", object(), np.float32(1), jax.random.key(0), {1, 2}, (1, 2), [[1], [2, 3]]],
)
def test_what_is_no_array_is_refused(values: Any) -> None:
    with pytest.raises(TypeError, match="not an array with a leading axis of records"):
        PrivateData({"x": values})


@pytest.mark.parametrize("records", [{}, (), [(), ()]])
def test_no_arrays_at_all(records: Any) -> None:
    with pytest.raises(ValueError, match="hold no arrays"):
        PrivateData(records)


def test_a_list_of_records_is_no_list_of_columns() -> None:
    with pytest.raises(TypeError, match="one array, list or table column for each variable"):
        PrivateData([{"x": 1.0}, {"x": 2.0}])


@pytest.mark.parametrize("schema", [None, Schema({"x": AGE, "y": AGE})])
def test_unequal_lengths_name_the_leaves_and_not_the_lengths(schema: Schema | None) -> None:
    with pytest.raises(ValueError, match=r"Records of unequal length: \['y'\] and 'x' differ") as caught:
        PrivateData({"x": np.ones(37), "y": np.ones(41)}, schema)
    assert "37" not in str(caught.value)
    assert "41" not in str(caught.value)


def aligned_ones(dtype: Any) -> np.ndarray:
    """Ones on a 64-byte boundary: such an array JAX would share with the caller instead of copying it."""
    memory = np.zeros(64 + 1000 * np.dtype(dtype).itemsize, np.uint8)
    start = -memory.ctypes.data % 64
    ones = memory[start : start + 1000 * np.dtype(dtype).itemsize].view(dtype)
    ones[:] = 1
    return ones


def test_the_records_are_copied() -> None:
    arrays = {
        "real": aligned_ones(np.float32),
        "integer": aligned_ones(np.int32),
        "flag": aligned_ones(bool),
    }
    schema = Schema({name: {"low": 0, "high": 1} for name in ("real", "integer")} | {"flag": {"levels": [0, 1]}})
    plain, declared = PrivateData(arrays), PrivateData(arrays, schema)
    for array in arrays.values():
        array[:] = 0
    for data in (plain, declared):
        assert all(bool(leaf.all()) for leaf in jax.tree.leaves(data._records))


# --- numbers ------------------------------------------------------------------------------------------------


def test_numbers_are_moved_inside_their_bounds() -> None:
    stored = sealed(np.array([-np.inf, -3, 0.5, 200, np.inf]), **AGE)
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored, [0, 0, 0.5, 110, 110])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64, np.uint8, bool, object])
def test_numbers_of_any_type(dtype: Any) -> None:
    np.testing.assert_array_equal(sealed(np.array([0, 1, 1], dtype), **AGE), [0, 1, 1])


def test_bounds_hold_in_32_bits() -> None:
    for values in (np.array([0.0, 1.0]), np.array([0.0, 1.0], np.float32)):
        np.testing.assert_array_equal(sealed(values, low=0.1, high=0.7), np.float32([0.1, 0.7]))


def test_integers_are_rounded_and_clamped() -> None:
    stored = sealed([0.4, 1.6, 2**80, -5, "3"], low=0, high=2**31 - 1, kind="integer")
    assert stored.dtype == np.int32
    np.testing.assert_array_equal(stored, [0, 2, 2**31 - 1, 0, 3])
    top = sealed(np.array([1e30, -1e30], np.float32), low=-(2**31), high=2**31 - 1, kind="integer")
    np.testing.assert_array_equal(top, [2**31 - 1, -(2**31)])


def test_numbers_given_as_objects_or_text() -> None:
    values = [1, 2.5, "3.5", decimal.Decimal("4"), np.float32(5), True]
    np.testing.assert_array_equal(sealed(values, **AGE), [1, 2.5, 3.5, 4, 5, 1])
    np.testing.assert_array_equal(sealed(np.array(["1", "2"]), **AGE), [1, 2])
    np.testing.assert_array_equal(sealed(jnp.array([1.0, 2.0], jnp.bfloat16), **AGE), [1, 2])


@pytest.mark.parametrize(
    "values",
    [
        ["a", 1],
        [10**400],
        [[1, 2], 3],
        [1j],
        [datetime.date(2020, 1, 1)],
        np.ones(1, complex),
        pd.Series(pd.to_datetime(["2020-01-01"])),
        pd.Series(pd.to_datetime(["2020-01-01"]).tz_localize("UTC")),
    ],
)
def test_what_is_no_number(values: Any) -> None:
    with pytest.raises(TypeError, match="Column 'x'"):
        sealed(values, **AGE)


# --- categories ---------------------------------------------------------------------------------------------

TEXT = ["m", "f", "m"]


@pytest.mark.parametrize(
    "values",
    [
        TEXT,
        tuple(TEXT),
        np.array(TEXT),
        np.array(TEXT, object),
        pd.Series(TEXT),
        pd.Series(TEXT, dtype=object),
        pd.Series(TEXT, dtype="string"),
        pd.Series(TEXT, dtype="category"),
        pd.Series(pd.Categorical(TEXT, categories=["m", "unused", "f"])),
    ],
)
def test_levels_become_codes_in_the_declared_order(values: Any) -> None:
    stored = sealed(values, levels=["f", "m", "x"])
    assert stored.dtype == np.int32
    np.testing.assert_array_equal(stored, [1, 0, 1])
    table = PrivateData(pd.DataFrame({"x": values}), Schema({"x": {"levels": ["f", "m", "x"]}}))
    np.testing.assert_array_equal(table._records["x"], [1, 0, 1])


@pytest.mark.parametrize(
    "values",
    [
        [True, False, True],
        np.array([True, False, True]),
        pd.Series([True, False, True], dtype="boolean"),
        pd.Series([True, False, True], dtype="category"),
        np.array([1, 0, 1]),
        np.array([1.0, 0.0, 1.0]),
    ],
)
def test_booleans_as_levels(values: Any) -> None:
    np.testing.assert_array_equal(sealed(values, levels=[False, True]), [1, 0, 1])
    np.testing.assert_array_equal(sealed(values, levels=[1, 0]), [0, 1, 0])


def test_mixed_levels_keep_text_and_numbers_apart() -> None:
    np.testing.assert_array_equal(sealed(["1", 1, "a", ""], levels=["a", 1, "1", ""]), [2, 1, 0, 3])


@pytest.mark.parametrize("unknown", ["canary", "1", "F", 2, 0.5, (1,), [1], {"a": 1}, b"f", datetime.date(2020, 1, 1)])
def test_an_unknown_level_is_refused_and_not_shown(unknown: Any) -> None:
    values = np.empty(2, object)
    values[:] = ["f", None]
    values[1] = unknown
    with pytest.raises(ValueError, match=r"'x' has a value that is none of its 2 declared levels") as caught:
        sealed(values, levels=["f", 1])
    assert "canary" not in str(caught.value)
    assert 'x = {levels = ["f", 1]}' in str(caught.value)


# --- array-valued columns -----------------------------------------------------------------------------------


def test_array_columns() -> None:
    images = np.arange(12.0).reshape(2, 2, 3) - 5
    expected = np.clip(images, 0, 4)
    for values in (images, images.tolist(), list(images), jnp.asarray(images)):
        np.testing.assert_array_equal(sealed(values, low=0, high=4, shape=(2, 3)), expected)
    table = pd.DataFrame({"x": list(images)})
    data = PrivateData(table, Schema({"x": {"low": 0, "high": 4, "shape": (2, 3)}}))
    np.testing.assert_array_equal(data._records["x"], expected)
    words = sealed([["a", "b"], ["b", "b"]], levels=["a", "b"], shape=2)
    np.testing.assert_array_equal(words, [[0, 1], [1, 1]])


def test_missing_entries_of_array_columns() -> None:
    cells = [[1.0, 2.0], None, [3.0, np.nan], [5.0, None]]
    rule: Any
    for values in (cells, pd.Series(cells), [np.array(c, float) if c else None for c in cells]):
        for rule, expected in (("drop", [[1, 2]]), (4, [[1, 2], [4, 4], [3, 4], [5, 4]])):
            np.testing.assert_array_equal(sealed(values, low=0, high=9, shape=2, missing=rule), expected)
        with pytest.raises(ValueError, match="missing values"):
            sealed(values, low=0, high=9, shape=2)


@pytest.mark.parametrize(
    ("values", "shape", "suggestion"),
    [
        (np.ones((3, 4)), (), "shape = [4]"),
        (np.ones((3, 4)), (2,), "shape = [4]"),
        (np.ones(3), (2,), "shape = [2]"),
        ([[1, 2], [1]], (2,), "shape = [2]"),
        ([], (), ""),
    ],
)
def test_the_shape_is_declared(values: Any, shape: tuple[int, ...], suggestion: str) -> None:
    if not suggestion:
        assert sealed(values, low=0, high=1, shape=shape).shape == (0,)
        return
    with pytest.raises(ValueError, match="'x' is declared with shape") as caught:
        sealed(values, low=0, high=1, shape=shape)
    assert suggestion in str(caught.value)


# --- missing values -----------------------------------------------------------------------------------------

WITH_GAPS = [
    [1.0, None, 3.0],
    [1.0, float("nan"), 3.0],
    ["1", " ", "3"],
    [1, pd.NA, 3],
    [1, pd.NaT, 3],
    np.array([1.0, np.nan, 3.0], np.float32),
    np.array([1, None, 3], object),
    np.ma.masked_array([1, 2, 3], [False, True, False]),
    pd.Series([1, None, 3], dtype="Int64"),
    pd.Series([1, None, 3], dtype="Float32"),
    pd.Series([1, None, 3], dtype="category"),
    jnp.array([1.0, jnp.nan, 3.0]),
]


@pytest.mark.parametrize("values", WITH_GAPS)
def test_missing_numbers_follow_the_rule(values: Any) -> None:
    with pytest.raises(ValueError, match=r"'x' has missing values.*x = \{low = 0, high = 9, missing = \"drop\"\}"):
        sealed(values, low=0, high=9)
    np.testing.assert_array_equal(sealed(values, low=0, high=9, missing="drop"), [1, 3])
    np.testing.assert_array_equal(sealed(values, low=0, high=9, missing=7), [1, 7, 3])
    filled = sealed(values, low=0, high=9, kind="integer", missing=7)
    assert filled.dtype == np.int32
    np.testing.assert_array_equal(filled, [1, 7, 3])


@pytest.mark.parametrize(
    "values",
    [
        ["b", None, "a"],
        ["b", "", "a"],
        np.array(["b", "", "a"]),
        pd.Series(["b", None, "a"]),
        pd.Series(["b", None, "a"], dtype=object),
        pd.Series(["b", None, "a"], dtype="string"),
        pd.Series(["b", None, "a"], dtype="category"),
        np.ma.masked_array(["b", "x", "a"], [False, True, False]),
    ],
)
def test_missing_levels_follow_the_rule(values: Any) -> None:
    with pytest.raises(ValueError, match="has missing values, and its rule is to refuse them"):
        sealed(values, levels=["a", "b"])
    np.testing.assert_array_equal(sealed(values, levels=["a", "b"], missing="drop"), [1, 0])
    np.testing.assert_array_equal(sealed(values, levels=["a", "b"], missing="a"), [1, 0, 0])


def test_a_dropped_record_is_dropped_from_every_column() -> None:
    schema = Schema(
        {
            "x": {"low": 0, "high": 9, "missing": "drop"},
            "y": {"levels": ["a", "b"], "missing": "drop"},
            "z": {"low": 0, "high": 9, "missing": 5},
        }
    )
    nan = float("nan")
    records = {"x": [1, nan, 3, 4], "y": ["a", "b", None, "b"], "z": [nan, 2, 3, 4]}
    data = PrivateData(records, schema)
    assert data._count == 2
    assert {name: leaf.tolist() for name, leaf in data._records.items()} == {
        "x": [1, 4],
        "y": [0, 1],
        "z": [5, 4],
    }


# --- columns and tables -------------------------------------------------------------------------------------


def test_columns_are_matched_by_name() -> None:
    schema = Schema({"age": AGE, "sex": {"levels": ["f", "m"]}})
    with pytest.raises(ValueError, match=r"declares the columns \['sex'\].*have only \['age', 'gender'\]"):
        PrivateData(pd.DataFrame({"age": [1], "gender": ["f"]}), schema)
    with pytest.raises(ValueError, match=r"have the columns \['note'\].*misspelt.*records\[\['age', 'sex'\]\]"):
        PrivateData(pd.DataFrame({"age": [1], "sex": ["f"], "note": ["x"]}), schema)
    swapped = PrivateData(pd.DataFrame({"sex": ["m"], "age": [7]}), schema)
    assert swapped._records["age"].tolist() == [7]
    with pytest.raises(TypeError, match="a dictionary or a table"):
        PrivateData(np.ones((3, 2)), schema)


@pytest.mark.parametrize("columns", [["x", "x"], [1, "1"]])
def test_doubled_columns_are_refused(columns: list[Any]) -> None:
    with pytest.raises(ValueError, match="more than once"):
        PrivateData(pd.DataFrame([[1, 2]], columns=columns))


class ArrowLike:
    """Stands in for pyarrow.Table: its ``columns`` are arrays, not names."""

    column_names = ("x",)
    columns = (object(),)

    def __init__(self, frame: pd.DataFrame | None) -> None:
        self.frame = frame

    def to_pandas(self) -> pd.DataFrame:
        if self.frame is None:
            raise ValueError(f"out of bounds timestamp: {CANARY}")
        return self.frame


def test_arrow_tables() -> None:
    data = PrivateData(ArrowLike(pd.DataFrame({"x": [1.0, 2.0]})), Schema({"x": AGE}))
    assert data._records["x"].tolist() == [1, 2]


def test_a_named_tuple_with_a_field_called_columns_is_no_table() -> None:
    class Odd(NamedTuple):
        columns: Any

    assert PrivateData(Odd(np.ones(2)))._records.columns.tolist() == [1, 1]


# --- no records ---------------------------------------------------------------------------------------------


def test_no_records_is_legal() -> None:
    plain = PrivateData({"x": np.zeros((0, 3)), "y": np.zeros(0, np.int64)})
    assert plain._count == 0
    assert {name: leaf.shape for name, leaf in plain._records.items()} == {"x": (1, 3), "y": (1,)}
    facts = {"age": AGE, "sex": {"levels": ["f", "m"]}, "scan": {"low": 0, "high": 2, "shape": [2]}}
    for records in ({"age": [], "sex": [], "scan": []}, pd.DataFrame({"age": [], "sex": [], "scan": []})):
        data = PrivateData(records, Schema(facts))
        assert data._count == 0
        assert {name: leaf.tolist() for name, leaf in data._records.items()} == {
            "age": [55.0],
            "sex": [0],
            "scan": [[1.0, 1.0]],
        }
    dropped = PrivateData({"age": [None, None]}, Schema({"age": AGE | {"missing": "drop"}}))
    assert dropped._count == 0
    assert dropped._records["age"].tolist() == [55.0]


# --- public facts -------------------------------------------------------------------------------------------


def test_public_facts_come_from_the_schema() -> None:
    schema = Schema({"age": AGE, "sex": {"levels": ["f", "m"]}}, unit="patient", size=20000)
    data = PrivateData({"age": [3.0], "sex": ["m"]}, schema)
    assert (data.schema, data.size, data.unit) == (schema, 20000, "patient")
    assert {name: (leaf.dtype.name, leaf.item()) for name, leaf in data.placeholder.items()} == {
        "age": ("float32", 55.0),
        "sex": ("int32", 0),
    }
    assert (
        repr(data)
        == str(data)
        == f"{data}"
        == (
            "PrivateData(columns: age real [0, 110], sex category (f, m); unit: patient; "
            "number of records: sealed (declared: 20000))"
        )
    )
    assert PrivateData({"age": [3.0], "sex": ["m"]}, schema, size=5).size == 5


@pytest.mark.parametrize("size", [0, -1])
def test_a_declared_size_is_positive(size: int) -> None:
    with pytest.raises(ValueError, match="positive integer"):
        PrivateData(np.ones(3), size=size)


def test_the_second_argument_is_a_schema() -> None:
    with pytest.raises(TypeError):
        PrivateData(np.ones((3, 2)), np.ones(3))  # type: ignore[arg-type]


def test_a_ledger_is_kept_and_a_path_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    stand_in = types.ModuleType("tacit.ledger.file")
    stand_in.Ledger = lambda path: ("ledger", path)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tacit.ledger.file", stand_in)
    something = object()
    assert PrivateData(np.ones(3), ledger=something).ledger is something
    assert PrivateData(np.ones(3), ledger="looks.jsonl").ledger == ("ledger", "looks.jsonl")
    assert PrivateData(np.ones(3), ledger=tmp_path / "l").ledger == ("ledger", tmp_path / "l")


# --- sealed -------------------------------------------------------------------------------------------------


def _set(name: str) -> Callable[[PrivateData], None]:
    return lambda data: setattr(data, name, None)


FORBIDDEN: dict[str, Callable[[Any], Any]] = {
    "len": len,
    "bool": bool,
    "index": lambda data: data[0],
    "key": lambda data: data["x"],
    "slice": lambda data: data[:1],
    "in": lambda data: 1 in data,
    "iter": iter,
    "list": list,
    "reversed": reversed,
    "unpack": lambda data: (lambda *a: a)(*data),
    "numpy": np.asarray,
    "numpy float": lambda data: np.asarray(data, float),
    "numpy sum": np.sum,
    "jax": jnp.asarray,
    "jax sum": jnp.sum,
    "jit": lambda data: jax.jit(lambda x: x)(data),
    "pandas": pd.DataFrame,
    "float": float,
    "int": int,
    "buffer": memoryview,
    "add": lambda data: data + 1,
    "less": lambda data: data < 1,
    "pickle": pickle.dumps,
    **{f"pickle {p}": functools.partial(pickle.dumps, protocol=p) for p in range(6)},
    "reduce": lambda data: data.__reduce__(),
    "reduce_ex": lambda data: data.__reduce_ex__(4),
    "getstate": lambda data: data.__getstate__(),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy inside": lambda data: copy.deepcopy({"data": data}),
    "json": json.dumps,
    "vars": vars,
    "set": _set("_records"),
    "set public": _set("size"),
    "set new": _set("extra"),
    "delete": lambda data: delattr(data, "_records"),
    "seal again": lambda data: data.__init__(np.ones(3)),
    "format": lambda data: f"{data:>10}",
}


@pytest.mark.parametrize("operation", FORBIDDEN.values(), ids=FORBIDDEN.keys())
@pytest.mark.parametrize("declared", [False, True])
def test_sealed(operation: Callable[[Any], Any], declared: bool) -> None:
    schema = Schema({"x": {"low": 0, "high": 1e8}}) if declared else None
    data = PrivateData({"x": np.full(17, CANARY)}, schema)
    before = data._records
    with pytest.raises(TypeError) as caught:
        operation(data)
    assert not leaks(caught.value)
    assert data._records is before


@pytest.mark.parametrize("name", ["len", "index", "iter", "numpy", "pickle", "deepcopy", "set"])
def test_the_refusal_says_what_to_do(name: str) -> None:
    with pytest.raises(TypeError, match=r"PrivateData is sealed: .*print\(data\).*tacit\.ask"):
        FORBIDDEN[name](PrivateData(np.ones(3)))


def test_nothing_else_shows_the_records() -> None:
    records = {"x": np.full(17, CANARY, np.int32)}
    data, twin = PrivateData(records), PrivateData(records)
    assert not hasattr(data, "__dict__")
    assert data == data
    assert data != twin
    assert len({data, twin}) == 2
    assert jax.tree.leaves(data) == [data]  # an opaque leaf: not a pytree
    assert weakref.ref(data)() is data
    assert sys.getsizeof(data) == sys.getsizeof(PrivateData({"x": np.zeros(0)}))
    shown = [repr(data), str(data), f"{data}", repr([data]), str(inspect.getmembers(data)), str(dir(data))]
    assert not any(str(CANARY) in text or "17" in text for text in shown)


# --- no value in any message --------------------------------------------------------------------------------


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Go through an error and all that it was raised from or while handling, shown or not."""
    while error is not None:
        yield error
        if error.__cause__ is not None:
            yield from chain(error.__cause__)
        error = error.__context__


def leaks(error: BaseException) -> bool:
    texts = [str(link) + repr(link) + repr(link.__dict__) for link in chain(error)]
    return str(CANARY) in "".join([*texts, *traceback.format_exception(error)])


BAD_VALUES: dict[str, Any] = {
    "text": f"a{CANARY}",
    "bytes": f"a{CANARY}".encode(),
    "number": CANARY,
    "huge": CANARY * 10**400,
    "complex": complex(CANARY, 1),
    "list": [CANARY],
    "dict": {"key": CANARY},
    "array": np.array([CANARY, CANARY]),
    "timedelta": datetime.timedelta(days=CANARY),
    "decimal": decimal.Decimal(f"{CANARY}E+999"),
    "nan": float("nan"),
    "none": None,
}


def as_list(value: Any) -> Any:
    return [1.0, value]


def as_objects(value: Any) -> Any:
    cells = np.empty(2, object)
    cells[0], cells[1] = 1.0, value
    return cells


def as_series(value: Any) -> Any:
    return pd.Series(as_objects(value), dtype=object)


@pytest.mark.parametrize("column", [None, AGE, AGE | {"shape": [2]}, {"levels": ["f", 1]}], ids=str)
@pytest.mark.parametrize("give", [as_list, as_objects, as_series])
@pytest.mark.parametrize("bad", BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_no_error_carries_a_value(column: Any, give: Callable[[Any], Any], bad: Any) -> None:
    records = {"x": give(bad), "other": [CANARY, CANARY]}
    other = {"other": {"low": 0, "high": 1e8}}
    schema = None if column is None else Schema({"x": column} | other)
    error = None
    try:
        PrivateData(records, schema)
    except (TypeError, ValueError) as caught:
        error = caught
    if error is None:
        # A plain number is no error: it is stored (without a schema, from a list) or clamped.
        assert isinstance(bad, int | float | np.ndarray | list | decimal.Decimal)
        return
    assert not leaks(error)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert "'x" in str(error)  # the column, or a leaf below it


@pytest.mark.parametrize(
    ("records", "schema"),
    [
        (ArrowLike(None), Schema({"x": AGE})),
        (ArrowLike(None), None),
        ({"x": np.array([f"{CANARY}" * 3])}, None),
        ({"x": np.array([CANARY * 10**6])}, None),
        ({"x": np.array([CANARY * 1e300])}, None),
        ({"x": [[CANARY], [CANARY, CANARY]]}, None),
        ({"x": [CANARY], "y": [CANARY] * 2}, None),
        ({"x": pd.Series([f"{CANARY}"], dtype="category")}, Schema({"x": {"levels": ["a"]}})),
        ({"x": pd.Series([f"{CANARY}"], dtype="string")}, Schema({"x": {"levels": ["a"]}})),
        (pd.DataFrame({"x": [f"a{CANARY}"]}), Schema({"x": AGE})),
        (pd.DataFrame({"x": [f"a{CANARY}"]}), None),
        (pd.DataFrame({"x": [CANARY], "y": [CANARY]}), Schema({"x": AGE})),
        (pd.DataFrame({"y": [CANARY]}), Schema({"x": AGE})),
        (CANARY, None),
        ({"x": CANARY}, None),
        ({"x": CANARY}, Schema({"x": AGE})),
        ([{"x": CANARY}], None),
        (str(CANARY), None),
    ],
)
def test_no_error_of_a_whole_table_carries_a_value(records: Any, schema: Schema | None) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        PrivateData(records, schema)
    assert not leaks(caught.value)
    assert caught.value.__context__ is None


def test_the_leak_detector_detects() -> None:
    for error in (ValueError(f"bad {CANARY}"), TypeError(CANARY)):
        assert leaks(error)
    try:
        float(f"a{CANARY}")
    except ValueError:
        hidden = TypeError("not shown, but still there")
        with pytest.raises(TypeError) as caught:
            raise hidden from None
    assert leaks(caught.value)


def test_the_type_of_text_does_not_tell_its_length() -> None:
    messages = set()
    for text in ("a", "a" * 37):
        with pytest.raises(TypeError) as caught:
            PrivateData({"x": np.array([text])})
        messages.add(str(caught.value))
    assert len(messages) == 1
