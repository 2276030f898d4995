"""The commands about runs: ``fit``, ``resume``, ``rehearse``, ``report``, ``synthesize``, ``audit``.

A run's folder holds all that is needed to go on, except the records: ``command.json`` (what was asked, with the path of
the records), copies of the schema and of the model's file, and what ``tacit.fit`` keeps there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tacit.cli import trust
from tacit.cli.promise import existing_ledger, write
from tacit.cli.schemas import existing, read_records, read_schema
from tacit.cli.trust import COMMAND, MODEL, SCHEMA

DONE = "posterior.npz"


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    for one in (_add_fit, _add_resume, _add_rehearse, _add_report, _add_synthesize, _add_audit):
        one(commands)


def _add_fit(commands: Any) -> None:
    fit = commands.add_parser(
        "fit",
        help="fit a formula or a model to records, within a budget",
        description="Fit a formula or a NumPyro model to the records of a file within a budget. The folder then holds\n"
        "posterior.npz, certificate.json, .md and .html, and report.html. Every access is written to a ledger\n"
        "beside the data first. A killed fit goes on with tacit resume.",
        epilog="Examples:\n"
        "  tacit fit patients.csv --schema schema.toml --formula 'readmitted ~ age + sex' \\\n"
        "      --family bernoulli --epsilon 1 --delta 1e-6 --out run\n"
        "  tacit fit patients.csv --schema schema.toml --model model.py:model --epsilon 1 --delta 1e-6 --out run-2",
    )
    fit.add_argument("data", type=Path, help="the records: a .csv or .parquet file")
    _model_options(fit)
    fit.add_argument("--out", type=Path, required=True, help="a folder for this run")
    fit.add_argument("--ledger", type=Path, help="default: beside the data, patients.ledger.jsonl for patients.csv")
    for name, kind, words in (
        ("--rate", float, "probability of a record to be in a step"),
        ("--steps", int, "private steps"),
        ("--clip", float, "largest norm of a record's contribution"),
    ):
        fit.add_argument(name, type=kind, help=f"{words} (default: what suits the method)")
    fit.add_argument("--adjacency", choices=["add-remove", "replace-one"], default="add-remove")
    fit.add_argument("--title", help="the report's title, in public words")
    fit.add_argument("--simulate", type=int, metavar="SEED", help="fix the secret randomness: protects nobody")
    fit.add_argument("--quiet", action="store_true", help="no progress bar")
    fit.add_argument("--json", action="store_true", help="for machines")
    fit.set_defaults(run=_fit)


def _add_resume(commands: Any) -> None:
    resume = commands.add_parser(
        "resume",
        help="go on with a fit that was killed",
        description="Go on with a fit that was killed. What was paid for is replayed, which is free.",
        epilog="Example:  tacit resume run",
    )
    resume.add_argument("folder", type=Path, help="the folder that tacit fit was given")
    resume.add_argument("--data", type=Path, help="the records, if they have moved")
    _trust_option(resume, COMMAND, MODEL)
    resume.add_argument("--quiet", action="store_true", help="no progress bar")
    resume.add_argument("--json", action="store_true", help="for machines")
    resume.set_defaults(run=_resume)


def _add_rehearse(commands: Any) -> None:
    rehearse = commands.add_parser(
        "rehearse",
        help="see on made-up records what a fit would give; spends nothing",
        description="Run the whole fit on made-up records: how wide the intervals are, and how often they hold.",
        epilog="Example:  tacit rehearse --schema schema.toml --model model.py:model --epsilon 1 --delta 1e-6 "
        "--epsilons 0.3 3 --seed 1",
    )
    _model_options(rehearse)
    rehearse.add_argument("--size", type=int, help="about how many records (default: the schema's size)")
    rehearse.add_argument("--epsilons", type=float, nargs="+", default=[], help="further epsilons to try")
    rehearse.add_argument("--steps", type=int, nargs="+", help="numbers of steps to try")
    rehearse.add_argument("--replicates", type=int, default=20, help="how often (default: 20)")
    rehearse.add_argument("--seed", type=int, required=True, help="of the made-up records")
    rehearse.set_defaults(run=_rehearse)


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="write a run's report page",
        description="Write report.html from a run's posterior and certificate: one file, no network.",
        epilog="Example:  tacit report run --title 'Readmission after surgery'",
    )
    report.add_argument("folder", type=Path, help="the folder with posterior.npz")
    report.add_argument("--title", help="in public words (default: what the run was given)")
    report.add_argument("--ledger", type=Path, help="show all runs on this ledger (default: the run's)")
    report.set_defaults(run=_report)


def _add_synthesize(commands: Any) -> None:
    synthesize = commands.add_parser(
        "synthesize",
        help="make up records from a run's posterior",
        description="Make up records from a finished run's posterior, as CSV. Costs nothing more. The run is of a\n"
        "method that can make up records, such as tacit.marginals: here tables.py is one line,\n"
        "from tacit import marginals.",
        epilog="Examples:\n"
        "  tacit fit patients.csv --schema schema.toml --model tables.py:marginals --epsilon 1 --delta 1e-6 \\\n"
        "      --out table\n"
        "  tacit synthesize table --records 1000 --copies 5 --seed 1 --out synthetic",
    )
    synthesize.add_argument("folder", type=Path, help="the folder of a finished run")
    synthesize.add_argument("--records", type=int, required=True, help="records of each copy")
    synthesize.add_argument("--copies", type=int, default=1, help="copies, each from another draw (default: 1)")
    synthesize.add_argument("--seed", type=int, required=True)
    synthesize.add_argument("--out", type=Path, required=True, help="a folder for copy-1.csv, copy-2.csv, ...")
    _trust_option(synthesize, MODEL)
    synthesize.set_defaults(run=_synthesize)


def _add_audit(commands: Any) -> None:
    audit = commands.add_parser(
        "audit",
        help="attack the private step on made-up records",
        description="Attack the private steps with a worst-case record, put in and left out many times: the epsilon\n"
        "that the attack proves must not be above what is certified. Exit code 1 if it is.",
        epilog="Example:  tacit audit --rate 0.5 --noise 2 --steps 20 --runs 20000",
    )
    audit.add_argument("--rate", type=float, default=1.0, help="probability of the record to be in a step (default: 1)")
    audit.add_argument("--noise", type=float, default=1.0, help="noise multiplier (default: 1)")
    audit.add_argument("--steps", type=int, default=1, help="steps of a run (default: 1)")
    audit.add_argument("--delta", type=float, default=1e-5, help="default: 1e-5")
    audit.add_argument("--runs", type=int, default=20000, help="with and without the record, each (default: 20000)")
    audit.add_argument(
        "--attack",
        choices=("canary", "one-run"),
        default="canary",
        help="one record in many runs, or one run with so many records (default: canary)",
    )
    audit.set_defaults(run=_audit)


def _trust_option(parser: argparse.ArgumentParser, *files: str) -> None:
    words = f"do what a folder says that no fit of yours wrote ({' or '.join(files)}); read the file first"
    parser.add_argument("--trust", action="append", choices=files, metavar="FILE", help=words)


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schema", type=Path, required=True, help="the public facts about a record, in TOML")
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--formula", help="for example 'readmitted ~ age + sex + (1 | clinic)'")
    either.add_argument(
        "--model",
        metavar="FILE.py:NAME",
        help="a NumPyro model (a function of the columns), a method, or a function that makes one from the schema",
    )
    parser.add_argument("--family", help="of a formula's outcome: bernoulli, poisson, ...")
    parser.add_argument("--epsilon", type=float, required=True, help="the budget")
    parser.add_argument("--delta", type=float, required=True, help="well below 1 / number of records")


def _fit(chosen: argparse.Namespace) -> None:
    from tacit.accounting.mechanism import Budget

    existing(chosen.data)
    schema = read_schema(chosen.schema)
    budget = Budget(chosen.epsilon, chosen.delta, unit=schema.unit)
    ledger = chosen.ledger or chosen.data.with_name(f"{chosen.data.stem}.ledger.jsonl")
    asked = {
        "data": str(chosen.data.resolve()),
        "ledger": str(ledger.resolve()),
        **_asked_model(chosen),
        "budget": budget.to_dict(),
        "settings": {name: getattr(chosen, name) for name in ("rate", "steps", "clip", "adjacency")},
        "simulate": chosen.simulate,
        "title": chosen.title,
    }
    files = {SCHEMA: chosen.schema.read_text(encoding="utf-8")}
    if chosen.model:
        files[MODEL] = existing(Path(chosen.model.rpartition(":")[0])).read_text(encoding="utf-8")
    files[COMMAND] = json.dumps(asked, indent=2)
    if not _begun(chosen.out):
        with _fresh(chosen.out):
            for name, text in files.items():
                _write(chosen.out / name, text)
            trust.remember(chosen.out, code=bool(chosen.model))
            _carry_out(chosen.out, chosen)
        return
    if any(
        not (chosen.out / name).exists() or (chosen.out / name).read_text(encoding="utf-8") != files[name]
        for name in files
    ):
        raise ValueError(
            f"The folder {chosen.out} holds another run. Go on with it by: tacit resume {chosen.out}; or choose "
            "another --out."
        )
    trust.remember(chosen.out, code=bool(chosen.model))
    _carry_out(chosen.out, chosen)


def _write(path: Path, text: str) -> None:
    from tacit.system import atomic_write

    atomic_write(path, lambda file: file.write(text.encode("utf-8")))


def _resume(chosen: argparse.Namespace) -> None:
    if not (chosen.folder / COMMAND).exists():
        raise ValueError(f"The folder {chosen.folder} holds no {COMMAND}, so no tacit fit was begun in it.")
    code = _command(chosen.folder)["formula"] is None
    trust.check(chosen.folder, f"tacit resume {chosen.folder}", chosen.trust or (), code=code)
    _carry_out(chosen.folder, chosen, chosen.data)


def _carry_out(folder: Path, chosen: argparse.Namespace, moved: Path | None = None) -> None:
    """Do what the folder's command says, from its start or from where it was killed."""
    import tacit

    asked = _command(folder)
    schema = read_schema(folder / SCHEMA)
    model = _model(folder, asked, schema)
    data = read_records(moved or Path(asked["data"]), schema, Path(asked["ledger"]))
    budget = tacit.Budget.from_dict(asked["budget"])
    settings = {**asked["settings"], "simulate": asked["simulate"], "progress": not chosen.quiet}
    posterior = tacit.fit(model, data, budget, run_dir=folder, **settings)
    page = _write_report(folder, posterior, _title(asked), data.ledger)
    files = {"report": str(page), "certificate": str(folder / "certificate.html"), "ledger": asked["ledger"]}
    if chosen.json:
        names = ("label", "mean", "std", "low", "high")
        certificate = posterior.certificate
        facts = {name: getattr(certificate, name) for name in ("epsilon", "delta", "simulation")}
        kept = names if posterior.has_intervals else names[:3]
        rows = [
            {**dict(zip(kept, row, strict=False)), **learnt._asdict()}
            for row, learnt in zip(posterior.rows(), posterior.learnt(), strict=True)
        ]
        write({**facts, "reason": posterior.reason, "warning": posterior.warning, "rows": rows, **files})
        return
    print(posterior)
    print("\n" + "\n".join(f"{name.capitalize()}: {file}" for name, file in files.items()))


