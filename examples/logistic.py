"""A private logistic regression, from declared bounds to a saved certificate.

The records are simulated, so the truth is known and printed beside the posterior. Run it with

    python examples/logistic.py

It writes logistic/ into the current folder: the ledger, the posterior and the certificate.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist

import tacit

OUT = Path("logistic")
TRUTH = {"intercept": -1.0, "age": 0.8, "male": 0.5, "pressure": -0.3}


def simulate(size: int, seed: int) -> dict[str, np.ndarray]:
    """Make up a table of patients. With real records this is the only part to replace."""
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 15, size).clip(18, 100)
    male = rng.random(size) < 0.5
    pressure = rng.normal(130, 20, size)
    log_odds = (
        TRUTH["intercept"]
        + TRUTH["age"] * (age - 60) / 15
        + TRUTH["male"] * male
        + TRUTH["pressure"] * (pressure - 130) / 20
    )
    pressure[rng.random(size) < 0.01] = np.nan  # some were never measured
    return {
        "age": age,
        "sex": np.where(male, "m", "f"),
        "pressure": pressure,
        "readmitted": rng.logistic(log_odds) > 0,
    }


# What is public about a record. Bounds and levels are known without looking at the records.
SCHEMA = tacit.Schema(
    {
        "age": {"low": 18, "high": 100},
        "sex": {"levels": ["f", "m"]},
        "pressure": {"low": 60, "high": 220, "missing": 130},
        "readmitted": {"levels": [False, True]},
    },
    unit="patient",
    size=20000,  # the hospital has published how many patients it had
)


def model(age, sex, pressure, readmitted=None):
    """Logistic regression. Columns are centred and scaled by public numbers, so that a clip of about 1 suits each."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 2))
    slopes = {name: numpyro.sample(name, dist.Normal(0, 1)) for name in ("age", "male", "pressure")}
    log_odds = (
        intercept
        + slopes["age"] * (age - 60) / 15
        + slopes["male"] * sex  # levels are coded in the order of the schema: f is 0, m is 1
        + slopes["pressure"] * (pressure - 130) / 20
    )
    with numpyro.plate("patients", age.shape[0]):
        numpyro.sample("readmitted", dist.Bernoulli(logits=log_odds), obs=readmitted)


def main() -> None:
    """Seal, fit, print, save."""
    OUT.mkdir(exist_ok=True)
    # One ledger for all looks at these records. Its cap binds every later run too.
    ledger = tacit.Ledger(OUT / "ledger.jsonl", cap=tacit.Budget(epsilon=3.0, delta=1e-6, unit="patient"))
    data = tacit.PrivateData(simulate(20000, seed=1), SCHEMA, ledger=ledger)
    print(data)

    # A killed run is taken up again by the same call; a finished one is read from its folder.
    budget = tacit.Budget(epsilon=1.0, delta=1e-6, unit="patient")
    posterior = tacit.fit(tacit.vi(model), data, budget, run_dir=OUT / "run", progress=False)
    print(posterior)
    print("truth:", ", ".join(f"{name} {value:g}" for name, value in TRUTH.items()))

    certificate = tacit.Certificate.load(OUT / "run")
    certificate.verify(ledger)
    print(certificate.explain())
    print(f"For your data protection officer: {OUT / 'run' / 'certificate.html'}")


if __name__ == "__main__":
    main()
