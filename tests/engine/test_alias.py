"""Alias tables: the law of a draw is exactly the integer weights, what is cut off included."""

from __future__ import annotations

import functools
import itertools
import random as host_random
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.engine import alias, random

ONE = 1 << alias.BITS
REST = 1 << alias.REST


@jax.jit
def draw(table: alias.Table, words: jax.Array, keys: jax.Array) -> jax.Array:
    return alias.draw([table], words.shape[1], alias.Words(words), keys)[0]


def unpack(table: alias.Table) -> tuple[list[int], list[int], list[int]]:
    """Read thresholds, aliases and running sums back from the 32-bit words that a draw uses."""
    fraction_bits = 32 - (len(table.packed).bit_length() - 1)
    packed = [int(word) for word in table.packed]
    sums = [sum(int(w) << shift for w, shift in zip(row, (96, 64, 32, 0), strict=True)) for row in table.sums.T]
    return [word & ((1 << fraction_bits) - 1) for word in packed], [word >> fraction_bits for word in packed], sums


def law(table: alias.Table) -> list[int]:
    """Add up, over all 2**128 possible draws, how often each value comes out."""
    threshold, other, sums = unpack(table)
    capacity, cut = (1 << 32) // len(threshold), int(table.cut)
    # Words below the cut are all in column 0: the running sums part them and the 96 bits below.
    assert cut < capacity
    assert sums[-1] == cut * REST
    counts = [end - start for start, end in itertools.pairwise([0, *sums])]
    for column, (t, a) in enumerate(zip(threshold, other, strict=True)):
        kept = cut if column == 0 else 0
        assert t < capacity
        assert t >= kept or a == column  # a word below the cut gives column 0, to which its value is added
        counts[column] += max(t - kept, 0) * REST
        counts[a] += (capacity - max(t, kept)) * REST
    return counts


def some_masses(kind: str, columns: int) -> list[int]:
    numbers = host_random.Random(f"{kind} {columns}")
    return {
        "random": [numbers.randrange(1 << 200) for _ in range(columns)],
        "geometric": [(1 << 300) >> i for i in range(columns)],
        "flat": [1] * columns,
        "one": [0] * (columns - 1) + [7],
        "two": [3, *[0] * (columns - 2), 5] if columns > 1 else [3],
        "tiny": [1] * (columns - 1) + [1 << 400],
        "nearly flat": [10**50 + (i % 3) for i in range(columns)],
    }[kind]


KINDS = ["random", "geometric", "flat", "one", "two", "tiny", "nearly flat"]


@pytest.mark.parametrize("columns", [1, 2, 4, 64, 1024, 1 << 14])
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_of_a_draw_is_the_integer_weights(kind: str, columns: int) -> None:
    masses = some_masses(kind, columns)
    weights = alias.integer_weights(masses)
    assert sum(weights) == ONE
    assert min(weights) >= 0
    assert law(alias.build(masses)) == weights


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_the_weights_costs_less_than_a_unit_each(kind: str) -> None:
    columns = 256
    masses = some_masses(kind, columns)
    weights, total = alias.integer_weights(masses), sum(masses)
    away = [Fraction(w) - Fraction(m * ONE, total) for w, m in zip(weights, masses, strict=True)]
    assert sum(map(abs, away)) / 2 < columns
    assert sum(gap > 0 for gap in away) <= 1  # one weight takes the remainder, the others are rounded down
    assert all(gap > -1 for gap in away)


def test_the_largest_table_fits_its_words() -> None:
    masses = some_masses("random", 1 << 16)
    assert law(alias.build(masses)) == alias.integer_weights(masses)


