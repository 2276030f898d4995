"""Alias tables: the law of a draw is exactly the integer weights, ties included."""

from __future__ import annotations

import functools
import random as host_random
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.wall import alias, random

ONE = 1 << alias.BITS
draw = jax.jit(lambda table, words, keys: alias.draw([table], [words], keys)[0])


def unpack(table: alias.Table) -> tuple[list[int], list[int]]:
    """Read thresholds and aliases back from the 32-bit words that a draw uses."""
    columns = len(table.packed)
    fraction_bits = 32 - (columns.bit_length() - 1)
    packed = [int(word) for word in table.packed]
    top = [word & ((1 << fraction_bits) - 1) for word in packed]
    rest = [(int(a) << 64) | (int(b) << 32) | int(c) for a, b, c in table.rest]
    return [(t << 96) | r for t, r in zip(top, rest, strict=True)], [word >> fraction_bits for word in packed]


def law(table: alias.Table) -> list[int]:
    """Add up, over all 2**128 possible draws, how often each value comes out."""
    threshold, other = unpack(table)
    capacity = ONE // len(threshold)
    counts = [0] * len(threshold)
    for column, (t, a) in enumerate(zip(threshold, other, strict=True)):
        assert 0 <= t < capacity
        counts[column] += t
        counts[a] += capacity - t
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


@pytest.mark.parametrize("weights", [[ONE - 1, 0], [ONE // 2, ONE // 4, ONE // 4], [2, 2]])
def test_weights_that_are_no_law_are_refused(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="2\\*\\*128"):
        alias.thresholds(weights)


@functools.cache
def more_bits(seed: int, steps: int, count: int) -> tuple[jax.Array, np.ndarray]:
    """Give keys, and the 96 bits that ``draw`` would take from them at every place."""
    keys = jax.random.split(random.fixed(seed), steps)

    def at(key: jax.Array, i: jax.Array) -> jax.Array:
        return jax.random.key_data(jax.random.fold_in(key, i))[:3]

    return keys, np.asarray(jax.jit(jax.vmap(lambda key: jax.vmap(lambda i: at(key, i))(jnp.arange(count))))(keys))


def as_integer(words: np.ndarray) -> int:
    a, b, c = (int(word) for word in words)
    return (a << 64) | (b << 32) | c


@pytest.mark.parametrize("place", [(0, 0), (0, 4), (1, 2)])
@pytest.mark.parametrize("away", [-(1 << 64), -(1 << 32), -1, 0, 1, 1 << 32, 1 << 64])
def test_a_tie_is_settled_by_96_more_bits_to_the_last_unit(place: tuple[int, int], away: int) -> None:
    """The threshold is set a little above, at and below the very bits that will be drawn."""
    step, i = place
    keys, bits = more_bits(2, 2, 5)
    more = as_integer(bits[place])
    rest = more + away
    assert 0 <= rest < 1 << 96
    top = 0x12345678
    table = alias.build([(top << 96) | rest, ONE - ((top << 96) | rest)])
    words = np.full((2, 5), top - 1, np.uint32)  # column 0, below the threshold: no tie
    words[step, i] = top
    drawn = np.asarray(draw(table, jnp.asarray(words), keys))
    expected = np.zeros((2, 5), int)
    expected[place] = 0 if more < rest else 1
    assert np.array_equal(drawn, expected)


def test_words_beside_a_tie_decide_alone() -> None:
    """One below and one above the threshold's leading bits; the other 96 bits are at their extremes."""
    for rest in (0, (1 << 96) - 1):
        top = 1000
        table = alias.build([(top << 96) | rest, ONE - ((top << 96) | rest)])
        words = jnp.asarray([[top - 1, top + 1, 0, 0x7FFFFFFF]], jnp.uint32)
        assert np.asarray(draw(table, words, random.fixed(3)[None])).tolist() == [[0, 1, 0, 1]]
        ties = jnp.full((1, 40), top, jnp.uint32)
        # With all bits set the own value wins unless all 96 drawn bits are set too.
        expected = 0 if rest else 1
        assert set(np.asarray(draw(table, ties, random.fixed(3)[None])).reshape(-1).tolist()) == {expected}


def test_every_draw_is_the_comparison_of_128_bits() -> None:
    """A table of which all columns tie at chosen words, against Python integers."""
    numbers = host_random.Random(4)
    table = alias.build([numbers.randrange(1 << 128) for _ in range(8)])
    threshold, other = unpack(table)
    count = 64
    keys, more = more_bits(4, 3, count)
    words, expected = np.zeros((3, count), np.uint32), np.zeros((3, count), int)
    for step in range(3):
        for i in range(count):
            column = numbers.randrange(8)
            fraction = min(max((threshold[column] >> 96) + numbers.choice([-1, 0, 0, 0, 1]), 0), (1 << 29) - 1)
            words[step, i] = (column << 29) | fraction
            own = (fraction << 96) | as_integer(more[step, i])
            expected[step, i] = column if own < threshold[column] else other[column]
    assert np.array_equal(draw(table, jnp.asarray(words), keys), expected)


def test_grouping_of_steps_changes_no_value() -> None:
    """The table makes a third of all words tie, so that the extra bits are grouped too."""
    table = alias.build([(5 << 96) + (1 << 95), ONE - ((5 << 96) + (1 << 95))])
    keys = jax.random.split(random.fixed(5), 6)
    words = jnp.asarray(np.random.default_rng(6).integers(4, 7, (6, 50)), jnp.uint32)
    together = np.asarray(draw(table, words, keys))
    assert 0 < together[np.asarray(words) == 5].mean() < 1
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
