"""The command line: what needs no JAX imports none, runs go from fit to report, and refusals are one sentence."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import py_compile
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.accounting.mechanism import Budget, Mechanism
from tacit.cli import main, papers
from tacit.cli.runs import _loaded
from tacit.engine.runner import Runner
from tacit.ledger.file import Charge, Ledger

SCHEMA = """unit = "patient"
size = 400

[columns]
age = {low = 18, high = 100}
ill = {levels = ["no", "yes"]}
"""
MODEL = """
import numpyro
import numpyro.distributions as dist

import tacit

number = 3

def model(age, ill=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("patients", age.shape[0]):
        numpyro.sample("ill", dist.Bernoulli(logits=slope * (age - 60) / 15), obs=ill)

def stranger(height, age):
    pass

def method(schema):
    assert list(schema.columns) == ["age", "ill"]
    return tacit.vi(model)
"""
SECRET = "73.2519"
"""A value of a record: no message may show it."""
RECIPE = Mechanism(rate=0.01, clip=1.5, noise_multiplier=2.0, steps=100)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with records, a schema, a model, a certificate and a ledger, and work in it."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    age = random.uniform(20, 95, 400).round(1)
    lines = [f"{one},{'yes' if other else 'no'}" for one, other in zip(age, random.random(400) < 0.4, strict=True)]
    Path("patients.csv").write_text("\n".join(["age,ill", f"{SECRET},yes", *lines]) + "\n")
    Path("wrong.csv").write_text(f"age,ill\n{SECRET},perhaps\n")
    Path("other.csv").write_text(f"height,ill\n{SECRET},yes\n")
    Path("patients.txt").write_text("age\n")
    Path("schema.toml").write_text(SCHEMA)
    Path("model.py").write_text(MODEL)
    Path("broken.py").write_text("import no_such_module_at_all\n")
    Path("folder").mkdir()
    Path("unreadable").mkdir()
    Path("unreadable/posterior.npz").write_text("no numbers")
    Path("spoilt").mkdir()
    Path("spoilt/command.json").write_text("{}")
    Path("broken.toml").write_text("[columns\n")
    Path("blank.toml").write_text("[columns]\nage = {low = , high = }\n")
    Path("unbounded.toml").write_text("[columns]\nage = {}\n")
    book = Ledger("book.jsonl")
    book.charge(Charge("run-1", "fit", "vi", RECIPE, 0, 100, "tag", "patient", False))
    budget = Budget(1.0, 1e-5, unit="patient")
    tacit.Certificate.issue(ledger=book, run="run-1", budget=budget, slack=2.0**-60).save("good")
    text = Path("good/certificate.json").read_text()
    Path("changed.json").write_text(text.replace('"clip": 1.5', '"clip": 1.4', 1))
    certificate = tacit.Certificate.load("good")
    forged = replace(certificate, epsilon=certificate.epsilon / 2)  # with a digest that fits
    Path("forged.json").write_text(replace(forged, digest=forged.digest_of_content()).to_json())
    Ledger("capped.jsonl", cap=Budget(0.1, 1e-5, unit="patient"))
    Path("cut.jsonl").write_text(Path("book.jsonl").read_text().splitlines()[0] + "\n")
    return tmp_path


def run(*arguments: str) -> int:
    """Return the exit code, as the shell would see it."""
    try:
        return main(list(arguments))
    except SystemExit as left:
        return int(left.code or 0)


FIT = ("fit", "patients.csv", "--schema", "schema.toml", "--quiet")
BUDGET = ("--epsilon", "1", "--delta", "1e-5")
TINY = (*BUDGET, "--steps", "20", "--rate", "0.2", "--simulate", "1")


# What needs no JAX


def test_compiled_programs_are_kept_unless_jax_is_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "mine")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "theirs")
    main(["explain", "--epsilon", "1", "--delta", "1e-6"])
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "theirs"
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    main(["explain", "--epsilon", "1", "--delta", "1e-6"])
    assert Path(os.environ["JAX_COMPILATION_CACHE_DIR"]) == Path("mine", "tacit")


def test_light_commands_import_no_jax(place: Path) -> None:
    commands = [
        ["explain", "--epsilon", "1", "--delta", "1e-6"],
        ["plan", "--epsilon", "1", "--delta", "1e-5", "--rate", "1", "--steps", "10"],
        ["certificate", "show", "good"],
        ["certificate", "verify", "good", "--ledger", "book.jsonl"],
        ["ledger", "show", "book.jsonl", "--delta", "1e-5"],
        ["schema", "check", "schema.toml"],
    ]
    program = (
        "import sys, json\nfrom tacit.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert 'numpy' not in sys.modules\n"
        "for command in json.loads(sys.argv[1]):\n    assert main(command) == 0, command\n"
        "    assert 'jax' not in sys.modules, command\n"
    )
    subprocess.run([sys.executable, "-c", program, json.dumps(commands)], check=True, capture_output=True)


def test_every_command_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    single = ("demo", "fit", "resume", "rehearse", "report", "synthesize", "audit", "explain", "plan", "papers")
    double = (("certificate", "show"), ("certificate", "verify"), ("ledger", "show"), ("schema", "draft"))
    for command in [*((name,) for name in single), *double, ("schema", "check")]:
        assert run(*command, "--help") == 0
        assert f"tacit {' '.join(command)}" in capsys.readouterr().out.split("Example", 1)[1]


# What machines read


def test_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def read(*arguments: str) -> Any:
        assert run(*arguments, "--json") == 0
        return json.loads(capsys.readouterr().out)

    said = read("explain", "--epsilon", "1", "--delta", "1e-6", "--unit", "patient")
    assert said["beliefs"][2]["after"] == tacit.explain(1.0, 1e-6).probability(0.5)
    plan = read("plan", "--epsilon", "1", "--delta", "1e-5", "--rate", "0.1", "--steps", "100", "--records", "1000")
    assert plan["epsilon"] <= 1
    assert plan["table"]["effective_noise"][0][2] == plan["effective_noise"] == 1000 * plan["noise_on_mean"]
    cost = read("plan", "--noise", str(plan["mechanism"]["noise_multiplier"]), "--delta", "1e-5", "--steps", "100")
    assert cost["epsilon"] == plan["epsilon"]
    assert read("certificate", "show", "good") == json.loads(Path("good/certificate.json").read_text())
    assert read("certificate", "verify", "good")["holds"] is True
    book = read("ledger", "show", "book.jsonl", "--delta", "1e-5")
    assert book["epsilon"] == Ledger("book.jsonl").spent(1e-5)
    assert book["runs"][0]["steps"] == 100
    assert run("certificate", "verify", "changed.json", "--json") == 1
    assert json.loads(capsys.readouterr().out)["holds"] is False


def test_what_people_read(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--epsilon", "1", "--delta", "1e-5", "--records", "1000") == 0
    assert "clips on the mean of 1000" in capsys.readouterr().out
    assert run("ledger", "show", "book.jsonl", "--delta", "1e-5") == 0
    assert "run-1" in capsys.readouterr().out
    assert run("schema", "check", "schema.toml", "--data", "patients.csv") == 0
    assert "The records fit the schema." in capsys.readouterr().out
    assert run("papers") == 0
    assert "vips/logistic" in capsys.readouterr().out


def test_a_study_is_run_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(subprocess, "call", lambda command: called.append(command) or len(called) - 1)
    assert run("papers", "vips/compositions", "--quick") == 0
    assert [Path(part).name for part in called[0][1:]] == ["compositions.py", "--quick"]
    assert run("papers", "vips/compositions") == 1  # the study's exit code


def test_papers_need_a_clone(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(papers, "__file__", str(place / "papers.py"))
    assert run("papers") == 1
    assert "clone" in capsys.readouterr().err


# Runs


def test_from_fit_to_report(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = (*FIT, "--model", "model.py:model", *TINY, "--out", "run")
    _kill_at(monkeypatch, 5)
    assert run(*command) == 130
    assert "tacit resume" in capsys.readouterr().err
    assert not Path("run/posterior.npz").exists()
    Path("model.py").unlink()  # the folder holds all that is needed but the records
    Path("schema.toml").unlink()
    Path("patients.csv").rename("moved.csv")
    assert run("resume", "run") == 1
    assert run("resume", "run", "--data", "moved.csv", "--quiet") == 0
    assert "SIMULATION" in capsys.readouterr().out
    assert run("certificate", "verify", "run", "--ledger", "patients.ledger.jsonl") == 0
    assert "The numbers are those that the certificate was issued for." in capsys.readouterr().out
    whole = Path("run/posterior.npz").read_bytes()
    with np.load("run/posterior.npz") as file:
        arrays = {name: file[name] * 2 if name.startswith("draws/") else file[name] for name in file.files}
    np.savez("run/posterior.npz", **arrays)
    assert run("certificate", "verify", "run") == 1
    assert "draws are not what the certificate was issued for" in capsys.readouterr().err
    Path("run/posterior.npz").write_bytes(whole)
    for name in ("certificate.json", "certificate.md", "certificate.html", "report.html"):
        assert "SIMULATION" in Path("run", name).read_text("utf-8").split("\n")[0]
    (done,) = Ledger("patients.ledger.jsonl").runs().values()
    assert (done.steps, done.repeated) == (20, 0)
    Path("run/report.html").unlink()
    assert run("report", "run", "--title", "Age and illness") == 0
    page = Path("run/report.html").read_text("utf-8")
    assert "Age and illness" in page
    assert "All runs on the ledger" in page
    assert str(place) not in page
    assert SECRET not in page


PLANTED = """
from pathlib import Path
Path("ran").touch()
"""


@pytest.fixture
def foreign(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Make a folder as somebody else's fit leaves it, and stop before anything that comes after trust."""

    def seen(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Seen.")

    def make(**changes: Any) -> Path:
        folder = place / "sent"
        folder.mkdir()
        asked = {
            **dict.fromkeys(("formula", "family", "title")),
            "data": str(place / "patients.csv"),
            "ledger": str(place / "theirs.jsonl"),
            "model": "model",
            "home": str(place / "model.py"),
            "simulate": 1,
            "budget": Budget(900.0, 1e-5, unit="patient").to_dict(),
            "settings": {"rate": 0.2, "steps": 5, "clip": None, "adjacency": "add-remove"},
            "trust": ["model.py", "command.json"],  # a folder cannot vouch for itself
            **changes,
        }
        (folder / "command.json").write_text(json.dumps(asked))
        (folder / "schema.toml").write_text(SCHEMA)
        (folder / "model.py").write_text(PLANTED + MODEL)
        (folder / "posterior.npz").write_text("")
        return folder

    monkeypatch.setattr(tacit, "fit", seen)
    monkeypatch.setattr("tacit.cli.runs._posterior", seen)
    return make


SYNTHESIZE = ("synthesize", "sent", "--records", "5", "--seed", "1", "--out", "made")


@pytest.mark.parametrize("command", [("resume", "sent", "--quiet"), SYNTHESIZE], ids=lambda command: command[0])
def test_code_of_a_folder_that_somebody_sent_is_run_only_when_trusted(
    command: tuple[str, ...], foreign: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    foreign()
    assert run(*command) == 1
    said = capsys.readouterr().err
    assert "would run" in said
    assert said.endswith(f"tacit {command[0]} {Path('sent')} --trust model.py\n")
    assert said.count("\n") == 1
    assert not Path("ran").exists()
    assert not Path("theirs.jsonl").exists()
    assert run(*command, "--trust", "model.py") == 1
    assert "Seen." in capsys.readouterr().err
    assert Path("ran").exists()


def test_a_command_that_somebody_sent_is_carried_out_only_when_trusted(
    foreign: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the records, the ledger and the budget, also where a formula needs no code."""
    foreign(formula="ill ~ age", family="bernoulli", model=None)
    assert run("resume", "sent", "--quiet") == 1
    assert "--trust command.json" in capsys.readouterr().err
    assert run("resume", "sent", "--quiet", "--trust", "command.json") == 1
    assert "Seen." in capsys.readouterr().err
    assert run(*SYNTHESIZE) == 1  # runs no code and looks at nothing
    assert "Seen." in capsys.readouterr().err
    assert not Path("ran").exists()


@pytest.mark.parametrize("changed", ["nothing", "model.py", "command.json", "schema.toml", "list"])
def test_a_users_own_run_needs_no_trust_until_it_is_changed(
    changed: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if changed == "list" and not hasattr(os, "geteuid"):
        pytest.skip("Windows tells no permissions")
    state = place / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(tacit, "fit", killed)
    assert run(*FIT, "--model", "model.py:model", *TINY, "--out", "run") == 130
    assert (state / "tacit" / "trusted").stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    if changed == "list":  # one that others may have written
        (state / "tacit" / "trusted").chmod(0o666)
    elif changed != "nothing":
        with open(Path("run", changed), "a", encoding="utf-8") as file:
            file.write("\n")
    assert run("resume", "run", "--quiet") == (130 if changed == "nothing" else 1)
    assert ("--trust model.py" in capsys.readouterr().err) == (changed != "nothing")


def test_a_model_is_run_from_its_text_and_not_from_compiled_code_beside_it(place: Path) -> None:
    file = place / "model.py"
    evil = place / "evil.py"
    evil.write_text(PLANTED.ljust(file.stat().st_size))
    cached = importlib.util.cache_from_source(str(file))
    py_compile.compile(str(evil), cfile=cached, dfile=str(file))
    head = bytearray(Path(cached).read_bytes())
    head[8:12] = int(file.stat().st_mtime).to_bytes(4, "little")
    head[12:16] = file.stat().st_size.to_bytes(4, "little")
    Path(cached).write_bytes(head)
    assert callable(_loaded(file, place, "model"))
    assert not Path("ran").exists()


def test_a_refused_fit_removes_no_file_that_was_there(place: Path) -> None:
    assert run(*FIT, "--model", "model.py:nothing", *TINY, "--out", ".") == 1
    assert Path("model.py").exists()
    assert Path("schema.toml").exists()
    assert not Path("command.json").exists()


def _kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    advance = Runner.advance

    def killed(self: Runner, state: Any, first: int, stop: int) -> Any:
        if first == step:
            monkeypatch.setattr(Runner, "advance", advance)
            raise KeyboardInterrupt
        return advance(self, state, first, stop)

    monkeypatch.setattr(Runner, "advance", killed)


def test_the_same_command_again_and_another_one(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = (*FIT, "--model", "model.py:method", *TINY, "--out", "run")
    assert run(*command) == 0
    spent = Ledger("patients.ledger.jsonl").head
    capsys.readouterr()
    assert run(*command, "--json") == 0  # gives the finished run
    said = json.loads(capsys.readouterr().out)
    assert [row["label"] for row in said["rows"]] == ["slope"]
    assert said["simulation"]
    assert Path(said["report"]).exists()
    assert run(*command, "--clip", "2") == 1
    assert "holds another run" in capsys.readouterr().err
    assert Ledger("patients.ledger.jsonl").head == spent


REHEARSE = ("rehearse", "--schema", "schema.toml", "--model", "model.py:model", *BUDGET)


def test_rehearse_passes_on_what_was_asked(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(tacit, "rehearse", lambda method, schema, budget, **facts: asked.update(facts, budget=budget))
    assert run(*REHEARSE, "--epsilons", "0.5", "2", "--steps", "20", "40", "--size", "200", "--seed", "0") == 0
    del asked["key"]
    budget = Budget(1.0, 1e-5, unit="patient")
    assert asked == {"budget": budget, "epsilons": [0.5, 2.0], "steps": [20, 40], "size": 200, "replicates": 20}


@pytest.mark.slow
def test_rehearse(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*REHEARSE, "--steps", "20", "--replicates", "2", "--size", "200", "--seed", "0") == 0
    assert "Nothing was spent" in capsys.readouterr().out


def test_audit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # What it does to the wall itself is in privacy/test_audit_wall.py. The seed is fixed: no false alarms.
    def honest(method: None, records: None, claim: Mechanism, runs: int, inside: bool, **_: Any) -> np.ndarray:
        return np.random.default_rng(int(inside)).normal(inside, claim.noise_multiplier, runs)

    attacks = importlib.import_module("tacit.run.audit")
    monkeypatch.setattr(attacks, "canary_scores", honest)
    assert run("audit", "--runs", "2000") == 0
    assert "the attack proves" in capsys.readouterr().out
    monkeypatch.setattr(
        importlib.import_module("tacit.run.audit"),
        "canary_scores",
        lambda *given, **more: honest(*given, **more) + 5.0 * given[-1],
    )
    assert run("audit", "--runs", "2000") == 1
    assert "privacy bug" in capsys.readouterr().err


# These need what is made elsewhere


def test_a_formula_is_fitted(
    place: Path, before: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []

    def fit(model: Any, *_: Any, **__: Any) -> Any:
        given.append(model)
        raise RuntimeError("Seen.")

    formula = (*FIT, "--family", "bernoulli", *TINY, "--out", "run", "--formula")
    assert run(*formula, "ill ~ height") == 1
    assert "height" in one_sentence(capsys, place, before)
    monkeypatch.setattr(tacit, "fit", fit)
    assert run(*formula, "ill ~ age") == 1
    assert (given[0].text, given[0].family) == ("ill ~ age", "bernoulli")


@pytest.mark.slow
def test_a_formula_from_fit_to_report(place: Path) -> None:
    assert run(*FIT, "--family", "bernoulli", *TINY, "--out", "run", "--formula", "ill ~ age") == 0
    assert "ill ~ age" in Path("run/report.html").read_text("utf-8")


def test_a_draft_of_a_schema(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("schema", "draft", "patients.csv") == 0
    said = capsys.readouterr().out
    assert "age" in said
    assert "ill" in said
    assert SECRET not in said


@pytest.mark.slow
def test_synthesize(place: Path) -> None:
    Path("tables.py").write_text("import tacit\n\ndef method(schema):\n    return tacit.marginals(schema)\n")
    assert run(*FIT, "--model", "tables.py:method", *BUDGET, "--simulate", "1", "--out", "run") == 0
    assert run("synthesize", "run", "--records", "50", "--copies", "2", "--seed", "1", "--out", "made") == 0
    for copy in (1, 2):
        head, *lines = Path(f"made/copy-{copy}.csv").read_text().splitlines()
        assert head == "age,ill"
        assert len(lines) == 50


# Refusals: one sentence, no traceback, no record value, nothing spent


USAGE: list[tuple[str, ...]] = [
    (),
    ("nonsense",),
    ("fit",),
    (*FIT, "--formula", "ill ~ age", "--out", "run"),
    (*FIT, *BUDGET, "--out", "run"),
    (*FIT, "--formula", "ill ~ age", "--model", "model.py:model", *BUDGET, "--out", "run"),
    (*FIT, "--model", "model.py:model", "--epsilon", "one", "--delta", "1e-5", "--out", "run"),
    (*FIT, "--model", "model.py:model", *BUDGET, "--out", "run", "--steps", "2.5"),
    (*FIT, "--model", "model.py:model", *BUDGET, "--out", "run", "--adjacency", "both"),
    (*FIT, "--mod", "model.py:model", *BUDGET, "--out", "run"),
    ("explain", "--epsilon", "1"),
    ("plan", "--epsilon", "1", "--noise", "1", "--delta", "1e-5"),
    ("plan", "--delta", "1e-5"),
    ("certificate",),
    ("certificate", "show"),
    ("ledger", "show"),
    ("schema", "check"),
    ("synthesize", "run"),
    ("rehearse", "--schema", "schema.toml", "--model", "model.py:model", *BUDGET),
]

REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("explain", "--epsilon", "-1", "--delta", "1e-6"), "ε is -1"),
    (("explain", "--epsilon", "nan", "--delta", "1e-6"), "ε is nan"),
    (("explain", "--epsilon", "1", "--delta", "2"), "δ is 2"),
    (("plan", "--epsilon", "0", "--delta", "1e-5"), "epsilon must be"),
    (("plan", "--epsilon", "1", "--delta", "1"), "delta"),
    (("plan", "--epsilon", "1", "--delta", "1e-5", "--rate", "2"), "rate"),
    (("plan", "--epsilon", "1", "--delta", "1e-5", "--steps", "0"), "steps must be"),
    (("plan", "--noise", "0", "--delta", "1e-5"), "without noise nothing is private"),
    (("plan", "--epsilon", "1", "--delta", "1e-5", "--records", "-3"), "number of records"),
    (("certificate", "show", "nowhere"), "no file or folder nowhere"),
    (("certificate", "show", "folder"), "no file or folder"),
    (("certificate", "show", "model.py"), "not a certificate"),
    (("certificate", "verify", "changed.json"), "changed"),
    (("certificate", "verify", "forged.json"), "its recipe costs"),
    (("certificate", "verify", "good", "--ledger", "cut.jsonl"), "older copy"),
    (("certificate", "verify", "good", "--ledger", "nowhere"), "no file or folder nowhere"),
    (("ledger", "show", "nowhere"), "no file or folder nowhere"),
    (("ledger", "show", "book.jsonl"), "--delta"),
    (("ledger", "show", "book.jsonl", "--delta", "7"), "delta"),
    (("ledger", "show", "model.py", "--delta", "1e-5"), "model.py"),
    (("schema", "check", "nowhere.toml"), "no file or folder nowhere.toml"),
    (("schema", "check", "broken.toml"), "broken.toml"),
    (("schema", "check", "blank.toml"), "Blanks of a draft are filled in"),
    (("schema", "check", "unbounded.toml"), "has no bounds"),
    (("schema", "check", "schema.toml", "--data", "wrong.csv"), "none of its 2 declared levels"),
    (("schema", "check", "schema.toml", "--data", "other.csv"), "height"),
    (("schema", "check", "schema.toml", "--data", "patients.txt"), ".csv or .parquet"),
    (("schema", "draft", "nowhere.csv"), "no file or folder nowhere.csv"),
    (("resume", "nowhere"), "no tacit fit was begun"),
    (("resume", "good"), "no tacit fit was begun"),
    (("report", "good"), "no file or folder"),
    (("report", "nowhere"), "no file or folder"),
    (("report", "unreadable"), "not a posterior"),
    (("report", "good", "--ledger", "nowhere"), "no file or folder nowhere"),
    (("resume", "spoilt"), "not what tacit fit wrote"),
    ((*FIT, "--formula", "ill age", *BUDGET, "--out", "run"), "has no '~'"),
    (("synthesize", "good", "--records", "10", "--seed", "1", "--out", "made"), "no file or folder"),
    (("synthesize", "good", "--records", "0", "--seed", "1", "--out", "made"), "--records is 0"),
    (("audit", "--rate", "0"), "rate"),
    (("audit", "--runs", "3"), "--runs is 3"),
    (("papers", "no/such"), "no study"),
    (("demo", "--epsilon", "-1", "--out", "made"), "epsilon must be"),
]

REFUSED_FITS: list[tuple[dict[str, str], str]] = [
    ({"data": "nowhere.csv"}, "no file or folder nowhere.csv"),
    ({"data": "folder"}, "no file or folder folder"),
    ({"data": "patients.txt"}, ".csv or .parquet"),
    ({"data": "wrong.csv"}, "none of its 2 declared levels"),
    ({"data": "other.csv"}, "height"),
    ({"--schema": "nowhere.toml"}, "no file or folder nowhere.toml"),
    ({"--schema": "broken.toml"}, "broken.toml"),
    ({"--schema": "unbounded.toml"}, "has no bounds"),
    ({"--model": "nowhere.py:model"}, "no file or folder nowhere.py"),
    ({"--model": "model.py"}, "model.py:model"),
    ({"--model": "model.py:nothing"}, "no function or method named 'nothing'"),
    ({"--model": "model.py:number"}, "no function or method named 'number'"),
    ({"--model": "model.py:stranger"}, "height"),
    ({"--model": "broken.py:model"}, "no_such_module_at_all"),
    ({"--family": "poisson"}, "--family"),
    ({"--epsilon": "-1"}, "epsilon must be"),
    ({"--epsilon": "inf"}, "epsilon must be"),
    ({"--delta": "0"}, "delta"),
    ({"--rate": "0"}, "rate"),
    ({"--steps": "0"}, "steps must be"),
    ({"--clip": "-1"}, "clip must be"),
    ({"--out": "patients.csv"}, "is a file"),
    ({"--ledger": "folder"}, "is a folder"),
    ({"--ledger": "model.py"}, "model.py"),
    ({"--ledger": "capped.jsonl"}, "cap is ε = 0.1"),
]


def one_sentence(capsys: pytest.CaptureFixture[str], place: Path, before: dict[str, bytes]) -> str:
    said = capsys.readouterr().err
    assert said.startswith("tacit")
    assert said.count("\n") == 1
    assert "Traceback" not in said
    assert SECRET not in said
    after = {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}
    assert {name: text for name, text in after.items() if "__pycache__" not in name} == before  # spent and left nothing
    return said


@pytest.fixture
def before(place: Path) -> dict[str, bytes]:
    return {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_what_is_not_understood(
    arguments: tuple[str, ...], place: Path, before: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert "--help" in one_sentence(capsys, place, before)


@pytest.mark.parametrize(
    ("arguments", "why"), REFUSED, ids=lambda part: " ".join(part) if isinstance(part, tuple) else ""
)
def test_what_is_refused(
    arguments: tuple[str, ...], why: str, place: Path, before: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 1
    assert why in one_sentence(capsys, place, before)


@pytest.mark.parametrize(("changes", "why"), REFUSED_FITS, ids=lambda part: str(part))
def test_fits_that_are_refused(
    changes: dict[str, str], why: str, place: Path, before: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {
        "--schema": "schema.toml",
        "--model": "model.py:model",
        "--epsilon": "1",
        "--delta": "1e-5",
        "--out": "run",
    }
    facts |= changes
    data = facts.pop("data", "patients.csv")
    assert run("fit", data, "--quiet", *(part for pair in facts.items() for part in pair)) == 1
    assert why in one_sentence(capsys, place, before)


def test_an_error_that_nobody_foresaw_names_its_place(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> Callable[..., Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(tacit.Schema, "describe", broken)
    assert run("schema", "check", "schema.toml") == 1
    assert "ZeroDivisionError in line" in capsys.readouterr().err
