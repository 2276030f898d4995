"""Formulas: the design is formulae's, everything else comes from the schema, and mistakes say what to write."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import tacit
from tacit.facts import parsing
from tacit.facts.placeholder import even_columns
from tacit.facts.schema import Schema
from tacit.models.formula import Formula, formula

SCHEMA = Schema(
    {
        "age": {"low": 20, "high": 100},
        "stays": {"low": 0, "high": 12, "kind": "integer"},
        "x": {"low": -2, "high": 2},
        "z": {"low": 1, "high": 50},
        "sex": {"levels": ["f", "m"]},
        "ward": {"levels": ["north", "east", "south", "west"]},
        "year": {"levels": [2019, 2020, 2021]},
        "flag": {"levels": [False, True]},
        "count": {"low": 0, "high": 40, "kind": "integer"},
        "trials": {"low": 1, "high": 40, "kind": "integer"},
        "cost": {"low": 0.5, "high": 900},
        "pain": {"levels": ["none", "some", "much", "extreme"]},
        "ill": {"levels": ["no", "yes"]},
        "y": {"low": -10, "high": 30},
        "image": {"low": 0, "high": 1, "shape": [2, 2]},
    },
    unit="patient",
)
RIGHT_SIDES = [
    "1",
    "0 + age",
    "age + sex + ward",
    "0 + ward + age",
    "age * sex",
    "ward * sex + year",
    "age:ward",
    "age:x + ward:sex:flag",
    "center(age) + scale(stays) + standardize(z)",
    "{x**2} + I(age / 10 - x) + {x + 1}",
    "np.log(z) + log(z) + exp(x) + sqrt(z) + abs(x) + log1p(stays)",
    "bs(age, df=5)",
    "bs(age, df=4, degree=2) + bs(x, df=6, center=False)",
    "bs(z, df=4, lower_bound=0, upper_bound=40)",
    "poly(age, 3) + poly(x, 2, raw=True)",
    'T(ward, ref="south") + S(year) + C(sex)',
    "scale(age) * T(ward, ref='west')",
    "scale(age):scale(x):sex",
    "(age + sex + x) ** 2",
    "ward / age",
    "{x > 0} + age",
]


def public_records(count: int = 300, seed: int = 1) -> dict[str, Any]:
    return even_columns(SCHEMA, jax.random.key(seed), count)


def frame_of(records: dict[str, Any]) -> pd.DataFrame:
    columns = {}
    for name, column in SCHEMA.columns.items():
        if column.levels is not None:
            codes = np.asarray(records[name])
            columns[name] = pd.Categorical.from_codes(codes, list(column.levels), ordered=True)
        elif not column.shape:
            columns[name] = np.asarray(records[name], float)
    return pd.DataFrame(columns)


def theirs(text: str, records: dict[str, Any]) -> Any:
    """Let formulae set up its terms on the public frame, and evaluate them on other records."""
    description = parsing.parsed(text)
    parsing.evaluate(description, parsing.frame_of(SCHEMA))
    return description, frame_of(records)


@pytest.mark.parametrize("right", RIGHT_SIDES)
def test_the_design_is_that_of_formulae(right: str) -> None:
    records = public_records()
    description, frame = theirs(f"y ~ {right}", records)
    expected = np.column_stack([term.eval_new_data(frame) for term in description.common_terms])
    model = formula(f"y ~ {right}", SCHEMA)
    # Not a count of ulps: splines and polynomials of degree 3 lose a few digits in 32 bits.
    scale = np.maximum(1, np.abs(expected).max(0))
    np.testing.assert_allclose(np.asarray(model.design(records)) / scale, expected / scale, atol=3e-6)
    assert list(model.names) == [label for term in description.common_terms for label in term.labels]


@pytest.mark.parametrize(
    "right", ["(1 | ward)", "(age | ward)", "(ward | year)", "(0 + x | sex:ward)", "(bs(x, df=4) | sex)"]
)
def test_group_effects_are_those_of_formulae(right: str) -> None:
    records = public_records(50)
    description, frame = theirs(f"y ~ 0 + x + {right}", records)
    model = formula(f"y ~ 0 + x + {right}", SCHEMA)
    for ours, term in zip(model.group_terms, description.group_terms, strict=True):
        matrix = term.eval_new_data(frame).toarray().reshape(50, len(ours.groups), -1)
        values, index = np.asarray(ours.values(records)), np.asarray(ours.index(records))
        expected = np.zeros(matrix.shape)
        expected[np.arange(50), index] = values
        np.testing.assert_allclose(matrix, expected, atol=1e-4)
        assert list(ours.groups) == term.groups
    # In the model numbers are centred, and moved by their own spread.
    draw = {name: prior.sample(jax.random.key(3)) for name, prior in model.priors.items()}
    total = model.design(records)[:, 0] * draw["x"]
    for ours in model.group_terms:
        effects = np.asarray(draw[f"{ours.name}_sigma"]) * np.asarray(draw[f"{ours.name}_offset"])
        effects = effects.reshape(len(ours.groups), -1)[np.asarray(ours.index(records))]
        total += np.sum((np.asarray(ours.values(records)) - ours.centre) * effects, 1)
    np.testing.assert_allclose(model.linear(draw, records), total, rtol=1e-4, atol=1e-4)


def test_offsets_have_no_coefficient() -> None:
    records = public_records(20)
    draw = {"Intercept": jnp.float32(0.5), "x": jnp.float32(-1.0)}
    for text, offset in (("offset(log(z))", np.log(np.asarray(records["z"]))), ("offset(2)", 2)):
        model = formula(f"count ~ x + {text}", SCHEMA, "poisson")
        assert model.names == ("Intercept", "x")
        np.testing.assert_allclose(model.linear(draw, records), 0.5 - np.asarray(records["x"]) + offset, rtol=1e-5)


def test_centring_changes_the_intercept_only() -> None:
    records = public_records(20)
    model = formula("y ~ age + sex + x", SCHEMA)
    np.testing.assert_allclose(model.centre, [0, 60, 0, 0])
    np.testing.assert_allclose(model.scale, [1, 20, 1, 1])
    draw = {"Intercept": 1.0, "age": 0.5, "sex": -2.0, "x": 3.0, "sigma": 1.0}
    weights = np.asarray([1.0 - 0.5 * 60, 0.5, -2.0, 3.0])
    np.testing.assert_allclose(model.linear(draw, records), np.asarray(model.design(records)) @ weights, rtol=1e-4)
    assert np.all(formula("y ~ 0 + age", SCHEMA).centre == 0)


FAMILIES = {
    "gaussian": "y ~ age + sex",
    "student": "y ~ age + sex",
    "bernoulli": "ill ~ age + sex",
    "binomial": "p(count, trials) ~ age + sex",
    "poisson": "count ~ age + sex + offset(log(z))",
    "negative_binomial": "count ~ age + sex",
    "gamma": "cost ~ age + sex",
    "ordinal": "pain ~ age + sex",
    "categorical": "pain ~ age + sex + (1 | ward)",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_makes_up_records_and_explains_itself(family: str) -> None:
    model = formula(FAMILIES[family], SCHEMA, family)
    records = public_records(400)
    values = {name: records[name] for name in model.columns}
    trace = numpyro.handlers.trace(numpyro.handlers.seed(model, 0)).get_trace(**values)
    site = trace[model.response]
    assert site["value"].shape == (400,)
    assert np.isfinite(site["value"]).all()
    draw = {name: trace[name]["value"] for name in model.priors}
    mean = model.mean(draw, values)
    several = family in ("ordinal", "categorical")
    assert mean.shape == ((400, 4) if several else (400,))
    if several:
        np.testing.assert_allclose(mean.sum(1), 1, rtol=1e-5)
    elif family not in ("student", "ordinal"):
        np.testing.assert_allclose(mean, site["fn"].mean, rtol=1e-4)
    for name, value in draw.items():
        assert len(model.labels[name]) == np.size(value)
        assert name in str(model)
    assert f"Family {family}" in str(model)
    assert repr(model) == f"Formula({FAMILIES[family]!r}, family={family!r})"
    assert pickle.loads(pickle.dumps(model.labels)) == model.labels


def test_a_model_in_words() -> None:
    model = formula("ill ~ age + sex + (1 | ward)", SCHEMA, "bernoulli", {"sex": dist.Normal(0.0, 1.0)})
    assert str(model).splitlines() == [
        "ill ~ age + sex + (1 | ward)",
        "Family bernoulli: the log odds are linear (ill = yes).",
        "Priors, on the scale of the columns:",
        "  Intercept                    Normal(0, 2.5)",
        "  age                          Normal(0, 0.125)",
        "  sex                          Normal(0, 1) for each of sex[m]",
        "  1|ward_sigma                 HalfNormal(1)",
        "  1|ward_offset                Normal(0, 1): effect of a group, in units of its sigma",
        "Groups of 1|ward: 4 (north, east, south, west).",
        "The intercept is where age = 60: the middle of what the schema allows.",
    ]
    assert model.groups == {"1|ward": ("north", "east", "south", "west")}
    assert model.columns == ("age", "sex", "ward")
    assert "(ill = no)" in str(formula("ill[no] ~ age", SCHEMA, "bernoulli"))


MISTAKES = [
    ("ill ~ agee", "bernoulli", r"uses 'agee', which is no column; did you mean 'age'\?"),
    ("il ~ age", "bernoulli", r"uses 'il', which is no column; did you mean 'ill'\?"),
    ("ill ~ qqqqqq", "bernoulli", r"which is no column; there are age, stays"),
    ("ill ~ age +", "bernoulli", r"cannot be read"),
    ("ill ~ lag(age)", "bernoulli", r"function 'lag', which is not one of center, scale"),
    ("ill ~ np.random.rand(age)", "bernoulli", r"which is not one of"),
    ("ill ~ age", "logistic", r"The family is 'logistic'; here that is 'bernoulli'"),
    ("ill ~ age", "anything", r"The family is 'anything'; there are gaussian"),
    ("ill ~ age", "poison", r"did you mean 'poisson'"),
    ("ill ~ age", "gaussian", r"does not fit the family 'gaussian', which needs a number; the schema has ill category"),
    ("ill ~ age", "gaussian", r"Write family 'bernoulli', or change the schema's line"),
    ("y ~ age", "bernoulli", r"needs a category of two levels"),
    ("pain ~ age", "bernoulli", r"needs a category of two levels"),
    ("ill ~ age", "ordinal", r"three levels or more"),
    ("y ~ age", "gamma", r"lower bound above 0"),
    ("y ~ age", "poisson", r"needs an integer from 0"),
    ("log(z) ~ age", "gaussian", r"transform it before the records are sealed"),
    ("age", "gaussian", r"has no response"),
    ("y ~ y + age", "gaussian", r"explains 'y' by itself"),
    ("y ~ image", "gaussian", r"array of shape \(2, 2\)"),
    ("y ~ log(stays)", "gaussian", r"log\(stays\) is not finite for all that the schema allows"),
    ("y ~ C(age)", "gaussian", r"makes a category of the number 'age'"),
    ("y ~ {sex + 1}", "gaussian", r"computes with 'sex', which is a category|cannot be set up"),
    ("y ~ (1 | age)", "gaussian", r"groups of \(1\|age\) are age, which is not a category"),
    ("y ~ bs(age)", "gaussian", r"Must specify either 'df' or 'knots'"),
    ("ill[maybe] ~ age", "bernoulli", r"level in brackets.*there are no, yes"),
    ("count ~ age", "binomial", r"write p\(count, trials\) ~"),
    ("p(count, trials) ~ age", "poisson", r"write family='binomial'"),
]


@pytest.mark.parametrize(("text", "family", "said"), MISTAKES)
def test_mistakes_say_what_to_write(text: str, family: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=said):
        formula(text, SCHEMA, family)


def test_names_with_spaces_are_written_in_backquotes() -> None:
    schema = Schema({"income (EUR)": {"low": 0, "high": 9e4}, "y": {"low": 0, "high": 1}})
    assert formula("y ~ `income (EUR)`", schema).names == ("Intercept", "income (EUR)")
    with pytest.raises(ValueError, match=r"did you mean 'income \(EUR\)'\? .* in backquotes: `income \(EUR\)`"):
        formula("y ~ income", schema)
    with pytest.raises(ValueError, match=r"column of that name is written in backquotes: `income \(EUR\)`"):
        formula("y ~ income (EUR)", schema)


def test_priors_that_fit_nothing() -> None:
    with pytest.raises(ValueError, match=r"a prior is given for 'agee'|A prior is given for 'agee'.*'age'"):
        formula("y ~ age", SCHEMA, priors={"agee": dist.Normal(0, 1)})
    with pytest.raises(TypeError, match="Pass a NumPyro distribution"):
        formula("y ~ age", SCHEMA, priors={"age": 3})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"Write tacit\.Schema"):
        Formula("y ~ age", {"age": (0, 1)})  # type: ignore[arg-type]


def test_a_column_without_bounds_or_with_an_unseen_level_spends_nothing() -> None:
    """Acceptance: with the typo above, the three likely mistakes."""
    with pytest.raises(ValueError, match=r"Column 'age' has no bounds.*write age = \{low = 0, high = 110\}"):
        Schema({"age": {}})
    ledger = tacit.Ledger()
    with pytest.raises(ValueError, match=r"none of its 2 declared levels.*sex = \{levels"):
        tacit.PrivateData({"sex": ["f", "x"]}, Schema({"sex": {"levels": ["f", "m"]}}), ledger=ledger)
    data = tacit.PrivateData(
        {"sex": ["f"], "y": [1.0]}, Schema({"sex": {"levels": ["f", "m"]}, "y": {"low": 0, "high": 2}}), ledger=ledger
    )
    with pytest.raises(ValueError, match="did you mean 'sex'"):
        tacit.fit(tacit.formula("y ~ sexx", data.schema), data, tacit.Budget(1.0, 1e-5))
    longer = Schema({"sex": {"levels": ["m", "f"]}, "y": {"low": 0, "high": 2}})
    with pytest.raises(ValueError, match=r"say different things about \['sex'\]"):
        tacit.fit(tacit.formula("y ~ sex", longer), data, tacit.Budget(1.0, 1e-5))
    assert ledger.charges == ()


def test_names_that_clash() -> None:
    schema = Schema({"sigma": {"low": 0, "high": 1}, "y": {"low": 0, "high": 2}})
    with pytest.raises(ValueError, match="two things of the name 'sigma'"):
        formula("y ~ sigma", schema)


CANARIES = {"x": "1.7351948", "sex": "m", "other": "0.4827351", "ill": "yes", "person": "canary-73519"}
"""A record whose values nothing else has, where a column's levels leave the choice."""


