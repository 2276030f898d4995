"""Fit five models with Bambi, to compare tacit's formulas with: designs, and posterior means by NUTS.

    python papers/front/bambi_reference.py tests/data/bambi.json

Bambi brings PyMC along and is not installed with tacit: run this in an environment of its own (pip install bambi). The
records are made up. ``tests/test_formula_bambi.py`` reads the file. The priors are given, and are the same in both:
Bambi would take its own from the data. Columns have the middle of their bounds at 0, so that intercepts mean the same.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

COUNT = 120
MODELS: dict[str, dict[str, Any]] = {
    "linear": {"formula": "y ~ x + g", "family": "gaussian"},
    "logistic": {"formula": "ill ~ x * g", "family": "bernoulli"},
    "counts": {"formula": "count ~ x + {x**3} + s + offset(log(z))", "family": "poisson"},
    "groups": {"formula": "y ~ x + T(g, ref='b') + (1 | h)", "family": "gaussian"},
    "slopes": {"formula": "ill ~ x + w + (x | h)", "family": "bernoulli"},
}
COMMON = 1.5
"""Standard deviation of the normal prior of every coefficient and intercept."""
SPREAD = 1.0
"""Scale of the half-normal prior of every spread."""


def records(seed: int) -> pd.DataFrame:
    """Make up the records."""
    random = np.random.default_rng(seed)
    x, w, z = (random.uniform(low, high, COUNT).round(4) for low, high in ((-2, 2), (-1, 1), (1, 3)))
    g, h, s = random.integers(0, 3, COUNT), random.integers(0, 6, COUNT), random.integers(0, 2, COUNT)
    effects = random.normal(0, 0.8, 6)
    y = 0.5 + 0.7 * x + 0.4 * (g == 1) - 0.6 * (g == 2) + effects[h] + random.normal(0, 0.7, COUNT)
    ill = random.random(COUNT) < 1 / (1 + np.exp(-(0.3 + 0.8 * x - 0.5 * (g == 2) + 0.6 * w + effects[h])))
    count = random.poisson(z * np.exp(0.2 + 0.3 * x - 0.05 * x**3 + 0.3 * s))
    return pd.DataFrame(
        {
            "x": x,
            "w": w,
            "z": z,
            "g": np.asarray(list("abc"))[g],
            "h": np.asarray(list("pqrstu"))[h],
            "s": np.asarray(["no", "yes"])[s],
            "y": y.round(4),
            "ill": ill.astype(int),
            "count": count,
        }
    )


def reference(name: str, frame: pd.DataFrame) -> dict[str, Any]:
    """Fit one model, and give its design and the means and standard deviations of its posterior."""
    import bambi

    facts = MODELS[name]
    normal = bambi.Prior("Normal", mu=0, sigma=COMMON)
    # Names of terms are known once the model is built.
    first = bambi.Model(facts["formula"], frame, family=facts["family"], auto_scale=False)
    component = first.components[first.family.likelihood.parent]
    priors: dict[str, Any] = dict.fromkeys(component.common_terms, normal)
    if component.intercept_term is not None:
        priors["Intercept"] = normal
    for group in component.group_specific_terms:
        priors[group] = bambi.Prior("Normal", mu=0, sigma=bambi.Prior("HalfNormal", sigma=SPREAD))
    if facts["family"] == "gaussian":
        priors["sigma"] = bambi.Prior("HalfNormal", sigma=SPREAD)
    model = bambi.Model(
        facts["formula"], frame, family=facts["family"], priors=priors, auto_scale=False, center_predictors=False
    )
    component = model.components[model.family.likelihood.parent]
    fitted = model.fit(draws=2000, tune=1000, chains=4, cores=1, random_seed=1, progressbar=False)
    posterior = fitted.posterior
    coefficients = {}
    for site in posterior.data_vars:
        values = np.asarray(posterior[site])
        values = values.reshape(-1, *values.shape[2:])
        coefficients[str(site)] = {"mean": np.ravel(values.mean(0)).tolist(), "std": np.ravel(values.std(0)).tolist()}
    design = component.design
    groups = {
        term: np.asarray(design.group[term].toarray()).tolist() for term in (design.group.terms if design.group else ())
    }
    offsets = [term.name for term in design.common.terms.values() if term.kind == "offset"]
    kept = [
        i for term, part in design.common.slices.items() if term not in offsets for i in range(part.start, part.stop)
    ]
    return {
        **facts,
        "frame": frame.to_dict("list"),
        "design": np.asarray(design.common.design_matrix, float)[:, kept].tolist(),
        "groups": groups,
        "coefficients": coefficients,
    }


def main() -> None:
    """Fit all and write the file."""
    versions = {name: importlib.metadata.version(name) for name in ("bambi", "formulae", "pymc")}
    found = {name: reference(name, records(seed)) for seed, name in enumerate(MODELS)}
    facts = {"versions": versions, "common": COMMON, "spread": SPREAD, "models": found}
    Path(sys.argv[1]).write_text(json.dumps(facts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
