"""Sparse leaves: a record's lines of a table are clipped and summed as its whole table would be, on exact integers."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.accounting.mechanism import Mechanism
from tacit.engine import clip, lattice, random
from tacit.engine.memory import sum_over
from tacit.engine.runner import Runner
from tacit.engine.step import Step
from tacit.run.public import fit_public
from tacit.types import Method, Release, SparseRows
from tacit.wall.data import PrivateData
from tests.conftest import without_noise

KEY = jax.random.key(0)
LINES, WIDTH, COUNT = 7, 3, 11
MECHANISM = Mechanism(0.5, 2.0, 1.0, 4)
NASTY = np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 0.0, -0.0], np.float32)


def sparse(count: int = COUNT, whole: bool = False) -> Method:
    """Contribute the record's lines and two plain numbers, or the same as a whole table; add up what is released."""

    def contribute(state: Any, record: Any, key: Any) -> Any:
        rows = SparseRows(record["index"], record["values"], count)
        return {"a": record["plain"][0], "rows": rows.dense() if whole else rows, "z": record["plain"][1:]}

    return Method(
        init=lambda key: jnp.zeros((count, WIDTH)),
        contribute=contribute,
        update=lambda state, release, key: state + release.total["rows"],
        draw=lambda state, key: {"table": state},
    )


def records(generator: np.random.Generator, count: int, lines: int = LINES, table: int = COUNT) -> dict[str, Any]:
    """Make well-behaved records: no index twice, some fillers."""
    index = (
        np.stack([generator.permutation(table + 4)[:lines] for _ in range(count)]) if count else np.zeros((0, lines))
    )
    return {
        "index": np.minimum(index, table).astype(np.int32),
        "values": generator.normal(size=(count, lines, WIDTH)).astype(np.float32),
        "plain": generator.normal(size=(count, 3)).astype(np.float32),
    }


def adversarial(generator: np.random.Generator, count: int) -> dict[str, Any]:
    """Make records that repeat indices, point outside the table, and hold any number there is."""
    made = records(generator, count)
    kind = generator.integers(0, 6, count)[:, None]
    index = np.where(kind == 0, generator.integers(0, 2, (count, LINES)), made["index"])
    index = np.where(kind == 1, 4, index)  # one line again and again
    wild = generator.choice([-(2**31), -COUNT, -1, 0, 3, COUNT - 1, COUNT, 2**31 - 1], (count, LINES))
    made["index"] = np.where(kind == 2, wild, index).astype(np.int32)
    scale = np.where(kind == 3, 10.0 ** generator.uniform(-30, 30, (count, 1)), 1.0)[..., None]
    values = np.where(kind[..., None] == 1, 1.0, made["values"] * scale).astype(np.float32)
    rough = (kind[..., None] == 4) & (generator.random(values.shape) < 0.3)
    made["values"] = np.where(rough, generator.choice(NASTY, values.shape), values)
    return made


def step_of(method: Method, count: int, mechanism: Mechanism = MECHANISM, size: int = 20, lines: int = LINES) -> Step:
    data = PrivateData(records(np.random.default_rng(0), count, lines), size=size)
    return Step(method, data, mechanism, method.init(KEY))


def exact(totals: list[lattice.Sum]) -> list[int]:
    parts = [
        np.asarray(0 if total.high is None else total.high).astype(np.int64) * (1 << lattice.LIMB)
        + np.asarray(total.low)
        for total in totals
    ]
    return np.concatenate(parts).tolist()


def kept(index: np.ndarray, count: int) -> np.ndarray:
    """Say by plain Python which lines count: inside the table, and none before with the same index."""
    seen: set[int] = set()
    result = []
    for line in index.tolist():
        result.append(0 <= line < count and line not in seen)
        seen.add(line)
    return np.asarray(result)


def test_a_line_counts_once_and_only_inside_the_table() -> None:
    generator = np.random.default_rng(1)
    program = jax.jit(lambda index: clip.places(index, COUNT))
    for _ in range(300):
        index = adversarial(generator, 1)["index"][0]
        assert np.array_equal(program(index), np.where(kept(index, COUNT), index, COUNT))
    assert clip.places(jnp.zeros(0, jnp.int32), 3).shape == (0,)
    assert np.array_equal(clip.places(jnp.asarray([2, 2]), 3), [2, 3])