def test_a_file_is_read_fitted_and_asked_and_a_canary_in_it_is_found_nowhere(tmp_path: Path) -> None:
    """2000 made-up records, of which the coefficients are known, and one canary; one column is not used."""
    random = np.random.default_rng(0)
    x, sex = random.uniform(-2, 2, 2000), random.integers(0, 2, 2000)
    ill = random.random(2000) < 1 / (1 + np.exp(-(0.5 + x - sex)))
    schema = Schema(
        {
            "x": {"low": -2, "high": 2},
            "sex": {"levels": ["f", "m"]},
            "other": {"low": 0, "high": 1},
            "ill": {"levels": ["no", "yes"]},
        },
        unit="person",
        size=2000,
    )
    lines = [
        f"{a:.3f},{'fm'[b]},0,{('no', 'yes')[int(c)]},p{i}" for i, (a, b, c) in enumerate(zip(x, sex, ill, strict=True))
    ]
    source = tmp_path / "in" / "t.csv"
    source.parent.mkdir()
    source.write_text("\n".join([",".join(CANARIES), ",".join(CANARIES.values()), *lines]))
    model = tacit.formula("ill ~ x + sex", schema, family="bernoulli")
    data = tacit.read_csv(source, schema, ledger=tmp_path / "ledger.jsonl")
    budget = tacit.Budget(8.0, 1e-5, unit="person")
    posterior = tacit.fit(
        model, data, budget, steps=300, progress=False, run_dir=tmp_path / "run", simulate=1, key=jax.random.key(0)
    )
    # Standard errors are 0.06 to 0.12 without privacy, and about half as much again with it: three of them.
    assert abs(posterior.draws["x"].mean() - 1) < 0.3
    assert abs(posterior.draws["sex"].mean() + 1) < 0.5
    assert [row[0] for row in posterior.rows()] == ["Intercept", "x", "sex[m]"]
    assert "sex[m]" in repr(posterior)
    assert posterior.model is model
    found = tacit.comparisons(posterior, {"sex": ["f", "m"]})
    assert found.labels == ("sex: m - f",)
    assert found.mean[0] < 0
    # The canary: in what is shown, in what is held, in what was written.
    public = [data, data.schema, data.placeholder, model, posterior, posterior.certificate, data.ledger.charges, found]
    texts = [show(one) for one in public for show in (repr, str)]
    texts += [repr(vars(one)) for one in (model, posterior)]
    content = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file != source]
    assert len(content) >= 4
    for name in ("x", "other", "person"):
        # As text, also cut short as a float is printed; and as the bits of a stored number.
        forms = [CANARIES[name][:7].encode()]
        forms += [] if name == "person" else [kind(CANARIES[name]).tobytes() for kind in (np.float32, np.float64)]
        assert not any(form in one for form in forms for one in [*content, *(text.encode() for text in texts)])
