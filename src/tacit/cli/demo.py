"""The command ``demo``: the whole way on simulated hospital records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the parser."""
    demo = commands.add_parser(
        "demo",
        help="the whole way on 20000 simulated hospital records",
        description="Fit simulated hospital records at epsilon 1, and write certificate and report into a folder.",
        epilog="Example:  tacit demo --out demo",
    )
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the results (default: demo)")
    demo.add_argument("--epsilon", type=float, default=1.0, help="default: 1")
    demo.add_argument("--delta", type=float, default=1e-6, help="default: 1e-6")
    demo.set_defaults(run=_demo)


def _demo(chosen: argparse.Namespace) -> None:
    import jax

    import tacit
    from tacit.report import write_report
    from tacit.simulate import HOSPITAL, HOSPITAL_TRUTH, hospital, hospital_model

    out, budget = chosen.out, tacit.Budget(chosen.epsilon, chosen.delta, unit="patient")
    out.mkdir(parents=True, exist_ok=True)
    table = hospital(seed=2026)
    data = tacit.PrivateData(table, HOSPITAL, ledger=out / "ledger.jsonl")
    method = tacit.vi(hospital_model)
    print(f"{data}\n\nFitting a logistic regression to readmission within {budget}:")
    private = tacit.fit(method, data, budget)
    codes = {
        name: [column.levels.index(value) for value in table[name].tolist()] if column.levels else table[name]
        for name, column in HOSPITAL.columns.items()
    }
    public = tacit.fit_public(
        method, {name: jax.numpy.asarray(values) for name, values in codes.items()}, key=jax.random.key(1)
    )
    print(f"\n{'mean (90% interval)':16}{'private':>26}{'non-private':>26}{'truth':>8}")
    for mine, theirs in zip(private.rows(), public.rows(), strict=True):
        cells = "".join(f"{f'{mean:.3f} ({low:.3f}, {high:.3f})':>26}" for _, mean, _, low, high in (mine, theirs))
        print(f"{mine[0]:19}{cells}{HOSPITAL_TRUTH[mine[0]]:8.2f}")
    posteriors = {"private": private, "non-private": public}
    assert private.certificate is not None
    private.certificate.save(out)
    private.save(out / "posterior.npz")
    report = write_report(
        out, "Readmission of 20000 simulated patients", posteriors, HOSPITAL_TRUTH, ledger=data.ledger
    )
    print(f"\n{private.certificate.explain()}\n\nReport: {report}\nCertificate: {out / 'certificate.html'}")
