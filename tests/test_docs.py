"""The documentation does what it says: its code runs as printed, its links lead somewhere, it names what is public.

The fits draw secret noise, so no number is compared: nothing here can fail by chance.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import tacit
from tacit.cli import main, parser
from tacit.cli.runs import _model
from tacit.ledger.file import Charge
from tacit.run.plan import planned
from tacit.types import Plan

ROOT = Path(__file__).parents[1]
NO_CERTIFICATE = "ignore:tacit.adapters.d3p gives no certificate"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python_blocks(text: str) -> Iterator[str]:
    """Return each block of Python behind as many empty lines as there are above it, so that errors name its line."""
    for fence in FENCE.finditer(text):
        if fence[1] == "python":
            yield "\n" * text.count("\n", 0, fence.start(2)) + fence[2]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the toc extension of Markdown makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


RUN = [
    *("README.md", "docs/start.md", "docs/from-numpyro.md", "docs/formula.md", "docs/sep.md", "docs/networks.md"),
    *("docs/synthetic.md", "docs/estimators.md", "docs/rehearse.md", "docs/from-d3p.md"),
    *(
        f"docs/journeys/{name}.md"
        for name in ("choose-epsilon", "officer", "resume", "ask", "topics", "add-a-method", "sweep", "scale")
    ),
]
"""Pages whose code runs as it is printed."""
ELSEWHERE = {
    "docs/gallery.md": "shows the examples, which test_examples.py runs",
    "docs/methods.md": "has sketches on records that it does not define; they are planned below",
    "docs/command-line.md": "has a model's file; its commands are run below",
}


def test_the_code_of_every_page_is_run() -> None:
    having = {name(page) for page in PAGES if any(python_blocks(page.read_text(encoding="utf-8")))}
    assert having == {*RUN, *ELSEWHERE}


@pytest.mark.filterwarnings(NO_CERTIFICATE)
@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs_as_printed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page == "docs/estimators.md":
        pytest.importorskip("sklearn", reason="scikit-learn is missing")
    blocks = list(python_blocks((ROOT / page).read_text(encoding="utf-8")))
    shared: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec", dont_inherit=True), shared)


def test_sketches_of_methods_can_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each builds its method for its records and calibrates the noise, all that comes before the first look."""
    recipes = []

    def plan(method: Any, data: tacit.PrivateData, budget: tacit.Budget, **settings: Any) -> Any:
        built, recipe, _ = planned(method, data, budget, **settings)
        jax.eval_shape(lambda key: built.contribution(built.init(key), data.placeholder, key, key), jax.random.key(0))
        recipes.append(recipe)
        return SimpleNamespace(predict=lambda inputs, key: {"mean": np.zeros((7, len(inputs["x"]), 10))})

    monkeypatch.setattr(tacit, "fit", plan)
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (20, 784))
    columns = {"x": random.normal(size=(20, 2)).astype(np.float32), "y": np.arange(20) % 2}
    network = {"images": images.astype(np.float32), "labels": np.arange(20) % 10, "new_images": images[:3]}
    more = {"new": columns["x"][:3], "key": jax.random.key(1)}
    known = {"eqx": eqx, "jax": jax, "np": np, "tacit": tacit, **columns, **network, **more}
    blocks = list(python_blocks((ROOT / "docs/methods.md").read_text(encoding="utf-8")))
    for block in blocks:
        exec(compile(block, "docs/methods.md", "exec", dont_inherit=True), known)
    assert len(recipes) == sum(block.count("tacit.fit(") for block in blocks)


def commands(text: str) -> Iterator[tuple[list[str], str]]:
    """Return every ``tacit`` command of a page's shell blocks, and the text block right behind its own, if any."""
    fences = list(FENCE.finditer(text))
    for fence, after in itertools.zip_longest(fences, fences[1:]):
        lines = [line for line in fence[2].splitlines() if line.startswith("tacit ")] if fence[1] == "sh" else []
        follows = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        for line in lines:
            said = after[2] if follows and after is not None else ""
            yield shlex.split(line.split(" > ")[0], comments=True)[1:], said


@pytest.mark.parametrize("page", [page for page in PAGES if "\ntacit " in page.read_text(encoding="utf-8")], ids=name)
def test_commands_are_understood(page: Path) -> None:
    for arguments, _ in commands(page.read_text(encoding="utf-8")):
        parser().parse_args(arguments)


