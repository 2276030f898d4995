"""What all estimators share: one paid fit, refused beside what a certificate would not count.

scikit-learn does not tell an estimator what it is a part of; the stack of calls does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import validate_data

from tacit.accounting.mechanism import Budget
from tacit.adapters.sklearn.checks import _bounds, _facts, _is_real
from tacit.adapters.sklearn.scaling import BoundsScaler
from tacit.facts.files import none_on_error
from tacit.ledger.certificate import Certificate
from tacit.ledger.file import Ledger
from tacit.results.posterior import Posterior
from tacit.run.fit import fit
from tacit.types import Method, MethodFor
from tacit.wall.data import PrivateData

LOOPS = tuple(
    f"sklearn.{name}"
    for name in (
        *("model_selection", "calibration", "ensemble", "feature_selection", "inspection", "multiclass"),
        *("multioutput", "semi_supervised"),
    )
)
"""Where scikit-learn fits the same estimator again and again."""
WORKERS = "sklearn.utils.parallel"
"""The outermost place of scikit-learn on the stack of another thread or process that it started."""
COMPOSED = {
    "Pipeline": ("steps",),
    "FeatureUnion": ("transformer_list",),
    "ColumnTransformer": ("transformers", "remainder"),
    "TransformedTargetRegressor": ("regressor", "transformer"),
    "VotingRegressor": ("estimators",),
    "MultiOutputRegressor": ("estimator",),
}
"""What learns nothing beside its parts, and where it keeps them."""
STATELESS = (
    "Normalizer",
    "Binarizer",
    "PolynomialFeatures",
    "HashingVectorizer",
    "FeatureHasher",
    "AdditiveChi2Sampler",
)
"""Transformers of scikit-learn whose fit looks at the number of columns only, and which take records one by one."""
TRIED = 5
"""Made-up records on which functions of whole tables are distinguished from those of single records."""


class _Private(BaseEstimator):  # type: ignore[misc]
    """What all estimators share: one paid fit through the wall, and checks that quote no record."""

    epsilon: float
    delta: float
    size: int | None
    ledger: str | os.PathLike[str] | None
    random_state: int | None
    simulate: int | None
    posterior_: Posterior
    certificate_: Certificate | None

    def _spend(self, method: Method | MethodFor, records: dict[str, Any], **settings: Any) -> Posterior:
        """Fit through the wall, and keep what came out."""
        self._refuse_company()
        self.posterior_ = fit(
            method,
            PrivateData(records, size=self.size, ledger=self.ledger),
            Budget(self.epsilon, self.delta),
            key=None if self.random_state is None else jax.random.key(self.random_state),
            simulate=self.simulate,
            progress=False,
            **settings,
        )
        self.certificate_ = self.posterior_.certificate
        return self.posterior_

    def _refuse_company(self) -> None:
        """Refuse a fit that scikit-learn repeats, or beside which it fits something else to the same records."""
        if self.ledger is not None and not isinstance(self.ledger, str | os.PathLike):
            raise TypeError(
                f"The ledger is given as {type(self.ledger).__name__}. clone would copy it, and what the copies spend "
                "would not add up; pass the path of its file."
            )
        name, loop, outermost = type(self).__name__, "", ""
        frame: Any = sys._getframe()
        while frame is not None:
            place, owner = frame.f_globals.get("__name__", ""), frame.f_locals.get("self")
            if isinstance(owner, BaseEstimator) and not isinstance(owner, _Private):
                _refuse_beside(owner, name)
            outermost = place if place.startswith("sklearn.") else outermost
            loop = place if place.startswith(LOOPS) else loop
            frame = frame.f_back
        if outermost == WORKERS:
            raise RuntimeError(
                f"{name} is being fitted in a thread or process that scikit-learn started, where it cannot be seen "
                "what else is fitted to the same records. Write n_jobs=1."
            )
        if loop and (self.ledger is None or Ledger(self.ledger).cap is None):
            raise RuntimeError(
                f"{name} is being fitted by {loop}, which fits many times, and every fit would "
                f"spend epsilon {self.epsilon:g} again. Choose settings by tacit.rehearse, which is free, or by "
                "tacit.select, which is paid once. If the whole sum may be spent, make a ledger that limits it, "
                "tacit.Ledger(path, cap=tacit.Budget(...)), and pass the estimator ledger=path."
            )

    def _numbers(self, X: Any, y: Any = "no_validation", *, reset: bool, **options: Any) -> Any:
        """Let scikit-learn check its input, but where its errors would quote it."""
        if not sparse.issparse(X):
            shape, kind = _facts(X)
            if kind == "c":
                raise ValueError("Complex data not supported: records are real numbers.")
            if shape is None or (kind in "USO" and not _is_real(X)):
                raise TypeError("X has entries that are not numbers: every argument must be a string or a real number.")
            if len(shape) != 2:
                raise ValueError(
                    f"X has {len(shape)} dimensions. Reshape your data: a line for each record, a column for each "
                    "variable."
                )
        if not isinstance(y, str) and y is not None and _facts(y)[1] == "c":
            raise ValueError("Complex data not supported: outcomes are real numbers or classes.")
        return validate_data(self, X, y, reset=reset, **options)

    def _inside(self, X: Any, bounds: Any) -> tuple[Any, Any, Any]:
        """Move numbers to the nearer bound, and return them in units of a quarter of the range around its middle."""
        low, high = _bounds(bounds, "bounds", X.shape[1])
        middle, unit = (low + high) / 2, (high - low) / 4
        return (np.clip(X, low, high) - middle) / unit, middle, unit

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn.

        Privacy: public.
        """
        tags = super().__sklearn_tags__()
        # Noise is drawn from the operating system, whatever the seed.
        tags.non_deterministic = self.simulate is None
        return tags


