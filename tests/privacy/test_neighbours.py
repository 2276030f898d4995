"""Neighbours by brute force: with the same secret randomness, removing one record moves the integer sum by at most M.

Everything is compared as Python integers, exactly: these tests have no false alarms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from tacit.accounting.mechanism import Mechanism
from tacit.engine import clip, lattice, random
from tacit.engine.memory import sum_over
from tacit.engine.runner import Runner
from tacit.engine.step import Step
from tacit.methods.vi import vi
from tacit.types import Method, Plan, PyTree
from tacit.wall.data import PrivateData

KEY = jax.random.key(5)
COUNTS = (0, 1, 2, 20, 40)
NASTY = np.array(
    [np.nan, np.inf, -np.inf, 1e-45, -1e-40, 1e-38, 1e-23, 1e-19, 0.0, -0.0, 3.4e38, -3.4e38, 1.8e19, 1e20, 0.5, -2.0],
    np.float32,
)


class Case(NamedTuple):
    """A method, a record's shape and the number of data sets to try for each number of records."""

    method: Method
    width: int
    mechanism: Mechanism
    rounds: int
    counts: tuple[int, ...] = COUNTS


def itself(width: int) -> Method:
    """Contribute the record itself: every vector there is can be a contribution."""
    return Method(
        init=lambda key: jnp.zeros(width),
        contribute=lambda state, record, key: record,
        update=lambda state, release, key: release.total,
        draw=lambda state, key: {"total": state},
    )


def in_blocks(width: int) -> Method:
    """Contribute the record in two leaves, which are clipped together."""
    return itself(width)._replace(
        init=lambda key: {"a": jnp.zeros(2), "b": jnp.zeros(width - 2)},
        contribute=lambda state, record, key: {"a": record[:2], "b": record[2:]},
    )


def logistic(rows: Any) -> None:
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([rows.shape[1] - 1]).to_event())
    with numpyro.plate("records", rows.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=rows[:, 1:] @ weight, validate_args=False), obs=rows[:, 0])


def logistic_method(width: int) -> Method:
    return vi(logistic)(Plan(jnp.zeros(width)))  # type: ignore[return-value]


CASES = {
    "one number": Case(itself(1), 1, Mechanism(0.5, 1.0, 1.0, 10), 40),
    "five numbers": Case(itself(5), 5, Mechanism(0.5, 0.3, 0.7, 10), 40),
    "much noise": Case(itself(9), 9, Mechanism(0.5, 2.0, 5000.0, 10), 40),
    "little noise": Case(itself(3), 3, Mechanism(0.5, 1e4, 0.04, 10), 30),
    "two leaves": Case(in_blocks(5), 5, Mechanism(0.5, 1.0, 1.0, 10), 10, (1, 7, 20)),
    "vi": Case(logistic_method(4), 4, Mechanism(0.5, 1.0, 1.0, 10), 12, (1, 2, 20)),
}


