"""The lattice: tables against 80-digit arithmetic, exact sums, and noise that is a rounded Gaussian."""

from __future__ import annotations

import functools
import random as host_random
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from tacit.engine import alias, lattice, random
from tests.engine.test_alias import law

ONE = 1 << alias.BITS
HALF, SPREAD, STRIDE = lattice.HALF, lattice.SPREAD, lattice.STRIDE
TABLE_SHARE = mpmath.mpf(2) ** -114
"""What docs/proofs/lattice.md grants each table; two of them and the sum over the stride make NOISE_DISTANCE."""
THETA_SHARE = mpmath.mpf(2) ** -112


@functools.cache
def laws() -> tuple[list[int], list[int]]:
    """Return the exact laws of X1 and X2 in units of 2**-128, read back from the packed tables."""
    coarse, fine = map(law, lattice.tables())
    assert sum(coarse) == sum(fine) == ONE
    return coarse, fine


def upper(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(x / mpmath.sqrt(2)) / 2


def distance(law: list[int], wanted: list[mpmath.mpf], outside: mpmath.mpf) -> mpmath.mpf:
    """Total variation between a table's law and the wanted one, whose mass beyond the table is given."""
    return (sum(abs(mpmath.mpf(a) / ONE - b) for a, b in zip(law, wanted, strict=True)) + outside) / 2


# --- the tables ---------------------------------------------------------------------------------------------


def test_the_coarse_table_is_the_discrete_gaussian() -> None:
    with mpmath.workdps(80):
        ratio = mpmath.exp(-mpmath.mpf(1) / (2 * SPREAD**2))
        height = [ratio ** (k * k) for k in range(HALF + 1)]
        # The whole normaliser by its theta function, independent of the table's own sum.
        whole = SPREAD * mpmath.sqrt(2 * mpmath.pi) * (1 + 2 * mpmath.exp(-2 * mpmath.pi**2 * SPREAD**2))
        wanted = [height[abs(k)] / whole for k in range(-HALF, HALF)]
        found = distance(laws()[0], wanted, 1 - sum(wanted))
        assert abs(1 - sum(wanted)) < mpmath.mpf(2) ** -180
        assert found < TABLE_SHARE
        assert found > TABLE_SHARE / 16  # rounding 2**14 weights cannot be much better: the check is not vacuous


def test_the_fine_table_is_the_rounded_gaussian() -> None:
    with mpmath.workdps(80):
        edges = [upper(mpmath.mpf(2 * k - 1) / (2 * SPREAD)) for k in range(HALF + 2)]
        cells = [edges[k] - edges[k + 1] for k in range(HALF + 1)]
        wanted = [cells[abs(k)] for k in range(-HALF, HALF)]
        found = distance(laws()[1], wanted, 1 - sum(wanted))
        assert TABLE_SHARE / 16 < found < TABLE_SHARE


@pytest.mark.parametrize("k", [0, 1, 2, 511, 512, 3000, 8191, 8192])
def test_fixed_point_heights_and_cells(k: int) -> None:
    """The errors of 256-bit arithmetic are what the proof grants: 2**-225 and 2**-250."""
    with mpmath.workdps(110):
        height = mpmath.exp(-mpmath.mpf(k * k) / (2 * SPREAD**2))
        assert abs(mpmath.mpf(lattice.gaussian_heights()[k]) / 2**256 - height) < mpmath.mpf(2) ** -225
        exact = upper((k - mpmath.mpf(1) / 2) / SPREAD) - upper((k + mpmath.mpf(1) / 2) / SPREAD)
        cell = exact * SPREAD * mpmath.sqrt(2 * mpmath.pi)
        assert abs(mpmath.mpf(lattice.cell(k)) / 2**256 * height - cell) < mpmath.mpf(2) ** -250


# --- the distance from first principles ---------------------------------------------------------------------


def test_the_sum_over_the_stride_is_a_gaussian_up_to_a_theta_function() -> None:
    """The density of 256 X1 + Y over that of N(0, RHO**2), evaluated at many points and bounded by the theta sum."""
    with mpmath.workdps(80):
        assert lattice.RHO_SQUARED == STRIDE**2 * SPREAD**2 + SPREAD**2
        rho = mpmath.sqrt(lattice.RHO_SQUARED)
        t_squared = 1 / (mpmath.mpf(1) / SPREAD**2 + mpmath.mpf(STRIDE**2) / SPREAD**2)
        theta = sum(mpmath.exp(-2 * mpmath.pi**2 * n * n * t_squared) for n in range(1, 6))
        theta_of_spread = 2 * mpmath.exp(-2 * mpmath.pi**2 * SPREAD**2)
        whole = SPREAD * mpmath.sqrt(2 * mpmath.pi)
        assert theta + theta_of_spread < THETA_SHARE
        largest = mpmath.mpf(0)
        for x in [0, 1, 64, 128, mpmath.mpf("33.3"), 100_000, 131_073, mpmath.mpf("400000.25"), 900_000]:
            centre = round(float(x) / STRIDE)
            density = sum(
                mpmath.exp(-mpmath.mpf(k * k) / (2 * SPREAD**2) - (x - STRIDE * k) ** 2 / (2 * mpmath.mpf(SPREAD) ** 2))
                for k in range(centre - 60, centre + 61)
            ) / (whole * whole)
            ratio = density / (mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * rho**2)) / (rho * mpmath.sqrt(2 * mpmath.pi)))
            largest = max(largest, abs(ratio - 1))
            assert abs(ratio - 1) <= 2 * theta * (1 + mpmath.mpf(2) ** -60)
        assert largest > theta  # the bound is reached at a multiple of the stride
        total = theta + theta_of_spread + 2 * TABLE_SHARE
        assert total < lattice.NOISE_DISTANCE
        assert total > lattice.NOISE_DISTANCE / 8


