"""The report: complete, self-contained, alive in a browser, and holding nothing that was not released."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.accounting.explanation import percent, up
from tacit.accounting.mechanism import Budget, Mechanism
from tacit.ledger.file import Charge, Ledger
from tacit.ledger.record import SIMULATION
from tacit.results.calibration import reliability
from tacit.results.report import _digits, _odds, _ticks, report, write_report

RECIPE = Mechanism(rate=0.01, clip=1.5, noise_multiplier=2.0, steps=100)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def charged(book: Ledger, run: str = "run-1", **changes: Any) -> tacit.Certificate:
    facts = {"kind": "fit", "method": "vi", "mechanism": RECIPE, "tag": "a", "unit": "patient", "simulation": False}
    book.charge(Charge(run=run, first=0, stop=100, **{**facts, **changes}))
    budget = Budget(1.0, 1e-5, unit="patient")
    return tacit.Certificate.issue(ledger=book, run=run, budget=budget, slack=2.0**-60, versions={"x": "1"})


@pytest.fixture(scope="module")
def book() -> Ledger:
    return Ledger()


@pytest.fixture(scope="module")
def posterior(book: Ledger) -> tacit.Posterior:
    random = np.random.default_rng(0)
    draws = {"slope": random.normal(0.5, 0.1, 1000), "effect": random.normal([-1, 2.0], 0.2, (1000, 2))}
    return tacit.Posterior(draws, charged(book), warning="The intervals were found to be too narrow.")


@pytest.fixture(scope="module")
def page(posterior: tacit.Posterior, book: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(1)
    chances = random.random(2000)
    return write_report(
        tmp_path_factory.mktemp("report"),
        "Readmission & <b>age</b>",
        {"private": posterior},
        predictions={"age 40": random.normal(0.2, 0.05, 1000), "age 80": random.normal(0.6, 0.05, 1000)},
        calibration={"held-out records": reliability(chances, random.random(2000) < chances)},
        ledger=book,
    )


class Checker(HTMLParser):
    """Keeps what is open, and what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "input", "path", "polyline", "polygon"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def checked(page: Path) -> Checker:
    checker = Checker()
    checker.feed(page.read_text("utf-8"))
    return checker


def test_it_is_well_formed_and_has_landmarks(checked: Checker) -> None:
    assert checked.open == []
    tags = [tag for tag, _ in checked.seen]
    assert [tags.count(tag) for tag in ("h1", "main", "header", "nav", "footer")] == [1] * 5
    ids = [facts["id"] for _, facts in checked.seen if "id" in facts]
    assert len(ids) == len(set(ids))
    links = [facts["href"] for tag, facts in checked.seen if tag == "a"]
    assert {link[1:] for link in links if link is not None} <= set(ids)
    assert all(facts.get("aria-label") for tag, facts in checked.seen if tag == "svg")
    labelled = {facts.get("for") for tag, facts in checked.seen if tag == "label"}
    assert {facts["id"] for tag, facts in checked.seen if tag == "input"} <= labelled
    assert all(facts.get("scope") for tag, facts in checked.seen if tag == "th")
    lines = [facts.get("points") for tag, facts in checked.seen if tag in ("polyline", "polygon")]
    assert lines
    assert all(lines), "a line without points is not drawn"


def test_it_says_everything(page: Path, checked: Checker, posterior: tacit.Posterior) -> None:
    words = " ".join(" ".join(checked.text).split())
    certificate = posterior.certificate
    assert certificate is not None
    assert "Readmission & <b>age</b>" in words
    assert "too narrow" in words
    for title in ("What was asked", "The answer", "Predictions", "Calibration", "What an attacker can gain"):
        assert title in words
    for label, *_ in posterior.rows():
        assert label in words
    said = certificate.explain()
    assert up(certificate.epsilon, 4) in words
    assert said.about_odds in words
    assert percent(said.probability(0.5)) in words
    assert certificate.digest in words
    assert certificate.total.composition.rstrip(".") in words
    assert "x 1" in words  # versions


def test_it_needs_nothing_from_outside(page: Path) -> None:
    text = page.read_text("utf-8")
    assert not re.search(r"https?:|//\w|@import|url\(|<img|src=", text)
    assert "default-src 'none'" in text


def test_names_cannot_become_markup(book: Ledger) -> None:
    name = "</td><script>alert(1)</script>"
    hostile = tacit.Posterior({name: np.zeros(10)}, charged(book, "hostile", method=name), warning=name)
    text = report(name, {name: hostile, "b": hostile}, {name: 1.0}, ledger=book)
    assert "<script>alert" not in text


def test_a_simulation_says_so_in_the_first_line() -> None:
    made_up = tacit.Posterior({"a": np.arange(10.0)}, charged(Ledger(), simulation=True))
    text = report("A title", {"private": made_up})
    assert SIMULATION in text.split("\n")[0]
    assert f'role="alert">{SIMULATION}' in text


def test_public_records_have_no_promise() -> None:
    text = report("A title", {"public": tacit.Posterior({"a": np.arange(10.0)}, None)})
    assert "no certificate" in text
    assert "attacker" not in text


