"""Modules of the version before, under their old names: ``from tacit.plots import ...`` goes on for one version.

Here alone old places are known; the file goes with the next version.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

MOVED = {
    "tacit.calibration": "tacit.results.calibration",
    "tacit.certificate": "tacit.ledger.certificate",
    "tacit.classical": "tacit.accounting.classical",
    "tacit.compat": "tacit.adapters",
    "tacit.distribute": "tacit.adapters.distribute",
    "tacit.estimators": "tacit.adapters.sklearn",
    "tacit.families": "tacit.methods.families",
    "tacit.plots": "tacit.results.plots",
    "tacit.recalibrate": "tacit.run.recalibrate",
    "tacit.schema": "tacit.facts.schema",
    "tacit.simulate": "tacit.datasets",
    "tacit.sites": "tacit.methods.sites",
    "tacit.topics": "tacit.results.topics",
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find a moved module at its new place, with a warning that names it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec for a module that moved, or for a module below one."""
        return importlib.machinery.ModuleSpec(fullname, self) if _place(fullname) else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the module at its new place."""
        place = _place(spec.name)
        assert place is not None
        warnings.warn(
            f"{spec.name} is now {place}; the old name goes with the next version.", DeprecationWarning, stacklevel=2
        )
        module = importlib.import_module(place)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: it has run already, and keeps its own spec."""
        module.__spec__ = self._spec


def _place(name: str) -> str | None:
    for old, new in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return None


sys.meta_path.insert(0, Finder())  # before the finder of files, which would load a second copy