class Summed(NamedTuple):
    """The un-noised sum of one case at one number of records, compiled."""

    step: Step
    program: Callable[..., list[lattice.Sum]]

    def __call__(self, state: PyTree, records: np.ndarray, subset: np.ndarray) -> list[int]:
        width = -(-max(self.step.sizes.count, 1) // self.step.sizes.chunk) * self.step.sizes.chunk
        positions = np.full((1, width), self.step.sizes.count, np.int32)
        positions[0, : len(subset)] = subset
        total = self.program(state, records if len(records) else np.zeros((1, records.shape[1]), np.float32), positions)
        return exact(total)


def exact(totals: list[lattice.Sum]) -> list[int]:
    parts = [
        np.asarray(0 if total.high is None else total.high).astype(np.int64) * (1 << lattice.LIMB)
        + np.asarray(total.low)
        for total in totals
    ]
    return np.concatenate(parts).tolist()


def summed(case: Case, count: int, size: int = 20) -> Summed:
    data = PrivateData(np.zeros((count, case.width), np.float32), size=size)
    step = Step(case.method, data, case.mechanism, case.method.init(KEY))
    return Summed(
        step, jax.jit(lambda state, records, subset: sum_over(step, state, records, subset, jnp.int32(0), KEY))
    )


def adversarial(generator: np.random.Generator, count: int, width: int, clip: float) -> np.ndarray:
    """Mix ordinary records, records on the edge of the clip, records of any magnitude, and nasty ones."""
    kind = generator.integers(0, 5, count)
    records = generator.normal(0, clip, (count, width))
    norms = np.linalg.norm(records, axis=1, keepdims=True)
    records = np.where(
        kind[:, None] == 1, records / norms * clip * (1 + generator.normal(0, 1e-7, (count, 1))), records
    )
    records = np.where(kind[:, None] == 2, records * 10.0 ** generator.uniform(-30, 30, (count, 1)), records)
    records = np.where(kind[:, None] == 3, np.sign(records) * clip / np.sqrt(width), records)
    records = records.astype(np.float32)
    rough = generator.choice(NASTY, (count, width))
    return np.where((kind[:, None] == 4) & (generator.random((count, width)) < 0.5), rough, records)


def square(one: list[int], two: list[int]) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_no_neighbour_is_further_away_than_the_radius(name: str) -> None:
    case = CASES[name]
    generator = np.random.default_rng(list(CASES).index(name))
    sums = {count: summed(case, count) for n in case.counts for count in (n, n - 1) if count >= 0}
    state = case.method.init(KEY)
    trials = furthest = 0
    radius = sums[0].step.radius
    for count in case.counts:
        whole, less = sums[count], sums.get(count - 1, sums[0])
        for _ in range(case.rounds):
            records = adversarial(generator, count, case.width, case.mechanism.clip)
            subset = np.flatnonzero(generator.random(count) < generator.choice([0.5, 1.0]))
            total = whole(state, records, subset)
            for gone in range(count):
                left = subset[subset != gone]
                moved = square(total, less(state, np.delete(records, gone, 0), left - (left > gone)))
                assert moved <= radius**2
                assert moved == 0 or gone in subset
                furthest, trials = max(furthest, moved), trials + 1
            order = generator.permutation(count)
            assert whole(state, records[order], np.sort(np.argsort(order)[subset])) == total
            if count:  # replace-one: the record at 0 becomes another
                other = records.copy()
                other[0] = adversarial(generator, 1, case.width, case.mechanism.clip)[0]
                assert square(total, whole(state, other, subset)) <= 4 * radius**2
    assert trials == case.rounds * sum(case.counts)
    # The bound is used up, but for what rounding may take: the canary of the audit is a true worst case.
    assert name == "vi" or furthest > 0.6 * radius**2


def test_there_are_ten_thousand_trials() -> None:
    assert sum(case.rounds * sum(case.counts) for case in CASES.values()) >= 10_000


def test_what_is_not_finite_contributes_nothing() -> None:
    case = CASES["five numbers"]
    total = summed(case, 7)
    records = np.zeros((7, 5), np.float32)
    records[np.arange(5), np.arange(5)] = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38]
    assert total(case.method.init(KEY), records, np.arange(7)) == [0] * 5


def test_neighbouring_data_sets_run_the_same_shapes() -> None:
    # The chunk follows public numbers: the declared size, not the number of records.
    case = CASES["five numbers"]
    shapes = {(summed(case, count).step.sizes.chunk, summed(case, count).step.radius) for count in (0, 1, 39, 40, 41)}
    assert len(shapes) == 1
    unsized = [
        Step(
            case.method, PrivateData(np.zeros((count, 5), np.float32)), case.mechanism, case.method.init(KEY)
        ).sizes.chunk
        for count in (1, 40, 400)
    ]
    assert len(set(unsized)) == 1


def test_the_subset_depends_on_no_record_value() -> None:
    case = CASES["five numbers"]
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(2):
        data = PrivateData(generator.normal(size=(40, 5)).astype(np.float32), size=20)
        step = Step(case.method, data, case.mechanism, case.method.init(KEY))
        drawn.append(np.asarray(jax.jit(step.draws.draw)(random.fixed(3), jnp.arange(50))[1]))
    assert np.array_equal(*drawn)
    assert drawn[0].max() == 40  # the filler
    assert len({tuple(row) for row in drawn[0]}) == 50


