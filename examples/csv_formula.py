"""From a CSV file to a table of effects: a schema, a formula, a budget, an answer.

The file is made up, so that the truth is known. Run it with

    python examples/csv_formula.py

It writes csv_formula/ into the current folder: the CSV file, the schema, a draft of it, the ledger, the posterior and
the certificate.
"""

from __future__ import annotations

import csv
from pathlib import Path

import tacit
from tacit.datasets import HOSPITAL, HOSPITAL_TRUTH, hospital
from tacit.facts.files import draft

OUT = Path("csv_formula")


def make_up(path: Path) -> None:
    """Write the CSV file. With real records there is one already."""
    table = hospital(seed=0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))


def main() -> None:
    """Walk the whole way."""
    OUT.mkdir(exist_ok=True)
    make_up(OUT / "stays.csv")
    # Names only; bounds and levels are filled in by someone who knows them without the data.
    (OUT / "draft.toml").write_text(draft(OUT / "stays.csv"), encoding="utf-8")
    HOSPITAL.write(OUT / "schema.toml")  # the draft, filled in

    schema = tacit.Schema.read(OUT / "schema.toml")
    data = tacit.read_csv(OUT / "stays.csv", schema, ledger=OUT / "ledger.jsonl")
    model = tacit.formula(
        "readmitted ~ age + sex + emergency + days + earlier_stays + diabetes", schema, family="bernoulli"
    )
    budget = tacit.Budget(epsilon=1.0, delta=1e-6, unit="patient")
    posterior = tacit.fit(model, data, budget, run_dir=OUT / "run", progress=False)

    print(model)
    print(posterior)
    # The truth is in other units: years by 15, days by 4.
    truth = {"age": HOSPITAL_TRUTH["age"] / 15, "days": HOSPITAL_TRUTH["days"] / 4}
    print("truth:", ", ".join(f"{name} {value:g}" for name, value in {**HOSPITAL_TRUTH, **truth}.items()))
    print(tacit.comparisons(posterior, {"sex": ["female", "male"], "diabetes": ["no", "yes"]}))
    print(tacit.slopes(posterior, "age"))


if __name__ == "__main__":
    main()