def _prepare_run(page: str) -> None:
    """Write the files that a page shows, a ledger, and a folder as a fit leaves it."""
    for fence in FENCE.finditer(page):
        if file := re.match(r"# (\w+\.(?:toml|py))\n", fence[2]):
            Path(file[1]).write_text(fence[2], encoding="utf-8")
    recipe = tacit.Mechanism(rate=0.1, clip=1.0, noise_multiplier=13.5, steps=1000)
    book = tacit.Ledger("patients.ledger.jsonl")
    book.charge(Charge("a-run", "fit", "vi", recipe, 0, 1000, "tag", "patient", False))
    budget = tacit.Budget(1.0, 1e-6, unit="patient")
    certificate = tacit.Certificate.issue(ledger=book, run="a-run", budget=budget, slack=2.0**-60)
    certificate.save("run")
    tacit.Posterior({"slope": np.linspace(0, 1, 100)}, certificate).save("run/posterior.npz")


def test_cheap_commands_do_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    _prepare_run(page)
    schema, asked = tacit.Schema.read("schema.toml"), {"formula": None, "model": "model", "home": "model.py"}
    assert _model(None, asked, schema)(Plan(schema.placeholder())).model.predict
    ran = set()
    for arguments, said in commands(page):
        if arguments[0] in {"fit", "resume", "rehearse", "synthesize", "audit"}:
            continue  # test_cli.py does these, and smaller ones
        if "accept-loss" in arguments:
            Path(arguments[2]).unlink()  # nothing else is a loss
        assert main(arguments) == 0
        out = capsys.readouterr().out
        assert not said or out == said
        ran.add(arguments[0])
    assert ran == {"schema", "certificate", "ledger", "report", "explain", "plan"}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name(page)} links to {target}, which does not exist"
        assert not anchor or anchor in anchors(there), f"{name(page)} links to {target}: no such heading"


REFERENCE = re.compile(
    r"(?<![\w./-])((?:docs|papers|tests|examples|benchmarks|src)/[\w./-]*\w\.(?:md|py|toml))(?:#([\w-]+))?"
)
"""A file of the repository, as docstrings and pages name one, and a heading of it."""
TEXTS = sorted(
    path
    for folder in ("src", "tests", "papers", "examples", "benchmarks", "docs")
    for path in [*ROOT.glob(f"{folder}/**/*.py"), *ROOT.glob(f"{folder}/**/*.md")]
) + sorted(ROOT.glob("*.md"))


def dangling(text: str) -> Iterator[str]:
    """Yield the references of a text to files that do not exist, or to headings that a page does not have."""
    for path, anchor in REFERENCE.findall(text):
        there = ROOT / path
        if not there.exists():
            yield path
        elif anchor and anchor not in anchors(there):
            yield f"{path}#{anchor}"
    yield from re.findall(r"\b(?:METHODS|DESIGN|STYLE)(?:\.md| \d)", text)


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page == Path(__file__):
        text = text.replace(DANGLING, "")
    assert not list(dangling(text))


DANGLING = "see docs/nowhere.md, docs/errata.md#nowhere, METHODS 8"


def test_a_dangling_reference_is_found() -> None:
    assert len(list(dangling(DANGLING))) == 3
    assert not list(dangling("docs/errata.md#topics and https://example.org/docs/nowhere.md"))


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert navigation == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


def test_the_gallery_shows_every_example() -> None:
    page = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r'^--8<-- "(examples/\w+\.py)"$', page, re.MULTILINE)) == [name(path) for path in EXAMPLES]


def test_headlines_of_papers_are_in_their_results() -> None:
    page = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| `python (papers/\w+)/\S+.*` \| (.+) \|$", page, re.MULTILINE)
    assert len(rows) == page.count("`python papers/")
    for folder, headline in rows:
        said = (ROOT / folder / "README.md").read_text(encoding="utf-8")
        for figure in re.findall(r"-?\d+\.\d{2,}(?: ± \d+\.\d+)?|\d+ of \d+ cells|\d+ times as fast", headline):
            assert figure in said, f"docs/papers.md says {figure!r} of {folder}, whose README does not"


def test_the_reference_names_everything_public() -> None:
    described = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs/reference.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(tacit.__all__) <= {path.rsplit(".", 1)[-1] for path in described}


def test_every_threat_is_proved_tested_or_not_covered() -> None:
    text = (ROOT / "docs/threats.md").read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    graded = [table for table in tables if re.match(r".*\| (grade|status) \|\n", table)]
    statuses = [line.split(" | ")[-1] for table in graded for line in table.splitlines()[2:]]
    assert len(graded) == 2
    assert [status for status in statuses if not status.startswith(("proved", "tested", "not covered"))] == []