def _refuse_beside(owner: Any, name: str) -> None:
    """Refuse a meta-estimator of scikit-learn that learns more from the records than the private fit within it."""
    kind, classes = type(owner).__name__, _classes(owner)
    if classes and not classes & COMPOSED.keys():
        does = (
            "chooses settings by scores on the records, without noise"
            if any("Search" in name for name in classes)
            else "learns from the same records beside it (classes, weights, thresholds), or gives it records twice"
        )
        raise RuntimeError(
            f"{name} is being fitted within {kind}, which {does}; the certificate would not count that. Choose "
            "settings by tacit.rehearse, which is free, or by tacit.select, which is paid once, and fit the estimator "
            "by itself."
        )
    if getattr(owner, "memory", None) is not None:
        raise RuntimeError(
            f"{name} is being fitted within a {kind} with memory={type(owner.memory).__name__}, which keeps records on "
            "disk. Write memory=None."
        )
    parts = [*_parts(owner)]
    for step, part in parts:
        why = _unsafe(part)
        if why:
            raise RuntimeError(
                f"{name} is being fitted within {kind}, whose step {step!r} ({type(part).__name__}) {why}; the "
                "certificate would not count that. Scale by declared bounds, tacit.estimators.BoundsScaler"
                "(bounds=(low, high)), which learns nothing, or leave the step out: the estimators scale by their own "
                "bounds."
            )
    ours = [part for _, part in parts if isinstance(part, _Private)]
    if len({str(part.ledger) for part in ours}) > 1 or (len(ours) > 1 and ours[0].ledger is None):
        raise RuntimeError(
            f"{kind} holds {len(ours)} private estimators, each of which spends its own epsilon on the same records, "
            "and they are not charged to one ledger. Pass the same ledger=path to all of them."
        )


def _classes(owner: Any) -> set[str]:
    """Name the classes of scikit-learn that an object is of: its own, or those that it was made from; no mere base."""
    bases = ("sklearn.base", "sklearn.utils.")
    return {
        c.__name__
        for c in type(owner).__mro__
        if c.__module__.startswith("sklearn.") and not c.__module__.startswith(bases)
    }


def _parts(owner: Any) -> Iterator[tuple[str, Any]]:
    """Return names and estimators of what a meta-estimator was given, those within its parts included."""
    known = [COMPOSED[name] for name in COMPOSED if name in _classes(owner)]
    given = owner.get_params(deep=False)
    if "func" in given and given.get("transformer", 0) is None and given["func"] is not None:
        given = {**given, "transformer": FunctionTransformer(given["func"])}
    for key in known[0] if known else given:
        entries = given.get(key)
        for entry in entries if isinstance(entries, list | tuple) else [(key, entries)]:
            if isinstance(entry, tuple) and len(entry) > 1:
                name, part = entry[:2]
                if isinstance(part, BaseEstimator):
                    yield str(name), part
                    if _classes(part) & COMPOSED.keys():
                        yield from _parts(part)


def _unsafe(part: Any) -> str:
    """Say what a step does that a certificate does not count, or nothing."""
    kind = type(part).__name__
    if isinstance(part, _Private | BoundsScaler) or _classes(part) & COMPOSED.keys():
        return ""
    if isinstance(part, FunctionTransformer):
        return "" if _one_by_one(part) else "computes with several records at once, as far as made-up ones show"
    if type(part).__module__.startswith("sklearn."):
        if kind in STATELESS:
            return ""
        declared = not isinstance(getattr(part, "categories", "auto"), str)
        counts = getattr(part, "min_frequency", None) is None and getattr(part, "max_categories", None) is None
        if kind in ("OneHotEncoder", "OrdinalEncoder") and declared and counts:
            return ""
    return "is or was fitted to the same records without noise"


def _one_by_one(step: Any) -> bool:
    """Try on made-up records whether a function gives each of them the same alone as beside others."""
    if step.func is None:
        return True
    rows = np.random.default_rng(0).uniform(0.5, 1.5, (TRIED, getattr(step, "n_features_in_", 1)))

    def same() -> bool:
        with np.errstate(all="ignore"):
            whole, *single = (
                np.asarray(step.func(part, **(step.kw_args or {})), float) for part in (rows, *np.split(rows, TRIED))
            )
        return bool(np.allclose(whole, np.concatenate(single), rtol=1e-6, equal_nan=True))

    return bool(none_on_error(same))