def test_single_probabilities_of_the_noise() -> None:
    """256 X1 + X2 from the very table integers against the exact rounded Gaussian, at 150 values."""
    first, second = laws()
    values = [0, 1, -1, 128, 255, -256, 131_073, *host_random.Random(3).sample(range(-900_000, 900_000), 143)]
    with mpmath.workdps(80):
        rho = mpmath.sqrt(lattice.RHO_SQUARED)
        for value in values:
            mass = 0
            for k in range(-HALF, HALF):
                rest = value - STRIDE * k
                if -HALF <= rest < HALF:
                    mass += first[k + HALF] * second[rest + HALF]
            found = mpmath.mpf(mass) / ONE**2
            size = abs(mpmath.mpf(value))
            exact = upper((size - mpmath.mpf(1) / 2) / rho) - upper((size + mpmath.mpf(1) / 2) / rho)
            # The theta function is relative, a unit of each of 64 pairs of weights absolute; the central weights, which
            # took the remainders of 2**14 roundings, have a part in values below HALF and in multiples of the stride.
            central = abs(value) <= HALF or value % STRIDE == 0
            assert abs(found - exact) <= exact * 2 * THETA_SHARE + mpmath.mpf(2) ** (-123 if central else -131), value


# --- the radius ---------------------------------------------------------------------------------------------


def test_the_radius_is_the_largest_safe_one() -> None:
    numbers = host_random.Random(1)
    sigmas = [10 ** numbers.uniform(-1.4, 5.1) for _ in range(3000)] + [1.0, 0.5, 2.0, 256.0, 1 / 3, 131072.0]
    for sigma in sigmas:
        largest = lattice.radius(sigma)
        exact = Fraction(sigma)
        assert (largest * exact) ** 2 <= lattice.RHO_SQUARED < ((largest + 1) * exact) ** 2


def test_the_radius_next_to_an_exact_multiple() -> None:
    """Where RHO / sigma is nearly an integer, a float division would sometimes round to the unsafe side."""
    for m in [1, 3, 1000, 65537, 100_000, lattice.LARGEST_RADIUS]:
        sigma = lattice.RHO / m
        for candidate in (np.nextafter(sigma, 0), sigma, np.nextafter(sigma, np.inf)):
            exact = Fraction(float(candidate))
            inside = exact**2 * m * m <= lattice.RHO_SQUARED
            if m == 1 and not inside:
                with pytest.raises(ValueError, match="noise multiplier"):
                    lattice.radius(float(candidate))
            else:
                assert lattice.radius(float(candidate)) == (m if inside else m - 1)


