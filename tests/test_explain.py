"""What (ε, δ) means: the numbers of FACTS.md, bounds in the right order, and nothing rounded down."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tacit.accounting.explanation import Explanation, explain, percent, point_bound, trade_off, up
from tacit.accounting.mechanism import Mechanism

# The run of the DP-BNN paper (FACTS.md section 1).
PAPER = Mechanism(rate=256 / 60000, clip=1.5, noise_multiplier=1.3, steps=3515)


@pytest.fixture(scope="module")
def paper() -> Explanation:
    return explain(PAPER.cost(1e-5), 1e-5, PAPER)


def test_the_papers_run_from_its_distribution(paper: Explanation) -> None:
    assert paper.exact
    assert paper.advantage == pytest.approx(0.090, abs=0.001)
    assert paper.true_positive_rates[0] == pytest.approx(0.0181, abs=0.0002)


def test_the_papers_run_from_epsilon_and_delta_alone(paper: Explanation) -> None:
    point = explain(0.8646, 1e-5)
    assert not point.exact
    assert point.advantage == pytest.approx(0.407, abs=0.001)
    assert point.true_positive_rates[0] == pytest.approx(0.0238, abs=0.0001)
    assert "looser" in str(point)
    assert "looser" not in str(paper)
    assert all(a <= b for a, b in zip(paper.true_positive_rates, point.true_positive_rates, strict=True))


@pytest.mark.parametrize(("epsilon", "advantage", "found"), [(0.5, 0.057, 0.0145), (2, 0.198, 0.034)])
def test_the_gaussian_mechanism(epsilon: float, advantage: float, found: float) -> None:
    noise = {0.5: 7.03183, 2: 1.99381}[epsilon]  # the exact Gaussian mechanism at δ = 1e-5
    one = Mechanism(rate=1.0, clip=1.0, noise_multiplier=noise, steps=1)
    said = explain(one.cost(1e-5), 1e-5, one)
    assert said.epsilon == pytest.approx(epsilon, rel=1e-4)
    assert said.advantage == pytest.approx(advantage, abs=0.001)
    assert said.true_positive_rates[0] == pytest.approx(found, abs=0.0003)


def test_odds_and_probabilities() -> None:
    said = explain(math.log(3), 0.0)
    assert said.odds(1.0) == pytest.approx(3)
    assert said.odds(0.5) == pytest.approx(1.5)
    assert said.odds(0) == 0
    assert said.probability(0.5) == pytest.approx(0.75)
    assert said.probability(0.1) == pytest.approx(0.25)
    assert (said.probability(0), said.probability(1)) == (0, 1)


def test_the_extremes() -> None:
    nothing = explain(0.0, 0.0)
    assert nothing.advantage == 0
    assert nothing.true_positive_rates == pytest.approx((0.01, 0.05))
    assert nothing.probability(0.3) == pytest.approx(0.3)
    everything = explain(1000.0, 1e-5)
    assert everything.advantage == 1
    assert everything.true_positive_rates == (1, 1)
    assert everything.odds(1.0) == math.inf
    assert everything.probability(0.01) == 1
    assert "ε = 1000" in str(everything)


def test_the_point_bound_is_symmetric_and_above_chance() -> None:
    # At a high false-positive rate the other direction of the guarantee binds.
    said = explain(1.0, 1e-3)
    e = math.e
    assert said.advantage == pytest.approx((e - 1 + 2e-3) / (e + 1))
    assert said.true_positive_rates == pytest.approx((e * 0.01 + 1e-3, e * 0.05 + 1e-3))
    loud = explain(5.0, 0.1)
    assert loud.true_positive_rates[0] == pytest.approx(1 - math.exp(-5) * (1 - 0.1 - 0.01))


def test_the_trade_off_curve_lies_between_guessing_and_the_point_bound() -> None:
    fpr, tpr = trade_off(PAPER, slack=1e-7)
    assert (fpr[0], fpr[-1], tpr[-1]) == (0, 1, 1)
    epsilon = PAPER.cost(1e-5)
    assert all(x <= y <= point_bound(x, epsilon, 1e-5) + 2e-7 for x, y in zip(fpr, tpr, strict=True))
    assert max(tpr - fpr) == pytest.approx(PAPER.advantage(), abs=1e-3)


def test_slack_is_on_the_attackers_side(paper: Explanation) -> None:
    shifted = explain(paper.epsilon, 1e-5, PAPER, slack=1e-6)
    assert shifted.advantage == pytest.approx(paper.advantage + 2e-6, abs=1e-12)
    assert all(a + 1e-6 < b for a, b in zip(paper.true_positive_rates, shifted.true_positive_rates, strict=True))


def test_the_sentences_hold_the_numbers(paper: Explanation) -> None:
    words = str(paper)
    assert f"{up(paper.odds(1.0))} to 1" in words
    assert f"50% becomes at most {percent(paper.probability(0.5))}" in words
    assert up(paper.advantage) in words
    assert percent(paper.true_positive_rates[0]) in words
    assert "one in 100,000" in words
    assert "whether one given record is in the data" in words


def test_unit_and_adjacency_in_words() -> None:
    other = replace(PAPER, steps=1, adjacency="replace-one")
    said = explain(1.0, 1e-5, other, unit="patient")
    assert "which of two versions of one patient" in str(said)
    assert "any other patient in its place" in said.protected
    assert "without" in explain(1.0, 1e-5, unit="patient").protected


def test_without_delta_there_is_no_exception() -> None:
    assert "without exception" in str(explain(1.0, 0.0))


@pytest.mark.parametrize(
    ("epsilon", "delta", "slack"),
    [(-1, 1e-5, 0), (math.nan, 1e-5, 0), (1, 1, 0), (1, -1e-5, 0), (1, math.nan, 0), (1, 1e-5, 1e-4)],
)
def test_wrong_numbers(epsilon: float, delta: float, slack: float) -> None:
    with pytest.raises(ValueError, match="write"):
        explain(epsilon, delta, slack=slack)


def test_wrong_priors(paper: Explanation) -> None:
    for prior in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            paper.probability(prior)
    for odds in (-1.0, math.nan):
        with pytest.raises(ValueError, match=">= 0"):
            paper.odds(odds)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (1.0, "1"),
        (0.8641, "0.865"),
        (0.86401, "0.865"),
        (0.9991, "1"),
        (1e-5, "0.00001"),
        (1.0001e-8, "1.01e-8"),
        (1234.5, "1240"),
        (0.0, "0"),
        (2.5e9, "2.5e9"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_rounded_up(value: float, text: str) -> None:
    assert up(value) == text
    assert value == pytest.approx(float(text), rel=0.01)


def test_no_printed_number_is_below_the_true_one() -> None:
    for n in range(1, 3000):
        value = n**3 / 7919 * 10.0 ** (n % 13 - 8)
        assert float(up(value, 4)) >= value * (1 - 1e-15)
        assert float(up(value, 4)) <= value * 1.0011
    assert percent(0.01) == "1%"
    assert percent(0.018101) == "1.82%"