def test_many_numbers_are_cut(book: Ledger) -> None:
    wide = tacit.Posterior({"w": np.zeros((10, 100))}, None)
    text = report("A title", {"a": wide})
    assert "w[59]" in text
    assert "w[60]" not in text
    assert "first 60 of 100" in text


def test_predictions_are_draws_of_one_number(posterior: tacit.Posterior) -> None:
    with pytest.raises(ValueError, match="one number for each draw"):
        report("A title", {"a": posterior}, predictions={"x": np.zeros((10, 2))})


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.4, 0.8), (3.0, 3.0), (0.0, 0.0), (-1e-7, 2e-7), (5, 1e6)])
def test_ticks_hold_both_ends(low: float, high: float) -> None:
    ticks = _ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 8


def test_digits_follow_the_width() -> None:
    assert _digits([0.14, 0.06]) == [3, 3]
    assert _digits([0.001, 100.0]) == [4, 0]
    assert _digits([0.0, math.nan]) == [3, 3]


def test_odds_are_rounded_up() -> None:
    assert _odds(0.30203) == "1 to 3.31"  # 1 / 0.30203 = 3.3109
    assert _odds(2.7182) == "2.72 to 1"
    assert _odds(1 / 9) == "1 to 9"


# In a browser


def browse(page: Path, address: str, *, log: Path | None = None, width: int = 1000) -> tuple[str, str]:
    """Load a page in headless Chromium; give what it has become, and what the console said."""
    assert CHROMIUM is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    options += [f"--user-data-dir={page.parent / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=3000"]
    options += [f"--window-size={width},900"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND"] + ([f"--log-net-log={log}"] if log else [])
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", page.as_uri() + address],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "HOME": str(page.parent)},
    )
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def shown(dom: str, name: str) -> str:
    found = re.search(rf'id="{name}"[^>]*>([^<]*)<', dom)
    assert found is not None
    return found[1]


def asked_of_the_network(log: Path) -> set[str]:
    """Return the addresses in Chromium's network log, but for those that the browser asks on its own account."""
    addresses = set(re.findall(r'"url":"(https?:[^"]+)"', log.read_text("utf-8")))
    browsers = re.compile(r"https?://([\w-]+\.)*(google|googleapis|gvt1|gstatic)\.com/")
    return {address for address in addresses if not browsers.match(address)}


@in_a_browser
def test_it_loads_without_errors_or_requests(page: Path, posterior: tacit.Posterior, tmp_path: Path) -> None:
    dom, console = browse(page, "", log=tmp_path / "net.json")
    assert console == ""
    assert asked_of_the_network(tmp_path / "net.json") == set()
    certificate = posterior.certificate
    assert certificate is not None
    # JavaScript and Python say the same, to the last digit.
    static = page.read_text("utf-8")
    assert shown(dom, "said") == shown(static, "said")
    assert shown(dom, "after") == shown(static, "after") == percent(certificate.explain().probability(0.1))
    assert "hidden" in re.search(r'<div id="sliders"[^>]*>', static)[0]  # type: ignore[index]
    assert "hidden" not in re.search(r'<div id="sliders"[^>]*>', dom)[0]  # type: ignore[index]


@in_a_browser
def test_the_checks_can_fail(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text('<script>console.error("no")</script><img src="http://tacit.invalid/x.png">')
    _, console = browse(bad, "", log=tmp_path / "net.json")
    assert "no" in console
    assert asked_of_the_network(tmp_path / "net.json") == {"http://tacit.invalid/x.png"}


@in_a_browser
def test_the_address_and_the_sliders_change_the_numbers(page: Path) -> None:
    dom, _ = browse(page, "#epsilon=2&prior=0.5")
    assert shown(dom, "after") == percent(tacit.explain(2.0, 1e-5).probability(0.5))
    assert "odds of 1 to 1 become at most 7.39 to 1" in shown(dom, "said")
    moving = """<pre id="seen"></pre><script>
    var seen = [], read = function () { seen.push([document.getElementById("epsilon-value").value,
      document.getElementById("after").textContent, document.getElementById("any").getAttribute("points").length]); };
    var move = function (id, value) { var one = document.getElementById(id); one.value = value;
      one.dispatchEvent(new Event("input")); read(); };
    var root = document.documentElement; seen.push([root.clientWidth, root.scrollWidth]);
    read(); move("epsilon", "0.5"); move("prior", "0"); document.getElementById("reset").click(); read();
    document.getElementById("seen").textContent = JSON.stringify(seen);</script></body>"""
    moved = page.with_name("moved.html")
    moved.write_text(page.read_text("utf-8").replace("</body>", moving), "utf-8")
    dom, console = browse(moved, "", width=500)
    assert console == ""
    (wide, needed), first, more, even, last = json.loads(shown(dom, "seen"))
    assert needed <= wide <= 500  # on a small screen nothing is cut off
    assert (more[0], even[0]) == ("3.17", "3.17")  # 10 ** 0.5, rounded up
    assert even[1] == percent(tacit.explain(10**0.5, 1e-5).probability(0.5))
    assert first == last != more
