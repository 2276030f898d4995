"""The folder of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tacit import system
from tacit.ledger.lines import LedgerError


@contextlib.contextmanager
def lock_folder(folder: Path | None) -> Iterator[None]:
    """Hold a run's folder against other threads and processes; there is nothing to hold without one.

    Privacy: public.
    """
    if folder is None or not system.can_lock():
        yield
        return
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        if made:
            held.callback(_remove_if_empty, folder)  # a refusal leaves nothing behind, not even the folder
        try:
            held.enter_context(system.locked_folder(folder))
        except BlockingIOError:
            raise LedgerError(
                f"Another process is at work in the folder {folder}. Two would write over each other's files; wait "
                "until it has ended, or choose another run_dir."
            ) from None
        yield


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
