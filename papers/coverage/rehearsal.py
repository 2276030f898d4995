"""Does a rehearsal predict the width of the intervals that a fit then gives? Three real data sets, at epsilon 1.

    TACIT_DATA=... python papers/coverage/rehearsal.py [--quick]

For each data set the intervals of ``tacit.vi`` are rehearsed on made-up records and then fitted to real ones, over
several draws of 5000 records and of the secret noise. Three rehearsals: "bounds alone" makes up inputs evenly between
public bounds; "public inputs" draws them from the inputs (never the outcomes) of 500 other people, as a registry might
publish; both draw outcomes from the model's prior. "public pilot" has the outcomes of these 500 too: parameters are
drawn from the posterior given them, and outcomes from the parameters. Printed: the mean width of the 90% intervals,
rehearsed and real, with standard errors, and their ratio; within 25% is what is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import coverage
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import study

import tacit

study.HERE = coverage.HERE
SIZE, PUBLIC, RADIUS = 5000, 500, 3.0
BUDGET = tacit.Budget(epsilon=1.0, delta=1e-5)
ALLOWED = 0.25
SETTINGS = {"rate": 0.1, "steps": 1000}


def logistic(x: Any, y: Any = None) -> None:
    """Model a yes or no; the prior lets the log odds vary by about two, whatever the number of columns."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, 2 / np.sqrt(x.shape[1])).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=intercept + x @ w), obs=y)