@pytest.mark.parametrize("sigma", [0.031, 1e-5, 131_074.0, 1e9])
def test_a_noise_multiplier_outside_the_range_is_refused(sigma: float) -> None:
    with pytest.raises(ValueError, match="noise multiplier"):
        lattice.radius(sigma)


# --- sums ---------------------------------------------------------------------------------------------------

LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1


def integers(total: lattice.Sum) -> list[int]:
    high, low = np.asarray(total.high).tolist(), np.asarray(total.low).tolist()
    assert all(0 <= value < 1 << lattice.LIMB for value in low)
    return [(a << lattice.LIMB) + b for a, b in zip(high, low, strict=True)]


def test_sums_are_exact_far_beyond_32_bits() -> None:
    numbers = host_random.Random(2)
    edges = [LOWEST, LOWEST + 1, -65537, -65536, -65535, -1, 0, 1, 65535, 65536, 65537, HIGHEST]
    rows = [[numbers.choice([*edges, numbers.randint(LOWEST, HIGHEST)]) for _ in range(20)] for _ in range(300)]
    for row in rows:
        row[:4] = [HIGHEST, LOWEST, 65535, -1]
    add = jax.jit(lattice.add)
    total, expected = lattice.zero(20), [0] * 20
    for row in rows:
        total = add(total, jnp.asarray(row, jnp.int32))
        expected = [a + b for a, b in zip(expected, row, strict=True)]
        assert integers(total) == expected
    assert expected[0] > 1 << 39
    assert expected[1] < -(1 << 39)


def test_carrying_over_keeps_the_sum_and_gives_its_form() -> None:
    low = np.asarray([0, 1, -1, 2**16 - 1, 2**16, -(2**16), -(2**16) - 1, 2**31 - 1, -(2**31)], np.int64)
    high = np.asarray([0, 5, 0, -3, 7, 1, -1, 2**20, -(2**20)], np.int64)
    found = lattice.carry(lattice.Sum(jnp.asarray(high, jnp.int32), jnp.asarray(low, jnp.int32)))
    assert np.array_equal(np.asarray(found.high, np.int64) * 2**16 + np.asarray(found.low), high * 2**16 + low)
    assert np.all((np.asarray(found.low) >= 0) & (np.asarray(found.low) < 2**16))


def test_sums_are_exact_to_47_bits_and_wrap_like_integers_beyond() -> None:
    add = jax.jit(lattice.add)
    largest, smallest = (1 << 47) - 1, -(1 << 47)
    for start, value in [
        (largest, -1),
        (largest - 5, 5),
        (smallest, 1),
        (smallest + 7, -7),
        (largest, 1),
        (smallest, -1),
    ]:
        total = lattice.Sum(
            jnp.asarray([start >> lattice.LIMB], jnp.int32), jnp.asarray([start % (1 << lattice.LIMB)], jnp.int32)
        )
        exact = start + value
        assert integers(add(total, jnp.asarray([value], jnp.int32))) == [(exact + (1 << 47)) % (1 << 48) - (1 << 47)]


def test_numbers_are_the_sums_correctly_rounded() -> None:
    numbers = host_random.Random(3)
    values = [0, 1, -1, 65535, 65536, -65536, 1 << 24, (1 << 24) + 1, -(1 << 24) - 1, (1 << 39) - 1, -(1 << 39)]
    values += [numbers.randint(-(1 << b), 1 << b) for b in range(1, 40) for _ in range(20)]
    total = lattice.Sum(
        jnp.asarray([v >> lattice.LIMB for v in values], jnp.int32),
        jnp.asarray([v % (1 << lattice.LIMB) for v in values], jnp.int32),
    )
    assert integers(total) == values
    for unit in (1.0, 0.25):
        found = np.asarray(jax.jit(lattice.to_float, static_argnums=1)(total, unit))
        assert np.array_equal(found, np.asarray([v * unit for v in values], np.float64).astype(np.float32))


