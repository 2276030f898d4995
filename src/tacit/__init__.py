"""Differentially private Bayesian inference on JAX and NumPyro."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from tacit import _moved as _moved

if TYPE_CHECKING:
    from tacit.accounting.explanation import explain
    from tacit.accounting.mechanism import Budget, Mechanism, calibrate
    from tacit.engine.disk import read_columns, write_columns
    from tacit.facts.schema import Schema
    from tacit.ledger.certificate import Certificate
    from tacit.ledger.contents import BudgetExceeded
    from tacit.ledger.file import Ledger
    from tacit.ledger.record import CertificateError
    from tacit.methods.bayes_by_backprop import bayes_by_backprop
    from tacit.methods.belief_net import belief_net
    from tacit.methods.conjugate import conjugate
    from tacit.methods.glm import glm
    from tacit.methods.lda import lda
    from tacit.methods.logistic import logistic
    from tacit.methods.marginals import marginals
    from tacit.methods.networks import network
    from tacit.methods.pair_scores import pair_scores
    from tacit.methods.pbp import pbp
    from tacit.methods.sep import sep
    from tacit.methods.sgd import dropout, sgd
    from tacit.methods.sgld import sgld
    from tacit.methods.vi import vi
    from tacit.models.formula import formula
    from tacit.results.effects import comparisons, predictions, slopes
    from tacit.results.posterior import Posterior
    from tacit.run.ask import ask
    from tacit.run.audit import audit
    from tacit.run.auto import auto
    from tacit.run.ep import ep
    from tacit.run.fit import fit
    from tacit.run.public import fit_public
    from tacit.run.rehearse import rehearse
    from tacit.run.select import select
    from tacit.types import Method, MethodFor, Plan
    from tacit.wall.data import PrivateData
    from tacit.wall.tables import read_csv, read_parquet

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "BudgetExceeded",
    "Certificate",
    "CertificateError",
    "Ledger",
    "Mechanism",
    "Method",
    "MethodFor",
    "Plan",
    "Posterior",
    "PrivateData",
    "Schema",
    "ask",
    "audit",
    "auto",
    "bayes_by_backprop",
    "belief_net",
    "calibrate",
    "comparisons",
    "conjugate",
    "dropout",
    "ep",
    "explain",
    "fit",
    "fit_public",
    "formula",
    "glm",
    "lda",
    "logistic",
    "marginals",
    "network",
    "pair_scores",
    "pbp",
    "predictions",
    "read_columns",
    "read_csv",
    "read_parquet",
    "rehearse",
    "select",
    "sep",
    "sgd",
    "sgld",
    "slopes",
    "vi",
    "write_columns",
]
# JAX takes seconds to import, and a command line that explains an epsilon needs none of it: names are looked up when
# they are used. The table says where; the imports above tell it to editors and type checkers.
_HOME = {
    "Budget": "accounting.mechanism",
    "BudgetExceeded": "ledger.contents",
    "Certificate": "ledger.certificate",
    "CertificateError": "ledger.record",
    "Ledger": "ledger.file",
    "Mechanism": "accounting.mechanism",
    "Method": "types",
    "MethodFor": "types",
    "Plan": "types",
    "Posterior": "results.posterior",
    "PrivateData": "wall.data",
    "Schema": "facts.schema",
    "ask": "run.ask",
    "audit": "run.audit",
    "auto": "run.auto",
    "bayes_by_backprop": "methods.bayes_by_backprop",
    "belief_net": "methods.belief_net",
    "calibrate": "accounting.mechanism",
    "comparisons": "results.effects",
    "conjugate": "methods.conjugate",
    "dropout": "methods.sgd",
    "ep": "run.ep",
    "explain": "accounting.explanation",
    "fit": "run.fit",
    "fit_public": "run.public",
    "formula": "models.formula",
    "glm": "methods.glm",
    "lda": "methods.lda",
    "logistic": "methods.logistic",
    "marginals": "methods.marginals",
    "network": "methods.networks",
    "pair_scores": "methods.pair_scores",
    "pbp": "methods.pbp",
    "predictions": "results.effects",
    "read_columns": "engine.disk",
    "read_csv": "wall.tables",
    "read_parquet": "wall.tables",
    "rehearse": "run.rehearse",
    "select": "run.select",
    "sep": "methods.sep",
    "sgd": "methods.sgd",
    "sgld": "methods.sgld",
    "slopes": "results.effects",
    "vi": "methods.vi",
    "write_columns": "engine.disk",
}
_MODULES = {
    "calibration": "results.calibration",
    "classical": "accounting.classical",
    "distribute": "adapters.distribute",
    "estimators": "adapters.sklearn",
    "families": "methods.families",
    "plots": "results.plots",
    "recalibrate": "run.recalibrate",
    "sites": "methods.sites",
    "synthetic": "results.synthetic",
    "topics": "results.topics",
}
"""Modules that users reach by a short name, as in ``tacit.plots.plot_forest``."""
_DEPRECATED = {
    "Answer": ("run.ask", "Answer"),
    "Formula": ("models.formula", "Formula"),
    "Rehearsal": ("run.rehearsal", "Rehearsal"),
    "Release": ("types", "Release"),
    "Rows": ("types", "SparseRows"),
    "Selected": ("run.select", "Selected"),
    "advantage": ("accounting.composition", "advantage"),
    "backprop": ("methods.bayes_by_backprop", "bayes_by_backprop"),
    "choose_pairs": ("run.pairs", "choose_pairs"),
    "combine": ("results.synthetic", "combine"),
    "documents": ("results.topics", "documents"),
    "epsilon": ("accounting.composition", "epsilon"),
    "mix": ("results.synthetic", "mix"),
    "natural": ("methods.glm", "glm"),
    "true_positive_rate": ("accounting.composition", "true_positive_rate"),
}
"""Names of the version before, and where they are now. They go with the next version, as `tacit._moved` does."""


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"tacit.{_HOME[name]}"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"tacit.{_MODULES[name]}")
    elif name in _DEPRECATED:
        module, new = _DEPRECATED[name]
        place = f"tacit.{new}" if new in _HOME else f"tacit.{module}.{new}"
        warnings.warn(f"tacit.{name} is now {place}; the old name goes with the next version.", DeprecationWarning, 2)
        return getattr(importlib.import_module(f"tacit.{module}"), new)
    elif name.startswith("_"):
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    else:
        try:
            value = importlib.import_module(f"tacit.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"tacit.{name}":
                raise
            raise AttributeError(f"module 'tacit' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
