"""Differentially private Bayesian inference on JAX and NumPyro."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.accounting.composition import advantage, epsilon, true_positive_rate
    from tacit.accounting.explanation import explain
    from tacit.accounting.mechanism import Budget, Mechanism, calibrate
    from tacit.audit import audit
    from tacit.auto import auto
    from tacit.certificate import Certificate, CertificateError
    from tacit.engine.disk import read_columns, write_columns
    from tacit.ep import ep
    from tacit.facts.schema import Schema
    from tacit.fit import Answer, ask, fit, fit_public
    from tacit.ledger import BudgetExceeded, Ledger
    from tacit.methods import families, sites
    from tacit.methods.backprop import backprop
    from tacit.methods.belief_net import belief_net
    from tacit.methods.conjugate import conjugate
    from tacit.methods.lda import lda
    from tacit.methods.logistic import logistic
    from tacit.methods.marginals import marginals
    from tacit.methods.natural import natural
    from tacit.methods.networks import network
    from tacit.methods.pbp import pbp
    from tacit.methods.sep import sep
    from tacit.methods.sgd import dropout, sgd
    from tacit.methods.sgld import sgld
    from tacit.methods.vi import vi
    from tacit.models.formula import Formula, formula
    from tacit.rehearse import Rehearsal, rehearse
    from tacit.results.effects import comparisons, predictions, slopes
    from tacit.results.posterior import Posterior
    from tacit.results.synthetic import combine, mix
    from tacit.results.topics import documents
    from tacit.run.pairs import choose_pairs
    from tacit.select import Selected, select
    from tacit.types import Method, MethodFor, Plan, Release, Rows
    from tacit.wall.data import PrivateData
    from tacit.wall.tables import read_csv, read_parquet

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Budget",
    "BudgetExceeded",
    "Certificate",
    "CertificateError",
    "Formula",
    "Ledger",
    "Mechanism",
    "Method",
    "MethodFor",
    "Plan",
    "Posterior",
    "PrivateData",
    "Rehearsal",
    "Release",
    "Rows",
    "Schema",
    "Selected",
    "advantage",
    "ask",
    "audit",
    "auto",
    "backprop",
    "belief_net",
    "calibrate",
    "choose_pairs",
    "combine",
    "comparisons",
    "conjugate",
    "documents",
    "dropout",
    "ep",
    "epsilon",
    "explain",
    "families",
    "fit",
    "fit_public",
    "formula",
    "lda",
    "logistic",
    "marginals",
    "mix",
    "natural",
    "network",
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
    "sites",
    "slopes",
    "true_positive_rate",
    "vi",
    "write_columns",
]
# JAX takes seconds to import, and a command line that explains an epsilon needs none of it: names are looked up when
# they are used. The table says where; the imports above tell it to editors and type checkers.
_HOME = {
    "Answer": "fit",
    "Budget": "accounting.mechanism",
    "BudgetExceeded": "ledger",
    "Certificate": "certificate",
    "CertificateError": "certificate",
    "Formula": "models.formula",
    "Ledger": "ledger",
    "Mechanism": "accounting.mechanism",
    "Method": "types",
    "MethodFor": "types",
    "Plan": "types",
    "Posterior": "results.posterior",
    "PrivateData": "wall.data",
    "Rehearsal": "rehearse",
    "Release": "types",
    "Rows": "types",
    "Schema": "facts.schema",
    "Selected": "select",
    "advantage": "accounting.composition",
    "ask": "fit",
    "audit": "audit",
    "auto": "auto",
    "backprop": "methods.backprop",
    "belief_net": "methods.belief_net",
    "calibrate": "accounting.mechanism",
    "choose_pairs": "run.pairs",
    "combine": "results.synthetic",
    "comparisons": "results.effects",
    "conjugate": "methods.conjugate",
    "documents": "results.topics",
    "dropout": "methods.sgd",
    "ep": "ep",
    "epsilon": "accounting.composition",
    "explain": "accounting.explanation",
    "families": "methods.families",
    "fit": "fit",
    "fit_public": "fit",
    "formula": "models.formula",
    "lda": "methods.lda",
    "logistic": "methods.logistic",
    "marginals": "methods.marginals",
    "mix": "results.synthetic",
    "natural": "methods.natural",
    "network": "methods.networks",
    "pbp": "methods.pbp",
    "predictions": "results.effects",
    "read_columns": "engine.disk",
    "read_csv": "wall.tables",
    "read_parquet": "wall.tables",
    "rehearse": "rehearse",
    "select": "select",
    "sep": "methods.sep",
    "sgd": "methods.sgd",
    "sgld": "methods.sgld",
    "sites": "methods.sites",
    "slopes": "results.effects",
    "true_positive_rate": "accounting.composition",
    "vi": "methods.vi",
    "write_columns": "engine.disk",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        module = importlib.import_module(f"tacit.{_HOME[name]}")
        value = getattr(module, name, module)  # families and sites are modules themselves
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
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Where a function has the name of its file, ``tacit.fit`` stays the function when the file is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _HOME:
            value = getattr(value, name, value)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