def _rehearse(chosen: argparse.Namespace) -> None:
    import jax

    import tacit

    schema = read_schema(chosen.schema)
    budget = tacit.Budget(chosen.epsilon, chosen.delta, unit=schema.unit)
    asked = _asked_model(chosen)
    if chosen.model:
        existing(Path(chosen.model.rpartition(":")[0]))
    model = _model(None, asked, schema)
    found = tacit.rehearse(
        model,
        schema,
        budget,
        size=chosen.size,
        epsilons=chosen.epsilons,
        steps=chosen.steps,
        replicates=chosen.replicates,
        key=jax.random.key(chosen.seed),
    )
    print(found)


def _report(chosen: argparse.Namespace) -> None:
    asked = _command(chosen.folder) if (chosen.folder / COMMAND).exists() else {}
    # The run's own ledger may have stayed with the data; one that was named must be there.
    path = chosen.ledger or (Path(asked["ledger"]) if asked and Path(asked["ledger"]).exists() else None)
    ledger = None if path is None else existing_ledger(path)
    method = None
    if asked.get("formula"):  # a formula can tell what it expects of people
        from tacit.methods.vi import vi
        from tacit.types import Plan

        schema = read_schema(chosen.folder / SCHEMA)
        method = vi(_model(chosen.folder, asked, schema))(Plan(schema.placeholder(), schema.size))
    posterior = _posterior(chosen.folder, method)
    print(f"Report: {_write_report(chosen.folder, posterior, chosen.title or _title(asked), ledger)}")