# --- the noise ----------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=1)
def noise(keys: jax.Array, dimension: int) -> jax.Array:
    """Draw as the wall does: words from one key of a step, the bits for ties from another."""
    words = jax.vmap(lambda key: jax.random.bits(key, (2 * dimension,), jnp.uint32))(random.fold_in(keys, jnp.int32(0)))
    return lattice.noise([dimension], alias.Words(words), random.fold_in(keys, jnp.int32(1)))[0]


@functools.cache
def million() -> np.ndarray:
    return np.asarray(noise(jax.random.split(random.fixed(20), 10), 100_000)).reshape(-1).astype(np.int64)


def test_moments_of_the_noise() -> None:
    """Mean, variance, skewness, kurtosis as z scores; false-alarm rate 4e-6."""
    drawn = million() / np.sqrt(lattice.RHO_SQUARED + 1 / 12)
    count = len(drawn)
    bound = stats.norm.isf(0.5e-6) / np.sqrt(count)
    for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(np.mean(drawn**power) - mean) < bound * np.sqrt(variance), power


def test_the_noise_is_the_rounded_gaussian() -> None:
    """Kolmogorov-Smirnov and chi-square over 500 cells of integers at 10**6 draws; false-alarm rate 2e-6."""
    drawn = million()
    # Ties are spread evenly inside a cell: the law is then continuous, and within 1e-11 of the Gaussian.
    spread = drawn + np.random.default_rng(1).uniform(-0.5, 0.5, len(drawn))
    assert stats.kstest(spread / lattice.RHO, "norm").pvalue > 1e-6
    edges = np.unique(np.round(stats.norm.ppf(np.arange(1, 500) / 500) * lattice.RHO)) + 0.5
    masses = np.diff(stats.norm.cdf(edges / lattice.RHO), prepend=0, append=1)
    counts = np.bincount(np.searchsorted(edges, drawn), minlength=len(masses))
    assert stats.chisquare(counts, masses * len(drawn)).pvalue > 1e-6


def test_every_residue_of_the_stride_is_as_likely() -> None:
    """The place where the two tables meet: chi-square over 256 residues, and over pairs; false-alarm rate 2e-6."""
    drawn = million()
    counts = np.bincount(drawn % STRIDE, minlength=STRIDE)
    assert stats.chisquare(counts).pvalue > 1e-6
    pairs = np.bincount((drawn[::2] % 64) * 64 + drawn[1::2] % 64, minlength=4096)
    assert stats.chisquare(pairs).pvalue > 1e-6


def test_noise_belongs_to_its_step() -> None:
    """Drawing steps in other groups gives the same bits; other steps give others."""
    keys = jax.random.split(random.fixed(21), 4)
    together = np.asarray(noise(keys, 1000))
    assert np.array_equal(np.concatenate([noise(keys[:2], 1000), noise(keys[2:], 1000)]), together)
    assert together.dtype == np.int32
    assert np.abs(together).max() <= (STRIDE + 1) * HALF
    correlation = np.corrcoef(together)[np.triu_indices(4, 1)]
    assert np.all(np.abs(correlation) < stats.norm.isf(1e-7) / np.sqrt(1000))  # false-alarm rate 1.2e-6


@pytest.mark.slow
def test_a_hundred_million_draws() -> None:
    """Chi-square over 2000 cells and 256 residues, Kolmogorov at the cells' edges; false-alarm rate 3e-6 at most."""
    edges = np.unique(np.round(stats.norm.ppf(np.arange(1, 2000) / 2000) * lattice.RHO)) + 0.5
    masses = np.diff(stats.norm.cdf(edges / lattice.RHO), prepend=0, append=1)
    cells, residues, count = np.zeros(len(masses), int), np.zeros(STRIDE, int), 0
    for keys in jax.random.split(random.fixed(22), (100, 10)):
        drawn = np.asarray(noise(keys, 100_000)).reshape(-1)
        cells += np.bincount(np.searchsorted(edges, drawn), minlength=len(masses))
        residues += np.bincount(drawn % STRIDE, minlength=STRIDE)
        count += len(drawn)
    assert count == 10**8
    assert stats.chisquare(cells, masses * count).pvalue > 1e-6
    assert stats.chisquare(residues).pvalue > 1e-6
    # The largest distance of the two distribution functions over 2000 points is at most that over all.
    furthest = np.abs(np.cumsum(cells) / count - np.cumsum(masses)).max()
    assert stats.kstwobign.sf(furthest * np.sqrt(count)) > 1e-6


