"""Calibration, coverage and parts of the uncertainty, against cases whose answer is known."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from tacit.results.calibration import coverage, reliability, uncertainty
from tacit.results.plots import plot_confidence, plot_prediction, plot_reliability, plot_uncertainty

mpl.use("agg")


def test_a_calibrated_predictor_has_no_error_and_a_sure_one_has() -> None:
    """200000 outcomes in 15 bins: an error of 0.01 is five standard errors of the worst bin's; false alarm 1e-5."""
    generator = np.random.default_rng(0)
    chances = generator.uniform(0, 1, 200000)
    y = (generator.random(200000) < chances).astype(int)
    assert reliability(chances, y).ece < 0.01
    sure = np.where(chances > 0.5, 0.999, 0.001)
    found = reliability(sure, y)
    assert found.ece == pytest.approx(0.999 - 0.75, abs=0.01)  # right in three of four cases
    assert found.mce == pytest.approx(found.ece, abs=1e-6)  # all in one bin
    assert found.share.sum() == pytest.approx(1)


def test_bins_by_hand() -> None:
    chances = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.45, 0.55]])
    found = reliability(chances, [0, 1, 1, 0], bins=2)
    np.testing.assert_allclose(found.confidence, [np.nan, (0.9 + 0.8 + 0.7 + 0.55) / 4])
    np.testing.assert_allclose(found.accuracy, [np.nan, 0.5])
    assert found.ece == pytest.approx(abs(2.95 / 4 - 0.5))
    # Draws are averaged before anything else.
    several = np.stack([chances, chances[:, ::-1]])
    np.testing.assert_allclose(reliability(several, [0, 1, 1, 0]).confidence[7], 0.5)
    # As many draws as records, of two classes: which axis is which follows from what adds up.
    square = np.random.default_rng(5).uniform(0, 1, (4, 4))
    assert reliability(square, [0, 1, 1, 0]).ece == reliability(square.mean(0), [0, 1, 1, 0]).ece


@pytest.mark.parametrize(
    ("chances", "y", "match"),
    [
        (np.array([[1.0, 2.0]]), [0], "not logits"),
        (np.array([[0.5, 0.5]]), [2], "the class 2"),
        (np.array([[0.5, 0.5]]), [0, 1, 1], "do not fit"),
        (np.array([0.5]), [0.5], "whole numbers"),
        (np.zeros((0, 2)), [], "no outcomes"),
    ],
)
def test_what_cannot_be_compared_is_refused(chances: Any, y: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        reliability(chances, y)


def test_coverage_of_the_right_distribution_is_its_level() -> None:
    """10000 outcomes: 0.9 within 0.02, more than six standard errors."""
    generator = np.random.default_rng(1)
    draws, y = generator.normal(size=(400, 10000)), generator.normal(size=10000)
    assert coverage(draws, y) == pytest.approx(0.9, abs=0.02)
    assert coverage(0.1 * draws, y) < 0.2
    with pytest.raises(ValueError, match="draws times records"):
        coverage(draws.T, y)
    with pytest.raises(ValueError, match="level is 2"):
        coverage(draws, y, 2.0)


def test_parts_of_the_uncertainty() -> None:
    generator = np.random.default_rng(2)
    mean = generator.normal(0, 3, (20000, 1))
    parts = uncertainty(mean, np.full_like(mean, 4.0))
    assert parts.epistemic[0] == pytest.approx(3, rel=0.03)  # six standard errors
    assert parts.aleatoric[0] == 4
    # Draws that agree on a coin: all of it is noise. Draws that are sure, and disagree: none is.
    coin, torn = np.full((2, 1, 2), 0.5), np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert uncertainty(coin) == (pytest.approx(0), pytest.approx(np.log(2)))
    assert uncertainty(torn) == (pytest.approx(np.log(2)), pytest.approx(0, abs=1e-6))


def test_plots_show_what_they_were_given() -> None:
    chances = np.random.default_rng(3).uniform(0, 1, 500)
    ax = plot_reliability({"this": reliability(chances, chances > 0.5)})
    assert any("this: error" in text.get_text() for text in ax.get_legend().get_texts())
    x = np.linspace(-1, 1, 20)
    ax = plot_uncertainty(x[:, None], np.tile(x, (5, 1)), np.ones((5, 20)), seen=(x, x))
    assert len(ax.collections) == 2


def test_a_confidence_histogram_shows_shares_and_both_means() -> None:
    found = reliability(np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.45, 0.55]]), [0, 1, 1, 0], bins=10)
    ax = plot_confidence(found)
    assert sum(bar.get_height() for bar in ax.patches) == pytest.approx(1)
    assert [line.get_xdata()[0] for line in ax.lines] == pytest.approx([2.95 / 4, 0.5])


def test_the_distribution_of_a_prediction_has_a_step_for_each_class_in_question() -> None:
    chances = np.random.default_rng(4).dirichlet([5, 3, 0.01, 0.01], 100)
    chances[:, 2:] = np.minimum(chances[:, 2:], 0.01)
    ax = plot_prediction(chances, 3)
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"class 0", "class 1", "class 3 (true)"}
    with pytest.raises(ValueError, match="draws times classes"):
        plot_prediction(chances[0])
