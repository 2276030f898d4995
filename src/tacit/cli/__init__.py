"""The command line. One file for each group of commands; what a command does not need is not imported.

Exit codes: 0 all went well, 1 something was refused (one sentence on stderr says what), 2 not understood.
"""

from __future__ import annotations

import argparse
import codecs
import io
import os
import sys
from pathlib import Path
from typing import NoReturn

from tacit import __version__
from tacit.cli import demo, papers, promise, runs, schemas

GROUPS = (demo, runs, promise, schemas, papers)
DESCRIPTION = "Differentially private Bayesian inference: a posterior you may publish, with a certificate."
EPILOG = """Start with:  tacit demo
Your data:   tacit schema draft, tacit fit, tacit report
Each command has its own help with an example: tacit fit --help"""


class Parser(argparse.ArgumentParser):
    """A parser that refuses in one sentence, and whose help keeps the lines of its examples."""

    def __init__(self, **facts: object) -> None:
        def plain(prog: str) -> argparse.HelpFormatter:
            return argparse.RawDescriptionHelpFormatter(prog, max_help_position=28)

        super().__init__(**{"formatter_class": plain, "allow_abbrev": False, **facts})  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one sentence."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help.\n")


def parser() -> Parser:
    """Return the parser of all commands.

    Privacy: public.
    """
    whole = Parser(prog="tacit", description=DESCRIPTION, epilog=EPILOG)
    whole.add_argument("--version", action="version", version=f"tacit {__version__}")
    commands = whole.add_subparsers(metavar="command [options]", required=True, title="commands")
    for group in GROUPS:
        group.add(commands)
    return whole


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Privacy: ``fit``, ``resume`` and ``demo`` read records, through the wall; all else is public or post-processing.
    """
    _print_anywhere()
    chosen = parser().parse_args(arguments)
    _keep_programs()
    try:
        chosen.run(chosen)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, as in: tacit certificate show run | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("tacit: interrupted; a fit goes on with: tacit resume FOLDER", file=sys.stderr)
        return 130
    except Exception as error:
        print(f"tacit: {sentence(error)}", file=sys.stderr)
        return 1
    return 0


SPELT = {
    "ε": "epsilon",
    "δ": "delta",
    "α": "alpha",
    "σ": "sigma",
    "ρ": "rho",
    "±": "+-",
    "−": "-",
    "’": "'",
    "…": "...",
}
"""How to write what a console cannot show."""


def _print_anywhere() -> None:
    """Spell out letters that the console lacks: Windows' and an ASCII terminal know no ε."""
    codecs.register_error("tacit.spelt", _spelt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="tacit.spelt")


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(SPELT.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _keep_programs() -> None:
    """Have JAX keep what it compiles, so that the same fit starts quickly the next time; JAX's own variables win.

    A compiled program holds no record, but the number of them: the folder stays with whoever has the records.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


def sentence(error: Exception) -> str:
    """Return on one line what was refused; of an error that nobody foresaw, also its kind and place.

    Privacy: public.
    """
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"There is no file or folder {error.filename}; check the path."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}."
    said = " ".join(str(error).split())
    if isinstance(error, (ValueError, RuntimeError, TypeError, ImportError)) and said:
        return said
    import traceback

    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in line {place.lineno} of {Path(place.filename).name}: {said or 'no message'}"
