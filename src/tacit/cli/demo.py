"""The command ``demo``: the whole way that a user would walk, on simulated hospital records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the parser."""
    demo = commands.add_parser(
        "demo",
        help="the whole way on 20000 simulated hospital records",
        description="Write simulated hospital records as CSV and their schema as TOML, fit a formula with effects of\n"
        "clinics at epsilon 1, and write posterior, certificate and report into a folder.",
        epilog="Example:  tacit demo --out demo",
    )
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the results (default: demo)")
    demo.add_argument("--epsilon", type=float, default=1.0, help="default: 1")
    demo.add_argument("--delta", type=float, default=1e-6, help="default: 1e-6")
    demo.set_defaults(run=_demo)


def _demo(chosen: argparse.Namespace) -> None:
    import jax

    import tacit
    from tacit.cli.runs import write_csv
    from tacit.datasets import CLINICS, CLINICS_FORMULA, clinics, clinics_truth
    from tacit.results.report import write_report
    from tacit.wall.data import encode

    out, budget = chosen.out, tacit.Budget(chosen.epsilon, chosen.delta, unit="patient")
    out.mkdir(parents=True, exist_ok=True)
    table, truth = clinics(seed=2026), clinics_truth()
    write_csv(out / "stays.csv", table)
    CLINICS.write(out / "schema.toml")

    schema = tacit.Schema.read(out / "schema.toml")
    data = tacit.read_csv(out / "stays.csv", schema, ledger=out / "ledger.jsonl")
    model = tacit.formula(CLINICS_FORMULA, schema, family="bernoulli")
    print(f"Records: {out / 'stays.csv'}\nSchema: {out / 'schema.toml'}\n\n{model}\n\nFitting within {budget}:")
    private = tacit.fit(model, data, budget)
    # Beside it, for the records are made up: the same without privacy, and the truth.
    method = tacit.auto(model, size=schema.size, budget=budget).method
    public = tacit.fit_public(method, encode(table, schema), key=jax.random.key(1), rate=1.0, steps=40)
    print(f"\n{'mean (90% interval)':20}{'private':>26}{'non-private':>26}{'truth':>8}")
    for mine, theirs in zip(private.rows(), public.rows(), strict=True):
        cells = "".join(f"{f'{mean:.3f} ({low:.3f}, {high:.3f})':>26}" for _, mean, _, low, high in (mine, theirs))
        print(f"{mine[0]:20}{cells}{truth[mine[0]]:8.2f}")
    print(f"\nMethod: {private.reason}\n")
    print(tacit.comparisons(private, {"diabetes": ["no", "yes"], "clinic": ["Oak", "Cedar"]}))

    assert private.certificate is not None
    private.certificate.save(out)
    private.save(out / "posterior.npz")
    patients = {"age": [45, 60, 75], "sex": ["female"] * 3, "emergency": ["yes"] * 3, "days": [4, 4, 4]}
    patients |= {"earlier_stays": [0, 1, 3], "diabetes": ["no", "no", "yes"], "clinic": ["Elm"] * 3}
    report = write_report(
        out,
        "Readmission of 20000 simulated patients in twelve clinics",
        {"private": private, "non-private": public},
        truth,
        predictions=tacit.predictions(private, patients),
        ledger=data.ledger,
    )
    print(f"\n{private.certificate.explain()}\n\nCertificate: {out / 'certificate.html'}\nReport: {report}")
