"""Bad input at scale: what is generated either works or is refused in words, at no cost, and shows no record.

A few hundred cases run with every commit; ``TACIT_CASES=100000 python -m pytest tests/test_properties.py -s`` is the
study. Every table holds canaries, and whatever is said, shown or written is searched for them. Cases are derived from
the code alone (``derandomize``): a failure repeats.
"""

from __future__ import annotations

import io
import logging
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tacit
from tacit import Budget, Ledger, Mechanism, PrivateData, Schema
from tacit.results.report import write_report

CASES = int(os.environ.get("TACIT_CASES", "300"))
NUMBER, TEXT = 73519.25, "Zq7canary"
CANARIES = ("73519", TEXT)
REFUSALS = (ValueError, TypeError, tacit.BudgetExceeded)
COUNTED = {"cases": 0, "refused": 0}


@pytest.fixture(scope="module", autouse=True)
def counted() -> Iterator[None]:
    yield
    print(f"\n{COUNTED['cases']} generated cases, {COUNTED['refused']} of them refused in words")


def cases(share: float) -> Callable[[Any], Any]:
    """Take this share of all cases; what is dear to try is tried less often."""
    return settings(
        max_examples=max(5, round(share * CASES)),
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def searched() -> Iterator[None]:
    """Search what is printed, warned, logged and raised for canaries; a refusal must say what to do in a sentence."""
    said, handler_text, words = io.StringIO(), io.StringIO(), None
    handler = logging.StreamHandler(handler_text)
    logging.getLogger().addHandler(handler)
    COUNTED["cases"] += 1
    try:
        with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings(record=True) as warned:
            try:
                yield
            except REFUSALS as error:
                COUNTED["refused"] += 1
                words = str(error)
                # The whole chain, as a terminal would show it: messages and lines of code, no values of variables.
                said.write("".join(traceback.format_exception(error, chain=True)))
    finally:
        logging.getLogger().removeHandler(handler)
    assert words is None or len(words) > 25, f"a message without words: {words!r}"
    text = said.getvalue() + handler_text.getvalue() + "".join(str(one.message) for one in warned)
    assert not any(canary in text for canary in CANARIES), text[-500:]


# --- schemas --------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["age", "sex", "ill", "a b", "", "é", "_x", "patient"])
NUMBERS = st.one_of(
    st.none(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(2**40), 2**40),
    st.booleans(),
    st.sampled_from(["1", "", "0.5", 1e308, -1e-320, float("inf")]),
)
LEVELS = st.one_of(
    st.none(),
    st.lists(st.one_of(st.text(max_size=4), st.integers(-3, 3), st.booleans(), st.none()), max_size=4),
    st.sampled_from(["uv", ("u", "v"), {"u": 1}, ["u", "u"]]),
)
PLAIN = st.sampled_from(
    [
        {"low": 0, "high": 9},
        {"low": -1.5, "high": 1e6, "missing": "drop"},
        {"low": 0, "high": 9, "kind": "integer", "missing": 3},
        {"low": 0, "high": 1, "shape": (2, 3)},
        {"levels": ["u", "v"], "missing": "u"},
        {"levels": [0, 1]},
    ]
)
COLUMNS = PLAIN | st.fixed_dictionaries(
    {},
    optional={
        "low": NUMBERS,
        "high": NUMBERS,
        "kind": st.sampled_from(["real", "integer", "category", "", "float", 3, None]),
        "levels": LEVELS,
        "shape": st.sampled_from([(), 2, [2], (2, 3), (0,), (-1,), "2", None]),
        "missing": st.sampled_from(["refuse", "drop", 0, 1.5, "u", None, float("nan"), "forget"]),
        "lowest": st.just(1),
    },
)
SCHEMAS = st.fixed_dictionaries(
    {"columns": st.dictionaries(NAMES, PLAIN, max_size=3) | st.dictionaries(NAMES, COLUMNS, max_size=3)},
    optional={
        "unit": st.sampled_from(["record", "patient", "person", "", 3]),
        "size": st.sampled_from([None, 10, 2**20, 0, -1, 1.5, "10"]),
    },
)


@cases(0.15)
@given(SCHEMAS)
def test_schemas(facts: dict[str, Any]) -> None:
    with searched():
        schema = Schema(facts["columns"], **{name: value for name, value in facts.items() if name != "columns"})
        placeholder = schema.placeholder()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(placeholder))
        assert Schema.from_toml(schema.to_toml()) == schema
        assert repr(schema)


# --- tables ---------------------------------------------------------------------------------------------------