# --- leaves that are outer products -------------------------------------------------------------------------

LEFT, RIGHT, MORE = 80, 60, 4
EACH = LEFT + RIGHT + MORE


def product() -> Method:
    """Contribute an outer product of two parts of the record, and the rest of it."""
    return Method(
        init=lambda key: jnp.zeros(()),
        contribute=lambda state, record, key: {
            "product": jnp.outer(record[:LEFT], record[LEFT : LEFT + RIGHT]),
            "rest": record[LEFT + RIGHT :],
        },
        update=lambda state, release, key: state,
        draw=lambda state, key: {},
    )


# Ten records are expected in a subset of the smaller data: what goes beyond one chunk is added one by one.
PRODUCTS = {
    ("usual noise", 20): Mechanism(0.5, 1.0, 1.0, 10),
    ("much noise", 20): Mechanism(0.5, 2.0, 20.0, 10),
    ("little noise", 20): Mechanism(0.5, 1e4, 0.05, 10),
    ("several chunks", 600): Mechanism(0.5, 0.3, 0.7, 10),
    ("weights", 20): Mechanism(0.5, 1.0, 1.0, 10, weights=(3.0, 0.2)),
    ("two sizes of chunks", 300): Mechanism(0.5, 0.3, 0.7, 10**6),
}
# Of 300 records 150 are expected: up to 152 make a smaller chunk, up to 176 a chunk, and one record more a smaller one
# beside it. Beyond two chunks records are added one by one.
PRODUCT_COUNTS = {20: (2, 75), 600: (300, 420), 300: (153, 329, 505)}


def adversarial_products(generator: np.random.Generator, count: int, clip: float) -> np.ndarray:
    """Mix products that are ordinary, on the edge of the clip, huge, tiny or not finite, from factors of any size."""
    records = adversarial(generator, count, EACH, 1.0)
    left, right = records[:, :LEFT], records[:, LEFT : LEFT + RIGHT]
    with np.errstate(all="ignore"):
        sizes = np.linalg.norm(left.astype(float), axis=1) * np.linalg.norm(right.astype(float), axis=1)
        scale = np.where(generator.random(count) < 0.5, 1.0, 10.0 ** generator.uniform(-15, 15, count))[:, None]
        wanted = clip * np.where(generator.random(count) < 0.7, 1.0, generator.uniform(0, 2, count))
        ordinary = np.isfinite(sizes) & (sizes > 1e-20) & (generator.random(count) < 0.8)
        factor = np.where(ordinary, wanted / sizes, 1.0)[:, None]
        parts = [left * scale, right * (factor / scale), clip * records[:, LEFT + RIGHT :] * 0.3]
        return np.concatenate(parts, axis=1).astype(np.float32)