def test_the_sum_is_that_of_64_bit_integers() -> None:
    generator = np.random.default_rng(2)
    step = step_of(sparse(), 60)
    clipped = jax.jit(lambda rows: step.contributions.clipped(jnp.zeros((COUNT, WIDTH)), rows, KEY))
    total = jax.jit(lambda rows, subset: sum_over(step, jnp.zeros((COUNT, WIDTH)), rows, subset, jnp.int32(0), KEY))
    chunk, width = step.sizes.chunk, -(-60 // step.sizes.chunk) * step.sizes.chunk
    for _ in range(20):
        made = adversarial(generator, 60)
        subset = np.flatnonzero(generator.random(60) < 0.7)
        positions = np.full((1, width), 60, np.int32)
        positions[0, : len(subset)] = subset
        table, plain = np.zeros((COUNT, WIDTH), np.int64), np.zeros(3, np.int64)
        for first in range(0, len(subset), chunk):
            some = subset[first : first + chunk]
            filled = np.resize(some, chunk)
            integers = np.asarray(clipped(jax.tree.map(lambda leaf, at=filled: leaf[at], made)).plain, np.int64)
            for record, row in zip(some, integers, strict=False):
                here = kept(made["index"][record], COUNT)
                lines = row[1:-2].reshape(LINES, WIDTH)
                assert not lines[~here].any()
                assert np.sum(row**2) <= step.radius**2
                np.add.at(table, made["index"][record][here], lines[here])
                plain += row[[0, -2, -1]]
        assert exact(total(made, positions)) == [*plain.tolist(), *table.ravel().tolist()]


def test_no_neighbour_is_further_away_than_the_radius() -> None:
    generator = np.random.default_rng(3)
    sums = {}
    for count in (0, 1, 5, 6):
        step = step_of(sparse(), count)
        sums[count] = jax.jit(
            lambda rows, subset, step=step: sum_over(step, jnp.zeros((COUNT, WIDTH)), rows, subset, jnp.int32(0), KEY)
        )
        width, radius = max(1, -(-count // step.sizes.chunk)) * step.sizes.chunk, step.radius
    empty = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), adversarial(generator, 1))
    furthest = trials = 0
    for count, less in ((1, 0), (6, 5)):
        everyone = {n: np.minimum(np.arange(width), n)[None].astype(np.int32) for n in (count, less)}
        for _ in range(400):
            made = adversarial(generator, count)
            total = exact(sums[count](made, everyone[count]))
            gone = int(generator.integers(count))
            left = jax.tree.map(lambda leaf, at=gone: np.delete(leaf, at, 0), made) if less else empty
            moved = sum((a - b) ** 2 for a, b in zip(total, exact(sums[less](left, everyone[less])), strict=True))
            assert moved <= radius**2
            furthest, trials = max(furthest, moved), trials + 1
    assert trials == 800
    assert furthest > 0.9 * radius**2, "the bound is used up"


def test_without_the_rule_for_repeats_the_bound_would_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "index": np.full((1, LINES), 4, np.int32),
        "values": np.full((1, LINES, WIDTH), 9.0, np.float32),
        "plain": np.zeros((1, 3), np.float32),
    }
    norms = []
    made = jax.tree.map(jnp.asarray, made)
    for broken in (False, True):
        if broken:
            monkeypatch.setattr(clip, "places", lambda index, count: index)
        step = step_of(sparse(), 1)
        subset = jnp.asarray(np.minimum(np.arange(step.sizes.chunk), 1)[None].astype(np.int32))
        total = exact(sum_over(step, jnp.zeros((COUNT, WIDTH)), made, subset, jnp.int32(0), KEY))
        norms.append(sum(value**2 for value in total))
        radius = step.radius
    assert norms[0] <= radius**2
    assert norms[1] > 6 * radius**2


def test_a_record_that_is_not_finite_is_zero_and_no_other() -> None:
    made = records(np.random.default_rng(4), 4)
    step = step_of(sparse(), 4)
    rows = jax.tree.map(lambda leaf: np.resize(leaf, (step.sizes.chunk, *leaf.shape[1:])), made)
    before = np.asarray(step.contributions.clipped(jnp.zeros((COUNT, WIDTH)), rows, KEY).plain)
    for bad in (np.nan, np.inf, -np.inf, 3.4e38):
        rows["values"][0] = made["values"][0]
        rows["values"][0, int(np.argmax(made["index"][0] < COUNT)), 1] = bad
        after = np.asarray(step.contributions.clipped(jnp.zeros((COUNT, WIDTH)), rows, KEY).plain)
        assert not after[0].any()
        assert np.array_equal(after[1:], before[1:])
    # In a line that is dropped, a number that is not finite is dropped with it.
    rows["values"][0] = made["values"][0]
    rows["index"][0, 0], rows["values"][0, 0] = COUNT, np.nan
    assert step.contributions.clipped(jnp.zeros((COUNT, WIDTH)), rows, KEY).plain[0].any()


