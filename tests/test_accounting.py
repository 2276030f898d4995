"""The accountant: published values, an independent accountant, exact formulas, and what it refuses."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import mpmath
import numpy as np
import pytest
from scipy import special

from tacit import accounting

# (noise multiplier, rate, steps, δ), the bracket of the true ε, the replace-one ε of a fine PLD
PUBLISHED = [
    ((1.3, 256 / 60000, 3515, 1e-5), (0.8628, 0.8645), 1.5555),
    ((1.2721, 256 / 60000, 3515, 1e-5), (0.8920, 0.8938), 1.5979),
    ((1.5, 128 / 60000, 9375, 1 / 60000), (0.5309, 0.5356), 1.0127),
    ((1.5, 128 / 50000, 7812, 1 / 50000), (0.5806, 0.5845), 1.1057),
    ((0.91139, 128 / 60000, 9375, 1 / 60000), (1.2195, 1.2196), None),
    ((10.0, 1.0, 200, 1 / 250), (4.1939, 4.1945), None),
]

# (ε, δ, rate, steps) and the noise multiplier
CALIBRATED = [
    ((1.0, 1e-5, 256 / 60000, 3516), 1.1855),
    ((0.5, 1 / 60000, 128 / 60000, 9375), 1.5779),
    ((1.0, 1e-4, 10 / 400000, 16000), 0.402),
    ((1.0, 1e-5, 1 / 1000, 40 * 1000), 0.998),
    ((1.0, 1e-5, 1 / 1000, 100 * 1000), 1.366),
    ((1.0, 1e-5, 1 / 7373, 40 * 7373), 0.633),
    ((2.0, 1 / 500, 0.01, 100_000), 4.334),
    ((4.0, 1 / 500, 0.01, 100_000), 2.564),
    ((8.0, 1 / 500, 0.01, 100_000), 1.607),
    ((1.0, 1e-5, 1.0, 1), 3.731),
]

BNN = (256 / 60000, 1.3, 3515)


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """δ of the Gaussian mechanism in 50 digits."""
    with mpmath.workdps(50):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize(("recipe", "true", "replaced"), PUBLISHED)
def test_epsilon_of_published_runs(recipe, true, replaced):
    noise, rate, steps, delta = recipe
    found = accounting.epsilon(rate, noise, steps, delta)
    assert true[0] <= found <= true[1] * 1.001
    if replaced is not None:
        # The published figure is an upper bound rounded to four digits.
        found = accounting.epsilon(rate, noise, steps, delta, "replace-one")
        assert replaced * 0.999 <= found <= replaced * 1.001


def test_replacing_doubles_the_sensitivity():
    assert accounting.epsilon(1.0, 4.0, 1, 1e-5, "replace-one") == pytest.approx(1.993, abs=5e-4)
    # The trap: dp-accounting's Rényi accountant says 1.013 here.
    assert accounting.renyi_epsilon(1.0, 4.0, 1, 1e-5, "replace-one") > 1.993


@pytest.mark.parametrize(("asked", "noise"), CALIBRATED)
def test_noise_of_published_calibrations(asked, noise):
    epsilon, delta, rate, steps = asked
    found = accounting.noise_multiplier(epsilon, delta, rate, steps)
    assert found == pytest.approx(noise, rel=1.5e-3)
    assert 0.98 * epsilon <= accounting.epsilon(rate, found, steps, delta) <= epsilon


def test_calibration_holds_by_a_second_accountant():
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    random = np.random.default_rng(20240601)
    for case in range(10):
        rate = float(10 ** random.uniform(-3, -0.3))
        steps = int(10 ** random.uniform(0, 3.5))
        delta = float(10 ** random.uniform(-8, -4))
        adjacency = ("add-remove", "replace-one")[case % 2]
        noise = accounting.noise_multiplier(1.0, delta, rate, steps, adjacency)
        certified = accounting.epsilon(rate, noise, steps, delta, adjacency)
        assert 0.98 <= certified <= 1.0
        relation = dp_accounting.NeighboringRelation
        judge = PLDAccountant(
            relation.ADD_OR_REMOVE_ONE if adjacency == "add-remove" else relation.REPLACE_ONE,
            value_discretization_interval=2e-4 if steps < 100 else 5e-5,
        )
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        judge.compose(dp_accounting.SelfComposedDpEvent(step, steps))
        # Both are upper bounds; each is within a fraction of a percent of the truth.
        assert judge.get_epsilon(delta) == pytest.approx(certified, rel=3e-3)
        assert judge.get_epsilon(delta) >= 0.98


def test_subsets_of_a_fixed_size_cost_more():
    # FACTS 1: "5.09 tight" and "3.620 under substitution", against .865 and 1.578 by Poisson subsets.
    assert accounting.epsilon(256 / 60000, 1.3, 3515, 1e-5, "replace-one", True) == pytest.approx(5.09, abs=5e-3)
    setting = (0.5, 1 / 60000, 128 / 60000, 9375, "replace-one", True)
    noise = accounting.noise_multiplier(*setting)
    assert noise == pytest.approx(3.620, rel=1e-3)
    assert accounting.delta(128 / 60000, noise, 9375, 0.5, "replace-one", True) <= 1 / 60000
    with pytest.raises(ValueError, match="adjacency='replace-one'"):
        accounting.epsilon(0.1, 1.0, 10, 1e-5, fixed_size=True)


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.02, 2.0, 400), (0.3, 2.5, 4), (0.001, 0.9, 2000), (0.5, 9, 50)]
)
def test_subsets_of_a_fixed_size_by_a_second_accountant(rate, noise, steps):
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    found = accounting.epsilon(rate, noise, steps, 1e-5, "replace-one", True)
    # Between one direction only, and records of twice the norm of which one is exchanged in Poisson subsets.
    low, high = (
        privacy_loss_distribution.from_gaussian_mechanism(noise / 2, sampling_prob=rate, neighboring_relation=relation)
        .self_compose(steps)
        .get_epsilon_for_delta(1e-5)
        for relation in (
            dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
            dp_accounting.NeighboringRelation.REPLACE_ONE,
        )
    )
    assert 0.999 * low <= found <= 1.001 * high
    assert found >= accounting.epsilon(rate, noise, steps, 1e-5, "replace-one")


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.3, 1.0, 4.0, 9.0])
def test_full_data_delta_is_exact_and_never_below(epsilon, mu):
    exact = exact_delta(epsilon, mu)
    found = accounting.delta(1.0, 1 / mu, 1, epsilon)
    if exact > 1e-290:
        assert exact <= found <= exact * (1 + 1e-11)
    assert accounting.delta(1.0, 2 / mu, 1, epsilon, "replace-one") == pytest.approx(found, rel=1e-11)


@pytest.mark.parametrize("adjacency", accounting.ADJACENCIES)
def test_sampling_at_nearly_full_rate_bounds_the_gaussian(adjacency):
    # The grid path, forced by a rate just below 1, against the exact formula.
    for noise, steps in [(20.0, 30), (2.0, 1), (0.8, 3)]:
        exact = accounting.epsilon(1.0, noise, steps, 1e-6, adjacency)
        found = accounting.epsilon(1 - 1e-9, noise, steps, 1e-6, adjacency)
        assert exact * (1 - 1e-6) <= found <= exact * 1.003


@pytest.mark.parametrize(
    ("rate", "noise"), [(0.3, 1.0), (0.01, 0.6), (1e-4, 0.4), (1e-6, 0.3), (0.01, 200.0), (0.999, 1.0)]
)
@pytest.mark.parametrize("direction", ["remove", "add", "replace"])
def test_one_step_formula_against_its_definition(rate, noise, direction):
    with mpmath.workdps(40):
        q, s = mpmath.mpf(rate), mpmath.mpf(noise)

        def mixture(centre):
            return lambda y: (1 - q) * mpmath.npdf(y, 0, s) + q * mpmath.npdf(y, centre, s)

        def masses(centre):
            return lambda y: (1 - q) * mpmath.ncdf(-y / s) + q * mpmath.ncdf((centre - y) / s)

        upper = {"remove": 1, "add": 0, "replace": 1}[direction]
        lower = {"remove": 0, "add": 1, "replace": -1}[direction]
        for y in (0.6, 1.0, 1 + 3 * noise):
            y = mpmath.mpf(-y if direction == "add" else y)
            loss = mpmath.log(mixture(upper)(y) / mixture(lower)(y))
            sides = masses(upper)(y), masses(lower)(y)
            if direction == "add":
                sides = 1 - sides[0], 1 - sides[1]
            expected = sides[0] - mpmath.exp(loss) * sides[1]
            found = accounting._step_delta(np.array([float(loss)]), rate, noise, direction)[0]
            # The loss is rounded to a float, which moves δ by at most the upper side's mass times that.
            assert abs(found - expected) <= 1e-9 * expected + 2e-16 * sides[0]


def test_composition_loses_less_than_its_slack():
    from scipy import fft

    for rate, noise, steps in [(256 / 60000, 1.3, 3515), (0.01, 4.334, 100_000)]:
        low, high = accounting._loss_range(rate, noise, "remove", 1e-15 / steps)
        spacing = (high - low) / 1000
        first, masses, _ = accounting._connect_dots(rate, noise, "remove", low, high, spacing)
        assert masses.sum() == pytest.approx(1.0, abs=1e-14)
        size = 2**18
        transform = fft.fft(masses.astype(np.longdouble), size)
        power, base, left = np.ones_like(transform), transform, steps
        while left:
            power = power * base if left & 1 else power
            base, left = base * base, left >> 1
        precise = np.real(fft.ifft(power))
        plain = np.real(fft.ifft(fft.fft(masses, size) ** steps))
        assert abs(np.cumsum(plain - precise)).max() < accounting.rounding_slack(steps) / 4
        assert first < 0


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(256 / 60000, 1.3, 3515), (0.01, 4.334, 100_000), (1e-4, 1.36, 10**7)]
)
def test_powers_by_squares_lose_less_than_the_slack(rate, noise, steps):
    from scipy import fft

    low, high = accounting._loss_range(rate, noise, "remove", 1e-15 / steps)
    masses = accounting._connect_dots(rate, noise, "remove", low, high, (high - low) / 1000)[1]
    first, last = accounting._reach(masses, steps)
    found = accounting._self_convolved(masses, steps, first, last)
    size = fft.next_fast_len(last - first + 1, real=True)
    base, left = fft.rfft(masses.astype(np.longdouble), size), steps
    power = np.ones_like(base)
    while left:
        power = power * base if left & 1 else power
        base, left = base * base, left >> 1
    precise = np.roll(fft.irfft(power, size), -first)[: last - first + 1]
    assert abs(np.cumsum(found - precise)).max() < accounting.rounding_slack(steps) / 4
    # A Gaussian leaves 5e-16 beyond eight standard deviations; sums of losses have a light and a heavy tail.
    places = np.arange(first, last + 1.0)
    mean, spread = steps * np.arange(len(masses)) @ masses, np.sqrt(found @ (places - places @ found) ** 2)
    assert 7 < (mean - first) / spread < 12
    assert 7 < (last - mean) / spread < 12


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.02, 0.7, 300), (0.3, 0.08, 20), (1e-3, 2.0, 5)])
def test_a_loss_distribution_is_read_as_dp_accounting_reads_it(rate, noise, steps):
    from dp_accounting.pld import pld_pmf

    low, high = accounting._loss_range(rate, noise, "remove", 1e-15 / steps)
    spacing = (high - low) / 5000
    first, masses, certain = accounting._connect_dots(rate, noise, "remove", low, high, spacing)
    judge = pld_pmf.DensePLDPmf(spacing, first, masses, certain, True).self_compose(steps, 1e-15)
    found = accounting._Loss(spacing, first, masses, certain).composed(steps)
    for delta in (1e-9, 1e-6, 1e-3, 0.1):
        epsilon = found.epsilon(delta)
        # Where e^-loss is no longer a float, dp-accounting gives a loss above the answer.
        assert epsilon == pytest.approx(judge.get_epsilon_for_delta(delta), rel=1e-5) or epsilon > 600
        assert found.delta(epsilon) <= delta * (1 + 1e-9) + 1e-13
        assert epsilon == 0 or found.delta(epsilon * (1 - 1e-6)) > delta * (1 - 1e-9) - 1e-13
    epsilons = np.linspace(-3, 9, 200)
    assert found.deltas(epsilons) == pytest.approx(judge.get_delta_for_epsilon(epsilons), rel=1e-9, abs=1e-13)
    assert found.deltas(epsilons) == pytest.approx([found.delta(x) for x in epsilons.tolist()], rel=1e-9, abs=1e-13)
    assert found.epsilon(found.certain / 2) == np.inf


def test_what_is_certain_in_one_step_adds_up_over_steps():
    """Mass at infinity: after n steps there is 1 - (1 - c)^n of it."""
    loss = accounting._Loss(0.1, -1, np.array([0.3, 0.4, 0.29]), 0.01)
    for steps in (1, 2, 7, 300):
        assert loss.composed(steps).certain == pytest.approx(1 - 0.99**steps, rel=1e-12)


@pytest.mark.parametrize(("rate", "noise"), [(0.3, 1.0), (0.05, 0.7), (0.6, 2.0)])
def test_the_attacker_may_ask_for_a_record_that_is_there_or_one_that_is_missing(rate, noise):
    """Neither direction of a step has more true positives at all false-positive rates, so both are composed."""

    def sampled(y):
        return (1 - rate) * special.ndtr(y / noise) + rate * special.ndtr((y - 1) / noise)

    # Exact points of both trade-offs. The likelihood ratio rises with y, so the best tests are thresholds.
    y = np.linspace(-4 * noise, 4 * noise + 1, 401)
    added = 1 - special.ndtr(y / noise), 1 - sampled(y)  # is the record there? false alarms, and true ones
    removed = sampled(y), special.ndtr(y / noise)  # is it missing?
    for fprs, tprs in (added, removed):
        found = accounting.true_positive_rate(fprs, rate, noise, 1)
        assert np.all(found >= tprs * (1 - 1e-9))
    alone = np.interp(removed[0], added[0][::-1], added[1][::-1])
    assert np.max(removed[1] - alone) > 1e-3, "the second question is the harder one somewhere"


def test_accounting_does_without_slow_imports():
    code = (
        "import sys; from tacit import accounting as a; a.noise_multiplier(1.0, 1e-5, 0.01, 100); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"dp_accounting", "jax", "scipy.signal", "scipy.stats"} & set(done.stdout.split())


@pytest.mark.parametrize("adjacency", accounting.ADJACENCIES)
@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"),
    [
        (0.01, 1e-6, 1e-4, 100_000),
        (50.0, 1e-6, 0.1, 10),
        (1.0, 1e-7, 1e-6, 100_000),
        (1.0, 1e-8, 0.1, 1),
        (0.01, 1e-5, 1.0, 1),
        (50.0, 1e-5, 1.0, 1000),
        (1.0, 1e-13, 0.01, 1000),
        (1.0, 1e-20, 0.01, 10_000),
    ],
)
def test_calibration_at_extremes(epsilon, delta, rate, steps, adjacency):
    noise = accounting.noise_multiplier(epsilon, delta, rate, steps, adjacency)
    assert 0.98 * epsilon <= accounting.epsilon(rate, noise, steps, delta, adjacency) <= epsilon


def test_delta_and_epsilon_are_inverse():
    found = accounting.epsilon(*BNN, 1e-5)
    assert accounting.delta(*BNN, found) == pytest.approx(1e-5, rel=1e-6)
    assert accounting.delta(*BNN, found) <= 1e-5


@pytest.mark.parametrize("adjacency", accounting.ADJACENCIES)
def test_cost_is_monotone(adjacency):
    def cost(rate=0.01, noise=1.0, steps=500, delta=1e-6):
        return accounting.epsilon(rate, noise, steps, delta, adjacency)

    assert cost(noise=0.9) > cost() > cost(noise=1.1)
    assert cost(rate=0.011) > cost() > cost(rate=0.009)
    assert cost(steps=550) > cost() > cost(steps=450)
    assert cost(delta=1e-7) > cost() > cost(delta=1e-5)
    assert accounting.epsilon(0.01, 1.0, 500, 1e-6, "replace-one") >= cost()


def test_no_step_costs_nothing():
    assert accounting.epsilon(0.1, 1.0, 0, 1e-6) == 0
    assert accounting.delta(0.1, 1.0, 0, 0.5) == 0
    assert accounting.advantage(0.1, 1.0, 0) == 0
    assert accounting.true_positive_rate(0.2, 0.1, 1.0, 0) == 0.2
    assert accounting.spent([(0.1, 1.0, 0)], 1e-6) == 0
    assert accounting.spent([], 1e-6) == 0


@pytest.mark.parametrize(
    ("epsilon", "advantage", "tpr"),
    [(0.5, 0.057, 0.0145), (1, 0.107, 0.0198), (2, 0.198, 0.034), (4, 0.356, 0.0805), (8, 0.595, 0.2545)],
)
def test_what_epsilon_means(epsilon, advantage, tpr):
    noise = accounting.noise_multiplier(epsilon, 1e-5, 1.0, 1)
    assert accounting.advantage(1.0, noise, 1) == pytest.approx(advantage, abs=6e-4)
    assert accounting.true_positive_rate(0.01, 1.0, noise, 1) == pytest.approx(tpr, rel=5e-3)


def test_attacker_of_the_neural_network_run():
    assert accounting.advantage(*BNN) == pytest.approx(0.090, abs=5e-4)
    assert accounting.true_positive_rate(0.01, *BNN) == pytest.approx(0.0181, abs=5e-5)
    # Another tool says 0 or .000197 here, which is unsafe.
    assert 0.000246 <= accounting.true_positive_rate(1e-4, *BNN) <= 0.000249


@pytest.mark.parametrize("adjacency", accounting.ADJACENCIES)
def test_trade_off_is_a_trade_off(adjacency):
    fprs = np.array([[0.0, 1e-6, 1e-3], [0.1, 0.5, 1.0]])
    tprs = accounting.true_positive_rate(fprs, *BNN, adjacency)
    assert tprs.shape == fprs.shape
    assert np.all(tprs >= fprs)
    assert np.all(np.diff(tprs.ravel()) >= 0)
    assert tprs[0, 0] < 1e-9
    assert tprs[1, 2] == 1
    assert np.max(tprs - fprs) <= accounting.advantage(*BNN, adjacency) + 1e-9
    # One (ε, δ) point bounds it too, more loosely.
    cost = accounting.epsilon(*BNN, 1e-5, adjacency)
    assert np.all(tprs <= np.minimum(1, 1e-5 + math.exp(cost) * fprs) + 1e-12)


def test_trade_off_by_the_grid_bounds_the_exact_one():
    exact = accounting.true_positive_rate([1e-3, 0.01, 0.3], 1.0, 2.0, 4)
    found = accounting.true_positive_rate([1e-3, 0.01, 0.3], 1 - 1e-9, 2.0, 4)
    assert np.all(found >= exact * (1 - 1e-6))
    assert np.all(found <= exact * 1.003)


@pytest.mark.parametrize("adjacency", accounting.ADJACENCIES)
def test_spent_bounds_what_fixed_composition_says(adjacency):
    runs = [(0.01, 1.5, 300), (0.02, 2.0, 200), (1.0, 30.0, 3)]
    alone = [accounting.epsilon(*run, 1e-6, adjacency) for run in runs]
    assert accounting.spent(runs[:1], 1e-6, adjacency) == alone[0]
    total = accounting.spent(runs, 1e-6, adjacency)
    assert total > accounting.spent(runs[:2], 1e-6, adjacency) > max(alone)
    # The same run many times: never below the composition that is tight when nothing is adaptive.
    many = accounting.spent([(0.01, 1.5, 300)] * 10, 1e-6, adjacency)
    tight = accounting.epsilon(0.01, 1.5, 3000, 1e-6, adjacency)
    assert tight < many < (1.5 if adjacency == "add-remove" else 1.8) * tight
    assert many < 10 * alone[0]


def test_spent_keeps_its_delta():
    runs = ((0.01, 1.5, 300), (0.02, 2.0, 200))
    total = accounting.spent(runs, 1e-6)
    curve = tuple(
        300 * first + 200 * second
        for first, second in zip(
            accounting._renyi(0.01, 1.5, "add-remove"),
            accounting._renyi(0.02, 2.0, "add-remove"),
            strict=True,
        )
    )
    together = len(accounting.ORDERS) * accounting._renyi_delta(curve, 1, total)
    assert accounting.delta(0.01, 1.5, 300, total) + together == pytest.approx(1e-6, rel=1e-6)
    assert accounting.delta(0.01, 1.5, 300, total) + together <= 1e-6


def test_renyi_curve_against_dp_accounting():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    judge = RdpAccountant(accounting.ORDERS)
    step = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.2))
    judge.compose(dp_accounting.SelfComposedDpEvent(step, 700))
    found = accounting.renyi_epsilon(0.02, 1.2, 700, 1e-6)
    assert found == pytest.approx(judge.get_epsilon(1e-6), rel=1e-6)


def test_renyi_curve_of_replacing_bounds_the_integral():
    from scipy import integrate

    rate, noise = 0.05, 1.1
    curve = dict(zip(accounting.ORDERS, accounting._renyi(rate, noise, "replace-one"), strict=True))

    def density(y, centre):
        parts = (
            (1 - rate) * np.exp(-(y**2) / (2 * noise**2)),
            rate * np.exp(-((y - centre) ** 2) / (2 * noise**2)),
        )
        return (parts[0] + parts[1]) / (noise * math.sqrt(2 * math.pi))

    for order in (2, 4, 9):
        moment, _ = integrate.quad(
            lambda y, order=order: density(y, 1) ** order * density(y, -1) ** (1 - order), -12, 12, limit=400
        )
        assert math.log(moment) / (order - 1) <= curve[order]


def test_composition_rule_is_named():
    assert set(accounting.COMPOSITION) == set(accounting.ADJACENCIES)
    assert all("filter" in rule for rule in accounting.COMPOSITION.values())


def test_calibration_is_fast_and_remembered():
    accounting.noise_multiplier(1.0, 1e-5, 0.0101, 1000)
    started = time.perf_counter()
    accounting.noise_multiplier(1.0, 1e-5, 256 / 60000, 3517)
    fresh = time.perf_counter() - started
    started = time.perf_counter()
    accounting.noise_multiplier(1.0, 1e-5, 256 / 60000, 3517)
    again = time.perf_counter() - started
    # Ten times what a quiet machine needs.
    assert fresh < 1.5
    assert again < 1e-3


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: accounting.epsilon(1.5, 1.0, 10, 1e-6), ValueError, ["rate=1.5", "at most 1", "write"]),
        (lambda: accounting.epsilon(0.0, 1.0, 10, 1e-6), ValueError, ["rate=0.0", "above 0"]),
        (lambda: accounting.epsilon(math.nan, 1.0, 10, 1e-6), ValueError, ["rate=nan"]),
        (lambda: accounting.epsilon(0.1, 0.0, 10, 1e-6), ValueError, ["noise_multiplier=0.0", "calibrate"]),
        (lambda: accounting.epsilon(0.1, math.inf, 10, 1e-6), ValueError, ["noise_multiplier=inf"]),
        (lambda: accounting.epsilon(0.1, 1.0, -1, 1e-6), ValueError, ["steps=-1"]),
        (lambda: accounting.epsilon(0.1, 1.0, 1.5, 1e-6), TypeError, ["steps=1.5", "whole number"]),
        (lambda: accounting.epsilon(0.1, 1.0, True, 1e-6), TypeError, ["steps=True"]),
        (lambda: accounting.epsilon("a", 1.0, 1, 1e-6), TypeError, ["rate='a'"]),
        (lambda: accounting.epsilon(0.1, 1.0, 10, 1.0), ValueError, ["delta=1.0", "below 1"]),
        (lambda: accounting.epsilon(0.1, 1.0, 10, 1e-6, "swap"), ValueError, ["'swap'", "'replace-one'"]),
        (lambda: accounting.delta(0.1, 1.0, 10, -1.0), ValueError, ["epsilon=-1.0"]),
        (lambda: accounting.noise_multiplier(-1.0, 1e-6, 0.1, 10), ValueError, ["epsilon=-1.0"]),
        (lambda: accounting.noise_multiplier(math.nan, 1e-6, 0.1, 10), ValueError, ["epsilon=nan"]),
        (lambda: accounting.noise_multiplier(1.0, 1e-6, 0.1, 0), ValueError, ["steps=0"]),
        (
            lambda: accounting.noise_multiplier(1.0, 0.1, 1e-4, 10),
            ValueError,
            ["without noise", "write a delta"],
        ),
        (lambda: accounting.true_positive_rate(1.1, 0.1, 1.0, 10), ValueError, ["fpr=1.1"]),
        (lambda: accounting.spent([(0.1, 1.0, 10)], 0.0), ValueError, ["delta=0.0"]),
        (lambda: accounting.spent([], 1e-6, "swap"), ValueError, ["'swap'"]),
    ],
)
def test_errors_say_what_to_write(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_numpy_numbers_are_numbers():
    plain = accounting.epsilon(0.01, 1.0, 100, 1e-6)
    assert accounting.epsilon(np.float64(0.01), np.float64(1.0), np.int32(100), np.float64(1e-6)) == plain
    assert isinstance(plain, float)


@pytest.mark.parametrize("adjacency", accounting.ADJACENCIES)
@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.02, 1.0, 400), (0.3, 2.5, 40), (0.001, 0.6, 2000)])
def test_epsilon_is_not_below_a_lower_bound(rate, noise, steps, adjacency):
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    relation = dp_accounting.NeighboringRelation
    # Losses rounded down: what dp-accounting calls optimistic is a lower bound on the truth.
    below = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        pessimistic_estimate=False,
        value_discretization_interval=2e-4,
        sampling_prob=rate,
        use_connect_dots=False,
        neighboring_relation=relation.ADD_OR_REMOVE_ONE if adjacency == "add-remove" else relation.REPLACE_ONE,
    ).self_compose(steps)
    found = accounting.epsilon(rate, noise, steps, 1e-6, adjacency)
    assert below.get_epsilon_for_delta(1e-6) <= found
    for epsilon in (0.0, found / 2, found):
        assert below.get_delta_for_epsilon(epsilon) <= accounting.delta(rate, noise, steps, epsilon, adjacency)
