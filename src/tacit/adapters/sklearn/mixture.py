"""A mixture of Gaussians in the shape of scikit-learn's."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
from scipy import stats
from scipy.special import logsumexp
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from tacit.adapters.sklearn.base import _Private
from tacit.methods import families
from tacit.methods.conjugate import conjugate


class PrivateMixture(DensityMixin, _Private):  # type: ignore[misc]
    """A private mixture of normal distributions (``tacit.conjugate`` with ``tacit.families.mixture``).

    Privacy: ``fit`` reads records, through the wall. What it leaves on the object is (epsilon, delta)-differentially
    private for each record; what is said of new records is post-processing.

    Parameters
    ----------
    n_components
        How many.
    bounds
        Lowest and highest value, for all columns or for each; values outside are moved to the nearer one.
    size, epsilon, delta, ledger, random_state, simulate
        As in ``PrivateLogisticRegression``; here the size sets defaults only.
    steps
        As in ``tacit.fit``; by default what suits ``tacit.conjugate``.

    Attributes
    ----------
    weights_, means_, covariances_
        Means of the posterior, in the units of the columns.
    posterior_, certificate_
        The draws, in units of a quarter of each column's range around its middle, and what they reveal.
    """

    weights_: Any
    means_: Any
    covariances_: Any

    def __init__(
        self,
        n_components: int = 2,
        *,
        bounds: Any = None,
        size: int | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        steps: int | None = None,
        ledger: str | os.PathLike[str] | None = None,
        random_state: int | None = None,
        simulate: int | None = None,
    ) -> None:
        self.n_components, self.bounds, self.size = n_components, bounds, size
        self.epsilon, self.delta, self.steps = epsilon, delta, steps
        self.ledger, self.random_state, self.simulate = ledger, random_state, simulate

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the mixture to private records.

        Privacy: reads records, through the wall.
        """
        X = self._numbers(X, reset=True)
        inside, middle, unit = self._inside(X, self.bounds)
        family = families.mixture(self.n_components, bound=2 * float(X.shape[1]) ** 0.5)
        draws = self._spend(conjugate(family), {"x": inside.astype(np.float32)}, steps=self.steps).draws
        self.weights_ = np.asarray(draws["weight"], float).mean(0)
        self.means_ = np.asarray(draws["mean"], float).mean(0) * unit + middle
        self.covariances_ = np.asarray(draws["covariance"], float).mean(0) * np.outer(unit, unit)
        return self

    def _joint(self, X: Any) -> Any:
        check_is_fitted(self)
        X = self._numbers(X, reset=False)
        parts = zip(self.weights_, self.means_, self.covariances_, strict=True)
        each = [np.log(w) + stats.multivariate_normal(m, c, allow_singular=True).logpdf(X) for w, m, c in parts]
        return np.stack([np.atleast_1d(one) for one in each], 1)

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the components for each record.

        Privacy: post-processing; as private as the records given.
        """
        joint = self._joint(X)
        return np.exp(joint - logsumexp(joint, 1, keepdims=True))

    def predict(self, X: Any) -> Any:
        """Return each record's likeliest component.

        Privacy: post-processing; as private as the records given.
        """
        return self._joint(X).argmax(1)

    def score_samples(self, X: Any) -> Any:
        """Return the log density of each record.

        Privacy: post-processing; as private as the records given.
        """
        return logsumexp(self._joint(X), 1)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log density: larger is better.

        Privacy: never publish it for the records of the fit, nor choose settings by it on them.
        """
        return float(self.score_samples(X).mean())