@pytest.mark.parametrize("fine", [0, 1, 3, 7, 16])
def test_coarse_sums_are_the_fine_ones_rounded_halves_up(fine: int) -> None:
    numbers = np.random.default_rng(fine)
    wide = np.concatenate([numbers.integers(-(2**46), 2**46, 1000), numbers.integers(-70_000, 70_000, 1000)])
    halves = (np.arange(-20, 20) << fine) + ((1 << fine) >> 1)
    wide = np.concatenate([wide, halves, halves - 1, halves + 1])
    total = lattice.Sum(jnp.asarray(wide >> 16, jnp.int32), jnp.asarray(wide & 0xFFFF, jnp.int32))
    found = lattice.coarsen(total, fine)
    assert np.all((np.asarray(found.low) >= 0) & (np.asarray(found.low) < 1 << 16))
    exact = [(int(value) + ((1 << fine) >> 1)) >> fine for value in wide]
    assert [(int(h) << 16) + int(low) for h, low in zip(found.high, found.low, strict=True)] == exact


@pytest.mark.parametrize("fine", [0, 3, 7])
def test_a_fine_sum_that_wrapped_is_still_the_sum_modulo_a_power_of_two(fine: int) -> None:
    """Rounded, noise added, and reduced, it is what the true sum would give: post-processing of sum plus noise."""
    numbers = np.random.default_rng(fine)
    true = [int(value) * 2**20 + int(rest) for value, rest in numbers.integers(-(2**40), 2**40, (500, 2))]
    noise = numbers.integers(-(2**21), 2**21, 500)
    wrapped = [(value + 2**47) % 2**48 - 2**47 for value in true]
    high, low = ([v >> 16 for v in wrapped], [v & 0xFFFF for v in wrapped])
    total = lattice.Sum(jnp.asarray(high, jnp.int32), jnp.asarray(low, jnp.int32))
    found = lattice.wrap(lattice.add(lattice.coarsen(total, fine), jnp.asarray(noise, jnp.int32)), fine)
    for top, bottom, value, drawn in zip(found.high, found.low, true, noise, strict=True):
        wanted = ((value + ((1 << fine) >> 1)) >> fine) + int(drawn)
        assert ((int(top) << 16) + int(bottom) - wanted) % 2 ** (48 - fine) == 0
        assert abs(int(top)) <= 2 ** (31 - fine)


@pytest.mark.parametrize("fine", [0, 1, 5, 16])
@pytest.mark.parametrize("wide", [True, False])
def test_noise_before_the_sum_is_noise_after_it(fine: int, wide: bool) -> None:
    """Begun in fine units with the noise, and rounded; with one limb or two, and far beyond what they hold."""
    numbers = host_random.Random(fine)
    bits = (48 if wide else 32) - fine
    sums = [numbers.randrange(-(1 << reach), 1 << reach) for reach in (8, 20, 31, 40, 47) for _ in range(40)]
    noise = [numbers.randint(-lattice.LARGEST_NOISE, lattice.LARGEST_NOISE - lattice.STRIDE - 1) for _ in sums]
    exact = [(total + (1 << fine >> 1) >> fine) + value for total, value in zip(sums, noise, strict=True)]
    begun = [total + (value << fine) for total, value in zip(sums, noise, strict=True)]
    low = np.asarray([value % (1 << 16) if wide else value % (1 << 32) for value in begun], np.uint32).astype(np.int32)
    high = np.asarray([(value >> 16) % (1 << 32) for value in begun], np.uint32).astype(np.int32)
    total = lattice.Sum(jnp.asarray(high) if wide else None, jnp.asarray(low))
    found = lattice.wrap(lattice.coarsen(lattice.carry(total), fine), fine)
    values = integers(found) if wide else np.asarray(found.low).tolist()
    assert all((value - wanted) % (1 << bits) == 0 for value, wanted in zip(values, exact, strict=True))
    assert all(-(1 << bits) <= 2 * value < 1 << bits for value in values)