def _write_report(folder: Path, posterior: Any, title: str, ledger: Any) -> Path:
    from tacit.models.formula import Formula
    from tacit.results.effects import profiles
    from tacit.results.report import write_report

    expected = profiles(posterior) if isinstance(posterior.model, Formula) and posterior.model.columns else None
    return write_report(folder, title, {"private": posterior}, predictions=expected, ledger=ledger)


def _title(asked: dict[str, Any]) -> str:
    return asked.get("title") or asked.get("formula") or "A private posterior"


def _synthesize(chosen: argparse.Namespace) -> None:
    for name in ("records", "copies"):
        if getattr(chosen, name) < 1:
            raise ValueError(f"--{name} is {getattr(chosen, name)}; write a positive number.")
    existing(chosen.folder / DONE)
    asked, schema = _command(chosen.folder), read_schema(chosen.folder / SCHEMA)
    if asked["formula"] is None:
        trust.check(chosen.folder, f"tacit synthesize {chosen.folder}", chosen.trust or (), code=True)

    import jax

    from tacit.run.plan import built_for
    from tacit.types import Plan

    method = built_for(_model(chosen.folder, asked, schema), Plan(schema.placeholder(), schema.size))
    posterior = _posterior(chosen.folder, method)
    tables = posterior.synthesize(chosen.records, chosen.copies, key=jax.random.key(chosen.seed))
    chosen.out.mkdir(parents=True, exist_ok=True)
    for place, table in enumerate(tables, 1):
        write_csv(chosen.out / f"copy-{place}.csv", table)
    print(f"{chosen.copies} x {chosen.records} made-up records in {chosen.out}")