@pytest.mark.parametrize(("name", "size"), PRODUCTS)
def test_no_neighbour_is_further_away_than_the_radius_with_products(name: str, size: int) -> None:
    mechanism = PRODUCTS[name, size]
    case = Case(product(), EACH, mechanism, 1)
    generator = np.random.default_rng(list(PRODUCTS).index((name, size)))
    counts = (1, 2, 33, 75) if name == "usual noise" else PRODUCT_COUNTS[size]
    sums = {count: summed(case, count, size) for n in counts for count in (n, n - 1)}
    factoring = sums[counts[0]].step.contributions.factoring
    assert factoring is not None
    assert all(total.step.contributions.factoring == factoring for total in sums.values())  # a public matter
    assert factoring.pairs == ((LEFT, RIGHT), (MORE, 1))
    assert {total.step.sizes.tail for total in sums.values()} == {152 if size == 300 else 0}
    radius, furthest = sums[counts[0]].step.radius, 0
    for count in counts:
        whole, less = sums[count], sums[count - 1]
        for turn in range(40 // count + 2):
            records = adversarial_products(generator, count, mechanism.clip)
            if turn and generator.random() < 0.3:  # all alike: errors of float32 sums have one sign
                records[:] = records[0]
            subset = np.flatnonzero(generator.random(count) < (generator.choice([0.5, 1.0, 1.0]) if turn else 1.0))
            total = whole(jnp.zeros(()), records, subset)
            for gone in sorted({0, count - 1, *generator.integers(0, count, 12).tolist()}):
                left = subset[subset != gone]
                moved = square(total, less(jnp.zeros(()), np.delete(records, gone, 0), left - (left > gone)))
                assert moved <= radius**2
                assert moved == 0 or gone in subset
                furthest = max(furthest, moved)
            other = records.copy()  # replace-one
            other[0] = adversarial_products(generator, 1, mechanism.clip)[0]
            assert square(total, whole(jnp.zeros(()), other, subset)) <= 4 * radius**2
    assert furthest > 0.85 * radius**2


def single_column() -> Method:
    """Contribute a part of the record times a number of its own, as a regression does."""
    return product()._replace(contribute=lambda state, record, key: record[:LEFT] * record[LEFT])


def adversarial_single_column(generator: np.random.Generator, count: int, clip: float) -> np.ndarray:
    """Put what would be the size of a product into its one number."""
    records = adversarial_products(generator, count, clip)
    with np.errstate(all="ignore"):
        sizes = np.linalg.norm(records[:, LEFT : LEFT + RIGHT].astype(float), axis=1)
    return np.column_stack([records[:, :LEFT], sizes]).astype(np.float32)


@pytest.mark.parametrize("noise_multiplier", [0.05, 1.0, 20.0])
def test_no_neighbour_is_further_away_than_the_radius_with_single_column_products(noise_multiplier: float) -> None:
    mechanism = Mechanism(0.5, 0.7, noise_multiplier, 10)
    case = Case(single_column(), LEFT + 1, mechanism, 1)
    generator = np.random.default_rng(7)
    counts = (1, 300, 400)  # beyond 352 records they are added one by one
    sums = {count: summed(case, count, 300) for n in counts for count in (n, n - 1)}
    step, furthest = sums[1].step, 0
    assert step.contributions.factoring is not None
    assert step.contributions.factoring.pairs == ((LEFT, 1),)
    assert (
        step.contributions.factoring.block
        < step.contributions.factoring.chunk
        < 300
        < step.contributions.factoring.chunk * step.contributions.factoring.chunks
        < 400
    )
    for count in counts:
        whole, less = sums[count], sums[count - 1]
        for _ in range(40 // count + 2):
            records = adversarial_single_column(generator, count, mechanism.clip)
            if generator.random() < 0.3:
                records[:] = records[0]
            subset = np.flatnonzero(generator.random(count) < generator.choice([0.5, 1.0, 1.0]))
            total = whole(jnp.zeros(()), records, subset)
            for gone in sorted({0, count - 1, *generator.integers(0, count, 12).tolist()}):
                left = subset[subset != gone]
                moved = square(total, less(jnp.zeros(()), np.delete(records, gone, 0), left - (left > gone)))
                assert moved <= step.radius**2
                assert moved == 0 or gone in subset
                furthest = max(furthest, moved)
    assert furthest > 0.85 * step.radius**2


def test_products_that_are_not_finite_contribute_nothing() -> None:
    total = summed(Case(product(), EACH, PRODUCTS["usual noise", 20], 1), 40, 20)
    records = np.ones((40, EACH), np.float32)
    for i, value in enumerate([np.nan, np.inf, -np.inf, 3.4e38]):
        for j, place in enumerate((0, LEFT, LEFT + RIGHT)):
            records[10 * j + i, place] = value
            records[10 * j + i, : 0 if j == 0 else LEFT] = 0  # zero times infinity
    chosen = np.array([10 * j + i for j in range(3) for i in range(4)])
    assert not any(total(jnp.zeros(()), records, chosen))
    good = np.setdiff1d(np.arange(40), chosen)
    assert total(jnp.zeros(()), records, np.arange(40)) == total(jnp.zeros(()), records, good) != [0] * 4804


def ones(size: float) -> np.ndarray:
    """A record whose product has this number of lattice units, of the clip's noise below, in every coordinate."""
    record = np.ones(EACH)
    record[LEFT : LEFT + RIGHT], record[LEFT + RIGHT :] = size, 0
    return record.astype(np.float32)


@pytest.mark.parametrize("covered", [True, False])
def test_the_allowance_for_rounding_is_needed(monkeypatch: pytest.MonkeyPatch, covered: bool) -> None:
    """A sum just below a half is rounded down, with one record more up: all coordinates move by almost one too far."""
    if not covered:
        # The share that would do if sums of products were not rounded.
        monkeypatch.setattr(clip.Factoring, "shrink", lambda self, radius: 1 / (1 + 200 * clip.UNIT_ROUNDOFF))
    mechanism = Mechanism(0.5, 1.0, 60.0, 10)
    case = Case(product(), EACH, mechanism, 1)
    two, one = summed(case, 2), summed(case, 1)
    radius, furthest = two.step.radius, 0
    unit = mechanism.clip / radius
    for below in np.linspace(0, 1, 101):
        records = np.stack([ones(below * unit), ones(1e3 * unit)])
        moved = square(two(jnp.zeros(()), records, np.arange(2)), one(jnp.zeros(()), records[:1], np.arange(1)))
        furthest = max(furthest, moved)
    assert (furthest <= radius**2) == covered


def test_the_error_of_float32_sums_is_real_and_covered() -> None:
    """The same records in another order give another sum: further off than rounding allows, not than the bound does."""
    mechanism = Mechanism(1.0, 1.0, 0.05, 10)
    case = Case(product(), EACH, mechanism, 1)
    total = summed(case, 480, 480)
    step = total.step
    factoring = step.contributions.factoring
    assert factoring is not None
    generator = np.random.default_rng(0)
    records = np.zeros((480, EACH), np.float32)
    records[:, 0], records[:, LEFT] = 1, generator.uniform(0.9, 1, 480)
    sums = [total(jnp.zeros(()), records[generator.permutation(480)], np.arange(480)) for _ in range(20)]
    numbers = np.array(sums)
    furthest = max(np.linalg.norm((numbers[i] - numbers[j]).astype(float)) for i in range(20) for j in range(i))
    by_rounding = 1 + factoring.chunks * 2.0**-factoring.fine
    assert by_rounding < furthest
    gamma = factoring.chunk * clip.UNIT_ROUNDOFF
    assert furthest <= 2 * gamma * factoring.chunk * factoring.chunks * step.radius + by_rounding


# --- the same through the whole door ------------------------------------------------------------------------

STEPS = 30


def every_release(width: int) -> Method:
    return Method(
        init=lambda key: (jnp.int32(0), jnp.zeros((2, STEPS, width))),
        contribute=lambda state, record, key: record,
        update=lambda state, release, key: (
            state[0] + 1,
            state[1].at[:, state[0]].set(jnp.stack([release.total, release.full])),
        ),
        draw=lambda state, key: {},
    )


def to_lattice(totals: np.ndarray, mechanism: Mechanism) -> np.ndarray:
    """Return the integers of released numbers, and check that the numbers are theirs, bit by bit."""
    unit = mechanism.clip / lattice.radius(mechanism.noise_multiplier)
    integers = np.rint(totals.astype(np.float64) / unit)
    assert np.abs(integers).max() < 1 << 24  # float32 tells them apart
    again = integers.astype(np.float32) * np.float32(unit)
    assert np.array_equal(again.view(np.uint32), totals.view(np.uint32) & np.where(totals == 0, 0, 0xFFFFFFFF))
    return integers.astype(np.int64)


MECHANISMS = {rate: Mechanism(rate, 1.5, 1.0, STEPS) for rate in (1.0, 0.5)}


Through = dict[tuple[float, str], tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def through_the_engine(open_runner: Callable[..., Runner]) -> Through:
    """Return total and full of every step through the real door, for several data sets and one secret."""
    records = np.random.default_rng(3).normal(0, 2, (8, 3)).astype(np.float32)
    spoilt = records.copy()
    spoilt[-1] = [np.nan, 1.0, np.inf]
    found = {}
    jax.config.update("jax_disable_most_optimizations", True)  # ten programs that run for a moment
    for rate, mechanism in MECHANISMS.items():
        for name, count in {"all": 8, "without the last": 7, "one": 1, "none": 0}.items():
            method = every_release(3)
            runner = open_runner(method, PrivateData(records[:count], size=10), mechanism, 9)
            state = jax.jit(method.init)(KEY)
            found[rate, name] = tuple(np.asarray(runner.advance(state, 0, STEPS)[1]))
            if name == "all":
                # PrivateData refuses such a record, so it is put behind the wall by hand.
                runner._programs.storage.arrays = jnp.asarray(spoilt)
                found[rate, "spoilt"] = tuple(np.asarray(runner.advance(state, 0, STEPS)[1]))
    jax.config.update("jax_disable_most_optimizations", False)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("rate", MECHANISMS)
def test_released_numbers_lie_on_the_lattice(through_the_engine: Through, rate: float) -> None:
    for name in ("all", "without the last", "spoilt", "one", "none"):
        totals, full = through_the_engine[rate, name]
        to_lattice(totals, MECHANISMS[rate])
        # The estimate for all records is divided by the public rate, and by nothing else.
        assert np.array_equal(full, totals / np.float32(rate))


def test_a_naive_release_does_not_lie_on_the_lattice() -> None:
    noisy = np.asarray(0.3 + 1.5 * jax.random.normal(KEY, (STEPS, 3), jnp.float32))
    with pytest.raises(AssertionError):
        to_lattice(noisy, MECHANISMS[1.0])


@pytest.mark.parametrize("rate", MECHANISMS)
def test_with_one_secret_the_last_record_moves_each_release_by_its_own_integers(
    through_the_engine: Through, rate: float
) -> None:
    # Gaps are drawn in order, so the same secret gives the others the same subset: the rest must cancel exactly.
    mechanism = MECHANISMS[rate]
    integers = {name: to_lattice(through_the_engine[rate, name][0], mechanism) for name in ("all", "without the last")}
    moved = integers["all"] - integers["without the last"]
    radius = lattice.radius(mechanism.noise_multiplier)
    assert all(sum(int(k) ** 2 for k in row) <= radius**2 for row in moved)
    present = moved.any(axis=1)
    assert present.all() if rate == 1 else 0 < present.sum() < STEPS
    assert len({tuple(row) for row in moved[present]}) == 1


@pytest.mark.parametrize("rate", MECHANISMS)
def test_a_record_that_is_not_finite_is_as_good_as_none_and_noise_comes_all_the_same(
    through_the_engine: Through, rate: float
) -> None:
    spoilt, without = (through_the_engine[rate, name][0] for name in ("spoilt", "without the last"))
    assert np.array_equal(spoilt, without)
    assert len(np.unique(spoilt, axis=0)) == STEPS


@pytest.mark.parametrize("rate", MECHANISMS)
def test_no_records_at_all_still_give_noise(through_the_engine: Through, rate: float) -> None:
    # 90 numbers of known standard deviation: outside these limits with probability below 1e-6.
    totals, _ = through_the_engine[rate, "none"]
    assert np.isfinite(totals).all()
    assert 0.6 < np.std(totals) / MECHANISMS[rate].noise_std < 1.4
    assert len(np.unique(totals, axis=0)) == STEPS


@pytest.mark.parametrize("rate", MECHANISMS)
def test_an_empty_subset_is_an_ordinary_step(through_the_engine: Through, rate: float) -> None:
    # The only record of all is in some subsets and not in others; where it is not, the noise is released alone.
    one, none = (to_lattice(through_the_engine[rate, name][0], MECHANISMS[rate]) for name in ("one", "none"))
    radius = lattice.radius(MECHANISMS[rate].noise_multiplier)
    assert all(sum(int(k) ** 2 for k in row) <= radius**2 for row in one - none)
    empty = ~(one - none).any(axis=1)
    assert not empty.any() if rate == 1 else 0 < empty.sum() < STEPS
