"""The schema: declared facts, checked, written to TOML and read back."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import tomllib

import numpy as np
import pytest

import tacit.facts.schema
from tacit.facts.column import Column
from tacit.facts.schema import Schema, checked_size

PATIENTS = {
    "age": {"low": 0, "high": 110},
    "sex": {"levels": ["f", "m"]},
    "visits": {"low": 0, "high": 30, "kind": "integer", "missing": 0},
    "scan": {"low": -1.5, "high": 1.5, "shape": [2, 3], "missing": "drop"},
    "smoker": {"levels": [False, True], "missing": False},
}


@pytest.fixture
def schema() -> Schema:
    return Schema(PATIENTS, unit="patient", size=20000)


def test_columns_are_normalised(schema: Schema) -> None:
    assert list(schema.columns) == list(PATIENTS)
    assert schema.columns["age"] == Column(name="age", low=0.0, high=110.0, kind="real")
    assert schema.columns["sex"].kind == "category"
    assert schema.columns["sex"].levels == ("f", "m")
    assert schema.columns["scan"].shape == (2, 3)
    assert Schema({"x": {"low": 0, "high": 1, "shape": 4}}).columns["x"].shape == (4,)
    assert Schema({"x": {"levels": np.array(["a", "b"])}}).columns["x"].levels == ("a", "b")
    assert Schema({"x": {"levels": (level for level in (1, 2))}}).columns["x"].levels == (1, 2)
    assert str(Schema({"x": {"low": -0.0, "high": 1}}).columns["x"].low) == "0.0"


def test_a_column_without_bounds_says_what_to_write() -> None:
    with pytest.raises(ValueError, match="bounds") as caught:
        Schema({"age": {}})
    assert str(caught.value) == (
        "Column 'age' has no bounds. Bounds taken from the data would reveal it; "
        "write age = {low = 0, high = 110} in the schema."
    )


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"low": 0}, "has no upper bound"),
        ({"high": 0}, "has no lower bound"),
        ({"low": 0, "high": float("inf")}, "finite bounds"),
        ({"low": float("nan"), "high": 1}, "finite bounds"),
        ({"low": 0, "high": 1e300}, "finite bounds"),
        ({"low": 0, "high": 10**400}, "finite bounds"),
        ({"low": "0", "high": 1}, "Bounds are numbers"),
        ({"low": False, "high": True}, "Bounds are numbers"),
        ({"low": 1, "high": 1}, "below the upper"),
        ({"low": 2, "high": 1}, "below the upper"),
        ({"low": 1e9, "high": 1e9 + 1}, "32-bit precision"),
        ({"low": 0.5, "high": 2, "kind": "integer"}, "fit 32 bits"),
        ({"low": 0, "high": 2**31, "kind": "integer"}, "fit 32 bits"),
        ({"low": 0, "high": 1, "kind": "float"}, 'kind = "real", "integer"'),
        ({"low": 0, "high": 1, "levels": ["a"]}, "levels and bounds"),
        ({"low": 0, "high": 1, "levels": ["a"], "kind": "real"}, "either bounds or levels"),
        ({"kind": "category"}, "has no levels"),
        ({"levels": []}, "has no levels"),
        ({"levels": "fm"}, "has no levels"),
        ({"levels": ["a", "b", "a"]}, "a level twice"),
        ({"levels": [1, True]}, "a level twice"),
        ({"levels": ["\ud800"]}, "not valid Unicode"),
        ({"low": 0, "high": 1, "shape": [0]}, "has shape"),
        ({"low": 0, "high": 1, "shape": [2.5]}, "has shape"),
        ({"low": 0, "high": 1, "shape": "ab"}, "has shape"),
        ({"low": 0, "high": 1, "shape": True}, "has shape"),
        ({"low": 0, "high": 1, "missing": "zero"}, "a number of its kind between its bounds"),
        ({"low": 0, "high": 1, "missing": 2}, "a number of its kind between its bounds"),
        ({"low": 0, "high": 1, "missing": float("nan")}, "a number of its kind between its bounds"),
        ({"low": 0, "high": 1, "missing": True}, "a number of its kind between its bounds"),
        ({"low": 0, "high": 1, "missing": None}, "a number of its kind between its bounds"),
        ({"low": 0, "high": 9, "kind": "integer", "missing": 0.5}, "a number of its kind"),
        ({"levels": ["a"], "missing": "b"}, "one of its levels"),
        ({"levels": ["a"], "missing": ["a"]}, "one of its levels"),
        ({"levels": ["drop", "keep"], "missing": "drop"}, "Rename the level"),
        ({"low": 0, "high": 1, "lvels": ["a"]}, "unknown entries \\['lvels'\\]"),
        ({"low": 0, "high": 1, "name": "other"}, "unknown entries \\['name'\\]"),
    ],
)
def test_bad_columns_are_refused_by_name(facts: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Schema({"income": facts})
    assert "income" in str(caught.value)


@pytest.mark.parametrize("level", [1.5, None, b"a", ("a",)])
def test_levels_are_text_integers_or_booleans(level: object) -> None:
    with pytest.raises(TypeError, match="Levels are text, integers or booleans"):
        Schema({"x": {"levels": ["a", level]}})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": {}}, "no columns"),
        ({"columns": ["age"]}, "no columns"),
        ({"columns": {3: {"low": 0, "high": 1}}}, "names are non-empty text"),
        ({"columns": {"": {"low": 0, "high": 1}}}, "names are non-empty text"),
        ({"columns": PATIENTS, "unit": " "}, "who is protected"),
        ({"columns": PATIENTS, "unit": None}, "who is protected"),
        ({"columns": PATIENTS, "size": 0}, "a positive integer"),
        ({"columns": PATIENTS, "size": 10.0}, "a positive integer"),
        ({"columns": PATIENTS, "size": True}, "a positive integer"),
    ],
)
def test_bad_schemas_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schema(**arguments)  # type: ignore[arg-type]


def test_a_column_that_is_no_table_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Write age = \{low = 0, high = 110\}"):
        Schema.from_toml("[columns]\nage = 3")


def test_the_toml_reads_as_a_person_would_write_it(schema: Schema) -> None:
    assert schema.to_toml().splitlines() == [
        'unit = "patient"',
        "size = 20000",
        "",
        "[columns]",
        "age = {low = 0, high = 110}",
        'sex = {levels = ["f", "m"]}',
        'visits = {low = 0, high = 30, kind = "integer", missing = 0}',
        'scan = {low = -1.5, high = 1.5, shape = [2, 3], missing = "drop"}',
        "smoker = {levels = [false, true], missing = false}",
    ]


NASTY = [
    '"',
    "\\",
    "\\n",
    "\n",
    "\r\n",
    "\t",
    "\x00",
    "\x1f",
    "\x7f",
    "\x85",
    "é",
    "日本",
    "😀",
    "",
    " ",
    "'''",
    "#",
]


def test_toml_round_trip_is_exact(schema: Schema) -> None:
    nasty = Schema(
        {
            **{text or "empty": {"levels": [*NASTY, 0, -7, 2**60], "missing": text} for text in NASTY},
            "a.b": {"low": -1e-7, "high": 1e16, "missing": 0.1},
            "bool": {"levels": [True, False], "missing": True},
            "small": {"low": 0.1, "high": 1 / 3},
        },
        unit='a "unit"\n',
    )
    for one in (schema, nasty):
        back = Schema.from_toml(one.to_toml())
        assert back == one
        assert list(back.columns) == list(one.columns)
        assert back.to_toml() == one.to_toml()
        assert [type(lv) for c in back.columns.values() for lv in c.levels or ()] == [
            type(lv) for c in one.columns.values() for lv in c.levels or ()
        ]
        tomllib.loads(one.to_toml())
        assert Schema(**json.loads(json.dumps(one.to_dict()))) == one


def test_toml_with_sub_tables_is_the_same() -> None:
    text = "[columns.age]\nlow = 0\nhigh = 110\n"
    assert Schema.from_toml(text) == Schema({"age": {"low": 0, "high": 110}})


def test_unknown_entries_in_toml_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown entries \['age'\].*\[columns\]"):
        Schema.from_toml("age = {low = 0, high = 110}")


def test_files_round_trip(schema: Schema, tmp_path) -> None:  # type: ignore[no-untyped-def]
    schema.write(tmp_path / "schema.toml")
    assert Schema.read(tmp_path / "schema.toml") == schema
    assert Schema.read(str(tmp_path / "schema.toml")) == schema


def test_placeholder(schema: Schema) -> None:
    record = Schema(PATIENTS | {"odd": {"low": 0, "high": 3, "kind": "integer"}}).placeholder()
    assert {name: (value.dtype.name, value.shape) for name, value in record.items()} == {
        "age": ("float32", ()),
        "sex": ("int32", ()),
        "visits": ("int32", ()),
        "scan": ("float32", (2, 3)),
        "smoker": ("int32", ()),
        "odd": ("int32", ()),
    }
    assert record["age"] == 55
    assert record["sex"] == 0
    assert record["visits"] == 15
    assert record["odd"] in (1, 2)
    assert not record["scan"].any()


def test_words(schema: Schema) -> None:
    assert schema.describe().splitlines() == [
        "Unit of privacy: patient. Number of records: 20000 (declared).",
        "Columns:",
        "  age real [0, 110]; missing values are refused",
        "  sex category (f, m); missing values are refused",
        "  visits integer [0, 30]; missing values become 0",
        "  scan real [-1.5, 1.5] shape (2, 3); records with a missing value are dropped",
        "  smoker category (False, True); missing values become false",
    ]
    assert str(schema) == schema.describe()
    assert repr(schema).startswith("Schema(columns: age real [0, 110], sex category (f, m), ")
    assert repr(schema).endswith("; unit: patient; size: 20000)")
    assert "not declared" in Schema(PATIENTS).describe()
    many = Schema({"zip\ncode": {"levels": list(range(100))}})
    assert repr(many) == (r'Schema(columns: "zip\ncode" category (0, 1, 2, 3, 4, 5, ... 100 levels); unit: record)')


def test_equality_and_hash(schema: Schema) -> None:
    reordered = Schema(dict(reversed(PATIENTS.items())), unit="patient", size=20000)
    assert schema == reordered
    assert hash(schema) == hash(reordered)
    assert schema != Schema(PATIENTS, unit="patient")
    assert schema != Schema(PATIENTS, unit="visit", size=20000)
    assert schema != Schema(PATIENTS | {"age": {"low": 0, "high": 111}}, unit="patient", size=20000)
    assert schema != "a schema"


def test_frozen_and_copied(schema: Schema) -> None:
    with pytest.raises(AttributeError):
        schema.size = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        schema.columns["age"] = Column(low=0, high=1)  # type: ignore[index]
    with pytest.raises(AttributeError):
        schema.columns["age"].low = 1  # type: ignore[misc]
    for twin in (pickle.loads(pickle.dumps(schema)), copy.copy(schema), copy.deepcopy(schema)):
        assert twin == schema


def test_a_column_takes_the_name_it_is_given() -> None:
    column = Column(low=0, high=1)
    both = Schema({"a": column, "b": column})
    assert [c.name for c in both.columns.values()] == ["a", "b"]
    assert both.columns["b"].to_toml(missing="drop") == 'b = {low = 0, high = 1, missing = "drop"}'


def test_checked_size() -> None:
    assert checked_size(None) is None
    assert checked_size(np.int64(3)) == 3
    with pytest.raises(ValueError, match="positive integer"):
        checked_size(-1)


def test_the_schema_needs_no_jax() -> None:
    # The file alone, since the package's own __init__ may import what it likes.
    code = f"import runpy, sys; runpy.run_path({tacit.facts.schema.__file__!r}); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