def test_the_low_limbs_hold_a_group_of_chunks() -> None:
    for radius, chunk in itertools.product((1, 3000, 35_138, 131_073, lattice.LARGEST_RADIUS), (1, 64, 500)):
        together = lattice.group(chunk, radius)
        assert together >= 1
        assert (1 << lattice.LIMB) - 1 + together * chunk * radius < 2**31
        assert -together * chunk * radius >= -(2**31)


@pytest.mark.parametrize("sign", [1, -1])
def test_many_records_at_one_cell_do_not_overflow(sign: int) -> None:
    # Each adds the whole radius to the same cell: 900 times 2**22 is beyond int32, so groups must be carried over.
    method = Method(
        init=lambda key: jnp.zeros((2, 1)),
        contribute=lambda state, record, key: SparseRows(jnp.zeros(1, jnp.int32), record[None], 2),
        update=lambda state, release, key: release.total,
        draw=lambda state, key: {"table": state},
    )
    data = PrivateData(np.full((900, 1), sign * 1e3, np.float32), size=900)
    step = Step(method, data, Mechanism(1.0, 1.0, 0.0313, 1), jnp.zeros((2, 1)))
    assert step.radius > 2**22 - 10_000
    width = -(-900 // step.sizes.chunk) * step.sizes.chunk
    subset = jnp.asarray(np.minimum(np.arange(width), 900)[None].astype(np.int32))
    one = np.asarray(
        step.contributions.integers(jnp.zeros((2, 1)), np.full((step.sizes.chunk, 1), sign * 1e3, np.float32), KEY)
    )[0, 0]
    program = jax.jit(lambda rows: sum_over(step, jnp.zeros((2, 1)), rows, subset, jnp.int32(0), KEY))
    assert exact(program(data._records)) == [900 * int(one), 0]
    assert abs(900 * int(one)) > 2**31


def test_the_noise_reaches_every_cell(open_runner: Callable[..., Runner]) -> None:
    made = records(np.random.default_rng(5), 6)
    made["index"][:] = COUNT
    method = sparse()
    method = method._replace(
        init=lambda key: jnp.zeros((400, COUNT, WIDTH)),
        update=lambda state, release, key: jnp.roll(state, 1, 0).at[0].set(release.total["rows"]),
    )
    mechanism = Mechanism(0.5, 2.0, 1.0, 400)
    released = np.asarray(open_runner(method, PrivateData(made, size=6), mechanism).advance(method.init(KEY), 0, 400))
    std = released.std(0)
    # 33 cells, each the standard deviation of 400 normals of 2.0: 5 standard errors, a false alarm in 50000 runs.
    assert np.abs(std / 2.0 - 1).max() < 5 / np.sqrt(800)
    correlation = np.corrcoef(released.reshape(400, -1).T)
    assert np.abs(correlation - np.eye(COUNT * WIDTH)).max() < 6 / np.sqrt(400)


def test_sparse_or_whole_the_release_is_the_same(
    open_runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lattice, "noise", without_noise)
    data = PrivateData(records(np.random.default_rng(6), 30), size=30)
    start = jnp.zeros((COUNT, WIDTH))
    for mechanism in (Mechanism(1.0, 50.0, 0.5, 3), Mechanism(0.4, 50.0, 0.5, 3, weights=(2.0, 0.5, 1.0))):
        one, other = (open_runner(sparse(whole=whole), data, mechanism).advance(start, 0, 3) for whole in (False, True))
        # Both are rounded to the lattice, after slightly different shares of the clip: half a unit each record.
        unit = mechanism.clip / lattice.radius(0.5) / 0.5
        np.testing.assert_allclose(one, other, atol=90 * unit)
        assert np.abs(one).max() > 1


def test_shapes_of_a_release_and_of_a_step() -> None:
    step = step_of(sparse(), 5)
    release = step.release(step.blocks.zero())
    shapes = {"a": (), "rows": (COUNT, WIDTH), "z": (2,)}
    assert jax.tree.map(jnp.shape, release.total, is_leaf=lambda x: isinstance(x, tuple)) == shapes
    assert {name: leaf.shape for name, leaf in release.full.items()} == shapes
    assert {name: leaf.shape for name, leaf in release.noise_std.items()} == {"a": (), "rows": (), "z": ()}
    # Rounding is that of the numbers a record gives, noise that of the numbers released.
    assert (step.contributions.layout.length, step.dimension) == (3 + LINES * WIDTH, 3 + COUNT * WIDTH)
    assert {step_of(sparse(), count).sizes.chunk for count in (0, 1, 19, 200)} == {step.sizes.chunk}
    weighted = step_of(sparse(), 5, Mechanism(0.5, 2.0, 1.0, 4, weights=(1.0, 4.0, 1.0)))
    assert float(weighted.release(weighted.blocks.zero()).noise_std["rows"]) == pytest.approx(0.5, rel=1e-4)


def test_a_table_far_larger_than_a_record_is_not_refused_and_not_written_out_for_each() -> None:
    large = 200_000
    method = Method(
        init=lambda key: jnp.zeros(()),
        contribute=lambda state, record, key: SparseRows(record, jnp.ones((3, 4)), large),
        update=lambda state, release, key: state + release.total[0, 0],
        draw=lambda state, key: {"one": state},
    )
    data = PrivateData(np.zeros((50, 3), np.int32), size=50)
    step = Step(method, data, MECHANISM, jnp.zeros(()))
    assert clip.shrink(step.contributions.layout.length, step.radius) > 0.999
    jaxpr = jax.make_jaxpr(
        lambda rows: sum_over(step, jnp.zeros(()), rows, jnp.zeros((1, 64), jnp.int32), jnp.int32(0), KEY)
    )(data._records)
    assert f"{step.sizes.chunk},{large}" not in str(jaxpr)


def test_what_is_no_sparse_leaf_is_refused() -> None:
    def method(rows: Callable[[Any], SparseRows]) -> Method:
        return sparse()._replace(contribute=lambda state, record, key: rows(record))

    for wrong, message in (
        (lambda r: SparseRows(r["index"], r["plain"], COUNT), "one index for each line"),
        (lambda r: SparseRows(r["index"][1:], r["values"], COUNT), "one index for each line"),
        (lambda r: SparseRows(r["index"], r["values"], 0), "at least one"),
    ):
        with pytest.raises(ValueError, match=message):
            step_of(method(wrong), 3)
    with pytest.raises(TypeError, match="Pass integers"):
        step_of(method(lambda r: SparseRows(r["index"] * 1.0, r["values"], COUNT)), 3)
    with pytest.raises(TypeError, match="real numbers"):
        step_of(method(lambda r: SparseRows(r["index"], r["values"] > 0, COUNT)), 3)
    with pytest.raises(ValueError, match="3 leaves"):
        step_of(sparse(), 3, Mechanism(0.5, 2.0, 1.0, 4, weights=(1.0, 1.0, 1.0, 1.0)))


def test_fits_and_questions_know_sparse_leaves() -> None:
    made = records(np.random.default_rng(7), 40)
    public = fit_public(sparse(), made, steps=2, key=KEY)
    table = np.zeros((COUNT + 1, WIDTH))
    np.add.at(table, made["index"], made["values"])
    np.testing.assert_allclose(public.draws["table"][0], 2 * table[:-1], rtol=1e-4, atol=1e-4)
    data, budget = PrivateData(made, size=40), tacit.Budget(1.0, 1e-5)
    for how in (None, "adaptive"):
        posterior = tacit.fit(sparse(), data, budget, steps=3, clip=how, simulate=1, progress=False)
        assert np.isfinite(posterior.draws["table"]).all()
        assert np.abs(posterior.draws["table"]).min() > 0
    answer = tacit.ask(data, lambda r: SparseRows(r["index"], r["values"], COUNT), budget, clip=2.0, simulate=1)
    assert answer.value.shape == answer.noise_std.shape == (COUNT, WIDTH)


def test_many_public_sparse_contributions_are_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = records(np.random.default_rng(8), 41)
    whole = fit_public(sparse(), made, steps=1, key=KEY).draws["table"]
    monkeypatch.setattr(importlib.import_module("tacit.run.public"), "PUBLIC_NUMBERS", 300)
    parts = fit_public(sparse(), made, steps=1, key=KEY).draws["table"]
    np.testing.assert_allclose(whole, parts, rtol=1e-4, atol=1e-4)
    some = fit_public(sparse(), made, steps=1, rate=0.3, key=KEY).draws["table"]
    assert np.isfinite(some).all()
    assert not np.allclose(some, whole)


def test_the_secret_stream_covers_the_whole_table() -> None:
    step = step_of(sparse(), 5)
    noise, _ = step.draws.draw(random.fixed(1), jnp.arange(2))
    assert sum(block.size for block in noise) == 2 * step.dimension
    rows = jax.tree.map(jnp.asarray, records(np.random.default_rng(0), 5))
    subset, mine = jnp.arange(64)[None], [block[0] for block in noise]
    noisy = sum_over(step, jnp.zeros((COUNT, WIDTH)), rows, subset, jnp.int32(0), KEY, None, mine)
    assert isinstance(step.release(noisy), Release)