def _audit(chosen: argparse.Namespace) -> None:
    from tacit.accounting.mechanism import Mechanism
    from tacit.run.audit import audit

    claim = Mechanism(chosen.rate, 1.0, chosen.noise, chosen.steps)
    if chosen.runs < 40:
        raise ValueError(f"--runs is {chosen.runs}; rates are counted, so write 40 at least, better 20000.")
    found = audit(None, None, claim, attack=chosen.attack, delta=chosen.delta, runs=chosen.runs)
    print(f"{claim.steps} steps at rate {claim.rate:g} and noise multiplier {claim.noise_multiplier:g}")
    print(found)
    if not found.passed:
        raise RuntimeError(
            "The attack proves more than is certified, which happens by chance once in a thousand audits: run it "
            "again, and if it stays so, report a privacy bug."
        )


def write_csv(path: Path, table: Any) -> None:
    """Write a made-up table: a mapping of columns, or what pandas makes of one.

    Text that a spreadsheet would run as a formula is written behind an apostrophe, which ``tacit.read_csv`` takes off.

    Privacy: post-processing.
    """
    import csv

    from tacit.facts.files import escaped

    with open(path, "w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(map(escaped, table))
        lines.writerows(zip(*(map(escaped, table[name]) for name in table), strict=True))


def _asked_model(chosen: argparse.Namespace) -> dict[str, Any]:
    if chosen.model and chosen.family:
        raise ValueError("--family is of a formula's outcome; a model says itself what its outcome is. Leave it out.")
    if chosen.model and not all(chosen.model.rpartition(":")[::2]):
        raise ValueError(f"--model is {chosen.model!r}; write the file and the name in it, such as model.py:model.")
    if chosen.formula is not None and "~" not in chosen.formula:
        raise ValueError(f"The formula {chosen.formula!r} has no '~'; write outcome ~ inputs, such as 'ill ~ age'.")
    path, _, name = (chosen.model or "").rpartition(":")
    home = {"model": name, "home": str(Path(path).resolve())} if chosen.model else {"model": None}
    return {"formula": chosen.formula, "family": chosen.family, **home}


def _model(folder: Path | None, asked: dict[str, Any], schema: Any) -> Any:
    """Return what ``tacit.fit`` takes: a formula, or what the model's file has under the name."""
    import inspect

    import tacit

    if asked["formula"] is not None:
        family = {"family": asked["family"]} if asked["family"] else {}
        return tacit.formula(asked["formula"], schema, **family)
    home, name = Path(asked["home"]), asked["model"]
    file = home if folder is None else folder / MODEL
    found = _loaded(file, home.parent, name)
    if callable(found) and next(iter(inspect.signature(found).parameters), "") == "schema":
        found = found(schema)
    if isinstance(found, tacit.Method | tacit.MethodFor):
        return found
    unknown = [
        one.name
        for one in inspect.signature(found).parameters.values()
        if one.name not in schema.columns and one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]
    if unknown:
        raise ValueError(
            f"The model {name!r} takes {unknown}, which the schema does not declare. A model is a function of the "
            f"schema's columns: {list(schema.columns)}. A function that builds a method is given as "
            "tacit.MethodFor(build)."
        )
    return tacit.vi(found)


def _loaded(file: Path, neighbours: Path, name: str) -> Any:
    import types

    if file.suffix != ".py":
        raise ValueError(f"{file} is not a Python file; write --model model.py:model.")
    module = types.ModuleType("tacit_model")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(neighbours))  # the model may import what lies beside it
    try:
        # From its text, not by an import, which would take compiled code from a folder beside it.
        exec(compile(file.read_bytes(), str(file), "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        raise ValueError(f"The model's file cannot be run: {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove(str(neighbours))
    found = getattr(module, name, None)
    if not callable(found) and not isinstance(found, tuple):
        raise ValueError(f"The model's file has no function or method named {name!r}.")
    return found


def _command(folder: Path) -> dict[str, Any]:
    """Read what the folder's run was asked for."""
    try:
        asked: dict[str, Any] = json.loads(existing(folder / COMMAND).read_text(encoding="utf-8"))
        if asked.keys() >= {"data", "ledger", "formula", "family", "model", "budget", "settings", "simulate", "title"}:
            return asked
    except ValueError:
        pass
    raise ValueError(f"{folder / COMMAND} is not what tacit fit wrote; restore it, or fit again to another --out.")


def _posterior(folder: Path, method: Any = None) -> Any:
    import zipfile

    file = existing(folder / DONE)
    from tacit.ledger.record import CertificateError
    from tacit.results.posterior import Posterior

    try:
        return Posterior.load(file, method)
    except CertificateError:
        raise
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError) as error:
        raise ValueError(f"{file} is not a posterior that tacit saved; restore it, or fit again.") from error


def _begun(folder: Path) -> bool:
    """Say whether a run has looked at the records: only then is there something to go on with."""
    from tacit.ledger.file import Ledger

    if not ((folder / "run.json").exists() and (folder / COMMAND).exists()):
        return False
    name = json.loads((folder / "run.json").read_text(encoding="utf-8"))["run"]
    return (folder / DONE).exists() or name in Ledger(_command(folder)["ledger"]).runs()


@contextlib.contextmanager
def _fresh(folder: Path) -> Iterator[None]:
    """Make a run's folder, and take it away again where the run was refused before it looked at anything."""
    there, names = folder.exists(), (COMMAND, SCHEMA, MODEL, "run.json", "secret.key")
    if there and not folder.is_dir():
        raise ValueError(f"{folder} is a file; --out is a folder for the run's results.")
    folder.mkdir(parents=True, exist_ok=True)
    new = [folder / name for name in names if not (folder / name).exists()]
    try:
        yield
    except Exception:
        if not _begun(folder):
            for file in new:
                file.unlink(missing_ok=True)
            if not there:
                folder.rmdir()
        raise
