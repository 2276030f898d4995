"""Clipping: the integer norm is at most the radius for every row that float32 can hold."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Iterator
from fractions import Fraction

import jax
import jax.numpy as jnp
import jax_privacy.clipping
import numpy as np
import pytest

from tacit.engine import clip, lattice
from tacit.engine.outer import Factors
from tacit.engine.sizes import QUICK_OPTIONS, is_known
from tacit.wall import clip as reference_clip

DIMENSIONS = [1, 2, 7, 100, 1000, 5000]
RADIUS = 65_537
OPTIONS: list[dict[str, bool]] = [
    {},
    *({name: value} for name, value in QUICK_OPTIONS.items() if is_known(name, value)),
]
"""Those of the compiler with which the wall's programs are compiled: long runs, and short ones."""
to_integers = jax.jit(clip.to_integers, static_argnums=(1, 2))


def squared_norms(integers: jax.Array) -> list[int]:
    """Exact: an int64 row sum of squares of numbers below 2**22 cannot overflow for up to 2**19 of them."""
    wide = np.asarray(integers).astype(np.int64)
    assert np.abs(wide).max(initial=0) <= lattice.LARGEST_RADIUS
    return [int(total) for total in np.sum(wide * wide, axis=1)]


def adversarial(dimension: int, count: int, bound: float, seed: int) -> np.ndarray:
    """Rows of every kind that could break a norm: sizes of all orders, edges of the clip, non-finite values."""
    numbers = np.random.default_rng(seed)

    def rows() -> Iterator[np.ndarray]:
        plain = numbers.standard_normal((count, dimension))
        yield plain * bound * 10.0 ** numbers.uniform(-3, 3, (count, 1))
        yield plain * 10.0 ** numbers.uniform(-46, 38, (count, 1))
        yield plain * 10.0 ** numbers.uniform(-44, 38, (count, dimension))
        yield np.full((count, dimension), bound) * 10.0 ** numbers.uniform(-2, 2, (count, 1))
        yield np.full((count, dimension), bound / math.sqrt(dimension)) * (1 + numbers.uniform(-1e-6, 1e-6, (count, 1)))
        on_the_clip = plain / np.linalg.norm(plain, axis=1, keepdims=True) * bound
        yield on_the_clip * (1 + numbers.uniform(-2e-7, 2e-7, (count, 1)))
        one_hot = np.zeros((count, dimension))
        one_hot[np.arange(count), numbers.integers(0, dimension, count)] = 10.0 ** numbers.uniform(-45, 38.4, count)
        yield one_hot
        # Just above the half units, where rounding adds most.
        unit = bound / RADIUS
        yield (
            (numbers.integers(0, 3, (count, dimension)) + 0.5 + 1e-4)
            * unit
            * numbers.choice([-1, 1], (count, dimension))
        )
        yield np.where(numbers.random((count, dimension)) < 0.5, 1e-45, 3.4e38 / max(dimension, 2))
        for value in (np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 1.2e-38, 1.9e19, 1.8e19, 1.1e-19):
            spoiled = plain * bound
            spoiled[np.arange(count), numbers.integers(0, dimension, count)] = value
            yield spoiled
        yield np.full((count, dimension), np.nan)
        yield np.full((count, dimension), 3.4e38)
        yield np.zeros((count, dimension))

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.concatenate([part.astype(np.float32) for part in rows()])


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_no_row_exceeds_the_radius(dimension: int) -> None:
    """More than 10**4 rows in all but the longest dimensions, on the exact integers."""
    count = {1000: 60, 5000: 20}.get(dimension, 500)
    rows = adversarial(dimension, count, bound=1.5, seed=dimension)
    assert len(rows) == 22 * count
    norms = squared_norms(to_integers(jnp.asarray(rows), 1.5, RADIUS))
    assert max(norms) <= RADIUS**2
    # The bound is used: clipped rows come within what rounding and float32 may take.
    lowest = RADIUS * (clip.shrink(dimension, RADIUS) - 1e-6) - math.sqrt(dimension) / 2
    assert max(norms) >= max(lowest, 0) ** 2


@pytest.mark.parametrize(
    ("dimension", "radius"), [(1, 1 << 22), (100, 1 << 22), (5000, 1 << 22), (1, 3), (16, 11), (1000, 101)]
)
def test_no_row_exceeds_other_radii(dimension: int, radius: int) -> None:
    rows = adversarial(dimension, 20, bound=0.3, seed=radius)
    assert max(squared_norms(to_integers(jnp.asarray(rows), 0.3, radius))) <= radius**2


