"""Run the smoke tier on the wheel, in a new environment for each Python and set of versions: ``make matrix``.

    python -m tests.matrix                      every Python found, newest and lowest versions
    python -m tests.matrix --versions newest --skip 3.11
    python -m tests.matrix --elsewhere          also without the names that only Linux has

Prints a table of what was installed and how the tier ended, and ends with 1 if any of it failed. With one Python only,
it says so and goes on with that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = "all"
TOOLS = ["pytest", "pytest-xdist", "beartype", "hypothesis", "mpmath"]
SHOWN = ("jax", "numpyro", "numpy", "scipy", "optax", "equinox", "pandas", "pyarrow", "formulae", "arviz")


def interpreters() -> dict[str, str]:
    """Find a command for each version of Python: on the path, or installed by pyenv."""
    found = {}
    for version in PYTHONS:
        command = shutil.which(f"python{version}")
        pyenv = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
        for candidate in [command, *map(str, pyenv)]:
            if candidate and subprocess.run([candidate, "-c", "import venv"], capture_output=True).returncode == 0:
                found[version] = candidate
                break
    return found


def environment(folder: Path, command: str, wheel: Path, versions: str) -> Path:
    """Make an environment with the wheel in it, and return its Python."""
    subprocess.run([command, "-m", "venv", folder], check=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--upgrade", "pip"], check=True, stderr=subprocess.DEVNULL)
    wanted = [f"tacit[{EXTRAS}] @ {wheel.as_uri()}", *TOOLS]
    if versions == "lowest":
        lowest = folder / "lowest.txt"
        compile_ = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--extra", EXTRAS, "--quiet"]
        resolution = ["--resolution", "lowest-direct", "--python", str(python), "--output-file", str(lowest)]
        subprocess.run([*compile_, *resolution], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        wanted = [*wanted, "--constraint", str(lowest)]
    subprocess.run([*pip, *wanted], check=True, stderr=subprocess.DEVNULL)
    return python


def installed(python: Path) -> dict[str, str]:
    """Return the versions of what is in an environment."""
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True)
    return {package["name"].lower().replace("_", "-"): package["version"] for package in json.loads(listed.stdout)}


def smoke(python: Path, elsewhere: bool) -> tuple[str, float]:
    """Run the tier in a folder where only the tests are, so that the wheel is what is imported."""
    with tempfile.TemporaryDirectory() as place:
        for name in ("tests", "docs", "examples", "README.md", "CHANGELOG.md", "pyproject.toml", "mkdocs.yml"):
            (Path(place) / name).symlink_to(ROOT / name)
        more = {"PYTHONPATH": str(ROOT / "tests/elsewhere")} if elsewhere else {}
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", "-m", "slow", "tests/test_smoke.py"]
        begun = time.monotonic()
        done = subprocess.run(command, cwd=place, env={**os.environ, **more}, capture_output=True, text=True)
    last = (done.stdout.strip().splitlines() or ["nothing was said"])[-1].strip("= ")
    if done.returncode:
        print(done.stdout[-6000:], done.stderr[-2000:], file=sys.stderr)
    return ("ok: " if done.returncode == 0 else "FAILED: ") + last, time.monotonic() - begun


def main() -> int:
    """Run what was asked for, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--versions", nargs="+", default=["newest", "lowest"], choices=["newest", "lowest"])
    parser.add_argument("--skip", nargs="*", default=[], help="versions of Python to leave out")
    parser.add_argument("--elsewhere", action="store_true", help="also without the names that only Linux has")
    asked = parser.parse_args()
    pythons = interpreters()
    if len(pythons) < 2:
        print(f"ONLY ONE PYTHON FOUND ({', '.join(pythons) or 'none'}): the others of {PYTHONS} are not tested here.")
    failed = False
    print("| Python | versions | " + " | ".join(SHOWN) + " | smoke tier | seconds |")
    print("|---" * (len(SHOWN) + 4) + "|")
    with tempfile.TemporaryDirectory(prefix="tacit-matrix-") as place:
        built = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, str(ROOT)]
        subprocess.run(built, check=True, stderr=subprocess.DEVNULL)
        wheel = next(Path(place).glob("tacit-*.whl"))
        for version, command in pythons.items():
            for versions in asked.versions if version not in asked.skip else []:
                folder = Path(place) / f"{version}-{versions}"
                python = environment(folder, command, wheel, versions)
                found = installed(python)
                for elsewhere in (False, True)[: 1 + asked.elsewhere]:
                    ended, seconds = smoke(python, elsewhere)
                    failed |= not ended.startswith("ok")
                    kind = versions + (", without Linux's names" if elsewhere else "")
                    cells = [version, kind, *(found.get(name, "-") for name in SHOWN), ended, f"{seconds:.0f}"]
                    print("| " + " | ".join(cells) + " |", flush=True)
                shutil.rmtree(folder)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
