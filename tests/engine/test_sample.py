"""Poisson subsets: the tables' laws in exact arithmetic, and inclusions, pairs and sizes of drawn subsets."""

from __future__ import annotations

import functools
import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from tacit.engine import alias, random, sample
from tests.engine.test_alias import law

ONE = 1 << alias.BITS


@functools.partial(jax.jit, static_argnums=(1, 2))
def subsets_from(keys: jax.Array, records: int, size: int, tables: tuple[alias.Table, ...]) -> jax.Array:
    """Draw as the wall does, with the tables as arguments: one compiled program for all rates."""
    words_keys, more = random.fold_in(keys, jnp.arange(2)[:, None])
    words = jax.vmap(lambda key: jax.random.bits(key, (len(tables) * size,), jnp.uint32))(words_keys)
    return sample.subsets(alias.draw(tables, size, alias.Words(words), more), records)


ROOMY = {5000: 170, 10_000: 420}
"""A common size for all rates, again for the sake of one program."""


@functools.cache
def keys_for(seed: int, count: int) -> jax.Array:
    return jax.random.split(random.fixed(seed), count)


@functools.cache
def drawn(records: int, rate: float, count: int, seed: int) -> np.ndarray:
    """Draw subsets, check their form, and give them as positions filled up with the number of records."""
    size = max(sample.room(records, rate), ROOMY.get(records, 0))
    tables = sample.gap_tables(rate, sample.digits_for(records))
    found = np.asarray(subsets_from(keys_for(seed, count), records, size, tables))
    assert found.shape == (count, size)
    assert found.dtype == np.int32
    assert found.min() >= 0
    assert found.max() <= records
    # Sorted, no record twice, and nothing after the first filler.
    assert np.all((np.diff(found, axis=1) > 0) | (found[:, 1:] == records))
    return found


# --- the tables of a gap ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.9, 256 / 60000, 1e-6, 1e-12, 1e-300, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("digits", [1, 2, 3])
def test_digits_have_the_law_of_a_geometric_variable(rate: float, digits: int) -> None:
    """Total variation of each digit from stay**(j B**place), the last value of the top digit standing for all above."""
    built = sample.gap_tables(rate, digits)
    assert len(built) == digits
    with mpmath.workdps(400 if rate < 1e-200 else 130):
        stay = 1 - mpmath.mpf(Fraction(rate).numerator) / Fraction(rate).denominator
        for place, table in enumerate(built):
            ratio = stay ** (sample.BASE**place)
            masses = [ratio**j if j < 2 else None for j in range(sample.BASE)]
            for j in range(2, sample.BASE):
                masses[j] = masses[j - 1] * ratio
            if place == digits - 1:
                masses[-1] /= 1 - ratio
            total = mpmath.fsum(masses)
            away = sum(abs(mpmath.mpf(a) / ONE - m / total) for a, m in zip(law(table), masses, strict=True))
            assert away / 2 < mpmath.mpf(sample.BASE) / ONE


def test_the_rate_is_the_floats_exact_value() -> None:
    """The first two weights of the lowest digit have the ratio 1 - rate to 100 bits, for rates no decimal can write."""
    for rate in (0.1, np.nextafter(0.1, 1), 1 / 3, 2.0**-30 + 2.0**-80):
        first, second = law(sample.gap_tables(float(rate), 2)[0])[:2]
        away = Fraction(second, first) - (1 - Fraction(float(rate)))
        assert abs(away) < Fraction(1, 1 << 100)


def test_digits_for_passes_over_all_records() -> None:
    base = sample.BASE
    assert [sample.digits_for(n) for n in (0, 1, 16, base - 1)] == [1] * 4
    assert [sample.digits_for(n) for n in (base, base + 1, 10**6, (base - 1) * base)] == [2] * 4
    assert [sample.digits_for(n) for n in ((base - 1) * base + 1, base**2, 10**9, sample.LARGEST)] == [3] * 4
    for records in (1, base - 1, base, (base - 1) * base, (base - 1) * base + 1, sample.LARGEST):
        assert (base - 1) * base ** (sample.digits_for(records) - 1) >= records
    with pytest.raises(ValueError, match="not supported"):
        sample.digits_for(sample.LARGEST + 1)


def test_two_saturated_ends_can_be_added_in_int32() -> None:
    assert 2 * (sample.LARGEST + 1) < 1 << 31
    ends = positions(sample.LARGEST, [np.full((1, 8), 4095)] * 3)
    assert np.array_equal(ends, np.full((1, 8), sample.LARGEST))


def positions(records: int, digits: list[np.ndarray]) -> np.ndarray:
    """Turn chosen digits of gaps, least significant first, into positions, one subset a row."""

    return np.asarray(sample.subsets([jnp.asarray(digit, jnp.int32) for digit in digits], records))


