"""The certificate: made from the ledger, recomputed from the file alone, and changed by no one unseen."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tacit import accounting
from tacit.accounting.explanation import percent, up
from tacit.accounting.mechanism import Budget, Mechanism
from tacit.ledger.certificate import Certificate
from tacit.ledger.file import Charge, Ledger, Line
from tacit.ledger.record import SIMULATION, CertificateError, Total

RECIPE = Mechanism(rate=0.01, clip=1.5, noise_multiplier=2.0, steps=100)
BUDGET = Budget(1.0, 1e-5, unit="patient")
SLACK = 2.0**-60
NUMBERS = {"state": "0a" * 32, "draws": "1b" * 32, "points": "2c" * 32, "labels": "3d" * 32}


def charge(first: int, stop: int, **changes: Any) -> Charge:
    values: dict[str, Any] = {
        "run": "run-1",
        "kind": "fit",
        "method": "vi, logistic regression",
        "mechanism": RECIPE,
        "tag": "tag-a",
        "unit": "patient",
        "simulation": False,
    }
    return Charge(first=first, stop=stop, **{**values, **changes})


def charged(*charges: Charge, path: Path | None = None) -> Ledger:
    book = Ledger(path)
    for one in charges:
        book.charge(one)
    return book


def issue(book: Ledger, **changes: Any) -> Certificate:
    arguments: dict[str, Any] = {
        "ledger": book,
        "run": "run-1",
        "budget": BUDGET,
        "slack": SLACK,
        "versions": {"tacit": "0.1.0", "jax": "0.8.1"},
        "caveats": ("The bounds were set by the registry.",),
        "numbers": NUMBERS,
        "code": "tacit",
    }
    return Certificate.issue(**{**arguments, **changes})


@pytest.fixture(scope="module")
def book() -> Ledger:
    return charged(charge(0, 50), charge(50, 100))


@pytest.fixture(scope="module")
def real(book: Ledger) -> Certificate:
    return issue(book)


@pytest.fixture(scope="module")
def simulated() -> Certificate:
    return issue(charged(charge(0, 100, simulation=True)))


def reseal(certificate: Certificate, **changes: Any) -> Certificate:
    """Change a certificate and give it a digest that fits, as a forger would."""
    changed = replace(certificate, **changes)
    return replace(changed, digest=changed.digest_of_content())


# Issuing


def test_it_says_what_the_ledger_says(real: Certificate, book: Ledger) -> None:
    assert real.epsilon == pytest.approx(RECIPE.cost(1e-5), rel=1e-6)
    assert real.epsilon >= RECIPE.cost(1e-5)
    assert (real.delta, real.slack, real.budget) == (1e-5, SLACK, BUDGET)
    assert (real.unit, real.adjacency, real.kind) == ("patient", "add-remove", "fit")
    assert (real.mechanism, real.planned) == (RECIPE, 100)
    assert real.charges == book.charges
    assert (real.ledger_head, real.ledger_lines) == (book.head, 3)
    assert real.total.runs == (("run-1", 0.01, 2.0, 100),)
    assert real.total.composition == accounting.COMPOSITION["add-remove"]
    assert real.simulation is False
    assert real.notes == ()
    real.verify()
    real.verify(book)


def test_refusals_are_on_it_and_it_verifies() -> None:
    book = Ledger()
    book.note("checked, refused", "records that do not suit glm")
    for one in (charge(0, 50), charge(50, 100)):
        book.charge(one)
    certificate = issue(book)
    certificate.verify(book)
    assert any("checked and refused 1 times" in note for note in certificate.notes)
    assert Certificate.from_json(certificate.to_json()) == certificate
    with pytest.raises(CertificateError, match="explain"):
        reseal(certificate, refusals=()).verify()
    (line,) = certificate.refusals
    other = line.seal(line.seq, line.time, {"note": {"kind": "checked, refused", "text": "nothing"}}, line.prev)
    with pytest.raises(CertificateError, match="refusals on the certificate are not those"):
        reseal(certificate, refusals=(other,)).verify(book)


def test_repeated_looks_count_again() -> None:
    book = charged(charge(0, 100), charge(40, 100, tag="tag-b"))
    twice = issue(book)
    assert twice.mechanism.steps == 160
    assert twice.epsilon > RECIPE.cost(1e-5)
    assert twice.total.runs == (("run-1", 0.01, 2.0, 100), ("run-1", 0.01, 2.0, 60))
    assert any("60 steps were taken again" in note for note in twice.notes)
    assert "60 steps were taken again" in twice.to_markdown()
    twice.verify(book)


def test_a_replay_does_not_count(real: Certificate) -> None:
    book = charged(charge(0, 50), charge(0, 50), charge(0, 100))
    assert issue(book).epsilon == real.epsilon


def test_a_run_that_stopped_early_says_so(real: Certificate) -> None:
    early = issue(charged(charge(0, 30)))
    assert early.mechanism.steps == 30
    assert early.epsilon < real.epsilon
    assert early.total.epsilon == real.total.epsilon, "a first run counts whole in the total"
    assert any("30 of 100 planned steps" in note and up(real.epsilon, 4) in note for note in early.notes)
    early.verify()


def test_a_cost_above_the_budget_is_said_and_comes_from_charged_first_again_only() -> None:
    small = Budget(RECIPE.cost(9.9e-6), 1e-5, unit="patient")
    again = issue(charged(charge(0, 100), charge(0, 50, tag="tag-b")), budget=small)
    assert any("asked for" in note for note in again.notes)
    again.verify()
    with pytest.raises(CertificateError, match="more than the budget"):
        issue(charged(charge(0, 100)), budget=Budget(0.01, 1e-5, unit="patient")).verify()


def test_other_runs_are_in_the_total(real: Certificate) -> None:
    book = charged(charge(0, 100), charge(0, 100, run="run-2"), charge(0, 10, run="run-3"))
    several = issue(book)
    assert several.epsilon == real.epsilon
    assert len(several.total.runs) == 3
    assert several.total.epsilon > real.total.epsilon
    assert "held 3 runs" in several.to_markdown()
    assert up(several.total.epsilon, 4) in several.to_markdown()
    several.verify(book)


def test_slack_must_leave_something_of_delta(book: Ledger) -> None:
    for slack in (1e-5, 1e-3, -1e-9, 0.0, float("nan")):
        with pytest.raises(CertificateError, match="slack"):
            issue(book, slack=slack)
    assert issue(book, slack=9e-6).epsilon > issue(book, slack=1e-18).epsilon


def test_what_cannot_be_issued(book: Ledger) -> None:
    with pytest.raises(CertificateError, match="no charge of run 'run-9'"):
        issue(book, run="run-9")
    with pytest.raises(CertificateError, match="says nothing about the other"):
        issue(book, budget=Budget(1.0, 1e-5, unit="record"))
    with pytest.raises(CertificateError, match="list of sentences"):
        issue(book, caveats="one string")


def test_an_answer_has_a_certificate_too() -> None:
    one = Mechanism(rate=1.0, clip=1.0, noise_multiplier=15.0, steps=1, adjacency="replace-one")
    book = charged(charge(0, 1, kind="ask", method="mean age", mechanism=one))
    answer = issue(book, numbers={"answer": "4e" * 32}, code="user")
    answer.verify(book)
    words = answer.to_markdown()
    assert words.split("\n")[2].startswith("The answer of run")
    assert "any other patient in its place" in words
    assert "The number of patients: it is public" in words


# Tampering


def test_json_both_ways(real: Certificate, simulated: Certificate) -> None:
    for one in (real, simulated):
        assert Certificate.from_json(one.to_json()) == one
        assert json.loads(one.to_json())["digest"] == one.digest
    # Another program may lay it out anew.
    flat = json.dumps(json.loads(real.to_json()), ensure_ascii=True)
    Certificate.from_json(flat).verify()


def test_every_changed_digit_is_found(real: Certificate) -> None:
    text = real.to_json()
    places = [place for place, sign in enumerate(text) if sign.isdigit()]
    assert len(places) > 300
    for place in places:
        digit = text[place]
        for other in {str((int(digit) + 1) % 10), str((int(digit) + 9) % 10), "0"} - {digit}:
            with pytest.raises(CertificateError):
                Certificate.from_json(text[:place] + other + text[place + 1 :]).verify()


def test_every_removed_or_doubled_digit_is_found(real: Certificate) -> None:
    text = real.to_json()
    for place, sign in enumerate(text):
        if sign.isdigit():
            for other in ("", sign * 2):
                with pytest.raises(CertificateError):
                    Certificate.from_json(text[:place] + other + text[place + 1 :]).verify()


def leaves(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(content, dict):
        return [leaf for name in content for leaf in [(*path, name), *leaves(content[name], (*path, name))]]
    if isinstance(content, list):
        return [leaf for n in range(len(content)) for leaf in [(*path, n), *leaves(content[n], (*path, n))]]
    return []


def test_every_changed_field_is_found(real: Certificate) -> None:
    places = leaves(json.loads(real.to_json()))
    assert {place[0] for place in places} >= {field.name for field in fields(Certificate)}
    for place in places:
        for change in (None, "x", 0, 0.5, -1, True, [], {}, "remove"):
            content = json.loads(real.to_json())
            inner = content
            for name in place[:-1]:
                inner = inner[name]
            if change == "remove":
                del inner[place[-1]]
            elif json.dumps(inner[place[-1]]) == json.dumps(change):
                continue
            else:
                inner[place[-1]] = change
            with pytest.raises(CertificateError):
                Certificate.from_json(json.dumps(content)).verify()


def test_an_added_field_is_found(real: Certificate) -> None:
    for place in ((), ("total",), ("mechanism",), ("budget",), ("lines", 0)):
        content = json.loads(real.to_json())
        inner = content
        for name in place:
            inner = inner[name]
        inner["epsilon_claimed"] = 0.1
        with pytest.raises(CertificateError):
            Certificate.from_json(json.dumps(content)).verify()
    doubled = real.to_json().replace('"kind": "fit",', '"kind": "ask", "kind": "fit",', 1)
    with pytest.raises(CertificateError, match="occurs twice"):
        Certificate.from_json(doubled)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "3", "{", '{"format": "tacit-certificate-9"}', "NaN"])
def test_what_is_no_certificate(text: str) -> None:
    with pytest.raises(CertificateError):
        Certificate.from_json(text)


def test_a_forger_with_a_fitting_digest_cannot_claim_less(real: Certificate) -> None:
    last = real.lines[-1]
    quiet = replace(RECIPE, noise_multiplier=4.0)
    total = real.total
    other = [Line.seal(n + 1, last.time, {"look": charge(0, 50).to_dict()}, last.prev) for n in range(2)]
    forged = {
        "claims ε": {"epsilon": real.epsilon * 0.999},
        "for all runs": {"total": replace(total, epsilon=total.epsilon * 0.99)},
        "recipe is not": {"mechanism": quiet},
        "charges took": {"mechanism": replace(RECIPE, steps=99)},
        "its charges took 50": {"lines": real.lines[:1]},
        "not those of its run": {"run": "run-2"},
        "charges are not those": {"lines": ()},
        "was changed": {"lines": (replace(real.lines[0], time="2020-01-01T00:00:00+00:00"), last)},
        "order": {"lines": real.lines[::-1]},
        "did not have": {"ledger_lines": 2},
        "head": {"ledger_head": "0" * 64},
        "last charge is not": {"lines": tuple(other)},
        "own run": {"total": Total(9.0, 1e-5, (), total.composition)},
        "its own": {"total": replace(total, runs=(("run-1", 0.01, 2.0, 99),))},
        "hold its own": {"total": replace(total, runs=(("run-1", 0.01, 9.0, 100),))},
        "δ": {"delta": 1e-4},
        "slack": {"slack": 1e-5},
        "its slack 0": {"slack": 0.0},
        "more than the budget": {"budget": Budget(0.9 * real.epsilon, 1e-5, unit="patient")},
        "had 4 lines, and its charges and runs explain 3": {"ledger_lines": 4, "ledger_head": "0" * 64},
        "draws": {"numbers": {"draws": "1b" * 32}},
        "hashes": {"numbers": {**NUMBERS, "draws": "1B" * 32}},
        "code of 'anyone'": {"code": "anyone"},
        "engine 'slow'": {"engine": "slow"},
        "U\\+202E": {"caveats": ("Nothing \u202e wrong",)},
        "versions holds the character U\\+000A": {"versions": {"jax": "1\n2"}},
        "total holds the character U\\+200F": {"total": replace(total, composition="\u200f")},
        "unit": {"unit": "record"},
        "adjacency": {"adjacency": "replace-one"},
        "simulation": {"simulation": True},
        "method": {"method": "something harmless"},
        "kind": {"kind": "ask", "numbers": {}},
    }
    for words, changes in forged.items():
        with pytest.raises(CertificateError, match=words):
            reseal(real, **changes).verify()
    for nonsense in ({"epsilon": None}, {"epsilon": "1"}, {"slack": []}, {"ledger_lines": None}):
        with pytest.raises(CertificateError, match="does not make sense"):
            reseal(real, **nonsense).verify()
    # A larger claim than needed is a true one.
    reseal(real, epsilon=real.epsilon * 1.1).verify()


def test_looks_of_two_recipes_are_refused(real: Certificate) -> None:
    first, last = real.lines
    other = charge(50, 100, mechanism=replace(RECIPE, noise_multiplier=50.0)).to_dict()
    mixed = Line.seal(2, last.time, {"look": other}, first.hash)
    with pytest.raises(CertificateError, match="more than one recipe"):
        reseal(real, lines=(first, mixed), ledger_head=mixed.hash).verify()
    senseless = Line.seal(2, last.time, {"look": {**other, "stop": 1000}}, first.hash)
    with pytest.raises(CertificateError, match="does not make sense"):
        reseal(real, lines=(first, senseless), ledger_head=senseless.hash).verify()


HOSTILE = """
import resource, sys, time
from tacit import Certificate, CertificateError
def status(name):
    return next(int(line.split()[1]) * 2**10 for line in open("/proc/self/status") if line.startswith(name))
resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + 200 * 2**20 - status("VmRSS"),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
begin = time.process_time()
try:
    Certificate.load(sys.argv[1]).verify()
    print("holds")
except CertificateError as error:
    print("refused:", str(error)[:300])
assert time.process_time() - begin < 5, time.process_time() - begin
assert status("VmHWM") < 200 * 2**20, status("VmHWM")
"""


def many_looks(count: int) -> Certificate:
    recipe = replace(RECIPE, steps=count)
    prev, lines = "0" * 64, []
    for place in range(count):
        body = {"look": charge(place, place + 1, mechanism=recipe, tag=f"tag-{place}").to_dict()}
        lines.append(Line.seal(place + 1, "2026-01-01", body, prev))
        prev = lines[-1].hash
    honest = issue(charged(charge(0, 100)), budget=Budget(50.0, 1e-5, unit="patient"))
    total = replace(honest.total, runs=(("run-1", 0.01, 2.0, count),), epsilon=50.0)
    return reseal(
        honest,
        lines=tuple(lines),
        mechanism=recipe,
        total=total,
        epsilon=50.0,
        ledger_head=prev,
        ledger_lines=count + 1,
    )


def of_recipe(**recipe: Any) -> Certificate:
    mechanism = Mechanism(**{"rate": 0.5, "clip": 1.0, "noise_multiplier": 1.0, "steps": 10**7, **recipe})
    one = charge(0, mechanism.steps, mechanism=mechanism, kind="select" if mechanism.repeats else "fit")
    book = charged(charge(0, 100))
    line = Line.seal(1, "2026-01-01", {"look": one.to_dict()}, book.lines[0].hash)
    more = () if mechanism.repeats is None else (mechanism.repeats,)
    run = ("run-1", mechanism.rate, mechanism.noise_multiplier, mechanism.steps, *more)
    honest = issue(book, budget=Budget(1.0, 1e-5, unit="patient"))
    return reseal(
        honest,
        mechanism=mechanism,
        kind=one.kind,
        numbers={},
        adjacency=mechanism.adjacency,
        lines=(line,),
        total=replace(honest.total, runs=(run,)),
        ledger_head=line.hash,
    )


def of_runs(count: int, different: bool) -> Certificate:
    honest = issue(charged(charge(0, 100)))
    others = tuple((f"run-{n + 2}", 0.01, 2.0 + different * n * 1e-4, 1) for n in range(count))
    total = replace(honest.total, runs=(*honest.total.runs, *others), epsilon=1e6)
    return reseal(honest, total=total, ledger_lines=2 + count)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory, and /proc, are those of Linux")
@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("ten million steps", lambda: of_recipe().to_json(), "recipe costs"),
        ("ten million steps, hardly any noise", lambda: of_recipe(noise_multiplier=0.01).to_json(), "recipe costs"),
        ("much noise", lambda: of_recipe(noise_multiplier=1000.0, rate=0.9).to_json(), "recipe costs"),
        ("replaced", lambda: of_recipe(adjacency="replace-one", rate=0.01).to_json(), "recipe costs"),
        ("a selection", lambda: of_recipe(repeats=1e6).to_json(), "recipe costs"),
        ("more steps", lambda: of_recipe().to_json().replace("10000000", "10" * 9), "not a certificate|make sense"),
        ("a thousand looks", lambda: many_looks(1000).to_json(), "holds"),
        ("a hundred thousand looks", lambda: many_looks(1000).to_json() + " " * (60 << 20), "longer than"),
        ("many runs", lambda: of_runs(20_000, different=False).to_json(), "holds"),
        ("many recipes", lambda: of_runs(20_000, different=True).to_json(), "different recipes"),
        ("hundreds of recipes", lambda: of_runs(450, different=True).to_json(), "holds"),
        ("a huge string", lambda: issue(charged(charge(0, 100)), caveats=["x" * (3 << 20)]).to_json(), "holds"),
        ("a huger string", lambda: '{"caveats": ["' + "x" * (300 << 20), "longer than"),
        ("deep", lambda: "[" * (4 << 20), "not a certificate"),
        ("deep and closed", lambda: '{"a":' * 700_000 + "1" + "}" * 700_000, "not a certificate|longer"),
        ("many numbers", lambda: "[" + "1," * (2 << 20) + "1]", "not a certificate|longer"),
        ("many digits", lambda: "1" * (4 << 20), "not a certificate"),
    ],
)
def test_a_hostile_certificate_takes_neither_time_nor_memory(
    tmp_path: Path, name: str, make: Callable[[], str], words: str
) -> None:
    (tmp_path / "certificate.json").write_text(make(), encoding="utf-8")
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    found = subprocess.run(
        [sys.executable, "-c", HOSTILE, str(tmp_path / "certificate.json")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **threads},
        check=False,
    )
    assert found.returncode == 0, found.stderr[-800:]
    assert re.search(words, found.stdout), found.stdout


# With the ledger


def test_a_shortened_ledger_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    book = charged(charge(0, 50), charge(50, 100), path=path)
    certificate = issue(book)
    lines = path.read_bytes().splitlines(keepends=True)
    # Whoever verifies has no anchor of the ledger but the certificate.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state of another"))
    for kept in range(len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        with pytest.raises(CertificateError, match="shortened"):
            certificate.verify(Ledger(path))
        with pytest.raises(CertificateError, match="ledger is broken"):
            certificate.verify(book)
    path.write_bytes(b"".join(lines))
    certificate.verify(Ledger(path))


def test_a_rewritten_ledger_is_found(real: Certificate) -> None:
    with pytest.raises(CertificateError, match="rewritten"):
        real.verify(charged(charge(0, 50), charge(50, 100, tag="tag-c")))
    with pytest.raises(CertificateError, match="rewritten"):
        real.verify(charged(charge(0, 50), charge(50, 99), charge(99, 100)))


def test_looks_after_the_issue() -> None:
    book = charged(charge(0, 100))
    certificate = issue(book)
    book.charge(charge(0, 10, run="run-2"))
    certificate.verify(book)
    book.charge(charge(0, 10, tag="tag-b"))
    with pytest.raises(CertificateError, match="10 more steps since"):
        certificate.verify(book)
    issue(book).verify(book)


def test_a_look_left_out_is_found_with_the_ledger() -> None:
    book = charged(charge(0, 50), charge(50, 100), charge(0, 10, run="run-2"))
    honest = issue(book)
    half = replace(RECIPE, steps=50)
    forged = reseal(honest, lines=honest.lines[:1], mechanism=half, epsilon=half.cost(9.99e-6))
    forged.verify()  # a digest is not a signature: only the ledger shows this
    with pytest.raises(CertificateError, match="not all the ledger's charges"):
        forged.verify(book)
    fewer = reseal(honest, total=replace(honest.total, runs=honest.total.runs[:1]))
    with pytest.raises(CertificateError, match="its charges and runs explain 3"):
        fewer.verify()  # the lines that the ledger had are of nobody
    other = (honest.total.runs[0], ("run-3", *honest.total.runs[1][1:]))
    renamed = reseal(honest, total=replace(honest.total, runs=other))
    renamed.verify()
    with pytest.raises(CertificateError, match="not those on the ledger"):
        renamed.verify(book)


# Files and pages


def test_save_and_load(real: Certificate, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert real.save(folder) == folder / "certificate.json"
    real.save(folder)
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["certificate.html", "certificate.json", "certificate.md"], "no temporary file is left"
    for path in (folder, folder / "certificate.json"):
        again = Certificate.load(path)
        again.verify()
        assert again == real
        assert again.to_html() == real.to_html()
    assert (folder / "certificate.md").read_text(encoding="utf-8") == real.to_markdown()
    (folder / "certificate.json").write_bytes(b"\xff\xfe")
    with pytest.raises(CertificateError):
        Certificate.load(folder)


def test_a_failed_save_leaves_the_old_file(real: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real.save(tmp_path)
    before = (tmp_path / "certificate.json").read_bytes()

    def broken(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="No space"):
        issue(charged(charge(0, 30))).save(tmp_path)
    assert (tmp_path / "certificate.json").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 3


def test_a_simulation_says_so_first(simulated: Certificate, real: Certificate) -> None:
    simulated.verify()
    pages = (
        simulated.to_markdown(),
        simulated.to_html(),
        simulated.to_json(),
        str(simulated),
        repr(simulated),
    )
    for page in pages:
        assert SIMULATION in page.split("\n")[0]
    shown = re.sub(r"<[^>]*>", "", simulated.to_html().split("<body>")[1]).strip()
    assert shown.startswith(SIMULATION)
    assert "may be published" not in simulated.to_markdown()
    for page in (real.to_markdown(), real.to_html(), real.to_json(), repr(real)):
        assert "SIMULATION" not in page


def test_one_simulated_look_makes_a_simulation() -> None:
    assert issue(charged(charge(0, 50), charge(50, 100, simulation=True))).simulation is True


def text_of(page: str) -> str:
    parts: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            parts.append(data)

    Reader().feed(page.split("</style>")[1])
    return " ".join(" ".join(parts).split())


def test_both_pages_hold_the_numbers(real: Certificate) -> None:
    said = real.explain()
    for page in (real.to_markdown().replace("\\", ""), text_of(real.to_html())):
        for number in (
            f"ε = {up(real.epsilon, 4)}",
            repr(real.epsilon),
            repr(real.slack),
            repr(RECIPE.rate),
            repr(RECIPE.clip),
            repr(RECIPE.noise_multiplier),
            "100 (100)",
            f"{up(said.odds(1.0))} to 1",
            up(said.advantage),
            *map(percent, said.true_positive_rates),
            *(percent(said.probability(prior)) for prior in (0.01, 0.1, 0.5)),
            up(real.total.epsilon, 4),
            real.digest,
            real.ledger_head,
            "tag-a",
            "0 to 99",
            "jax 0.8.1, tacit 0.1.0",
            *NUMBERS.values(),
        ):
            assert number in page
        for words in (
            "Who is protected",
            "Against what",
            "How much",
            "What is not protected",
            "Side channels",
            "people in general",
            "outside this ledger",
            "malformed data",
            "several patients",
            "declared public",
            "run the code",
            "The bounds were set by the registry.",
            "whole privacy-loss distribution",
            "add or remove one patient",
            "Contributions were computed by tacit’s own code",
            accounting.COMPOSITION["add-remove"].rstrip("."),
        ):
            assert words in page


def test_the_page_needs_nothing_from_outside(real: Certificate, simulated: Certificate) -> None:
    for page in (real.to_html(), simulated.to_html()):
        for reference in ("http", "src=", "<link", "href", "url(", "@import", "<script", "<img"):
            assert reference not in page.lower()


def test_the_page_is_well_formed(real: Certificate) -> None:
    opened: list[str] = []
    seen: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            seen.append(tag)
            if tag != "meta":
                opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Checker().feed(real.to_html())
    assert opened == []
    assert seen.count("h1") == 1
    assert seen.count("h2") == seen.count("section") == 9
    assert seen.count("svg") == 1


def test_the_curve_is_the_attackers(real: Certificate) -> None:
    points = re.search(r'class="best" points="([^"]*)"', real.to_html())
    assert points is not None
    curve = [tuple(map(float, point.split(","))) for point in points[1].split()]
    fpr = [(x - 46) / 200 for x, _ in curve]
    tpr = [1 - (y - 8) / 200 for _, y in curve]
    assert fpr == sorted(fpr)
    assert tpr == sorted(tpr)
    assert all(found >= alarm - 1e-9 for alarm, found in zip(fpr, tpr, strict=True))
    assert max(a - b for a, b in zip(tpr, fpr, strict=True)) == pytest.approx(real.explain().advantage, abs=0.002)


def test_names_cannot_become_markup() -> None:
    name = "<script>alert(1)</script>|`x` # y"
    hostile = issue(
        charged(charge(0, 100, method=name, tag=name)), caveats=(name + "\n# y",), versions={name: name + "\n# y"}
    )
    assert "<script>" not in hostile.to_html()
    words = hostile.to_markdown()
    assert "<script>" not in words.replace("\\<", "")
    assert "\n# y" not in words
    for line in words.split("\n"):
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 6)


def test_adjacent_looks_share_a_row() -> None:
    parts = [charge(first, first + 5) for first in range(0, 100, 5)]
    words = issue(charged(*parts, charge(0, 5, tag="tag-b"))).to_markdown()
    rows = [line for line in words.split("\n") if "tag-" in line]
    assert len(rows) == 2
    assert "| 2 – 21 |" in rows[0]
    assert "| 0 to 99 | 20 |" in rows[0]
    assert "| 22 |" in rows[1]
    assert "| 0 to 4 | 1 |" in rows[1]


def test_no_time_of_day_is_published() -> None:
    """The time between looks follows the number of records: the day is all that a certificate tells."""
    ledger = Ledger()
    ledger.charge(charge(0, 50))
    ledger.charge(charge(50, 100))
    certificate = Certificate.issue(ledger=ledger, run="run-1", budget=BUDGET, slack=SLACK)
    assert date.fromisoformat(certificate.created)
    assert all(date.fromisoformat(line.time) for line in certificate.lines)
    assert not re.search(r"\d\d:\d\d", certificate.to_json() + certificate.to_markdown())
