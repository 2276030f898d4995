"""The float32 support attack: it proves membership from one released number of a naive release, and fails on ours.

``jax.random.normal`` in float32 has at most 2^23 values. Whoever lists them knows every number that a release without
the record can be; any other number proves that the record is there. The best attacker that (ε, δ) allows would, at no
false positives, succeed with probability δ.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.accounting.mechanism import Mechanism
from tacit.engine import lattice, random
from tacit.engine.runner import Runner
from tacit.types import Method
from tacit.wall.data import PrivateData

RUNS = 20_000
MECHANISM = Mechanism(rate=1.0, clip=1.0, noise_multiplier=10.0, steps=RUNS)
ONE_STEP = Mechanism(rate=1.0, clip=1.0, noise_multiplier=10.0, steps=1)


@jax.jit
def naive(total: jax.Array, key: jax.Array) -> jax.Array:
    return total + jnp.float32(MECHANISM.noise_std) * jax.random.normal(key, (RUNS,), jnp.float32)


@pytest.fixture(scope="module")
def naive_support() -> np.ndarray:
    """List every number that the naive release of an empty sum can be."""

    @jax.jit
    def every() -> jax.Array:
        # What jax.random.normal does with its 23 random bits.
        bits = jnp.arange(1 << 23, dtype=jnp.uint32) | jnp.uint32(0x3F800000)
        unit = jax.lax.bitcast_convert_type(bits, jnp.float32) - jnp.float32(1)
        low = np.nextafter(np.float32(-1), np.float32(0), dtype=np.float32)
        uniform = jnp.maximum(low, unit * (jnp.float32(1) - low) + low)
        return jnp.float32(MECHANISM.noise_std) * (np.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform))

    return np.unique(np.asarray(every()))


@pytest.fixture(scope="module")
def released(open_runner: Callable[..., Runner], recorder: Callable[[int], Method]) -> dict[bool, np.ndarray]:
    """Release through the real wall, with the record (True) and without."""
    found = {}
    for inside in (True, False):
        method = recorder(RUNS)
        data = PrivateData(np.array([[0.0]] + [[1.0]] * inside, np.float32), size=1)
        runner = open_runner(method, data, MECHANISM, seed=200 + inside)
        found[inside] = np.asarray(runner.advance(jax.jit(method.init)(jax.random.key(0)), 0, RUNS)[1])
    return found


def test_the_attack_proves_membership_on_a_naive_release(naive_support: np.ndarray) -> None:
    inside = np.asarray(naive(jnp.float32(1), jax.random.key(1)))
    outside = np.asarray(naive(jnp.float32(0), jax.random.key(2)))
    assert np.isin(outside, naive_support).all()  # no false positive, so whoever is accused is there
    success = np.mean(~np.isin(inside, naive_support))
    allowed = ONE_STEP.true_positive_rate(0.0)
    print(f"naive release: membership proved with probability {success:.3f}; allowed {allowed:.2g}")
    assert success > 0.5
    assert allowed < 1e-6


def test_our_release_has_one_support_with_and_without_the_record(released: dict[bool, np.ndarray]) -> None:
    # The same attack on ours: list what a release without the record can be. It is every lattice point, so nobody is
    # ever accused. Exact, no false alarm.
    unit = np.float32(MECHANISM.clip / lattice.radius(MECHANISM.noise_multiplier))
    reach = 8 * lattice.HALF * lattice.STRIDE // 10
    support = np.arange(-reach, reach + 1).astype(np.float32) * unit
    assert np.isin(released[False], support).all()
    assert np.isin(released[True], support).all()


def test_the_naive_support_tells_nothing_about_our_release(
    released: dict[bool, np.ndarray], naive_support: np.ndarray
) -> None:
    # Accuse whoever's release is not among the naive values: a two-sided exact test of equal rates, false alarm 0.001.
    # The record itself may move the rate by the mechanism's advantage, 0.04, and far less for so scattered a set.
    accused = [int(np.sum(~np.isin(released[inside], naive_support))) for inside in (True, False)]
    table = [accused, [RUNS - count for count in accused]]
    assert min(accused) > 0
    assert stats.fisher_exact(table).pvalue > 0.001


@pytest.mark.parametrize("modulus", [2, 16, 251])
def test_the_low_bits_of_our_release_tell_nothing(released: dict[bool, np.ndarray], modulus: int) -> None:
    # The lattice residues with and without the record have one law (chi-squared of homogeneity), and it is uniform:
    # three moduli x three tests x 0.0003 = 0.3% false alarms.
    unit = MECHANISM.clip / lattice.radius(MECHANISM.noise_multiplier)
    residues = [np.rint(released[inside].astype(np.float64) / unit).astype(int) % modulus for inside in (True, False)]
    counts = np.array([np.bincount(values, minlength=modulus) for values in residues])
    assert stats.chi2_contingency(counts).pvalue > 0.0003
    for row in counts:
        assert stats.chisquare(row).pvalue > 0.0003


# --- least-significant bits, sums and seeds -------------------------------------------------------------------

MANY = 60_000
NEAR = Mechanism(rate=1.0, clip=1.0, noise_multiplier=1.1, steps=MANY)
"""Not 1, at which the lattice's unit is a power of two and all low bits are zero."""


