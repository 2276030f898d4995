"""Packages that not everyone needs: one way to import them, and one sentence where they are missing."""

from __future__ import annotations

import importlib
from typing import Any

EXTRAS = {
    "arviz": ("arviz", "ArviZ"),
    "dp_accounting": ("dp-accounting", "dp-accounting"),
    "matplotlib": ("plots", "Matplotlib"),
    "sklearn": ("sklearn", "scikit-learn"),
}
"""The extra that brings a package, and what people call the package. Equinox (``networks``) and joblib (``parallel``)
need no line: a user's own code imports them first."""


def need(user: str, *modules: str) -> Any:
    """Import an optional package, or say in one sentence how to install it.

    Privacy: public. Call it before a budget is spent.

    Parameters
    ----------
    user
        What the package is needed by: ``"Posterior.to_arviz"``.
    *modules
        The modules to import, such as ``"matplotlib.pyplot"``. The last one is given back.

    Raises
    ------
    ImportError
        If the package is not installed.
    """
    package = modules[0].partition(".")[0]
    try:
        return [importlib.import_module(module) for module in (package, *modules)][-1]
    except ModuleNotFoundError as error:
        # A package that is there but lacks something itself has its own reason, which this sentence would hide.
        if error.name != package:
            raise
        extra, name = EXTRAS[package]
        said = f'{user} needs {name}, which is not installed; run: pip install "tacit[{extra}]"'
        raise ImportError(said, name=package) from error
