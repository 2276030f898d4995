"""What is foreseen of a fit, beside what fits found; and what is said and refused before anything is spent."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tacit
from tacit.run.foresight import foreseen, forewarn
from tacit.run.plan import planned

NAMES = "abc"
SCHEMA = tacit.Schema(
    {
        **{name: {"low": -2, "high": 2} for name in NAMES},
        "clinic": {"levels": [f"c{place}" for place in range(60)]},
        "y": {"levels": [0, 1]},
        "cost": {"low": 0, "high": 100},
        "visits": {"low": 0, "high": 20, "kind": "integer"},
        "grade": {"levels": ["low", "middle", "high"]},
    }
)


def seen(text: str, size: int | None, epsilon: float, family: str = "bernoulli"):
    budget = tacit.Budget(epsilon, 1e-6)
    records = {name: np.stack([column.placeholder()] * 5) for name, column in SCHEMA.columns.items()}
    model = tacit.formula(text, SCHEMA, family=family)
    method, mechanism, title = planned(model, tacit.PrivateData(records, size=size), budget)
    return foreseen(method.model.source, title, size, mechanism, budget)


@pytest.mark.parametrize(
    ("size", "epsilon", "found"),
    # Means over three slopes and two fits through the wall, on made-up records of papers/coverage/few.py.
    [(50, 0.1, 0.13), (200, 0.3, 0.68), (500, 0.3, 0.59), (2000, 0.1, 0.77)],
)
def test_what_is_foreseen_is_near_what_was_found(size: int, epsilon: float, found: float) -> None:
    contraction = seen("y ~ a + b + c", size, epsilon).contraction
    assert abs(np.mean([contraction[name] for name in NAMES]) - found) < 0.25


def test_groups_that_stay_at_their_prior_are_named_beforehand() -> None:
    """A hierarchy of 60 groups in 1900 records, at epsilon 1: issue 30's example."""
    foresight = seen("y ~ a + b + c + (1 | clinic)", 1934, 1.0)
    assert set(foresight.at_prior) == {f"1|c{place}" for place in range(60)}
    assert not foresight.is_noise
    with pytest.warns(UserWarning, match=r"64 columns at epsilon 1 ask for about \d+ records, and 1934 are declared"):
        forewarn(foresight)
    many = seen("y ~ a + b + c + (1 | clinic)", int(2 * foresight.needed), 1.0)
    assert not many.at_prior
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forewarn(many)


def test_an_answer_that_would_be_noise_is_refused_unless_forced() -> None:
    foresight = seen("y ~ a + b + c", 20, 0.05)
    assert foresight.is_noise
    with pytest.raises(ValueError, match="force=True"):
        forewarn(foresight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forewarn(foresight, force=True)


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("cost ~ a + clinic", "gaussian"),
        ("cost ~ a", "student"),
        ("visits ~ a", "poisson"),
        ("visits ~ a", "negative_binomial"),
        ("p(visits, 20) ~ a", "binomial"),
        ("grade ~ a", "ordinal"),
        ("y ~ (a | clinic)", "bernoulli"),
        ("y ~ 0 + a", "bernoulli"),
    ],
)
def test_more_records_or_a_larger_budget_never_teach_less(text: str, family: str) -> None:
    grid = [
        [list(seen(text, size, epsilon, family).contraction.values()) for size in (100, 100_000)]
        for epsilon in (0.1, 3)
    ]
    found = np.asarray(grid)
    assert np.all(np.diff(found, axis=0) >= -0.02)
    assert np.all(np.diff(found, axis=1) >= -0.02)
    assert found[1, 1].max() > 0.9


def test_it_says_nothing_of_what_it_does_not_know() -> None:
    assert seen("y ~ a", None, 1.0) is None
    assert seen("grade ~ a", 500, 1.0, "categorical") is None


def test_a_fit_says_it_before_it_spends() -> None:
    schema = tacit.Schema({"a": {"low": -2, "high": 2}, "y": {"levels": [0, 1]}}, size=40)
    rows, form = {"a": np.linspace(-2, 2, 40), "y": [0, 1] * 20}, tacit.formula("y ~ a", schema, family="bernoulli")
    data, budget = tacit.PrivateData(rows, schema), tacit.Budget(0.1, 1e-6)
    with pytest.raises(ValueError, match="answer would be noise"):
        tacit.fit(form, data, budget, simulate=0, steps=20)
    assert not data.ledger.charges
    posterior = tacit.fit(form, data, budget, simulate=0, steps=20, force=True)
    assert all(one.mostly_prior and one.noise_share is not None for one in posterior.learnt())


def test_a_fit_says_afterwards_how_much_is_noise() -> None:
    """A larger budget takes off noise, and nothing else: the share falls."""
    size, generator = 3000, np.random.default_rng(0)
    schema = tacit.Schema({"a": {"low": -2, "high": 2}, "y": {"levels": [0, 1]}}, size=size)
    a = generator.uniform(-2, 2, size)
    rows = {"a": a, "y": (generator.uniform(size=size) < 1 / (1 + np.exp(-a))).astype(int)}
    form = tacit.formula("y ~ a", schema, family="bernoulli")
    shares = []
    for epsilon in (0.3, 10.0):
        posterior = tacit.fit(form, tacit.PrivateData(rows, schema), tacit.Budget(epsilon, 1e-6), simulate=0)
        assert posterior.has_intervals
        shares.append([one.noise_share for one in posterior.learnt()])
    assert min(shares[0]) > 0.3
    assert max(shares[1]) < 0.15
