"""The choice of a method: a public rule, and a formula by ``glm`` has the posterior of the formula."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree

import tacit
from tacit.methods import leverage
from tacit.models.guided import GuidedModel
from tacit.run.auto import auto, by_glm
from tacit.run.plan import built_for, plan_for, planned
from tacit.run.rehearse import _Stage
from tacit.types import Plan
from tacit.wall.data import encode

KEY = jax.random.key(0)
COUNT = 3000
BUDGET = tacit.Budget(1.0, 1e-6)
CLINICS = ["a", "b", "c", "d"]
SCHEMA = tacit.Schema(
    {
        "age": {"low": 20, "high": 100},
        "sex": {"levels": ["f", "m"]},
        "clinic": {"levels": CLINICS},
        "days": {"low": 0, "high": 2},
        "ill": {"levels": ["no", "yes"]},
        "cost": {"low": 0, "high": 400},
        "visits": {"low": 0, "high": 30, "kind": "integer"},
    }
)


def table() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    age, sex, clinic = rng.uniform(25, 95, COUNT), rng.integers(0, 2, COUNT), rng.integers(0, 4, COUNT)
    days = rng.uniform(0, 2, COUNT)
    linear = -0.3 + 0.02 * (age - 60) + 0.5 * sex
    of_clinic = np.array([-0.6, 0.2, 0.0, 0.5])[clinic]
    return {
        "age": age,
        "sex": np.array(["f", "m"])[sex],
        "clinic": np.array(CLINICS)[clinic],
        "days": days,
        "ill": np.where(rng.logistic(linear + of_clinic) > 0, "yes", "no"),
        "cost": np.clip(200 + 40 * linear + 15 * rng.normal(size=COUNT), 0, 400),
        "visits": np.minimum(rng.poisson(np.exp(0.3 * sex + days)), 30),
    }


def formula(text: str, family: str, **options: Any) -> tacit.models.formula.Formula:
    return tacit.formula(text, SCHEMA, family=family, **options)


@pytest.mark.parametrize(
    ("text", "family", "settings"),
    [
        ("ill ~ age + sex", "bernoulli", {}),
        ("cost ~ age * sex + (1 | clinic)", "gaussian", {}),
        ("visits ~ age + offset(days)", "poisson", {}),
        ("ill ~ age", "bernoulli", {"priors": {"Intercept": dist.Normal(1.0, 3.0), "age": dist.Normal(0.0, 0.1)}}),
    ],
)
def test_regressions_are_for_natural(text: str, family: str, settings: dict[str, Any]) -> None:
    assert auto(formula(text, family, **settings), size=100_000, budget=BUDGET).why.startswith("glm")


@pytest.mark.parametrize(
    ("text", "family", "settings", "why"),
    [
        ("cost ~ age", "student", {}, "the family is student"),
        ("ill ~ 0 + age", "bernoulli", {}, "no intercept"),
        ("ill ~ age + (age | clinic)", "bernoulli", {}, "slopes differ by group"),
        ("ill ~ age", "bernoulli", {"priors": {"age": dist.Laplace(0.0, 1.0)}}, "a prior is not normal"),
        ("ill ~ age", "bernoulli", {"priors": {"age": dist.Normal(1.0, 1.0)}}, "a prior is not normal"),
        (
            "ill ~ age + (1 | clinic)",
            "bernoulli",
            {"priors": {"1|clinic_sigma": dist.HalfCauchy(1.0)}},
            "a prior is not normal",
        ),
    ],
)
def test_other_models_are_for_vi(text: str, family: str, settings: dict[str, Any], why: str) -> None:
    chosen = auto(formula(text, family, **settings), size=100_000, budget=BUDGET)
    assert chosen.why.startswith("vi, since")
    assert why in chosen.why


def test_natural_is_planned_for_the_steps_of_the_fit() -> None:
    model = formula("ill ~ age", "bernoulli")
    records = {name: np.stack([column.placeholder()] * 50) for name, column in SCHEMA.columns.items()}
    data = tacit.PrivateData(records, size=100_000)
    built = built_for(model, plan_for(data, BUDGET))
    other, mechanism, title = planned(model, data, BUDGET, steps=7)
    assert (built.for_steps, other.for_steps, mechanism.steps) == (40, 7, 7)
    assert other.model.reason == built.model.reason
    assert other.model.source is model
    assert title == "glm"


def test_what_is_known_of_a_formula_needs_no_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions, densities and made-up records are those that ``vi`` has, and no inference is set up for them."""
    model, plan = formula("ill ~ age + sex", "bernoulli"), Plan(SCHEMA.placeholder(), 100_000, budget=BUDGET)
    theirs = tacit.vi(model)(plan).model

    def refuse(*_: Any) -> None:
        raise AssertionError("a guide was read")

    monkeypatch.setattr(GuidedModel, "__init__", refuse)
    ours = built_for(model, plan).model
    assert ours.reason.startswith("glm")
    assert (ours.source, theirs.source) == (model, model)
    records = jax.tree.map(lambda column: jnp.asarray(column[:20]), encode(table(), SCHEMA))
    made = [known.simulate(KEY, records) for known in (ours, theirs)]  # type: ignore[misc]
    record = jax.tree.map(lambda column: column[0], records)
    for one, other in (
        made,
        [known.log_likelihood(made[0][1], record) for known in (ours, theirs)],  # type: ignore[misc]
        [known.predict(made[0][1], records, KEY) for known in (ours, theirs)],  # type: ignore[misc]
    ):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_rehearsal_is_of_the_method_that_a_fit_takes() -> None:
    model = formula("ill ~ age", "bernoulli")
    for size, method in ((100_000, "glm"), (20, "vi")):
        built = _Stage(model, SCHEMA, size, BUDGET, None, None).built
        assert built.model.reason.startswith(f"{method}, since")