@pytest.mark.parametrize("records", [4096, 5000, 8191, 8192, 8193, 10_000, 4095 * 4096])
def test_a_long_gap_passes_over_all_records_whatever_its_low_digits(records: int) -> None:
    """Gaps of two digits around the number of records, against integer arithmetic: N = 5000, digits (3, 2) must end."""
    top = records >> 12
    highs = [high for high in {0, top - 1, top, top + 1, top + 2, 4094, 4095} if 0 <= high <= 4095]
    grid = np.array(list(itertools.product(highs, (0, 3, 903, 904, 905, 2000, 4094, 4095))))
    high, low = np.repeat(grid[:, :1], 3, 1), np.repeat(grid[:, 1:], 3, 1)
    ends = np.cumsum(high * 4096 + low + 1, axis=1)
    assert np.array_equal(positions(records, [low, high]), np.minimum(ends - 1, records))


@pytest.mark.parametrize("records", [4095 * 4096 + 1, 20_000_000, sample.LARGEST])
def test_a_long_gap_of_three_digits(records: int) -> None:
    top = records >> 24
    highs = {0, max(top - 1, 0), top, top + 1, top + 2, 4095}
    grid = np.array(list(itertools.product(highs, (0, 1, 787, 788, 4095), (0, 5, 4094, 4095))))
    high, middle, low = (np.repeat(grid[:, [i]], 5, 1) for i in range(3))
    ends = np.cumsum((high << 24) + (middle << 12) + low + 1, axis=1)
    assert np.array_equal(positions(records, [low, middle, high]), np.minimum(ends - 1, records))


# --- small numbers of records: everything -------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("records", [1, 2, 10, 16])
def test_small_data_single_pairs_and_sizes(records: int, rate: float) -> None:
    """40000 subsets: inclusions, pairs and the size distribution; false-alarm rate 3e-6 for each setting."""
    count = 40_000
    found = drawn(records, rate, count, seed=40 + records)
    indicator = np.zeros((count, records + 1), int)
    np.put_along_axis(indicator, found, 1, axis=1)
    indicator = indicator[:, :records].astype(float)
    # Sums over independent records and pairs are compared one by one, with Bonferroni's correction.
    bound = stats.norm.isf(0.5e-6 / records)
    singles = (indicator.sum(0) - count * rate) / np.sqrt(count * rate * (1 - rate))
    assert np.abs(singles).max() < bound
    if records > 1:
        pairs = (indicator.T @ indicator)[np.triu_indices(records, 1)]
        both = rate * rate
        scores = (pairs - count * both) / np.sqrt(count * both * (1 - both))
        assert np.abs(scores).max() < stats.norm.isf(0.5e-6 / len(pairs))
    sizes = np.bincount(indicator.sum(1).astype(int), minlength=records + 1)
    expected = stats.binom.pmf(np.arange(records + 1), records, rate) * count
    rare = expected < 5
    if rare.sum():
        keep = ~rare
        sizes, expected = np.append(sizes[keep], sizes[rare].sum()), np.append(expected[keep], expected[rare].sum())
    assert stats.chisquare(sizes, expected * count / expected.sum()).pvalue > 1e-6


@pytest.mark.parametrize(
    ("records", "rate", "count", "seed"), [(1, 0.5, 40_000, 41), (10, 0.1, 40_000, 50), (5000, 1e-4, 10_000, 60)]
)
def test_empty_subsets_happen_as_often_as_they_should(records: int, rate: float, count: int, seed: int) -> None:
    """Exact binomial test; false-alarm rate 1e-6."""
    found = drawn(records, rate, count, seed)
    empty = int(np.sum(found[:, 0] == records))
    assert stats.binomtest(empty, len(found), (1 - rate) ** records).pvalue > 1e-6


@pytest.mark.parametrize("records", [16, 5000])
def test_rate_one_takes_everyone(records: int) -> None:
    assert sample.room(records, 1.0) == records
    tables = sample.gap_tables(1.0, sample.digits_for(records))
    found = np.asarray(subsets_from(keys_for(52, 2), records, records, tables))
    assert np.array_equal(found, np.tile(np.arange(records), (2, 1)))


