"""Units of several records: grouped when sealed, summed before the clip, and nothing added by what fills them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.accounting.mechanism import Budget, Mechanism
from tacit.engine.runner import Runner
from tacit.facts.schema import Schema
from tacit.run.rehearse import HELD_OUT, _Stage
from tacit.types import Method, Model, Requirement, SparseRows, Suggestions
from tacit.wall.data import PrivateData
from tacit.wall.units import Unit, sum_over_unit

SCHEMA = Schema({"x": {"low": -5, "high": 5}}, unit="patient", max_records=3)
BUDGET = Budget(1.0, 1e-5, unit="patient")


def sealed(ids: list[Any], x: list[float], schema: Schema = SCHEMA) -> PrivateData:
    return PrivateData({"patient": ids, "x": x}, schema)


def test_the_first_records_of_each_unit_are_kept_in_the_order_of_the_table() -> None:
    data = sealed(["b", "a", "b", " a ", "a", "a"], [1.0, 2.0, 3.0, 4.0, 5.0, -1.0])
    assert data._count == 2
    np.testing.assert_array_equal(data._records.present, [[True, True, False], [True, True, True]])
    np.testing.assert_array_equal(data._records.records["x"][0], [1, 3, 0])  # 0 is the placeholder
    np.testing.assert_array_equal(data._records.records["x"][1], [2, 4, 5])
    assert data.placeholder["x"].shape == ()
    assert "units of at most 3 records: sealed" in repr(data)


def test_ids_are_forgotten() -> None:
    data = sealed([73519482, 73519482, 5], [1.0, 2.0, 3.0])
    everything = [repr(data), repr(data.schema), *map(str, jax.tree.leaves(data._records))]
    assert not any("73519482" in text for text in everything)


def test_with_one_record_to_a_unit_the_others_are_left_out() -> None:
    schema = Schema({"x": {"low": -5, "high": 5}}, unit="patient")
    data = sealed([7, 8, 7, 9], [1.0, 2.0, 3.0, 4.0], schema)
    np.testing.assert_array_equal(data._records["x"], [1, 2, 4])


def test_dropped_records_leave_room_for_later_ones_and_may_leave_no_unit() -> None:
    schema = Schema({"x": {"low": -5, "high": 5, "missing": "drop"}}, unit="patient", max_records=2)
    data = sealed(["a", "a", "a", "b"], [np.nan, 2.0, 3.0, np.nan], schema)
    assert data._count == 1
    np.testing.assert_array_equal(data._records.records["x"], [[2, 3]])


@pytest.mark.parametrize("absent", [None, np.nan, "", "  "])
def test_a_missing_id_is_refused(absent: Any) -> None:
    with pytest.raises(ValueError, match=r"'patient' of ids has missing values"):
        sealed(["a", absent], [1.0, 2.0])


def test_several_records_to_a_unit_need_ids() -> None:
    with pytest.raises(ValueError, match=r"no column 'patient'"):
        PrivateData({"x": [1.0]}, SCHEMA)
    with pytest.raises(ValueError, match=r"unequal length"):
        sealed(["a"], [1.0, 2.0])


def test_the_schema_says_what_the_id_is() -> None:
    with pytest.raises(ValueError, match=r"take it out of \[columns\]"):
        Schema({"patient": {"levels": ["a", "b"]}}, unit="patient", max_records=2)
    with pytest.raises(ValueError, match="max_records is 0"):
        Schema({"x": {"low": 0, "high": 1}}, max_records=0)
    assert Schema.from_toml(SCHEMA.to_toml()) == SCHEMA
    assert Schema(**SCHEMA.to_dict()) == SCHEMA


def adding(*, per_record_key: bool = False) -> Method:
    """Add up x and a count."""

    def contribute(state: Any, record: Any, key: Any, mine: Any = None) -> Any:
        return {"x": record["x"], "count": jnp.float32(1)}

    return Method(
        init=lambda key: {"x": jnp.float32(0), "count": jnp.float32(0)},
        contribute=contribute,
        update=lambda state, release, key: release.total,
        draw=lambda state, key: state,
        per_record_key=per_record_key,
    )


def released(sets: list[PrivateData], clip: float, open_runner: Callable[..., Runner]) -> list[dict[str, float]]:
    """Take one step over all units, and take off the noise: that of a step over none, whose secret is the same."""
    mechanism = Mechanism(rate=1.0, clip=clip, noise_multiplier=0.05, steps=1)
    start = {"x": jnp.float32(0), "count": jnp.float32(0)}
    none = PrivateData({"patient": [], "x": []}, sets[0].schema)
    noise, *totals = (open_runner(adding(), each, mechanism).advance(start, 0, 1) for each in (none, *sets))
    return [{name: float(total[name] - noise[name]) for name in start} for total in totals]


@pytest.mark.usefixtures("quick_compiler")
def test_a_units_contribution_is_the_sum_over_its_records_and_padding_adds_nothing(
    open_runner: Callable[..., Runner],
) -> None:
    # The placeholder of x is 2.5, so that padding that contributed would show.
    schema = Schema({"x": {"low": 0, "high": 5}}, unit="patient", max_records=4)
    (total,) = released([sealed(["a", "a", "b"], [1.0, 2.0, 4.0], schema)], 100.0, open_runner)
    assert total["x"] == pytest.approx(7, abs=1e-2)  # the lattice of a clip of 100
    assert total["count"] == pytest.approx(3, abs=1e-2)
    unit = Unit({"x": jnp.asarray([1.0, 2.0, jnp.nan])}, jnp.asarray([True, True, False]))
    given = sum_over_unit(adding()).contribute(None, unit, jax.random.key(0))
    np.testing.assert_array_equal(jax.tree.leaves(given), [2.0, 3.0])


@pytest.mark.usefixtures("quick_compiler")
def test_a_unit_with_many_records_contributes_no_more_than_the_clip(open_runner: Callable[..., Runner]) -> None:
    # Three records of norm 5 each count as one contribution; clipped one by one they would add up to 3. The data set
    # without the unit is its neighbour.
    one, three = (sealed(ids, [5.0, 5.0, 5.0]) for ids in (["a"] * 3, ["a", "b", "c"]))
    for total, most in zip(released([one, three], 1.0, open_runner), (1.0, 3.0), strict=True):
        assert 0.99 * most < np.hypot(total["x"], total["count"]) <= most


def test_own_keys_differ_between_the_records_of_a_unit() -> None:
    method = adding(per_record_key=True)._replace(
        contribute=lambda state, record, key, record_key: jax.random.normal(record_key, (3,))
    )
    unit = Unit({"x": jnp.zeros(2)}, jnp.asarray([True, True]))
    both = sum_over_unit(method).contribute(None, unit, jax.random.key(0), jax.random.key(1))
    alone = unit._replace(present=jnp.asarray([True, False]))
    first = sum_over_unit(method).contribute(None, alone, jax.random.key(0), jax.random.key(1))
    assert not np.allclose(both, 2 * first)


def test_lines_that_several_records_name_are_added_up() -> None:
    def contribute(state: Any, record: Any, key: Any) -> Any:
        return SparseRows(record["index"], record["values"], 4)

    method = Method(lambda key: 0, contribute, lambda s, r, k: s, lambda s, k: {})
    index = jnp.asarray([[0, 2], [2, 4], [1, 1]])
    values = jnp.asarray([[[1.0], [2.0]], [[10.0], [99.0]], [[50.0], [60.0]]])
    unit = Unit({"index": index, "values": values}, jnp.asarray([True, True, False]))
    rows = sum_over_unit(method).contribute(None, unit, jax.random.key(0))
    # As the wall reads it: the first line with an index counts.
    table = np.zeros(4)
    for line in reversed(range(len(rows.index))):
        if rows.index[line] < 4:
            table[rows.index[line]] = rows.values[line, 0]
    np.testing.assert_array_equal(table, [1, 0, 12, 0])


def test_a_need_is_asked_of_real_records_only() -> None:
    need = sum_over_unit(
        adding()._replace(requirements=(Requirement("x must be 1.", lambda record: record["x"] == 1),))
    ).requirements[0]
    unit = Unit({"x": jnp.asarray([1.0, 0.0])}, jnp.asarray([True, False]))
    assert bool(need.predicate(unit))
    assert not bool(need.predicate(unit._replace(present=jnp.asarray([True, True]))))


@pytest.mark.usefixtures("quick_compiler")
def test_questions_and_fits_count_units() -> None:
    random = np.random.default_rng(0)
    x = random.normal(1.0, 1.0, 600)
    data = sealed(list(np.repeat(np.arange(200), 3)), list(np.clip(x, -5, 5)))
    answer = tacit.ask(data, lambda record: record["x"], BUDGET, clip=5.0, simulate=1)
    # The clip of 5 shortens some units, all of them to the same side; noise of about 20, six standard deviations.
    clipped = np.clip(np.clip(x, -5, 5).reshape(200, 3).sum(1), -5, 5).sum()
    assert abs(float(answer.value) - clipped) < 6 * float(answer.noise_std)
    few = PrivateData({"patient": [1], "x": [1.0]}, SCHEMA, size=5)
    with pytest.raises(ValueError, match="norms of single records"):
        tacit.fit(adding()._replace(suggests=Suggestions(clip=1.0)), few, BUDGET, clip="adaptive")
    with pytest.raises(ValueError, match="protects each 'record'"):
        tacit.fit(adding(), data, Budget(1.0, 1e-5))


def test_a_rehearsal_makes_up_units_that_are_full() -> None:
    method = adding()._replace(model=Model(simulate=lambda key, records: (records, {})))
    stage = _Stage(method, SCHEMA, 5, BUDGET, None, None)
    records, held_out, _ = stage.records(jax.random.key(0))
    assert len(records["x"]) == 5 * 3
    assert len(held_out["x"]) == HELD_OUT
    data = stage.sealed(records)
    assert (data._count, data.max_records, data.size) == (5, 3, 5)
    np.testing.assert_array_equal(data._records.records["x"], np.reshape(records["x"], (5, 3)))
    assert data._records.present.all()
    assert data.placeholder["x"].shape == ()