def linear(x: Any, y: Any = None) -> None:
    """Model a number that was scaled by public figures to unit size, with noise of unknown size."""
    intercept = numpyro.sample("intercept", dist.Normal(0, 0.3))
    w = numpyro.sample("w", dist.Normal(0, 1 / np.sqrt(x.shape[1])).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(-0.5, 0.5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(intercept + x @ w, scale), obs=y)


def columns(*parts: Any) -> Any:
    """Put columns side by side, inside their public bounds."""
    return np.clip(np.stack(parts, 1), -RADIUS, RADIUS).astype(np.float32)


def adult() -> tuple[Any, Any]:
    """Read census records: is the income above 50000 dollars?"""
    import pandas as pd

    rows = pd.read_csv(study.data_folder() / "adult.csv.gz")
    signs = (
        rows["sex"] == "Male",
        rows["marital_status"] == "Married-civ-spouse",
        rows["race"] == "White",
        rows["occupation"].isin(["Exec-managerial", "Prof-specialty"]),
        rows["workclass"].str.endswith("-gov").fillna(False),
    )
    x = columns(
        (rows["age"] - 40) / 14,
        (rows["education_num"] - 10) / 2.5,
        (rows["hours_per_week"] - 40) / 12,
        *(np.where(yes, 1.0, -1.0) for yes in signs),
    )
    return x, (rows["income"].str.startswith(">50K")).to_numpy(np.int32)


def diabetes() -> tuple[Any, Any]:
    """Read the first stay of each diabetic patient: was there another?"""
    import pandas as pd

    rows = pd.read_csv(study.data_folder() / "diabetes130.csv.gz", keep_default_na=False).drop_duplicates("patient_nbr")
    decade = rows["age"].astype(str).str.extract(r"(\d+)", expand=False).astype(float)
    x = columns(
        (decade - 60) / 15,
        (rows["time_in_hospital"] - 4) / 3,
        (rows["num_lab_procedures"] - 43) / 20,
        (rows["num_medications"] - 16) / 8,
        rows["number_inpatient"] / 1.5,
        rows["number_emergency"] / 1.5,
        (rows["number_diagnoses"] - 7) / 2,
        np.where(rows["gender"] == "Male", 1.0, -1.0),
    )
    return x, (rows["readmitted"].astype(str) != "NO").to_numpy(np.int32)


def power() -> tuple[Any, Any]:
    """Read hours of a power plant: its output, from temperature, vacuum, pressure and humidity."""
    with np.load(study.data_folder() / "uci_power.npz", allow_pickle=False) as file:
        x, y = (np.asarray(file[name], np.float64) for name in ("X", "y"))
    public = columns(*((x[:, i] - centre) / spread for i, (centre, spread) in enumerate(POWER)))
    return public, ((np.ravel(y) - 455) / 17).clip(-RADIUS, RADIUS).astype(np.float32)


POWER = ((20, 7.5), (54, 13), (1013, 6), (73, 15))
"""Round figures for degrees, cm of mercury, millibar and percent."""


def schema(width: int, outcome: dict[str, Any]) -> tacit.Schema:
    """Declare what is public: bounds of scaled columns, and of the outcome."""
    return tacit.Schema({"x": {"low": -RADIUS, "high": RADIUS, "shape": (width,)}, "y": outcome}, size=SIZE)


def rehearsed(name: str, read: Callable[[], Any], model: Any, repeats: int, size: int) -> list[tuple[str, ...]]:
    """Rehearse, then fit real records as often; give the lines of the table."""
    x, y = read()
    outcome = {"levels": [0, 1]} if model is logistic else {"low": -RADIUS, "high": RADIUS}
    facts, method = schema(x.shape[1], outcome), tacit.vi(model)
    order = np.random.default_rng(0).permutation(len(x))
    sample, rest = x[order[:PUBLIC]], order[PUBLIC:]

    def people(key: Any, count: int) -> Any:
        chosen = jax.random.choice(key, PUBLIC, (count,))
        return {"x": sample[np.asarray(chosen)]}

    pilot = tacit.fit_public(method, {"x": sample, "y": y[order[:PUBLIC]]}, key=jax.random.key(2))
    predict = jax.jit(method(tacit.Plan(facts.placeholder())).model.predict)

    def as_pilot(key: Any, count: int) -> Any:
        keys = jax.random.split(key, 3)
        place = int(jax.random.choice(keys[0], len(pilot.draws["w"])))
        truth = {name: value[place] for name, value in pilot.draws.items()}
        inputs = people(keys[1], count)
        return {**inputs, **jax.tree.map(np.asarray, predict(truth, inputs, keys[2]))}, truth

    real = []
    for seed in range(repeats):
        mine = np.random.default_rng(seed + 1).choice(rest, size, replace=False)
        data = tacit.PrivateData({"x": x[mine], "y": y[mine]}, facts)
        key = jax.random.key(seed)
        posterior = tacit.fit(method, data, BUDGET, **SETTINGS, key=key, simulate=seed, progress=False)
        real.append(np.mean([high - low for *_, low, high in posterior.rows()]))
    lines = []
    for title, simulate in (("bounds alone", None), ("public inputs", people), ("public pilot", as_pilot)):
        row = tacit.rehearse(
            method, facts, BUDGET, size=size, **SETTINGS, simulate=simulate, replicates=repeats, key=jax.random.key(1)
        ).chosen
        truth = np.mean(real)
        error = np.std(real, ddof=1) / np.sqrt(repeats)
        ratio = row.width.value / truth
        within = "yes" if abs(ratio - 1) <= ALLOWED else "**no**"
        real_width = f"{truth:.3g} ± {error:.1g}"
        lines.append((name, title, str(row.width), real_width, f"{ratio:.2f}", within, str(row.coverage)))
    return lines


def main() -> None:
    """Print and write the table; what is done is kept."""
    chosen = study.options(
        __doc__,
        repeats={"type": int, "default": 6, "help": "draws of records and noise"},
        resume={"action": "store_true", "help": "keep the data sets that are in results/rehearsal.json"},
    )
    repeats, size = (2, 500) if chosen.quick else (chosen.repeats, SIZE)
    kept = chosen.out / "results" / "rehearsal.json"
    found = json.loads(kept.read_text())["found"] if chosen.resume and kept.exists() else {}
    for name, read, model in (
        ("Adult", adult, logistic),
        ("Diabetes-130", diabetes, logistic),
        ("Power", power, linear),
    ):
        if name not in found:
            found[name] = rehearsed(name, read, model, repeats, size)
        header = ["data", "made up from", "rehearsed width", "real width", "ratio", "within 25%", "rehearsed coverage"]
        text = (
            f"{size} records, ε = {BUDGET.epsilon:g}, `tacit.vi`; ± is the standard error over {repeats} repeats.\n\n"
        )
        text += study.table(header, [line for lines in found.values() for line in lines])
        study.save(chosen.out, "rehearsal", "python papers/coverage/rehearsal.py", text, {"found": found}, None)


if __name__ == "__main__":
    main()
