"""Predictions, comparisons and slopes: what the posterior says, averaged over public records."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import tacit
from tacit.facts.schema import Schema
from tacit.models.formula import Formula
from tacit.results.effects import profiles, reference
from tacit.results.plots import plot_forest, plot_prior_posterior
from tacit.results.posterior import Posterior
from tacit.results.report import report
from tacit.types import Method, Model
from tacit.wall.data import PrivateData

SCHEMA = Schema(
    {
        "x": {"low": -2, "high": 2},
        "n": {"low": 0, "high": 9, "kind": "integer"},
        "g": {"levels": ["a", "b", "c"]},
        "ill": {"levels": ["no", "yes"]},
        "pain": {"levels": ["none", "some", "much"]},
        "y": {"low": -9, "high": 9},
    }
)


def posterior_of(model: Formula, count: int = 50) -> Posterior:
    """Make up a posterior: draws from the prior, as if nothing had been learned."""
    keys = dict(zip(model.priors, jax.random.split(jax.random.key(0), len(model.priors)), strict=True))
    draws = {name: prior.sample(keys[name], (count,)) for name, prior in model.priors.items()}
    return Posterior(draws, None, nothing(model))


def nothing(model: Formula) -> Method:
    """Return a method that does nothing but know its model."""
    return Method(lambda key: 0, lambda *_: 0, lambda *_: 0, lambda *_: {}, model=Model(source=model))


@pytest.fixture(scope="module")
def linear() -> Posterior:
    return posterior_of(tacit.formula("y ~ x + n + g", SCHEMA))


def test_linear_effects_are_the_coefficients(linear: Posterior) -> None:
    np.testing.assert_allclose(tacit.slopes(linear, "x").draws[:, 0], linear.draws["x"], rtol=1e-4)
    np.testing.assert_allclose(tacit.slopes(linear, "n").draws[:, 0], linear.draws["n"], rtol=1e-4)
    found = tacit.comparisons(linear, {"g": ["b", "a", "c"], "x": [0.5, 2.0]})
    assert found.labels == ("g: a - b", "g: c - b", "x: 2 - 0.5")
    b, c = linear.draws["g"].T
    np.testing.assert_allclose(found.draws, np.stack([-b, c - b, 1.5 * linear.draws["x"]], 1), rtol=1e-3, atol=1e-3)


def test_profiles_set_one_column_and_are_in_the_report(linear: Posterior) -> None:
    found = profiles(linear)
    assert found.labels == ("x -1", "x 0", "x 1", "n 2", "n 4", "n 7", "g a", "g b", "g c")
    draws = {label: found.draws[:, place] for place, label in enumerate(found.labels)}
    np.testing.assert_allclose(draws["x 1"] - draws["x -1"], 2 * linear.draws["x"], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(draws["n 7"] - draws["n 2"], 5 * linear.draws["n"], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(draws["g c"] - draws["g a"], linear.draws["g"][:, 1], rtol=1e-3, atol=1e-3)
    page = report("A title", {"private": linear}, predictions=found)
    assert "Expected y where one column is set" in page
    assert '<th scope="row">n 7</th>' in page
    levels = profiles(posterior_of(tacit.formula("pain ~ g", SCHEMA, family="ordinal")))
    assert len(levels) == 9
    np.testing.assert_allclose(levels.draws[:, :3].sum(1), 1, rtol=1e-4)


def test_predictions_are_those_of_the_model(linear: Posterior) -> None:
    found = tacit.predictions(linear, {"x": [1.0, -1.0], "n": [3, 0], "g": ["c", "a"], "unused": [0, 0]})
    assert found.labels == ("x 1, n 3, g c", "x -1, n 0, g a")
    draws = linear.draws
    expected = draws["Intercept"] + draws["x"] + draws["n"] * (3 - 4.5) + draws["g"][:, 1]
    np.testing.assert_allclose(found.draws[:, 0], expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.mean, found.draws.mean(0))
    np.testing.assert_allclose(found.interval[0], np.quantile(found.draws[:, 0], (0.05, 0.95)))
    table = found.to_pandas()
    assert list(table.columns) == ["mean", "std", "5%", "95%"]
    assert list(table.index) == list(found.labels)
    assert f"{found.mean[0]:10.4g}" in repr(found)
    assert repr(found).startswith("Expected y\n")
    assert len(found) == 2


def test_a_slope_of_a_chance_is_its_derivative() -> None:
    posterior = posterior_of(tacit.formula("ill ~ x + {x**2}", SCHEMA, "bernoulli"))
    new = {"x": [0.3, -1.2]}
    found = tacit.slopes(posterior, "x", new)
    small = 1e-2
    up, down = (tacit.predictions(posterior, {"x": [v + d for v in new["x"]]}).draws for d in (small, -small))
    # Central differences: the third derivative is at most some tens here, and numbers have 24 bits.
    np.testing.assert_allclose(found.draws[:, 0], ((up - down) / (2 * small)).mean(1), atol=5e-3)
    assert found.title == "Slope of the expected probability of ill = yes"


@pytest.mark.parametrize("family", ["ordinal", "categorical"])
def test_responses_of_several_levels_have_a_line_for_each(family: str) -> None:
    posterior = posterior_of(tacit.formula("pain ~ x + (1 | g)", SCHEMA, family))
    found = tacit.predictions(posterior, {"x": [0.0], "g": ["a"]})
    assert found.labels == ("x 0, g a; none", "x 0, g a; some", "x 0, g a; much")
    np.testing.assert_allclose(found.draws.sum(1), 1, rtol=1e-5)
    changes = tacit.comparisons(posterior, {"g": ["a", "b"]})
    np.testing.assert_allclose(changes.draws.sum(1), 0, atol=1e-5)


def test_the_reference_comes_from_the_schema(linear: Posterior) -> None:
    model = linear.model
    records = reference(model)
    assert set(records) == {"x", "n", "g"}
    assert records["x"].min() < -1.9
    assert records["x"].max() > 1.9
    np.testing.assert_array_equal(np.unique(records["g"]), [0, 1, 2])


def test_mistakes_say_what_to_write(linear: Posterior) -> None:
    with pytest.raises(ValueError, match=r"does not use 'z'\. It uses x, n, g"):
        tacit.slopes(linear, "z")
    with pytest.raises(ValueError, match=r"write comparisons\(posterior, \{'g': \['a', 'b'\]\}\)"):
        tacit.slopes(linear, "g")
    with pytest.raises(ValueError, match=r"'z' is no level of 'g'; it has a, b, c"):
        tacit.comparisons(linear, {"g": ["a", "z"]})
    with pytest.raises(ValueError, match="two values or more"):
        tacit.comparisons(linear, {"g": ["a"]})
    with pytest.raises(ValueError, match=r"lack the columns \['n', 'g'\]"):
        tacit.predictions(linear, {"x": [1.0]})
    with pytest.raises(ValueError, match="not that of a formula"):
        tacit.slopes(Posterior({"x": np.zeros(3)}, None), "x")
    with pytest.raises(TypeError, match="sealed"):
        tacit.predictions(linear, PrivateData({"x": [0.0]}))


def test_a_posterior_comes_back_with_its_names(linear: Posterior, tmp_path) -> None:  # type: ignore[no-untyped-def]
    linear.save(tmp_path / "p.npz")
    again = Posterior.load(tmp_path / "p.npz")
    assert [row[0] for row in again.rows()] == ["Intercept", "x", "n", "g[b]", "g[c]", "sigma"]
    assert again.model is None
    knowing = Posterior.load(tmp_path / "p.npz", nothing(linear.model))
    np.testing.assert_array_equal(tacit.slopes(knowing, "x").draws, tacit.slopes(linear, "x").draws)


def test_pictures(linear: Posterior) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = plt.subplots(1, 2)[1]
    assert plot_forest(linear, ax=axes[0]) is axes[0]
    assert plot_prior_posterior(linear, ax=axes[1]) is axes[1]
    for ax in axes:
        assert [label.get_text() for label in ax.get_yticklabels()] == [row[0] for row in linear.rows()]
    # Draws from the prior lie on the prior: 50 draws, means within five standard errors of zero.
    points = axes[1].containers[1].lines[0].get_xdata()
    assert np.abs(points).max() < 5 / np.sqrt(50)
    with pytest.raises(ValueError, match="priors are not known"):
        plot_prior_posterior(Posterior({"x": np.zeros(3)}, None))
    plt.close("all")
