"""Which runs this user has started: what a folder from elsewhere asks for is done only when it is trusted by name.

A run's folder holds a command (which records, which ledger, how much epsilon), a schema, and perhaps Python code. The
list of what this user's own fits wrote is kept outside of all run folders, so that no folder can vouch for itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection
from pathlib import Path

from tacit import system

COMMAND, SCHEMA, MODEL = "command.json", "schema.toml", "model.py"


def remember(folder: Path, *, code: bool) -> None:
    """Note that this user's own command wrote a folder's files. If that is impossible, a resumption asks for trust.

    Privacy: public.
    """
    path = _list()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | system.BINARY
        with os.fdopen(os.open(path, flags, 0o600), "ab") as file:
            file.write(f"{digest(folder, code=code)}\n".encode())


def check(folder: Path, does: str, named: Collection[str], *, code: bool) -> None:
    """Refuse to do what a folder asks for, unless this user's own fit wrote it or its file is trusted by name.

    Privacy: public.

    Parameters
    ----------
    folder
        The run's folder.
    does
        The command as it was typed, to be repeated with the trust in it.
    named
        The files that the user trusts.
    code
        Whether the folder's Python code would be run.
    """
    asks_for = MODEL if code else COMMAND
    if asks_for in named:
        return
    if digest(folder, code=code) in (system.read_own(_list()) or b"").decode("ascii", "ignore").split():
        return
    means = (
        f"This would run {folder / MODEL}, Python code that can do all that you can do on this machine"
        if code
        else f"{folder / COMMAND} says which records are looked at, on which ledger and for how much epsilon"
    )
    raise ValueError(
        f"{means}, and no fit of yours is known to have written it. Read it, and if you trust it write: {does} --trust "
        f"{asks_for}"
    )


def digest(folder: Path, *, code: bool) -> str:
    """Return the SHA-256 of a folder's command and schema, and of its code if that is run.

    Privacy: public.
    """
    names = (COMMAND, SCHEMA, MODEL) if code else (COMMAND, SCHEMA)
    parts = ((folder / name).read_bytes() if (folder / name).exists() else b"" for name in names)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _list() -> Path:
    return system.state_folder() / "trusted"