SCHEMA = Schema(
    {
        "age": {"low": 0, "high": 110},
        "visits": {"low": 0, "high": 9, "kind": "integer", "missing": 0},
        "sex": {"levels": ["f", "m"]},
        "ill": {"levels": [0, 1], "missing": "drop"},
    },
    size=20,
)
CELLS = {
    "age": st.one_of(st.floats(0, 110), st.sampled_from([NUMBER, -NUMBER, None, float("nan"), TEXT, float("inf"), []])),
    "visits": st.one_of(st.integers(0, 9), st.sampled_from([NUMBER, 73519, None, "3", TEXT, 2**70, 1 + 2j])),
    "sex": st.one_of(st.sampled_from(["f", "m"]), st.sampled_from([TEXT, "", None, 0, "F", NUMBER, b"f"])),
    "ill": st.one_of(st.sampled_from([0, 1]), st.sampled_from([73519, "1", True, None, TEXT, np.datetime64("2020")])),
}
GOOD = {"age": 40.0, "visits": 2, "sex": "f", "ill": 1}


@st.composite
def tables(draw: st.DrawFn) -> Any:
    count = draw(st.integers(0, 5))
    bad = draw(st.sets(st.sampled_from(list(CELLS)), max_size=1))
    table: dict[Any, Any] = {}
    for name, cell in CELLS.items():
        length = count + (draw(st.integers(0, 29)) == 0)
        table[name] = [draw(cell) if name in bad else GOOD[name] for _ in range(length)]
    if draw(st.integers(0, 7)) == 0:
        table[draw(st.sampled_from(["extra", 3]))] = [NUMBER] * count
    if draw(st.integers(0, 7)) == 0:
        del table[draw(st.sampled_from(list(CELLS)))]
    form = draw(st.sampled_from(["lists", "arrays", "frame", "tuple", "records"]))
    try:
        if form == "arrays":
            return {name: np.asarray(values) for name, values in table.items()}
        if form == "frame":
            return pd.DataFrame(table)
    except (ValueError, TypeError):
        return table
    return tuple(table.values()) if form == "tuple" else [table] if form == "records" else table


@cases(0.35)
@given(tables(), st.booleans())
def test_tables(table: Any, declared: bool) -> None:
    with searched():
        data = PrivateData(table, SCHEMA if declared else None)
        print(repr(data), str(data), data.placeholder, dir(data), data.ledger)
        assert all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in jax.tree.leaves(data._records))


# --- formulas -------------------------------------------------------------------------------------------------

ATOMS = st.sampled_from(
    [
        "age",
        "sex",
        "visits",
        "ill",
        "1",
        "0",
        "-1",
        "center(age)",
        "scale(age)",
        "bs(age, df=4)",
        "poly(age, 2)",
        "log(age)",
        "{age**2}",
        "C(sex)",
        'T(sex, ref="m")',
        "(1 | sex)",
        "(age | sex)",
        "offset(age)",
        "nonsense",
        "",
        "age:sex",
        "age * sex",
        "(",
        ")",
        "~",
        "|",
        "log(",
        "1e400",
        "__import__('os')",
        "p(visits, 9)",
        "é",
    ]
)
FAMILIES = st.sampled_from(
    [
        "gaussian",
        "student",
        "bernoulli",
        "binomial",
        "poisson",
        "negative_binomial",
        "gamma",
        "ordinal",
        "cauchy",
        "",
        3,
    ]
)
TERMS = st.sampled_from(
    ["age", "sex", "visits", "1", "center(age)", "scale(visits)", "bs(age, df=4)", "{age**2}", "(1 | sex)"]
)
FORMULAS = st.one_of(
    st.builds("{} ~ {}".format, st.sampled_from(["ill", "age", "visits"]), st.lists(TERMS, min_size=1).map(" + ".join)),
    st.builds("{} ~ {}".format, ATOMS, st.lists(ATOMS, max_size=4).map(" + ".join)),
    st.lists(ATOMS, max_size=5).map(" ".join),
    st.text(max_size=12),
)


@cases(0.05)
@given(FORMULAS, FAMILIES)
def test_formulas(text: str, family: Any) -> None:
    with searched():
        model = tacit.formula(text, SCHEMA, family)
        assert model.names is not None
        assert str(model)


# --- budgets and recipes --------------------------------------------------------------------------------------

ODD = st.one_of(
    st.sampled_from([0.5, 0.9, 1e-3, 1]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-3, 10**9),
    st.sampled_from([None, "1", True, 0.1, 1.0, 0.5, 1e-300, np.float32(0.1), np.int64(7), [1.0], 1 + 0j]),
)


@cases(0.15)
@given(st.fixed_dictionaries(dict.fromkeys(("epsilon", "delta", "rate", "clip", "noise", "steps"), ODD)))
def test_recipes(odd: dict[str, Any]) -> None:
    with searched():
        Budget(odd["epsilon"], odd["delta"])
    with searched():
        mechanism = Mechanism(odd["rate"], odd["clip"], odd["noise"], odd["steps"])
        assert Mechanism.from_json(mechanism.to_json()) == mechanism
    with searched():
        if not isinstance(odd["steps"], int) or odd["steps"] < 100:  # long recipes are slow to account for, not wrong
            tacit.accounting.epsilon(odd["rate"], odd["noise"], odd["steps"], odd["delta"])


