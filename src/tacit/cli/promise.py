"""The commands about promises: ``explain``, ``plan``, ``certificate``, ``ledger``. None of them needs JAX."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
STEPS = (100, 1000, 10000)


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    explain = commands.add_parser(
        "explain",
        help="say what an epsilon and a delta mean for one person",
        description="Say what (epsilon, delta) means: odds before and after, and how often an attacker is right.",
        epilog="Example:  tacit explain --epsilon 1 --delta 1e-6 --unit patient",
    )
    explain.add_argument("--epsilon", type=float, required=True, help="bound on the log odds that anyone can gain")
    explain.add_argument("--delta", type=float, required=True, help="probability with which that may fail")
    explain.add_argument("--unit", default="record", help="who is protected, in one word (default: record)")
    explain.add_argument("--json", action="store_true", help="for machines")
    explain.set_defaults(run=_explain)

    plan = commands.add_parser(
        "plan",
        help="see what a recipe costs, or what noise a budget needs",
        description="Plan a recipe: the noise that a budget needs at a rate and a number of steps, or the cost of a\n"
        "given noise; and a table of the effective noise, noise / (rate * sqrt(steps)): what is left on the\n"
        "sum over all records, in units of the clip, when the steps are averaged. Small is good.",
        epilog="Example:  tacit plan --epsilon 1 --delta 1e-6 --rate 0.1 --steps 1000 --records 20000",
    )
    either = plan.add_mutually_exclusive_group(required=True)
    either.add_argument("--epsilon", type=float, help="the budget: which noise does it need?")
    either.add_argument("--noise", type=float, help="the noise multiplier: what does it cost?")
    plan.add_argument("--delta", type=float, required=True)
    plan.add_argument("--rate", type=float, default=0.1, help="probability of a record to be in a step (default: 0.1)")
    plan.add_argument("--steps", type=int, default=1000, help="private steps (default: 1000)")
    plan.add_argument("--records", type=int, help="about how many records: also gives the noise on a mean")
    plan.add_argument("--adjacency", choices=["add-remove", "replace-one"], default="add-remove")
    plan.add_argument("--json", action="store_true", help="for machines")
    plan.set_defaults(run=_plan)

    certificate = commands.add_parser("certificate", help="show or verify a certificate").add_subparsers(
        metavar="show|verify", required=True
    )
    for action, does, words in (
        ("show", _show, "Print the page for a data protection officer."),
        (
            "verify",
            _verify,
            "Compute every number of the certificate anew, and compare the posterior beside it with the numbers that "
            "it was issued for; exit code 1 where it does not hold.",
        ),
    ):
        one = certificate.add_parser(
            action, description=words, help=words, epilog=f"Example:  tacit certificate {action} run"
        )
        one.add_argument("path", type=Path, help="certificate.json, or the folder it is in")
        if action == "verify":
            one.add_argument("--ledger", type=Path, help="also check it against this ledger")
        one.add_argument("--json", action="store_true", help="for machines")
        one.set_defaults(run=does)

    ledger = commands.add_parser("ledger", help="show what was spent, or accept a loss").add_subparsers(
        metavar="show|accept-loss", required=True
    )
    show = ledger.add_parser(
        "show",
        help="list all runs, and what they cost together",
        description="List the runs on a ledger and what they cost, one by one and together. Every line is checked.",
        epilog="Example:  tacit ledger show patients.ledger.jsonl --delta 1e-6",
    )
    show.add_argument("path", type=Path, help="the ledger's file, or a run's folder with ledger.jsonl in it")
    show.add_argument("--delta", type=float, help="the delta at which to state epsilon (default: the cap's)")
    show.add_argument("--json", action="store_true", help="for machines")
    show.set_defaults(run=_ledger)
    accept = ledger.add_parser(
        "accept-loss",
        help="go on with a ledger that lost lines",
        description="Go on with a ledger that lacks lines which are known to have been on it: an older copy, another\n"
        "file in its place, or none. The loss and the reason are written on it, and on every later certificate.",
        epilog="Example:  tacit ledger accept-loss patients.ledger.jsonl --reason 'The disk failed on 3 May.'",
    )
    accept.add_argument("path", type=Path, help="the ledger's file, or where it was")
    accept.add_argument("--reason", required=True, help="how it was lost, and why that is accepted")
    accept.set_defaults(run=_accept_loss)


def write(content: Any) -> None:
    """Print what a machine reads: JSON, in which an infinite number is null."""
    universal = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(_finite(content), indent=2, ensure_ascii=not universal, allow_nan=False))


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _explain(chosen: argparse.Namespace) -> None:
    from dataclasses import asdict

    from tacit.accounting.explanation import PRIORS, explain

    said = explain(chosen.epsilon, chosen.delta, unit=chosen.unit)
    if chosen.json:
        write({**asdict(said), "beliefs": [{"before": p, "after": said.probability(p)} for p in PRIORS]})
    else:
        print(said)


def _plan(chosen: argparse.Namespace) -> None:
    from tacit.accounting.explanation import up
    from tacit.accounting.mechanism import Budget, Mechanism, calibrate

    if chosen.records is not None and chosen.records < 1:
        raise ValueError(f"The number of records is {chosen.records}; write a positive number, about right will do.")
    rest = {"clip": 1.0, "adjacency": chosen.adjacency}
    if chosen.epsilon is not None:
        plan = calibrate(Budget(chosen.epsilon, chosen.delta), rate=chosen.rate, steps=chosen.steps, **rest)
    else:
        plan = Mechanism(chosen.rate, noise_multiplier=chosen.noise, steps=chosen.steps, **rest)
    cost = plan.cost(chosen.delta)
    # For a given noise the table is at what it costs: which other recipes are as dear, and are they better?
    budget = Budget(cost if chosen.epsilon is None else chosen.epsilon, chosen.delta)
    table = [
        [effective(calibrate(budget, rate=rate, steps=steps, **rest)) for rate in RATES]
        for steps in (STEPS if math.isfinite(cost) else ())
    ]
    mean = None if chosen.records is None else effective(plan) / chosen.records
    if chosen.json:
        facts = {"epsilon": cost, "delta": chosen.delta, "advantage": plan.advantage(), "mechanism": plan.to_dict()}
        grid = {"rates": RATES, "steps": STEPS, "effective_noise": table}
        write({**facts, "effective_noise": effective(plan), "noise_on_mean": mean, "table": grid})
        return
    print(f"rate {plan.rate:g}, {plan.steps} steps, noise multiplier {up(plan.noise_multiplier, 4)}")
    print(f"cost: epsilon {up(cost, 4)} at delta {chosen.delta:g}; attacker's advantage at most {up(plan.advantage())}")
    print(f"effective noise: {effective(plan):.3g} clips on the sum over all records", end="")
    print("" if mean is None else f", {mean:.3g} clips on the mean of {chosen.records}")
    if table:
        print(f"\nEffective noise of other recipes at epsilon {up(budget.epsilon, 4)} (rate across, steps down):\n")
        print("".join(f"{cell:>9}" for cell in ("", *(f"{rate:g}" for rate in RATES))))
        for steps, row in zip(STEPS, table, strict=True):
            print(f"{steps:>9}" + "".join(f"{cell:>9.3g}" for cell in row))


def effective(plan: Any) -> float:
    """Return the noise that is left on the sum over all records when all steps are averaged, in clips."""
    return float(plan.noise_multiplier / (plan.rate * math.sqrt(plan.steps)))


def _show(chosen: argparse.Namespace) -> None:
    from tacit.ledger.certificate import Certificate

    certificate = Certificate.load(chosen.path)
    if chosen.json:
        write(certificate.to_dict())
    else:
        print(certificate.to_markdown())


def _verify(chosen: argparse.Namespace) -> None:
    from tacit.ledger.certificate import Certificate
    from tacit.ledger.record import CertificateError

    if chosen.ledger is not None:
        chosen.ledger = existing_ledger(chosen.ledger)
    try:
        certificate = Certificate.load(chosen.path)
        said = _compared(certificate, chosen.path, chosen.ledger)
    except CertificateError as error:
        if chosen.json:
            write({"holds": False, "why": " ".join(str(error).split())})
        raise
    first = "SIMULATION, which protects nobody. " if certificate.simulation else ""
    if chosen.json:
        facts = {"epsilon": certificate.epsilon, "delta": certificate.delta, "simulation": certificate.simulation}
        write({"holds": True, **facts, "numbers": said, "code": certificate.code or None})
    else:
        print(f"{first}The certificate holds: epsilon {certificate.epsilon:.6g}, delta {certificate.delta:.6g}. {said}")


def _compared(certificate: Any, path: Path, ledger: Any) -> str:
    """Check a certificate, and the numbers in the run's folder if they are there; say what was found of them."""
    from tacit.ledger.record import CertificateError
    from tacit.results.numbers import Saved

    file = (path if path.is_dir() else path.parent) / "posterior.npz"
    if not file.exists():
        return str(certificate.verify(ledger))
    try:
        saved = Saved.read(file)
    except ValueError as error:
        raise CertificateError(str(error)) from error
    if saved.derived:
        certificate.verify(ledger)
        return f"The numbers are not the certified ones, but said to be computed from them: {saved.derived}."
    return str(certificate.verify(ledger, saved))