def in_window(released: np.ndarray) -> np.ndarray:
    """Keep numbers of one binary exponent: what their low bits tell is then not told by their size."""
    return released[(np.abs(released) >= 0.25) & (np.abs(released) < 0.5)]


def advantage(inside: np.ndarray, outside: np.ndarray) -> tuple[float, float]:
    """Learn on one half which low bits speak for the record, attack the other half; give advantage and its error."""
    inside, outside = (in_window(values).view(np.uint32) & 0xFF for values in (inside, outside))
    shares = [np.bincount(values[::2], minlength=256) / len(values[::2]) for values in (inside, outside)]
    accused = shares[0] > shares[1]
    rates = [accused[values[1::2]] for values in (inside, outside)]
    error = np.sqrt(sum(rate.var() / len(rate) for rate in rates))
    return float(rates[0].mean() - rates[1].mean()), float(error)


def test_the_low_bits_of_a_naive_release_give_the_record_away_and_ours_do_not(
    open_runner: Callable[..., Runner], recorder: Callable[[int], Method]
) -> None:
    # One plus noise below one half has lost the bits that the noise alone would have: an attack on precision.
    std = np.float32(NEAR.noise_std)
    noise = [np.asarray(std * jax.random.normal(jax.random.key(seed), (MANY,), jnp.float32)) for seed in (3, 4)]
    naive, _ = advantage(noise[0] + np.float32(1), noise[1])
    ours = []
    for inside in (True, False):
        method = recorder(MANY)
        data = PrivateData(np.array([[0.0]] + [[1.0]] * inside, np.float32), size=1)
        runner = open_runner(method, data, NEAR, seed=300 + inside)
        ours.append(np.asarray(runner.advance(jax.jit(method.init)(jax.random.key(0)), 0, MANY)[1]))
    lattice_advantage, error = advantage(*ours)
    print(f"low bits: advantage {naive:.3f} naive, {lattice_advantage:.4f} +- {error:.4f} on the lattice")
    assert naive > 0.1
    assert abs(lattice_advantage) < 4 * error  # false alarm 6e-5, and the seeds are fixed


def test_a_float_sum_moves_by_twice_the_clip_and_ours_by_the_record() -> None:
    # Two is a tie between neighbouring floats at 2^25 + 4: the sum jumps by four. That sums of ours never move by more
    # than the radius, in any order, is in test_neighbours.py.
    others, record = np.float32(2**25 + 4), np.float32(2)
    assert (others + record) - others == 2 * record
    total = lattice.add(lattice.zero(1), jnp.asarray([2**25 + 4], jnp.int32))
    moved = lattice.add(total, jnp.asarray([2], jnp.int32))
    assert int(moved.high[0] - total.high[0]) * (1 << lattice.LIMB) + int(moved.low[0] - total.low[0]) == 2


def test_a_small_seed_is_found_by_trying_all_and_a_secret_of_ours_is_none_of_them(
    open_runner: Callable[..., Runner], recorder: Callable[[int], Method]
) -> None:
    def noises(seed: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.key(seed), (2,), jnp.float32)

    seeds = jnp.arange(1 << 12)
    every = np.asarray(jax.jit(jax.vmap(noises))(seeds))
    hidden = np.asarray(noises(jnp.int32(2741)))
    assert np.flatnonzero((every == hidden).all(1)).tolist() == [2741]
    runner = open_runner(recorder(1), PrivateData(np.zeros((3, 1), np.float32), size=3), ONE_STEP, simulation=False)
    secret = random.fresh()
    runner.rekey(secret)
    keys = jax.jit(jax.vmap(lambda seed: jax.random.key_data(jax.random.key(seed, impl=random.CHACHA20))))(seeds)
    known = {row.tobytes() for row in np.asarray(keys)}
    assert random.to_bytes(random.fixed(7)) in known
    assert not {random.to_bytes(key) for key in (secret, runner._secret, runner._stream)} & known