def test_units_of_several_records_are_for_vi() -> None:
    """What keeps a record within the clip of ``glm`` says nothing of a sum of several."""
    several = tacit.Schema(SCHEMA.columns, unit="patient", max_records=3)
    chosen = auto(tacit.formula("ill ~ age", several, family="bernoulli"), size=100_000, budget=BUDGET)
    assert "a patient has several records" in chosen.why


def test_few_records_or_an_unknown_number_are_for_vi() -> None:
    model = formula("ill ~ age * sex * clinic", "bernoulli")
    assert "16 columns ask for about" in auto(model, size=300, budget=BUDGET).why
    assert auto(model, size=300, budget=tacit.Budget(8.0, 1e-6)).why.startswith("glm")
    assert "not declared" in auto(model, budget=BUDGET).why
    assert "not a formula" in auto(lambda x: None, size=10, budget=BUDGET).why


@pytest.mark.parametrize(
    ("text", "family"),
    [
        pytest.param("cost ~ age + sex", "gaussian", marks=pytest.mark.slow),
        ("visits ~ sex + offset(days)", "poisson"),
    ],
)
def test_without_noise_it_is_the_posterior_of_the_formula(
    text: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the draws' mean Newton's step on the formula's own density is short, and its curvature gives the widths.

    A thousand draws: means within 0.2 of a deviation and widths within 14% are six Monte-Carlo errors, a false alarm in
    10**7. No record weighs less for its leverage here. Residuals beyond 2.5 deviations are cut, and sigma is known from
    the tails: a deviation and 30%.
    """
    monkeypatch.setattr(leverage, "REACH", 100.0)
    monkeypatch.setattr(leverage, "LEVER", 100.0)
    model, records = formula(text, family), encode(table(), SCHEMA)
    posterior = tacit.fit_public(by_glm(model), records, key=KEY, rate=1.0, steps=40)
    means = {name: jnp.asarray(draws.mean(0)) for name, draws in posterior.draws.items()}
    assert {name: value.shape for name, value in means.items()} == {
        name: prior.event_shape for name, prior in model.priors.items()
    }
    flat, shaped = ravel_pytree(means)
    deviations, _ = ravel_pytree({name: draws.std(0) for name, draws in posterior.draws.items()})

    def log_density(steps: Any) -> Any:
        draw = shaped(flat + steps * deviations)
        observed = model._family.observe(model.linear(draw, records), draw, None).log_prob(model.outcome(records))
        return jnp.sum(observed) + sum(jnp.sum(prior.log_prob(draw[name])) for name, prior in model.priors.items())

    zero = jnp.zeros_like(flat)
    precision = -jax.hessian(log_density)(zero)
    step, widths = (
        jnp.linalg.solve(precision, jax.grad(log_density)(zero)),
        jnp.sqrt(jnp.diag(jnp.linalg.inv(precision))),
    )
    last = np.arange(len(flat)) == len(flat) - 1
    of_sigma = last & (family == "gaussian")
    assert np.all(np.abs(step) < np.where(of_sigma, 1.0, 0.2))
    assert np.all(np.abs(widths - 1) < np.where(of_sigma, 0.3, 0.14))


def test_a_model_is_fitted_by_what_suits_it(tmp_path: Any) -> None:
    """The posterior says which method and why, also when it was saved; labels and predictions are the formula's."""
    model = formula("ill ~ age + (1 | clinic)", "bernoulli")
    data = tacit.PrivateData(table(), SCHEMA, size=COUNT)
    posterior = tacit.fit(model, data, tacit.Budget(20.0, 1e-5), simulate=1, key=KEY, progress=False)
    assert posterior.reason.startswith("glm, since this is a bernoulli regression")
    assert "method: glm" in repr(posterior)
    assert posterior.certificate is not None
    assert posterior.certificate.to_markdown().count("glm") >= 1
    effect = tacit.comparisons(posterior, {"age": [40, 80]})
    assert 0.1 < float(effect.mean[0]) < 0.3
    posterior.save(tmp_path / "posterior.npz")
    loaded = tacit.Posterior.load(tmp_path / "posterior.npz")
    assert loaded.reason == posterior.reason
    assert [row[0] for row in loaded.rows()] == [row[0] for row in posterior.rows()]
