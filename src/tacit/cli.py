"""The command line: ``tacit demo`` and ``tacit certificate``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code is 0 where all went well, 1 where something was refused."""
    parser = argparse.ArgumentParser(prog="tacit", description="Differentially private Bayesian inference.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="fit 20000 simulated hospital records at epsilon 1")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder for the results (default: demo)")
    demo.add_argument("--epsilon", type=float, default=1.0)
    demo.add_argument("--delta", type=float, default=1e-6)
    certificate = commands.add_parser("certificate", help="show or verify a certificate")
    certificate.add_argument("action", choices=["show", "verify"])
    certificate.add_argument("path", type=Path, help="certificate.json")
    certificate.add_argument("--ledger", type=Path, help="also check it against this ledger")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "demo":
            _demo(chosen.out, chosen.epsilon, chosen.delta)
        else:
            _certificate(chosen.action, chosen.path, chosen.ledger)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"tacit: {error}", file=sys.stderr)
        return 1
    return 0


def _demo(out: Path, epsilon: float, delta: float) -> None:
    import jax

    import tacit
    from tacit.report import figure, write_report
    from tacit.simulate import HOSPITAL, HOSPITAL_TRUTH, hospital, hospital_model

    budget = tacit.Budget(epsilon, delta, unit="patient")
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
    report = write_report(out, "Readmission of 20000 simulated patients", posteriors, HOSPITAL_TRUTH)
    drawn = figure(posteriors, HOSPITAL_TRUTH)
    if "<svg" in drawn:
        svg = drawn[drawn.index("<svg") : drawn.rindex("</svg>") + 6]
        (out / "posterior.svg").write_text(svg, encoding="utf-8")
    print(f"\n{private.certificate.explain()}\n\nReport: {report}\nCertificate: {out / 'certificate.html'}")


def _certificate(action: str, path: Path, ledger: Path | None) -> None:
    from tacit.certificate import Certificate
    from tacit.ledger import Ledger

    certificate = Certificate.load(path)
    if action == "show":
        print(certificate.to_markdown())
    else:
        certificate.verify(None if ledger is None else Ledger(ledger))
        print(f"The certificate holds: epsilon {certificate.epsilon:.6g}, delta {certificate.delta:.6g}.")