# --- larger data --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "rate", "count"),
    [
        (5000, 1e-4, 10_000),
        (5000, 0.01, 10_000),
        (10_000, 1e-4, 4000),
        (10_000, 0.02, 4000),
        (10**6, 1e-6, 20_000),
        (sample.LARGEST, 1e-8, 2000),
    ],
)
def test_large_data_margins(records: int, rate: float, count: int) -> None:
    """Total, sizes, places in 20 parts, gaps; false-alarm rate 4e-6 for each setting."""
    found = drawn(records, rate, count, seed=60)
    inside = found < records
    sizes = inside.sum(1)
    assert stats.binomtest(int(sizes.sum()), count * records, rate).pvalue > 1e-6
    # Sizes: index of dispersion, chi-square with count - 1 degrees of freedom to a good approximation at these means.
    mean, variance = records * rate, records * rate * (1 - rate)
    spread = np.sum((sizes - mean) ** 2) / variance
    kurtosis = (1 - 6 * rate * (1 - rate)) / variance
    assert abs(spread - count) < stats.norm.isf(0.5e-6) * np.sqrt(count * (2 + kurtosis))
    edges = np.linspace(0, records, 21).astype(np.int64)
    places = np.bincount(np.searchsorted(edges, found[inside], side="right") - 1, minlength=20)
    assert stats.chisquare(places, places.sum() * np.diff(edges) / records).pvalue > 1e-6
    # Positions modulo the digits' base: where a table and its carry would show.
    if records * rate * count > 10_000:
        residues = np.bincount(found[inside] % 4096 // 64, minlength=64)
        weights = np.bincount(np.arange(records % (1 << 24) or records) % 4096 // 64, minlength=64)
        whole = (records - (records % (1 << 24) or records)) // 64
        expected = (weights + whole) / records * residues.sum()
        assert stats.chisquare(residues, expected).pvalue > 1e-6


def test_neighbouring_halves_are_independent() -> None:
    """Numbers included in both halves of 5000 records: correlation as a z score; false-alarm rate 1e-6."""
    found = drawn(5000, 0.01, 10_000, seed=60)
    first, second = (found < 2500).sum(1), ((found >= 2500) & (found < 5000)).sum(1)
    assert abs(np.corrcoef(first, second)[0, 1]) < stats.norm.isf(0.5e-6) / np.sqrt(10_000)


def test_subsets_belong_to_their_step() -> None:
    """Drawing steps in other groups gives the same subsets; a smaller room only cuts them off."""
    tables = sample.gap_tables(0.01, 2)
    keys = keys_for(61, 4)
    together = np.asarray(subsets_from(keys, 10_000, 260, tables))
    halves = [subsets_from(keys[:2], 10_000, 260, tables), subsets_from(keys[2:], 10_000, 260, tables)]
    assert np.array_equal(np.concatenate(halves), together)
    assert len({row.tobytes() for row in together}) == 4


# --- the room and the distance ------------------------------------------------------------------------------


def tail(records: int, rate: float, size: int) -> mpmath.mpf:
    """Bound P(Binomial(records, rate) > size) from above: exact terms, and a geometric series for the rest."""
    with mpmath.workdps(60):
        p = mpmath.mpf(Fraction(rate).numerator) / Fraction(rate).denominator
        k = size + 1
        if k > records:
            return mpmath.mpf(0)
        logs = mpmath.loggamma(records + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(records - k + 1)
        term = mpmath.exp(logs + k * mpmath.log(p) + (records - k) * mpmath.log1p(-p))
        total = mpmath.mpf(0)
        for _ in range(30):
            total += term
            ratio = mpmath.mpf(records - k) / (k + 1) * p / (1 - p)
            term, k = term * ratio, k + 1
            if k > records:
                return total
        return total + term / (1 - ratio)


SIZES = [1, 2, 3, 10, 16, 50, 100, 130, 150, 1000, 5000, 60_000, 10**6, 10**7, 10**9, 2**30 - 2]
RATES = [1e-9, 1e-6, 1e-4, 256 / 60000, 0.01, 0.1, 0.3, 0.5, 0.9, 0.99, 1 - 1e-6]


@pytest.mark.parametrize("records", SIZES)
def test_the_room_is_enough_and_not_much_more(records: int) -> None:
    for rate in RATES:
        size = sample.room(records, rate)
        assert records * rate <= size + 1e-6
        assert size <= records
        assert tail(records, rate, size) <= mpmath.mpf(2) ** -128
        fewer = size - 3 - int((size - records * rate) / 20)
        if size < records and fewer > records * rate:
            # Chernoff's bound gives away a small factor, worth a few records.
            assert tail(records, rate, fewer) > mpmath.mpf(2) ** -128, rate


def test_tiny_data_has_room_for_everyone() -> None:
    for records, rate in [(1, 0.1), (2, 0.5), (10, 0.1), (16, 0.9), (100, 0.5), (38, 0.1)]:
        assert sample.room(records, rate) == records
        assert rate**records > sample.OVERFULL


def test_the_distance_covers_every_gap_and_the_overfull_subset() -> None:
    exact = Fraction(3 * sample.BASE * sample.LARGEST, ONE) + Fraction(1, 1 << 128)
    assert exact <= Fraction(sample.distance()) <= Fraction(1, 1 << 84)
    assert sample.digits_for(sample.LARGEST) == 3
    assert Fraction(sample.OVERFULL) == Fraction(1, 1 << 128)