def existing_ledger(path: Path) -> Any:
    """Open a ledger that must be there: opening another path would show an empty one."""
    from tacit.ledger.file import Ledger

    path = path / "ledger.jsonl" if path.is_dir() else path
    if not path.exists():
        raise FileNotFoundError(2, "no such file", str(path))
    return Ledger(path)


def _ledger(chosen: argparse.Namespace) -> None:
    from tacit.accounting.explanation import up

    ledger = existing_ledger(chosen.path)
    delta = chosen.delta if chosen.delta is not None else ledger.cap.delta if ledger.cap else None
    if delta is None:
        raise ValueError("The ledger has no cap, so epsilon needs a delta to be stated at; write --delta 1e-6.")
    total, runs = ledger.spent(delta), ledger.runs().values()
    costs = [run.looked.cost(delta) for run in runs]
    if chosen.json:
        each = [
            {
                "run": run.run,
                "kind": run.kind,
                "method": run.method,
                "steps": run.steps,
                "planned": run.mechanism.steps,
                "charges": run.charges,
                "simulation": run.simulation,
                "epsilon": cost,
            }
            for run, cost in zip(runs, costs, strict=True)
        ]
        cap = None if ledger.cap is None else ledger.cap.to_dict()
        facts = {"lines": len(ledger.lines), "head": ledger.head, "unit": ledger.unit, "adjacency": ledger.adjacency}
        facts["anchored"] = ledger.anchored
        write({**facts, "cap": cap, "delta": delta, "epsilon": total, "runs": each})
        return
    print(f"{'run':10}{'kind':8}{'method':14}{'steps':>14}{'charges':>9}{'epsilon':>10}")
    for run, cost in zip(runs, costs, strict=True):
        steps = f"{run.steps} of {run.mechanism.steps}"
        note = "  SIMULATION" if run.simulation else ""
        print(f"{run.run[:8]:10}{run.kind:8}{run.method:14}{steps:>14}{run.charges:>9}{up(cost, 4):>10}{note}")
    print(f"\nTogether epsilon {up(total, 4)} at delta {delta:g}, for each {ledger.unit or 'unit'}.", end="")
    print("" if ledger.cap is None else f" The cap is epsilon {ledger.cap.epsilon:g}.")
    for line in ledger.losses:
        print(f"Lost: {line.lost}. Accepted on {line.time}: {line.reason}")
    known = f"{ledger.anchored} of its {len(ledger.lines)} lines" if ledger.anchored else "nothing of it"
    print(f"This user's anchor knows {known}.")


def _accept_loss(chosen: argparse.Namespace) -> None:
    from tacit.ledger.file import Ledger

    line = Ledger.accept_loss(chosen.path, chosen.reason).losses[-1]
    print(f"Written on {chosen.path}: {line.lost}. Every later certificate says so.")
