"""Tables from files: what is read, what is refused, and that no message, attribute or traceback shows a value."""

from __future__ import annotations

import csv
import gzip
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.cli.runs import write_csv
from tacit.facts.files import draft, unescaped
from tacit.facts.schema import Schema

CANARY = "73519482"
SCHEMA = Schema(
    {
        "age": {"low": 0, "high": 110, "missing": "drop"},
        "stays": {"low": 0, "high": 10, "kind": "integer"},
        "sex": {"levels": ["f", "m"], "missing": "f"},
        "ward": {"levels": [1, 2, 10]},
        "alive": {"levels": [False, True]},
    },
    unit="patient",
)
TEXT = """\
junk,age,sex,stays,ward,alive
x,30.5,f,2,1,true
y,NA,m,3,2,False
z, 200 ,m ,3.0,10.0,TRUE
w,50,?,0,2,false
"""


def write(tmp_path: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def stored(data: Any) -> dict[str, list[Any]]:
    return {name: np.asarray(values)[: data._count].tolist() for name, values in data._records.items()}


EXPECTED = {"age": [30.5, 110, 50], "stays": [2, 3, 0], "sex": [0, 1, 0], "ward": [0, 2, 1], "alive": [1, 1, 0]}


def test_a_csv_file_is_sealed_by_its_schema(tmp_path: Path) -> None:
    SCHEMA.write(tmp_path / "s.toml")
    for schema in (SCHEMA, tmp_path / "s.toml", str(tmp_path / "s.toml")):
        data = tacit.read_csv(write(tmp_path, TEXT), schema, size=7)
        assert stored(data) == EXPECTED
        assert (data.size, data.unit, data.ledger.path) == (7, "patient", None)


@pytest.mark.parametrize("between", [";", "\t", "|"])
def test_other_characters_between_cells(tmp_path: Path, between: str) -> None:
    assert stored(tacit.read_csv(write(tmp_path, TEXT.replace(",", between)), SCHEMA)) == EXPECTED


def test_compressed_files_byte_order_marks_and_quotes(tmp_path: Path) -> None:
    quoted = TEXT.replace("\nx,", '\n"x, ""and""\nmore",').replace(",age", ',"age"')
    path = write(tmp_path, gzip.compress(b"\xef\xbb\xbf" + quoted.encode()), "t.csv.gz")
    assert stored(tacit.read_csv(path, SCHEMA)) == EXPECTED
    # A declared column may come first, behind the mark.
    assert stored(tacit.read_csv(write(tmp_path, b"\xef\xbb\xbfa\n1\n"), Schema({"a": {"low": 0, "high": 1}}))) == {
        "a": [1]
    }


def test_a_parquet_file_is_sealed_by_its_schema(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "junk": ["x", "y"],
            "age": [30.5, 200.0],
            "sex": ["f", None],
            "stays": [2, 30],
            "ward": [1, 10],
            "alive": [True, False],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    data = tacit.read_parquet(tmp_path / "t.parquet", SCHEMA)
    assert stored(data) == {"age": [30.5, 110], "stays": [2, 10], "sex": [0, 0], "ward": [0, 2], "alive": [1, 0]}


def test_ids_group_what_is_read(tmp_path: Path) -> None:
    schema = Schema({"x": {"low": 0, "high": 9}}, unit="who", max_records=2)
    text = "x,who\n1,a\n2,b\n3, a\n4,a\n"
    data = tacit.read_csv(write(tmp_path, text), schema)
    np.testing.assert_array_equal(data._records.records["x"][:, 0], [1, 2])
    np.testing.assert_array_equal(data._records.present, [[True, True], [True, False]])
    with pytest.raises(ValueError, match=r"lacks the columns \['who'\]"):
        tacit.read_csv(write(tmp_path, "x\n1\n"), schema)
    # Where one record counts, ids in the file are used just the same.
    one = Schema({"x": {"low": 0, "high": 9}}, unit="who")
    assert stored(tacit.read_csv(write(tmp_path, text), one)) == {"x": [1, 2]}


def test_a_missing_column_lists_the_header(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lacks the columns \['age'\]; it has \['junk', 'years', 'sex', 'stays'"):
        tacit.read_csv(write(tmp_path, TEXT.replace(",age", ",years")), SCHEMA)


GARBLED = {
    "no header": f"{CANARY},{CANARY}\n1,2\n",
    "a line too long": TEXT + f"x,{CANARY},f,2,1,true,{CANARY}\n",
    "a line too short": TEXT + f"x,{CANARY}\n",
    "not utf-8": TEXT.encode() + f"x,30,{CANARY}\xe9,2,1,true\n".encode("latin-1"),
    "binary": b"\0\1\2" + CANARY.encode(),
    "empty": "",
    "an open quotation mark": TEXT + f'x,"{CANARY},f,2,1,true\nx,{CANARY},f,2,1,true\n',
    "a number that is none": TEXT + f"x,{CANARY}a,f,2,1,true\n",
    "a level that is none": TEXT + f"x,30,{CANARY},2,1,true\n",
    "an integer level that is none": TEXT + f"x,30,f,2,{CANARY},true\n",
    "a refused missing value": TEXT + f"x,30,f,,1,true\n{CANARY},30,f,1,1,true\n",
}


@pytest.mark.parametrize("kind", GARBLED)
def test_a_garbled_file_gives_an_error_without_a_value(tmp_path: Path, kind: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        tacit.read_csv(write(tmp_path, GARBLED[kind]), SCHEMA)
    shown = "".join(traceback.format_exception(caught.value))
    assert CANARY not in shown
    # Nor in an exception that hangs on it, or in what a debugger shows of that.
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("name", list(SCHEMA.columns))
def test_a_canary_in_a_column_is_in_no_message_attribute_or_repr(tmp_path: Path, name: str) -> None:
    """Acceptance: the value is moved inside its bounds or refused, and nothing public shows it."""
    frame = pd.read_csv(write(tmp_path, TEXT), dtype=str)
    frame.loc[0, name] = CANARY
    path = tmp_path / "canary.csv"
    frame.to_csv(path, index=False)
    if SCHEMA.columns[name].levels is not None:
        with pytest.raises(ValueError, match="none of its") as caught:
            tacit.read_csv(path, SCHEMA)
        assert CANARY not in "".join(traceback.format_exception(caught.value))
        return
    data = tacit.read_csv(path, SCHEMA)
    shown = [repr(data), str(data), *(repr(getattr(data, one)) for one in dir(data))]
    assert not any(CANARY in text for text in shown)


def test_wrong_arguments(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        tacit.read_csv(tmp_path / "none.csv", SCHEMA)
    with pytest.raises(TypeError):  # by name of the type; the tests check types before the function does
        tacit.read_csv(path, {"age": (0, 1)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a Parquet file"):
        tacit.read_parquet(write(tmp_path, TEXT, "t.parquet"), SCHEMA)
    with pytest.raises(ValueError, match="holds one value"):
        tacit.read_csv(path, Schema({"age": {"low": 0, "high": 1, "shape": [2]}}))
    with pytest.raises(ValueError, match="more than once"):
        tacit.read_csv(write(tmp_path, "a,a\n1,2\n"), Schema({"a": {"low": 0, "high": 1}}))
    with pytest.raises(ValueError, match="writes alike"):
        tacit.read_csv(write(tmp_path, "a\n1\n"), Schema({"a": {"levels": ["1", 1]}}))


def test_a_draft_has_names_and_no_values(tmp_path: Path) -> None:
    text = draft(write(tmp_path, TEXT.replace("30.5", CANARY)))
    assert CANARY not in text
    assert "# age = {low = , high = }" in text
    assert "# sex = {levels = []}" in text
    with pytest.raises(ValueError, match="no columns"):
        Schema.from_toml(text)
    # Parquet declares its types, so that there is one line for each column.
    pd.DataFrame({"a": [1.5], "b": [7], "c": [CANARY], "d e": [True]}).to_parquet(tmp_path / "t.parquet")
    lines = draft(tmp_path / "t.parquet").splitlines()
    assert [line for line in lines if "= {" in line] == [
        "# a = {low = , high = }",
        '# b = {kind = "integer", low = , high = }',
        "# c = {levels = []}",
        '# "d e" = {levels = []}',
    ]
    filled = draft(write(tmp_path, "x\n1\n")).replace("# x = {low = , high = }", "x = {low = 0, high = 1}")
    assert Schema.from_toml(filled) == Schema({"x": {"low": 0, "high": 1}})


@pytest.mark.parametrize("text", [f"{CANARY},b\n", "a,,b\n", "a,a\n"])
def test_a_first_line_that_may_be_a_record_is_not_drafted(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="may be a record") as caught:
        draft(write(tmp_path, text))
    assert CANARY not in str(caught.value)


FORMULAS = [
    *("=1+1", "+SUM(A1)", "-2+3", "@now", "\tx", "'=quoted", "-", "+", "-1.5e3", "plain", "it's"),
    *("\uff1dwide", "a;b"),
]


def test_formulas_are_escaped_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "made.csv"
    write_csv(path, {"=cmd()": FORMULAS, "number": [-1.5, 2, 0.0] + [-3] * (len(FORMULAS) - 3)})
    with path.open(newline="", encoding="utf-8") as file:
        head, *lines = csv.reader(file)
    assert head == ["'=cmd()", "number"]
    cells = [line[0] for line in lines]
    assert cells == [
        *("'=1+1", "'+SUM(A1)", "'-2+3", "'@now", "'\tx", "''=quoted", "-", "+", "-1.5e3", "plain", "it's"),
        *("'\uff1dwide", "a;b"),
    ]
    assert [unescaped(cell) for cell in cells] == FORMULAS
    assert [line[1] for line in lines[:4]] == ["-1.5", "2", "0.0", "-3"]
    schema = Schema({"=cmd()": {"levels": FORMULAS}, "number": {"low": -5, "high": 5}})
    data = tacit.read_csv(path, schema)
    assert stored(data)["=cmd()"] == list(range(len(FORMULAS)))
    assert stored(data)["number"][:4] == [-1.5, 2, 0, -3]
    plain = write(tmp_path, "=cmd(),number\n=1+1,1\n-2+3,2\n")  # another program's file has none
    assert stored(tacit.read_csv(plain, schema))["=cmd()"] == [0, 2]


def test_levels_that_are_alike_when_escaped_are_refused(tmp_path: Path) -> None:
    schema = Schema({"x": {"levels": ["=a", "'=a"]}})
    with pytest.raises(ValueError, match="writes alike"):
        tacit.read_csv(write(tmp_path, "x\n=a\n"), schema)
