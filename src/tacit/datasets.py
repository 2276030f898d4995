"""Simulated records whose truth is known, for the demo, the examples and the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist

from tacit.facts.schema import Schema

HOSPITAL = Schema(
    {
        "age": {"low": 18, "high": 100},
        "sex": {"levels": ["female", "male"]},
        "emergency": {"levels": ["no", "yes"]},
        "days": {"low": 1, "high": 30},
        "earlier_stays": {"low": 0, "high": 10, "kind": "integer"},
        "diabetes": {"levels": ["no", "yes"]},
        "readmitted": {"levels": ["no", "yes"]},
    },
    unit="patient",
    size=20000,
)
"""The public facts about the simulated patients."""

HOSPITAL_TRUTH = {
    "intercept": -1.4,
    "age": 0.45,
    "male": 0.1,
    "emergency": 0.5,
    "days": 0.3,
    "earlier_stays": 0.8,
    "diabetes": 0.35,
}
"""The coefficients from which readmission is simulated, in the units of ``hospital_model``."""


CLINIC_EFFECTS = {
    "Ash": 0.35,
    "Beech": -0.6,
    "Birch": 0.05,
    "Cedar": 0.7,
    "Elm": -0.2,
    "Fir": -0.45,
    "Hazel": 0.15,
    "Larch": 0.5,
    "Maple": -0.1,
    "Oak": -0.75,
    "Pine": 0.25,
    "Willow": 0.1,
}
"""By how much the log odds of clinics differ; their standard deviation is 0.42."""

CLINICS = Schema(
    {
        **{name: column for name, column in HOSPITAL.columns.items() if name != "readmitted"},
        "clinic": {"levels": list(CLINIC_EFFECTS)},
        "readmitted": HOSPITAL.columns["readmitted"],
    },
    unit="patient",
    size=20000,
)
"""The public facts about the simulated patients of twelve clinics."""

CLINICS_FORMULA = "readmitted ~ age + sex + emergency + days + earlier_stays + diabetes + (1 | clinic)"
"""The model from which they were simulated."""


def hospital(seed: int) -> dict[str, Any]:
    """Simulate a table of 20000 hospital stays, one for each patient.

    Privacy: public. No real person is in it.
    """
    return _stays(np.random.default_rng(seed), HOSPITAL)


def clinics(seed: int) -> dict[str, Any]:
    """Simulate stays as ``hospital`` does, in twelve clinics that differ.

    Privacy: public. No real person is in it.
    """
    return _stays(np.random.default_rng(seed), CLINICS)


def clinics_truth() -> dict[str, float]:
    """Return what ``CLINICS_FORMULA`` should find, in its units: for a year, a day, a stay.

    Privacy: public.
    """
    middle = {
        name: ((column.low or 0) + (column.high or 0)) / 2
        for name, column in CLINICS.columns.items()
        if name not in ("clinic", "readmitted")
    }
    spread = float(np.std(list(CLINIC_EFFECTS.values())))

    def odds(**changes: float) -> float:
        return float(sum(HOSPITAL_TRUTH[name] * value for name, value in _columns(**{**middle, **changes}).items()))

    truth = {"Intercept": odds()}
    for name in middle:
        levels = CLINICS.columns[name].levels
        truth[name if levels is None else f"{name}[{levels[1]}]"] = odds(**{name: middle[name] + 1}) - odds()
    effects = {f"1|{clinic}": effect for clinic, effect in CLINIC_EFFECTS.items()}
    return {**truth, "1|clinic_sigma": spread, **effects}


def _stays(random: np.random.Generator, schema: Schema) -> dict[str, Any]:
    size = schema.size or 0
    diabetes = random.random(size) < 0.25
    table = {
        "age": np.clip(random.normal(62, 16, size) + 5 * diabetes, 18, 100),
        "sex": random.random(size) < 0.48,
        "emergency": random.random(size) < 0.55,
        "days": np.clip(random.gamma(2.0, 2.5, size), 1, 30),
        "earlier_stays": np.minimum(random.poisson(0.8, size), 10),
        "diabetes": diabetes,
    }
    odds = sum(HOSPITAL_TRUTH[name] * column for name, column in _columns(**table).items())
    if "clinic" in schema.columns:
        table["clinic"] = random.integers(0, len(CLINIC_EFFECTS), size)
        odds = odds + np.asarray(list(CLINIC_EFFECTS.values()))[table["clinic"]]
    table["readmitted"] = random.random(size) < 1 / (1 + np.exp(-odds))
    return {
        name: table[name] if column.levels is None else np.asarray(column.levels)[table[name].astype(int)]
        for name, column in schema.columns.items()
    }


def hospital_model(
    age: Any, sex: Any, emergency: Any, days: Any, earlier_stays: Any, diabetes: Any, readmitted: Any = None
) -> None:
    """Sample readmissions from a logistic regression, as a NumPyro model.

    Columns are centred and scaled by public constants.

    Privacy: public.
    """
    columns = _columns(age, sex, emergency, days, earlier_stays, diabetes)
    weights = {name: numpyro.sample(name, dist.Normal(0, 2)) for name in columns}
    odds = sum(weights[name] * column for name, column in columns.items())
    with numpyro.plate("patients", age.shape[0]):
        numpyro.sample("readmitted", dist.Bernoulli(logits=odds), obs=readmitted)


def _columns(age: Any, sex: Any, emergency: Any, days: Any, earlier_stays: Any, diabetes: Any) -> dict[str, Any]:
    return {
        "intercept": 1.0,
        "age": (age - 60) / 15,
        "male": sex * 1.0,
        "emergency": emergency * 1.0,
        "days": (days - 5) / 4,
        "earlier_stays": earlier_stays / 1.0,
        "diabetes": diabetes * 1.0,
    }