@pytest.mark.parametrize(
    "weights", [[ONE], [ONE // 2, ONE // 2], [ONE, 0, 0, 0], [0, 0, 0, ONE], [1, ONE - 1], [ONE // 4] * 4]
)
def test_degenerate_weights(weights: list[int]) -> None:
    assert alias.integer_weights(weights) == weights
    table = alias.build(weights)
    assert law(table) == weights
    key = random.fixed(1)
    drawn = draw(table, jax.random.bits(key, (2, 300), jnp.uint32), jax.random.split(key, 2))
    wanted = {i for i, weight in enumerate(weights) if weight > 1}
    assert set(np.asarray(drawn).reshape(-1).tolist()) == wanted  # 600 draws miss a quarter with probability 1e-75


@pytest.mark.parametrize(
    ("weights", "cut"),
    [([(1 << 32) - 1, 0], 0), ([1 << 31, 1 << 30, 1 << 30], 0), ([2, 2], 1), ([(1 << 32) - 2, 0], 2)],
)
def test_weights_that_are_no_law_are_refused(weights: list[int], cut: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        alias.thresholds(weights, cut)


@functools.cache
def more_bits(seed: int, steps: int, count: int) -> tuple[jax.Array, np.ndarray]:
    """Return keys, and the 96 bits that ``draw`` would take from them at every place."""
    keys = jax.random.split(random.fixed(seed), steps)

    def at(key: jax.Array, i: jax.Array) -> jax.Array:
        return jax.random.key_data(jax.random.fold_in(key, i))[:3]

    return keys, np.asarray(jax.jit(jax.vmap(lambda key: jax.vmap(lambda i: at(key, i))(jnp.arange(count))))(keys))


def as_integer(words: np.ndarray) -> int:
    a, b, c = (int(word) for word in words)
    return (a << 64) | (b << 32) | c


@pytest.mark.parametrize("place", [(0, 0), (0, 4), (1, 2)])
@pytest.mark.parametrize("away", [-(1 << 64), -(1 << 32), -1, 0, 1, 1 << 32, 1 << 64])
def test_what_is_cut_off_is_parted_by_96_more_bits_to_the_last_unit(place: tuple[int, int], away: int) -> None:
    """The running sum is set a little above, at and below the very bits that will be drawn."""
    keys, bits = more_bits(2, 2, 5)
    more = as_integer(bits[place])
    rest = more + away
    assert 0 < rest < REST
    top = 0x12345678
    table = alias.build([top * REST + rest, ONE - (top * REST + rest)])
    assert int(table.cut) == 1
    words = np.full((2, 5), 1, np.uint32)  # column 0, below the threshold and not below the cut
    words[place] = 0
    drawn = np.asarray(draw(table, jnp.asarray(words), keys))
    expected = np.zeros((2, 5), int)
    expected[place] = 0 if more < rest else 1
    assert np.array_equal(drawn, expected)


def test_words_from_the_cut_on_decide_alone() -> None:
    """The last below and the first above a threshold, whatever was cut off: 1 unit or all but one."""
    for rest in (1, REST - 1):
        top = 1000
        table = alias.build([top * REST + rest, ONE - (top * REST + rest)])
        words = jnp.asarray([[1, top, top + 1, 0x7FFFFFFF, 0xFFFFFFFF]], jnp.uint32)
        assert np.asarray(draw(table, words, random.fixed(3)[None])).tolist() == [[0, 0, 1, 1, 1]]
        # Of 40 times 96 bits none is below 1, and all are below REST - 1, but with probability 40 / 2**96.
        cut = jnp.zeros((1, 40), jnp.uint32)
        assert set(np.asarray(draw(table, cut, random.fixed(3)[None])).reshape(-1).tolist()) == {int(rest == 1)}


@pytest.mark.parametrize("count", [64, 3 * alias.GROUP + 5])
def test_every_draw_is_that_of_128_bits(count: int) -> None:
    """Words around all thresholds and below the cut, in whole groups and beside them, against Python integers."""
    numbers = host_random.Random(4)
    table = alias.build([numbers.randrange(1 << 128) for _ in range(8)])
    threshold, other, sums = unpack(table)
    cut = int(table.cut)
    keys, more = more_bits(4, 3, count)
    words, expected = np.zeros((3, count), np.uint32), np.zeros((3, count), int)
    for step in range(3):
        for i in range(count):
            if i % (count // 32) == 0:
                words[step, i] = numbers.randrange(cut)
                bits = (int(words[step, i]) << 96) | as_integer(more[step, i])
                expected[step, i] = sum(bits >= end for end in sums)
            else:
                column = numbers.randrange(8)
                low = cut if column == 0 else 0
                fraction = min(max(threshold[column] + numbers.choice([-1, 0, 1]), low), (1 << 29) - 1)
                words[step, i] = (column << 29) | fraction
                expected[step, i] = column if fraction < threshold[column] else other[column]
    assert np.array_equal(draw(table, jnp.asarray(words), keys), expected)
    # One row among others, as a large step is given its words.
    single = jax.jit(lambda row: alias.draw([table], count, alias.Words(jnp.asarray(words), row), keys[row][None])[0])
    assert np.array_equal(np.concatenate([single(jnp.int32(row)) for row in range(3)]), expected)


def test_tables_are_combined_as_they_are_drawn() -> None:
    """Words below the cut in one table, in the other, and in both at one place."""
    numbers = host_random.Random(9)
    tables = [alias.build([numbers.randrange(1 << 128) for _ in range(16)]) for _ in range(2)]
    words = np.random.default_rng(9).integers(8, 1 << 32, (2, 10 + 2 * 1500), np.uint32)
    for place in (10, 700, 701, 1509):
        words[0, place] = 0
    words[0, [1510, 2200, 2999]] = 1
    words[1, [20, 1520]] = 2
    assert min(int(table.cut) for table in tables) > 2
    given, keys = alias.Words(jnp.asarray(words)), jax.random.split(random.fixed(9), 2)
    one, two = alias.draw(tables, 1500, given, keys, start=10)
    blocks = alias.combine(tables, [100, 1], [500, 0, 1000], given, keys, start=10, middle=7, scales=[8, 4, 1])
    assert np.array_equal(np.concatenate(blocks, axis=1), np.repeat([8, 1], [500, 1000]) * (100 * one + two - 7))


def test_grouping_of_steps_changes_no_value() -> None:
    """A third of all words are below the cut, so that the extra bits are grouped too."""
    table = alias.build([5 * REST + REST // 2, ONE - (5 * REST + REST // 2)])
    assert int(table.cut) == 1
    keys = jax.random.split(random.fixed(5), 6)
    words = jnp.asarray(np.random.default_rng(6).integers(0, 3, (6, 50)), jnp.uint32)
    together = np.asarray(draw(table, words, keys))
    assert 0 < together[np.asarray(words) == 0].mean() < 1
    apart = np.concatenate([draw(table, words[part], keys[part]) for part in (slice(0, 3), slice(3, 6))])
    assert np.array_equal(apart, together)


@pytest.mark.parametrize("share", [Fraction(1, 1000), Fraction(1, 3), Fraction(999, 1000)])
def test_coin_flips_have_the_right_share(share: Fraction) -> None:
    """Exact two-sided binomial test, false-alarm rate 1e-6 each."""
    count = 400_000
    table = alias.build([share.denominator - share.numerator, share.numerator])
    words_key, more_key = jax.random.split(random.fixed(7 + share.numerator))
    ones = int(np.sum(draw(table, jax.random.bits(words_key, (1, count), jnp.uint32), more_key[None])))
    assert stats.binomtest(ones, count, float(share)).pvalue > 1e-6


def test_a_table_of_many_columns_has_the_right_law() -> None:
    """Chi-square over 64 values at 10**6 draws, false-alarm rate 1e-6."""
    masses = some_masses("random", 64)
    weights = alias.integer_weights(masses)
    words_key, more_key = jax.random.split(random.fixed(8))
    drawn = draw(alias.build(masses), jax.random.bits(words_key, (1, 10**6), jnp.uint32), more_key[None])
    counts = np.bincount(np.asarray(drawn)[0], minlength=64)
    assert stats.chisquare(counts, np.array([weight / ONE for weight in weights]) * 10**6).pvalue > 1e-6
