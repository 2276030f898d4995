"""The documentation does what it says: its code runs as printed, its links lead somewhere, it names what is public.

The fits draw secret noise, so no number is compared: nothing here can fail by chance.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.cli import main, parser
from tacit.ledger import Look

ROOT = Path(__file__).parents[1]
NO_CERTIFICATE = "ignore:tacit.compat.d3p gives no certificate"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = sorted(ROOT.glob("examples/*.py"))
LONG = {
    "logistic.py",
    "clip.py",
    "csv_formula.py",
    "d3p_script.py",
    "election88.py",
    "radon.py",
    "rehearse.py",
    "synthetic.py",
}  # half a minute each; their like is tested with the others
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python_blocks(text: str) -> Iterator[str]:
    """Give each block of Python behind as many empty lines as there are above it, so that errors name its line."""
    for fence in FENCE.finditer(text):
        if fence[1] == "python":
            yield "\n" * text.count("\n", 0, fence.start(2)) + fence[2]


def anchors(page: Path) -> set[str]:
    """Give the anchors of a page's headings, as the toc extension of Markdown makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


@pytest.mark.filterwarnings(NO_CERTIFICATE)
@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize(
    "page",
    [
        *("README.md", "docs/start.md", "docs/from-numpyro.md", "docs/formula.md", "docs/sep.md"),
        pytest.param("docs/networks.md", marks=pytest.mark.slow),
        "docs/synthetic.md",
        pytest.param(
            "docs/estimators.md",
            marks=pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn is missing"),
        ),
        *(f"docs/journeys/{name}.md" for name in ("choose-epsilon", "officer", "resume", "ask")),
        pytest.param("docs/journeys/topics.md", marks=pytest.mark.slow),
        "docs/journeys/add-a-method.md",
        pytest.param("docs/journeys/sweep.md", marks=pytest.mark.slow),
        pytest.param("docs/rehearse.md", marks=pytest.mark.slow),
        pytest.param("docs/from-d3p.md", marks=pytest.mark.slow),
    ],
)
def test_the_code_of_a_page_runs_as_printed(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = list(python_blocks((ROOT / page).read_text(encoding="utf-8")))
    assert blocks
    shared: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec", dont_inherit=True), shared)


@pytest.mark.filterwarnings(NO_CERTIFICATE)
@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, marks=[pytest.mark.slow] if script.name in LONG else [], id=name(script))
        for script in EXAMPLES
    ],
)
def test_an_example_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as left:
        if not str(left).startswith("skipped: set TACIT_DATA"):
            raise
        pytest.skip(str(left))
    certificates = list(tmp_path.rglob("certificate.json"))
    assert bool(certificates) == ("run_dir=" in script.read_text(encoding="utf-8"))
    for file in certificates:
        tacit.Certificate.load(file).verify()


def commands(text: str) -> Iterator[tuple[list[str], str]]:
    """Give every ``tacit`` command of a page's shell blocks, and the text block right behind its own, if any."""
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
    book.charge(Look("a-run", "fit", "vi", recipe, 0, 1000, "tag", "patient", False))
    certificate = tacit.Certificate.issue(ledger=book, run="a-run", budget=tacit.Budget(1.0, 1e-6, unit="patient"))
    certificate.save("run")
    tacit.Posterior({"slope": np.linspace(0, 1, 100)}, certificate).save("run/posterior.npz")


def test_cheap_commands_do_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    _prepare_run(page)
    ran = set()
    for arguments, said in commands(page):
        if arguments[0] in {"fit", "resume", "rehearse", "synthesize", "audit"}:
            continue  # test_cli.py does these, and smaller ones
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


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert navigation == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


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