# --- fits that must be refused --------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(61, 2)).astype(np.float32)
X[7, 1] = NUMBER
METHOD = tacit.Method(
    init=lambda key: jax.numpy.zeros(2),
    contribute=lambda state, record, key: record,
    update=lambda state, release, key: release.total,
    draw=lambda state, key: {"total": state},
)
BAD = {
    "rate": [0.0, -1, 2.0, "0.1", float("nan"), None, True],
    "steps": [0, -1, 2.5, "3", 10**12, True],
    "clip": [0.0, -1.0, float("inf"), "1", 1e39, 1e-39, "adapted"],
    "weights": [(), (0.0,), (-1.0,), (1.0, 2.0, 3.0), ("1",), 1.0],
    "adjacency": ["swap", "", None, 1],
    "key": [0, "key", np.zeros(2, np.uint32)],
    "budget": [1.0, None, Budget(1.0, 1e-5, "patient"), Budget(700.0, 1e-300)],
    "method": [None, 3, "vi", lambda: None, METHOD._replace(contribute=lambda state, record, key: record > 0)],
    "data": [None, X, {"x": X}, "ledger.jsonl"],
}
REFUSED = st.sampled_from([(name, value) for name, values in BAD.items() for value in values if value is not None])


@cases(0.01)
@given(REFUSED)
def test_refused_fits_cost_nothing(bad: tuple[str, Any]) -> None:
    name, value = bad
    ledger = Ledger()
    good = {"rate": 0.5, "steps": 2, "clip": 1.0, "key": jax.random.key(0), "progress": False}
    good |= {"method": METHOD, "data": PrivateData(X, ledger=ledger), "budget": Budget(1.0, 1e-5)}
    before = COUNTED["refused"]
    with searched():
        tacit.fit(**{**good, name: value})
    assert COUNTED["refused"] == before + 1, bad
    assert ledger.charges == ()


# --- everything that a run writes -----------------------------------------------------------------------------


WRITTEN = float(np.uint32(0x53D56B77).view(np.float32))
"""A record's value that is found by accident less than once in a million runs: thirteen digits as text; and as float32
none of its bytes is the exponent of a number between 2**-9 and 16, so that it cannot stand inside an array of those."""


def forms(number: float) -> list[bytes]:
    """Return the ways in which a number may stand in a file."""
    words = [f"{number:.2f}".encode(), str(int(number)).encode(), f"{number:.8e}".encode()]
    return words + [np.asarray(number, kind).tobytes() for kind in (np.float32, np.float64, ">f4", ">f8")]


def test_no_record_value_is_written_or_said_by_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Files during and after a run, its report, its reprs, and all that is printed or logged at the finest level.

    False alarms: what is written at random, beside arrays of small numbers, are a few keys and hashes (1e-7).
    """
    caplog.set_level(logging.DEBUG)
    count = 61
    table = {
        "age": np.linspace(20, 90, count).tolist(),
        "sex": ["f", "m"] * (count // 2) + ["f"],
        "ill": [0, 1] * (count // 2) + [0],
    }
    schema = Schema(
        {"age": {"low": 0, "high": 2e12}, "sex": {"levels": ["f", "m"]}, "ill": {"levels": [0, 1]}}, size=count
    )
    table["age"][7] = WRITTEN
    data = PrivateData(table, schema, ledger=tmp_path / "ledger.jsonl")
    seen: list[bytes] = []
    checkpoint = tacit.engine.runner.Runner.advance

    def kept(runner: Any, state: Any, first: int, stop: int) -> Any:
        seen.extend(path.read_bytes() for path in (tmp_path / "run").iterdir())
        return checkpoint(runner, state, first, stop)

    monkeypatch.setattr(tacit.engine.runner.Runner, "advance", kept)
    jax.config.update("jax_log_compiles", True)
    try:
        with warnings.catch_warnings(record=True) as warned:
            posterior = tacit.fit(
                tacit.formula("ill ~ age + sex", schema, "bernoulli"),
                data,
                Budget(1.0, 1e-5),
                force=True,  # so few records teach nothing
                steps=5,
                run_dir=tmp_path / "run",
            )
    finally:
        jax.config.update("jax_log_compiles", False)
    write_report(tmp_path, "a test", {"fit": posterior}, ledger=data.ledger)
    seen += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    said = [str(thing) for thing in (data, posterior, posterior.certificate, data.ledger, posterior.rows())]
    said += [repr(posterior), *(str(one.message) for one in warned), caplog.text, *capfd.readouterr()]
    everything = b"\0".join(seen + [text.encode() for text in said])
    assert len(seen) > 20
    assert forms(WRITTEN)[3] in np.asarray(data._records["age"]).tobytes()  # the search would find it
    for form in forms(WRITTEN):
        assert form not in everything
