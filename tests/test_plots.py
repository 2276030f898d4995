"""The plots show what they are given: read off the axes they give back. (Reliability is in test_calibration.)"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tacit.results.plots
from tacit.accounting.mechanism import Budget, Mechanism
from tacit.ledger.certificate import Certificate
from tacit.ledger.file import Charge, Ledger
from tacit.results.plots import plot_ledger, plot_sweep, plot_topics, plot_tradeoff, plot_weights

RECIPE = Mechanism(rate=0.01, clip=1.5, noise_multiplier=2.0, steps=100)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def charged(cap: Budget | None = None) -> Ledger:
    book = Ledger(cap=cap)
    for place in range(3):
        book.charge(Charge(f"run-{place}", "fit", "vi", RECIPE, 0, 100, "tag", "record", False))
    return book


def labels(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_every_plot_takes_axes_gives_them_back_and_says_what_to_see() -> None:
    drawing = {name: function for name, function in vars(tacit.plots).items() if name.startswith("plot_")}
    assert len(drawing) == 12
    for name, function in drawing.items():
        assert list(inspect.signature(function).parameters)[-1] == "ax", name
        assert inspect.signature(function).parameters["ax"].default is None, name
        assert ".set_title(" in inspect.getsource(function), name


def test_sweep() -> None:
    found = {"vi": {0.5: [0.7, 0.72, 0.71], 1.0: [0.75, 0.77, 0.79]}, "sep": {1.0: 0.7, 0.5: 0.6}}
    ax = plot_sweep(found, "accuracy", public=0.8)
    assert ax.get_ylabel() == "accuracy"
    assert sorted(labels(ax)) == ["sep", "vi", "without privacy"]
    first = ax.containers[0].lines[0]
    assert first.get_ydata() == pytest.approx([0.71, 0.77])
    low, high = ax.containers[0].lines[1]  # the caps of the first line's error bars
    assert (high.get_ydata() - low.get_ydata())[0] == pytest.approx(4 * 0.01 / np.sqrt(3))
    assert ax.containers[1].lines[0].get_ydata() == pytest.approx([0.6, 0.7])  # in the order of epsilon


def test_tradeoff_draws_on_the_axes_it_is_given() -> None:
    import matplotlib.pyplot as plt

    book = charged()
    certificate = Certificate.issue(ledger=book, run="run-0", budget=Budget(1.0, 1e-5), slack=2.0**-60)
    ax = plt.subplots()[1]
    assert plot_tradeoff({"a recipe": RECIPE, "a certificate": certificate}, ax=ax) is ax
    _guess, one, two = ax.lines
    assert one.get_ydata() == pytest.approx(two.get_ydata())
    assert (one.get_ydata() >= one.get_xdata() - 1e-12).all()
    assert max(one.get_ydata() - one.get_xdata()) == pytest.approx(RECIPE.advantage(), abs=0.002)
    assert "advantage" in labels(ax)[1]


def test_ledger_with_and_without_a_cap() -> None:
    cap = Budget(3.0, 1e-5)
    book = charged(cap)
    ax = plot_ledger(book)
    ends = [bar.get_y() + min(0, bar.get_height()) for bar in ax.patches]
    assert ends == pytest.approx([3.0 - total for _, total in book.history(1e-5)])
    assert book.history(1e-5)[-1][1] == book.spent(1e-5)
    assert "of 3 is spent" in ax.get_title(loc="left")
    free = charged()
    ax = plot_ledger(free, delta=1e-5)
    assert ax.get_ylabel() == "epsilon spent"
    assert max(bar.get_y() + max(0, bar.get_height()) for bar in ax.patches) == pytest.approx(free.spent(1e-5))
    with pytest.raises(ValueError, match="write delta="):
        plot_ledger(free)


def test_topics() -> None:
    topics = np.asarray([[1.0, 5.0, 2.0], [9.0, 1.0, 3.0]])
    ax = plot_topics(topics, ["sea", "ship", "sail"], count=2)
    assert [text.get_text() for text in ax.texts] == ["ship", "sail", "sea", "sail"]
    lengths = [bar.get_width() for bar in ax.patches]
    assert lengths[0] / lengths[1] == pytest.approx(5 / 2)
    with pytest.raises(ValueError, match="topics times vocabulary"):
        plot_topics(topics, ["sea"])


def test_weights() -> None:
    weights = np.arange(12.0).reshape(3, 4) - 6
    ax = plot_weights(weights, (2, 2))
    grid = np.ma.filled(ax.images[0].get_array(), np.nan)
    assert grid.shape == (5, 5)
    assert grid[:2, :2].ravel() == pytest.approx(weights[0])
    assert grid[3:, :2].ravel() == pytest.approx(weights[2])
    assert np.isnan(grid[3:, 3:]).all()
    assert ax.images[0].get_clim() == (-6, 6)
    with pytest.raises(ValueError, match="units times pixels"):
        plot_weights(weights, (3, 3))
