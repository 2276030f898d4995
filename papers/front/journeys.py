"""The journey of the front door on four public data sets: schema, CSV file, formula, fit, table.

    TACIT_DATA=folder python papers/front/journeys.py

For each: the private posterior at epsilon 1 beside the non-private one of the same model, and how long it took. The
tables are public; the journey treats them as if they were not. Bounds and levels are written from the data sets' own
descriptions. Writes results/journeys.md. ``--quick`` takes few steps, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import tacit
from tacit.wall.data import encode

HERE = Path(__file__).parent
EPSILON = 1.0

ADULT = """
unit = "person"
size = 48842

[columns]
age = {low = 17, high = 90}
education_num = {low = 1, high = 16, kind = "integer"}
hours_per_week = {low = 1, high = 99}
sex = {levels = ["Female", "Male"]}

[columns.marital_status]
levels = [
    "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent",
    "Married-AF-spouse",
]

[columns.income]
levels = ["<=50K", ">50K"]
"""
SUPPORT2 = """
unit = "patient"
size = 9105

[columns]
age = {low = 18, high = 102}
sex = {levels = ["female", "male"]}
num_co = {low = 0, high = 9, kind = "integer"}
meanbp = {low = 0, high = 195, missing = 80}
dzclass = {levels = ["ARF/MOSF", "COPD/CHF/Cirrhosis", "Cancer", "Coma"]}
hospdead = {levels = [0, 1]}
"""
RADON = """
unit = "home"
size = 919

[columns]
floor_measure = {levels = [0, 1]}
log_uppm = {low = -1, high = 0.6}
county_idx = {levels = [COUNTIES]}
log_radon = {low = -3, high = 4}
""".replace("COUNTIES", ", ".join(map(str, range(1, 86))))
ELECTION = """
unit = "person"
size = 11566

[columns]
state = {levels = [STATES]}
age = {levels = [1, 2, 3, 4]}
edu = {levels = [1, 2, 3, 4]}
female = {levels = [0, 1]}
black = {levels = [0, 1]}
y = {levels = [0, 1]}
""".replace("STATES", ", ".join(map(str, range(1, 52))))


class Journey(NamedTuple):
    """A data set: its schema, the formula, the family, and where the CSV file is."""

    schema: str
    formula: str
    family: str
    file: str


JOURNEYS = {
    "Adult": Journey(
        ADULT, "income ~ age + education_num + hours_per_week + sex + marital_status", "bernoulli", "adult.csv.gz"
    ),
    "SUPPORT2": Journey(
        SUPPORT2, "hospdead ~ scale(age) + sex + num_co + bs(meanbp, df=4) + dzclass", "bernoulli", "support2.csv.gz"
    ),
    "radon": Journey(RADON, "log_radon ~ floor_measure + log_uppm + (1 | county_idx)", "gaussian", "radon_mn.csv.gz"),
    "election88": Journey(
        ELECTION, "y ~ female * black + (1 | age) + (1 | edu) + (1 | state)", "bernoulli", "election88.csv"
    ),
}


def find(name: str, folder: Path, scratch: Path) -> Path:
    """Return the path of the CSV file; the poll of 1988 comes in JSON, and is written as one first."""
    if name != "election88.csv":
        return folder / name
    with gzip.open(folder / "bayes_demos.json.gz") as file:
        poll = json.load(file)["election88"]
    names = ("state", "age", "edu", "female", "black", "y")
    with (scratch / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*(poll[column] for column in names), strict=True))
    return scratch / name


def travel(journey: Journey, path: Path, scratch: Path, steps: int | None) -> tuple[list[str], float, str]:
    """Walk the five lines; give a table of both posteriors, the seconds of the private one, and which method it was."""
    (scratch / "schema.toml").write_text(journey.schema, encoding="utf-8")
    start = time.perf_counter()

    schema = tacit.Schema.read(scratch / "schema.toml")
    data = tacit.read_csv(path, schema)
    model = tacit.formula(journey.formula, schema, family=journey.family)
    budget = tacit.Budget(EPSILON, 1e-6, unit=schema.unit)
    # Public and secret randomness are fixed, so that the table can be made again; nobody is protected by it.
    posterior = tacit.fit(model, data, budget, steps=steps, key=jax.random.key(0), simulate=0, progress=False)

    seconds = time.perf_counter() - start
    chosen = tacit.auto(model, size=schema.size, budget=budget)
    suggests = chosen.method(tacit.Plan(data.placeholder, schema.size, steps=steps)).suggests
    reference = tacit.fit_public(
        chosen.method,
        public(path, schema),
        steps=steps or 4 * (suggests.steps or 250),
        rate=suggests.rate or rate(schema),
        key=jax.random.key(1),
    )
    lines = ["| | private | non-private |", "|---|---|---|"]
    labels = {label for name, these in posterior.labels.items() if not name.endswith("_offset") for label in these}
    for (label, mean, std, *_), (_, mean_, std_, *_) in zip(posterior.rows(), reference.rows(), strict=True):
        if label in labels:
            lines.append(f"| `{cell(label)}` | {mean:.3g} ± {std:.2g} | {mean_:.3g} ± {std_:.2g} |")
    for group in model.groups:
        ours, theirs = (
            one.draws[f"{group}_sigma"].mean() * one.draws[f"{group}_offset"].mean(0) for one in (posterior, reference)
        )
        gap = np.sqrt(np.mean((ours - theirs) ** 2))
        lines.append(f"| effects of `{cell(group)}` ({len(ours)}), root mean square gap | {gap:.2f} | |")
    return lines, seconds, posterior.reason


def cell(text: str) -> str:
    """Write text so that it stays in one cell of a table."""
    return text.replace("|", "\\|")


def rate(schema: tacit.Schema) -> float:
    """Let a step without privacy take 5000 records at most."""
    return min(1.0, 5000 / (schema.size or 1))


def public(path: Path, schema: tacit.Schema) -> dict[str, Any]:
    """Read the table once more, openly, for comparison."""
    import pandas

    frame = pandas.read_csv(path)[list(schema.columns)]
    return encode(frame, schema)


def main() -> None:
    """Make all journeys, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=list(JOURNEYS), help="one of them, printed and not written")
    parser.add_argument("--out", type=Path, default=HERE)
    chosen = parser.parse_args()
    folder = os.environ.get("TACIT_DATA")
    if not folder:
        sys.exit("skipped: set TACIT_DATA to the folder that holds adult.csv.gz and the others")
    steps = 20 if chosen.quick else None
    text = [
        "# Journeys",
        "",
        "Made by `TACIT_DATA=folder python papers/front/journeys.py`"
        + (" with `--quick`, so that its figures mean nothing" if chosen.quick else "")
        + f". ε = {EPSILON:g}, δ = 1e-6; mean ± standard deviation of the posterior. Seconds are of a",
        "shared machine, from reading the schema to the posterior, compilation included.",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for name in [chosen.only] if chosen.only else JOURNEYS:
            journey = JOURNEYS[name]
            path = find(journey.file, Path(folder), Path(scratch))
            lines, seconds, note = travel(journey, path, Path(scratch), steps)
            head = f"`{journey.formula}`, family `{journey.family}`; {seconds:.0f} s.\n\nMethod: {note}."
            text += ["", f"## {name}", "", head, "", *lines]
            print("\n".join(text[-len(lines) - 4 :]), flush=True)
    if not chosen.only:
        (chosen.out / "results").mkdir(parents=True, exist_ok=True)
        (chosen.out / "results" / "journeys.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
