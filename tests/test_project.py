"""The files around the package are valid and agree with each other: workflows, forms, recipe, versions, addresses."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import tacit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted(set((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")) - {ROOT / ".github/ISSUE_TEMPLATE/config.yml"})
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
SOURCE = PROJECT["project"]["urls"]["Source"]
OWNER, NAME = SOURCE.removeprefix("https://github.com/").split("/")


def read(path: str | Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def load(path: str | Path) -> Any:
    return yaml.safe_load(read(path))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in load(workflow)["jobs"].values() for step in job["steps"]]


def recipe_of(target: str) -> list[str]:
    """Return the commands of a target of the Makefile, in words; none if there is no such target."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE)
    return shlex.split(found[1]) if found else []


def test_yaml_is_yaml() -> None:
    files = [*ROOT.glob("*.yml"), *ROOT.glob("*.yaml"), *ROOT.glob(".*.yaml"), *ROOT.glob("*.cff")]
    files += [file for folder in (".github", "recipe", "examples") for file in (ROOT / folder).rglob("*.y*ml")]
    assert len(files) >= 15
    for file in files:
        assert all(document for document in yaml.safe_load_all(read(file))), file


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [ROOT / ".github/ISSUE_TEMPLATE/config.yml"]),
        ("vendor.dependabot", [ROOT / ".github/dependabot.yml"]),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_files_follow_their_schemas(schema: str, files: list[Path]) -> None:
    assert files
    told = ["--default-filetype", "yaml", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run([sys.executable, "-m", "check_jsonschema", *told], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_hooks_follow_their_schema() -> None:
    told = [sys.executable, "-m", "pre_commit", "validate-config", str(ROOT / ".pre-commit-config.yaml")]
    done = subprocess.run(told, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=name)
def test_workflows_may_do_no_more_than_they_need(workflow: Path) -> None:
    whole = load(workflow)
    assert whole["permissions"] == {"contents": "read"}
    assert "group" in whole["concurrency"]
    more = {job: told["permissions"] for job, told in whole["jobs"].items() if "permissions" in told}
    allowed = {
        "docs": {"deploy": {"pages": "write", "id-token": "write"}},
        "release": {"publish": {"id-token": "write"}},
    }
    assert more == allowed.get(workflow.stem, {})
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w.-]+@(v\d+|release/v\d+)", step["uses"]), step
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        # What an outsider can write, such as the name of a branch, must not become a part of a program.
        assert "${{" not in step.get("run", "")


def test_the_release_is_published_by_a_trusted_publisher() -> None:
    publish = load(".github/workflows/release.yml")["jobs"]["publish"]
    assert publish["needs"] == "build"
    assert publish["environment"] == {"name": "pypi"}
    last = publish["steps"][-1]
    assert last["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert last["with"] == {"attestations": True}


def test_the_version_is_the_same_everywhere() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/tacit/__init__.py"
    assert load("CITATION.cff")["version"] == tacit.__version__
    assert load("recipe/recipe.yaml")["context"]["version"] == tacit.__version__
    heading = re.search(r"^## \[(.+?)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert heading is not None
    assert heading[1] in (tacit.__version__, "Unreleased")


def test_the_versions_of_python_are_the_same_everywhere() -> None:
    told = "Programming Language :: Python :: "
    classifiers = [line.removeprefix(told) for line in PROJECT["project"]["classifiers"] if line.startswith(told)]
    tested = [version for version in classifiers if "." in version]
    lowest = tested[0]
    assert PROJECT["project"]["requires-python"] == f">={lowest}"
    assert PROJECT["tool"]["mypy"]["python_version"] == lowest
    assert load("recipe/recipe.yaml")["context"]["python_min"] == lowest
    assert load(".github/workflows/tests.yml")["jobs"]["quick"]["strategy"]["matrix"]["python"] == tested
    assert set(re.findall(r"^FROM python:([\d.]+)-slim", read("Dockerfile"), re.MULTILINE)) <= set(tested)


def targets_in(text: str) -> set[str]:
    return set(re.findall(r"(?:^|[\s`=])make ([a-z][a-z-]*)", text, re.MULTILINE))


def named_targets() -> list[str]:
    code = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
    pages = [*ROOT.glob("*.md"), ROOT / ".github/PULL_REQUEST_TEMPLATE.md"]
    texts = [span for page in pages for span in code.findall(read(page))]
    texts += [step["run"] for workflow in WORKFLOWS for step in steps(workflow) if "run" in step]
    return sorted(set().union(*map(targets_in, texts)))


@pytest.mark.parametrize("target", named_targets())
def test_make_has_what_pages_and_workflows_call(target: str) -> None:
    assert recipe_of(target), f"make {target} is named, but the Makefile has no commands for it"


def test_windows_runs_what_make_quick_runs() -> None:
    (told,) = (
        step["run"]
        for step in steps(ROOT / ".github/workflows/tests.yml")
        if step.get("if") == "runner.os == 'Windows'"
    )
    by_hand, by_make = shlex.split(told.splitlines()[-1]), recipe_of("quick")
    assert by_hand[:3] == ["python", "-m", "pytest"]
    assert by_make[1:] == by_hand[1:]


def test_conda_asks_for_what_pip_asks_for() -> None:
    requirements = load("recipe/recipe.yaml")["requirements"]

    def plain(lines: list[str]) -> list[str]:
        return sorted(line.replace(" ", "") for line in lines if not re.match(r"(python|pip)\b", line))

    assert plain(requirements["run"]) == plain(PROJECT["project"]["dependencies"])
    assert plain(requirements["host"]) == plain(PROJECT["build-system"]["requires"])


def test_the_image_runs_the_demo_as_an_ordinary_user() -> None:
    lines = read("Dockerfile").splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER 1000"]
    assert lines[-2:] == ['ENTRYPOINT ["tacit"]', 'CMD ["demo", "--out", "demo"]']


def test_addresses_are_those_of_the_project() -> None:
    urls = PROJECT["project"]["urls"]
    assert list(urls) == ["Homepage", "Documentation", "Source", "Changelog", "Issues"]
    assert urls["Documentation"] == f"https://{OWNER}.github.io/{NAME}/"
    assert urls["Changelog"] == f"{SOURCE}/blob/main/CHANGELOG.md"
    assert urls["Issues"] == f"{SOURCE}/issues"
    about = load("recipe/recipe.yaml")["about"]
    assert (about["homepage"], about["documentation"], about["repository"]) == (
        urls["Homepage"],
        urls["Documentation"],
        SOURCE,
    )
    assert load("CITATION.cff")["repository-code"] == SOURCE
    ours = re.compile(r"https://(?:[\w-]+\.github\.io|github\.com/[\w-]+|raw\.githubusercontent\.com/[\w-]+)/tacit\b")
    kinds = ("*.md", "*.toml", "*.cff", "*.yml", "*.yaml", "docs/**/*.md", ".github/**/*.*", "recipe/*", "Dockerfile")
    found = {url for kind in kinds for page in ROOT.glob(kind) for url in ours.findall(read(page))}
    assert SOURCE in found
    roots = {SOURCE, f"https://raw.githubusercontent.com/{OWNER}/{NAME}", f"https://{OWNER}.github.io/{NAME}"}
    assert found <= roots


def test_links_of_the_readme_work_on_pypi() -> None:
    text = read("README.md")
    for change in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 20
    for link in links:
        assert link.startswith(("https://", "#")), link
        if "$HFPR_VERSION/" in link:
            assert (ROOT / link.split("$HFPR_VERSION/")[1]).is_file(), link