@pytest.mark.parametrize("bound", [2.0**-60, 1e-12, 1e12, 2.0**60])
def test_no_row_exceeds_the_radius_at_any_clip(bound: float) -> None:
    for dimension in (1, 100):
        rows = adversarial(dimension, 50, bound=bound, seed=dimension)
        assert max(squared_norms(to_integers(jnp.asarray(rows), bound, RADIUS))) <= RADIUS**2


@pytest.mark.parametrize("bound", [1e-300, 1e-35, 2.0**-61, 2.0**61, 1e39, 1e300])
def test_a_clip_beyond_float32_is_refused(bound: float) -> None:
    """At clip = 1e-35 the compiler would multiply 1 / clip and the radius into infinity."""
    with pytest.raises(ValueError, match="clip"):
        clip.to_integers(jnp.ones((1, 2)), bound, RADIUS)


@pytest.mark.parametrize("weight", [1e38, 1e30, 1e-30, 1e-38])
def test_constants_that_the_compiler_multiplies_together_break_nothing(weight: float) -> None:
    """A block weight in front of the clip: the compiler moves it, 1 / clip and the radius into one constant."""
    for bound in (2.0**-60, 1.0, 2.0**60):
        program = jax.jit(lambda rows, c=bound: clip.to_integers(rows * jnp.float32(weight), c, RADIUS))
        sizes = 10.0 ** np.linspace(-38, 38, 77)
        rows = np.outer(sizes, np.ones(100)).astype(np.float32)
        assert max(squared_norms(program(jnp.asarray(rows)))) <= RADIUS**2


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_rows_inside_the_clip_are_exact_to_half_a_unit(dimension: int) -> None:
    numbers = np.random.default_rng(dimension)
    rows = numbers.standard_normal((50, dimension))
    rows *= numbers.uniform(0, 0.999, (50, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
    rows = (1.5 * clip.shrink(dimension, RADIUS) * rows).astype(np.float32)
    exact = rows.astype(np.float64) * RADIUS / 1.5
    found = np.asarray(to_integers(jnp.asarray(rows), 1.5, RADIUS))
    # Half a unit, and four float32 roundings of a number of that size.
    assert np.all(np.abs(found - exact) <= 0.5 + 4 * 2.0**-24 * np.abs(exact))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dimension", [1, 7, 5000])
def test_one_value_that_is_not_finite_makes_the_row_zero_and_no_other(dimension: int, value: float) -> None:
    rows = np.random.default_rng(0).standard_normal((6, dimension)).astype(np.float32)
    clean = np.asarray(to_integers(jnp.asarray(rows), 1.0, RADIUS))
    rows[2, dimension // 2] = value
    found = np.asarray(to_integers(jnp.asarray(rows), 1.0, RADIUS))
    assert np.any(clean[2])
    assert not np.any(found[2])
    others = [0, 1, 3, 4, 5]
    assert np.array_equal(found[others], clean[others])


def test_a_norm_beyond_float32_counts_as_infinite() -> None:
    rows = jnp.asarray([[2e19, 0.0], [1.8e19, 0.0], [3e38, 3e38], [0.0, 0.0], [1e-45, -1e-45]], jnp.float32)
    found = np.asarray(to_integers(rows, 1.0, RADIUS))
    assert not np.any(found[[0, 2, 3, 4]])
    assert found[1, 0] == RADIUS - 1  # the largest integer below (1 - sqrt(2)/2M) M, rounded
    assert found[1, 1] == 0


def test_a_row_does_not_depend_on_the_others() -> None:
    rows = adversarial(7, 4, bound=1.0, seed=3)
    clean = np.asarray(to_integers(jnp.asarray(rows), 1.0, RADIUS))
    numbers = np.random.default_rng(4)
    for _ in range(20):
        order = numbers.permutation(len(rows))
        assert np.array_equal(to_integers(jnp.asarray(rows[order]), 1.0, RADIUS), clean[order])


# --- what the proof assumes of the compiled arithmetic ------------------------------------------------------


@pytest.mark.parametrize(
    ("dimension", "additions"),
    [(1, 1), (7, 7), (1000, 1000), (4096, 4096), (4097, 65 + 65), (5000, 50 + 100), (8192, 64 + 128), (10**5, 650)],
)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_sum_of_squares_is_as_accurate_as_the_proof_says(
    dimension: int, additions: int, options: dict[str, bool]
) -> None:
    """Numbers of one sign and wide range, against exact sums in float64 (whose own error is 2**-53 a term)."""
    numbers = np.random.default_rng(dimension)
    rows = np.concatenate(
        [
            numbers.uniform(0, 1, (4, dimension)),
            10.0 ** numbers.uniform(-6, 3, (4, dimension)),
            np.full((1, dimension), 0.1),
        ]
    ).astype(np.float32)
    found = np.asarray(jax.jit(clip._sum_of_squares, compiler_options=options)(rows)).astype(np.float64)
    exact = np.asarray([math.fsum(row * row) for row in rows.astype(np.float64)])
    assert reference_clip.additions(dimension) == additions
    assert np.all(np.abs(found / exact - 1) <= additions * clip.UNIT_ROUNDOFF)


def test_two_stages_hold_all_squares_and_round_seldom() -> None:
    """What the proof says of V and W; beyond one stage, for every dimension up to 20000 and some that are long."""
    for dimension in (*range(reference_clip.ONE_STAGE + 1, 20_000), 2_395_210, 10**9 + 7, 2**40):
        sums, squares = reference_clip.stages(dimension)
        assert sums * squares >= dimension
        assert sums + squares == reference_clip.additions(dimension) <= 2.5 * math.sqrt(dimension) + 3


@pytest.mark.parametrize("options", OPTIONS)
def test_the_two_stages_stay_apart_when_compiled(options: dict[str, bool]) -> None:
    """Merged into one sum, 4097 and more additions would not be covered by the allowance."""
    for dimension, sums in ((4097, 65), (5000, 50)):
        text = jax.jit(clip._sum_of_squares).lower(jnp.zeros((8, dimension))).compile(options).as_text()
        assert text.count(" reduce(") == 2
        assert f"f32[8,{sums}]" in text


@pytest.mark.parametrize("options", OPTIONS)
def test_the_reciprocal_root_is_accurate(options: dict[str, bool]) -> None:
    """The compiler turns share / sqrt(x) into share * rsqrt(x); the proof allows it four units of roundoff."""
    root = jax.jit(jax.lax.rsqrt, compiler_options=options)
    for exponent in (127, 128, 3, 250):
        bits = np.arange(exponent << 23, (exponent + 1) << 23, 5, dtype=np.uint32)
        x = bits.view(np.float32)
        found = np.asarray(root(jnp.asarray(x))).astype(np.float64)
        assert np.max(np.abs(found * np.sqrt(x.astype(np.float64)) - 1)) <= 4 * clip.UNIT_ROUNDOFF
    assert np.asarray(root(jnp.asarray([0.0, 1e-45], jnp.float32)))[0] == np.inf


# --- an independent implementation --------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 7, 1000])
def test_agrees_with_jax_privacy(dimension: int) -> None:
    """Directions and norms to a thousandth: rounding moves a coordinate by half of a 65537th of the clip."""
    numbers = np.random.default_rng(dimension)
    rows = numbers.standard_normal((40, dimension)) * 10.0 ** numbers.uniform(-2, 2, (40, 1))
    rows = jnp.asarray(rows / math.sqrt(dimension), jnp.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # optax renamed what jax-privacy calls
        theirs, _ = jax.vmap(functools.partial(jax_privacy.clipping.clip_pytree, clip_norm=0.7))(rows)
    ours = np.asarray(to_integers(rows, 0.7, RADIUS)) * (0.7 / RADIUS)
    theirs = np.asarray(theirs).astype(np.float64)
    assert np.all(np.linalg.norm(ours - theirs, axis=1) <= 1e-3 * 0.7)
    clipped = np.linalg.norm(np.asarray(rows), axis=1) > 0.71
    assert 10 < clipped.sum() < 40
    lengths, norms = np.linalg.norm(ours[clipped], axis=1), np.linalg.norm(theirs[clipped], axis=1)
    assert np.allclose(lengths, norms, rtol=1e-3, atol=0)
    assert np.all(lengths <= 0.7)
    assert np.all(np.sum(ours[clipped] * theirs[clipped], axis=1) >= (1 - 1e-6) * lengths * norms)


# --- what rounding takes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [3, 100, 65_537, 1 << 22])
def test_shrink_leaves_room_for_rounding_and_float32(radius: int) -> None:
    for dimension in (1, 2, 100, 4096, 4097, 10**6):
        rounding = math.sqrt(dimension) / (2 * radius)
        if rounding >= clip.LARGEST_LOSS:
            continue
        additions = dimension if dimension <= 4096 else 2 * math.ceil(math.sqrt(dimension))
        share = clip.shrink(dimension, radius)
        assert share * (1 + (additions / 2 + 10) * 2.0**-24) + rounding <= 1
        assert share > 1 - rounding - (additions + 20) * 2.0**-24


def test_shrink_refuses_what_rounding_would_spoil() -> None:
    with pytest.raises(ValueError, match="too long for this noise"):
        clip.shrink(1000, 50)
    with pytest.raises(ValueError, match="32%"):
        clip.shrink(1000, 50)
    with pytest.raises(ValueError, match="too long for this noise"):
        clip.to_integers(jnp.ones((1, 1000)), 1.0, 50)
    edge = math.ceil(math.sqrt(10_000) / (2 * clip.LARGEST_LOSS))
    assert clip.shrink(10_000, edge + 1) >= 1 - clip.LARGEST_LOSS
    with pytest.raises(ValueError, match="too long"):
        clip.shrink(10_000, edge - 1)


# --- outer products: factors, sums of a chunk, and what they take -------------------------------------------

PAIRS = ((70, 60), (5000, 2))
PLAIN = 9


def a_factoring(radius: int, expected: float | None = 40.0) -> clip.Factoring:
    found = clip.factoring(PLAIN, PAIRS, radius, expected)
    assert found is not None
    return found


def exact_squares(scaled: clip.Scaled, fine: int) -> list[Fraction]:
    """Return each record's exact squared norm, in lattice units, from the numbers that are summed and multiplied."""
    squares = [Fraction(total) for total in squared_norms(scaled.plain)]
    for left, right in scaled.factors:
        for i, (one, other) in enumerate(zip(np.asarray(left), np.asarray(right), strict=True)):
            norms = [sum(Fraction(float(x)) ** 2 for x in side if x) for side in (one, other)]
            squares[i] += norms[0] * norms[1] / 4**fine
    return squares


def nasty_factors(seed: int, count: int, bound: float) -> tuple[np.ndarray, list[Factors]]:
    """Factors of all magnitudes whose products may be ordinary, huge or tiny, and some that are not finite."""
    numbers = np.random.default_rng(seed)

    def rows(width: int, size: np.ndarray) -> np.ndarray:
        kind = numbers.integers(0, 6, (count, 1))
        plain = numbers.standard_normal((count, width)) / math.sqrt(width)
        plain = np.where(kind == 1, 1 / math.sqrt(width), plain)
        plain = np.where(kind == 2, np.arange(width) == 0, plain)
        plain = np.where(kind == 3, plain * 10.0 ** numbers.uniform(-30, 0, (count, width)), plain)
        rough = numbers.choice([np.nan, np.inf, 3e38, 1e-45, 0.0, 1.0], (count, width))
        return np.where((kind == 4) & (numbers.random((count, 1)) < 0.5), rough, plain * size)

    with np.errstate(all="ignore"):
        scale = np.where(numbers.random((count, 1)) < 0.5, 1.0, 10.0 ** numbers.uniform(-36, 36, (count, 1)))
        factors = [
            Factors(
                jnp.asarray(rows(left, scale).astype(np.float32)),
                jnp.asarray(rows(right, bound / scale * 10.0 ** numbers.uniform(-3, 3, (count, 1))).astype(np.float32)),
            )
            for left, right in PAIRS
        ]
        return rows(PLAIN, np.full((count, 1), bound)).astype(np.float32), factors


@pytest.mark.parametrize(("radius", "bound"), [(65_537, 1.0), (1 << 20, 2.0**-60), (4000, 2.0**60), (65_537, 0.3)])
def test_no_record_with_factors_exceeds_its_share(radius: int, bound: float) -> None:
    factoring = a_factoring(radius)
    share = factoring.shrink(radius)
    program = jax.jit(lambda plain, factors: clip.to_factors(plain, factors, (1.0, 2.0), bound, radius, factoring))
    longest = Fraction(0)
    for seed in range(3):
        plain, factors = nasty_factors(seed, 60, bound)
        scaled = program(jnp.asarray(plain), factors)
        assert all(np.isfinite(side).all() for pair in scaled.factors for side in pair)
        longest = max(longest, *exact_squares(scaled, factoring.fine))
    # Before rounding, a record is at most (1 - what the rest may take) long; rounding of the plain part adds to it.
    apart = 1 - share * (1 + (5070 + 20) * clip.UNIT_ROUNDOFF)
    allowed = radius * (1 - apart) + math.sqrt(PLAIN) / 2
    assert longest <= Fraction(allowed) ** 2
    assert longest >= Fraction(0.999 * share * radius) ** 2


def test_a_factor_that_is_not_finite_makes_the_record_zero_and_no_other() -> None:
    factoring = a_factoring(RADIUS)
    program = jax.jit(lambda plain, factors: clip.to_factors(plain, factors, (1.0, 1.0), 1.0, RADIUS, factoring))
    numbers = np.random.default_rng(0)
    plain = jnp.asarray(numbers.standard_normal((6, PLAIN)), jnp.float32)
    factors = [Factors(*(jnp.asarray(numbers.standard_normal((6, n)), jnp.float32) for n in pair)) for pair in PAIRS]
    clean = program(plain, factors)
    for value in (np.nan, np.inf, -np.inf, 3e38):
        for leaf, side in ((0, 0), (0, 1), (1, 0), (1, 1)):
            spoilt = [list(pair) for pair in factors]
            spoilt[leaf][side] = spoilt[leaf][side].at[2, 1].set(value)
            found = program(plain, [Factors(*pair) for pair in spoilt])
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(clean), strict=True):
                assert not np.any(one[2])
                assert np.array_equal(np.delete(one, 2, 0), np.delete(other, 2, 0))
    # An infinity times zero is not a number: both sides are zero where a record is dropped.
    zeros = [Factors(jnp.zeros_like(left), right.at[2].set(jnp.inf)) for left, right in factors]
    assert not np.any(np.isnan(clip.product(program(plain, zeros).factors[0], factoring.block)))


def test_a_faint_factor_drops_its_leaf_only() -> None:
    factoring = a_factoring(RADIUS)
    plain = jnp.full((3, PLAIN), 0.1)
    factors = [Factors(jnp.full((3, left), 1e-3), jnp.full((3, right), 1e-2)) for left, right in PAIRS]
    factors[0] = Factors(factors[0].left * jnp.asarray([[1.0], [1e-20], [0.0]]), factors[0].right)
    found = clip.to_factors(plain, factors, (1.0, 1.0), 1.0, RADIUS, factoring)
    assert np.any(found.factors[0].left[0])
    assert not np.any(found.factors[0].right[1:])
    assert np.all(found.plain == found.plain[0, 0])
    assert np.all(np.asarray(found.factors[1].right) > 0)


@pytest.mark.parametrize("count", [1, 32, 160, 256])
@pytest.mark.parametrize("kind", ["normal", "one sign", "all magnitudes", "cancelling"])
def test_a_product_is_as_accurate_as_the_proof_says(count: int, kind: str) -> None:
    """Against float64, whose products of float32 numbers are exact and whose sums are off by 2**-53 a term."""
    numbers = np.random.default_rng(count)
    left, right = numbers.standard_normal((count, 120)), 1e4 * numbers.standard_normal((count, 90))
    if kind == "one sign":
        left, right = np.abs(left), np.abs(right)
    if kind == "all magnitudes":
        left, right = (
            left * 10.0 ** numbers.uniform(-8, 0, left.shape),
            right * 10.0 ** numbers.uniform(-8, 0, right.shape),
        )
    if kind == "cancelling":
        left[1::2], right[1::2] = left[: len(left[1::2]) * 2 : 2], -right[: len(right[1::2]) * 2 : 2]
    left, right = left.astype(np.float32), right.astype(np.float32)

    @jax.jit
    def total(left: jax.Array, right: jax.Array) -> jax.Array:
        # What ``product`` rounds; scaled up, so that rounding to integers is far below the error of float32.
        return clip.product(Factors(left, right * 2.0**6), block=count)

    found = np.asarray(total(jnp.asarray(left), jnp.asarray(right))) / 2.0**6
    exact = left.astype(np.float64).T @ right.astype(np.float64)
    terms = np.abs(left.astype(np.float64)).T @ np.abs(right.astype(np.float64))
    gamma = count * clip.UNIT_ROUNDOFF / (1 - count * clip.UNIT_ROUNDOFF)
    assert np.all(np.abs(found - exact) <= gamma * terms + 2.0**-7)
    if kind == "cancelling":
        return
    # Half precision, or the short formats that some processors multiply in, would be found out.
    short = (left.astype(jnp.bfloat16).astype(np.float64)).T @ right.astype(jnp.bfloat16).astype(np.float64)
    assert np.any(np.abs(short - exact) > gamma * terms + 2.0**-7)


def test_what_factoring_takes() -> None:
    """The bound, term by term, and that it is a few per cent where it should be."""
    radius = lattice.radius(1.5)
    vae = clip.factoring(1684, ((784, 400), (400, 50), (400, 50), (50, 400), (400, 784)), radius, 128.0)
    assert vae is not None
    assert (vae.chunk, vae.block, vae.tail, vae.chunks) == (152, 152, 128, 2)
    assert 0.98 < vae.shrink(radius) < 0.99
    size = 687_200
    gamma = 152 * 2.0**-24 / (1 - 152 * 2.0**-24)
    moved = math.sqrt(size) * (1 + 2 / 2**vae.fine) + radius * 2 * gamma * 152 * 2
    rounded = math.sqrt(1684) / 2
    assert vae.shrink(radius) * (1 + 1200 * 2.0**-24) * radius + math.hypot(moved, rounded) <= radius
    # int32 holds a group of chunks beside a low limb.
    assert vae.group * vae.chunk * (radius + 1) << vae.fine < 2**31 - 2**lattice.LIMB
    for expected in (None, 1.0, 20.0, 500.0, 4000.0):
        for sigma in (0.05, 1.0, 20.0):
            found = clip.factoring(100, ((300, 200),), lattice.radius(sigma), expected)
            if found is None:
                continue
            assert 1 - clip.FACTORED_LOSS <= found.shrink(lattice.radius(sigma)) < 1
            assert 0 <= found.fine <= lattice.LIMB
            assert found.group >= 1
            assert found.group * found.chunk * (lattice.radius(sigma) + 1) << found.fine < 2**31 - 2**lattice.LIMB
            assert expected is None or found.chunks * found.chunk >= expected
            assert found.tail == 0 or clip.SMALLEST_TAIL <= found.tail < found.chunk
            assert expected is not None or found.tail == 0
    # Where noise is so large that a unit is a large part of the clip, nothing is taken apart.
    assert clip.factoring(100, ((1000, 1000),), lattice.radius(30.0), 128.0) is None
    # Nor where subsets are so large that float32's error would cost too much.
    assert clip.factoring(100, ((300, 200),), lattice.radius(1.0), 1e6) is None
    # Kernels of convolutional networks are written out, single-column products or not: what records hold is cached.
    for plain, single_column in ((9216, ()), (0, ((1024, 1), (8192, 1)))):
        network = clip.factoring(plain, ((32, 512), *single_column), radius, 256.0)
        assert network is not None
        assert network.chunk == 64


def test_what_single_column_products_take() -> None:
    """Less than a hundredth of the clip, or they are written out; float32 adds up a block of records, not a chunk."""
    radius = lattice.radius(1.3)
    single = clip.factoring(0, ((100, 1),), radius, 256.0)
    assert single is not None
    assert (single.chunk, single.block, single.chunks) == (288, 96, 2)
    gamma = 98 * 2.0**-24 / (1 - 98 * 2.0**-24)
    moved = 10 * (1 + 6.5 / 2**single.fine) + radius * (2 * gamma * 288 * 2 + 2.0**-24)
    assert single.shrink(radius) * (1 + 100 * 2.0**-24) * radius + moved <= radius
    assert single.shrink(radius) > 0.99
    one_sum = single._replace(block=288)
    assert one_sum.shrink(radius) < single.shrink(radius) - 0.01, "a chunk in one sum would take two hundredths more"
    assert clip.factoring(0, ((60, 1),), radius, 256.0) is None, "a short contribution is written out"
    assert clip.factoring(0, ((100, 1),), radius, 4000.0) is None, "float32's error would cost too much"
    assert clip.factoring(0, ((100, 1),), radius, None) is None, "records beyond the chunks would be many"


@pytest.mark.parametrize("block", [1, 50, 96, 288])
def test_the_sum_of_single_column_products_is_as_accurate_as_the_proof_says(block: int) -> None:
    numbers = np.random.default_rng(block)
    left = numbers.standard_normal((288, 100)).astype(np.float32)
    right = (1e5 * np.abs(numbers.standard_normal((288, 1)))).astype(np.float32)
    found = jax.jit(lambda left, right: clip.product(Factors(left, right), block))(left, right)
    assert found.shape == (100, 1)
    exact = left.astype(np.float64).T @ right
    terms = np.abs(left.astype(np.float64)).T @ right
    gamma = block * clip.UNIT_ROUNDOFF / (1 - block * clip.UNIT_ROUNDOFF)
    assert np.all(np.abs(found - exact) <= gamma * terms + 0.5 * -(-288 // block))
