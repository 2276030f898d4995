"""Regressions by ``tacit.glm`` in the shape of scikit-learn's."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
from scipy import stats
from scipy.special import expit
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from tacit.adapters.sklearn.base import _Private
from tacit.adapters.sklearn.checks import LEVEL, _bounds, _central
from tacit.methods.glm import glm


class _Regression(_Private):
    """A regression by ``tacit.glm``; draws are turned back into the units of the columns."""

    bounds: Any
    prior_std: float
    steps: int

    def _regress(self, likelihood: str, X: Any, y: Any, **more: Any) -> None:
        if self.size is None:
            raise ValueError(
                f"size is not declared. {type(self).__name__} weighs noise against a public number of records, about "
                "right is enough; write size=1000."
            )
        inside, middle, unit = self._inside(X, self.bounds)
        records = {"x": np.column_stack([np.ones(len(X)), inside]).astype(np.float32), "y": y}
        method = glm(likelihood, prior_std=float(self.prior_std), **more)
        w = np.asarray(self._spend(method, records, steps=self.steps).draws["w"], float)
        self._slopes = w[:, 1:] / unit
        self._offsets = w[:, 0] - self._slopes @ middle

    def _predictor(self, X: Any) -> Any:
        """Return the linear predictor: records times draws."""
        check_is_fitted(self)
        X = self._numbers(X, reset=False)
        low, high = _bounds(self.bounds, "bounds", X.shape[1])
        return np.clip(X, low, high) @ self._slopes.T + self._offsets

    @property
    def coef_interval_(self) -> Any:
        """Central 90% intervals of the coefficients: columns times low and high.

        Privacy: post-processing.
        """
        check_is_fitted(self)
        return _central(self._slopes, LEVEL, 0)


class PrivateLogisticRegression(ClassifierMixin, _Regression):  # type: ignore[misc]
    """Private logistic regression with two classes, whose intervals account for the privacy noise (``tacit.glm``).

    Privacy: ``fit`` reads records, through the wall. What it leaves on the object is (epsilon, delta)-differentially
    private for each record; the rest is post-processing.

    Parameters
    ----------
    classes
        The two labels, declared: those found in ``y`` would reveal it. The second is the positive one.
    bounds
        Lowest and highest value, for all columns or for each; values outside are moved to the nearer one.
    size
        A public number of records, about right.
    epsilon, delta
        What a fit may spend on each record's protection. Every fit spends it anew.
    prior_std
        Standard deviation of the coefficients' prior, for columns in units of a quarter of their range.
    steps
        As in ``tacit.glm``.
    ledger
        Path of the ledger on which fits are charged; by default a new one in memory for each.
    random_state
        Seed of the public randomness, an integer; the secret randomness never follows it.
    simulate
        As in ``tacit.fit``: fixes the secret randomness, and protects nobody.

    Attributes
    ----------
    coef_, intercept_, coef_interval_
        Means of the posterior, and central 90% intervals of the coefficients.
    posterior_, certificate_
        The draws, in units of a quarter of each column's range around its middle, and what they reveal.
    """

    classes_: Any
    coef_: Any
    intercept_: Any

    def __init__(
        self,
        *,
        classes: Any = (0, 1),
        bounds: Any = None,
        size: int | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        prior_std: float = 4.0,
        steps: int = 40,
        ledger: str | os.PathLike[str] | None = None,
        random_state: int | None = None,
        simulate: int | None = None,
    ) -> None:
        self.classes, self.bounds, self.size = classes, bounds, size
        self.epsilon, self.delta = epsilon, delta
        self.prior_std, self.steps = prior_std, steps
        self.ledger, self.random_state, self.simulate = ledger, random_state, simulate

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the regression to private records.

        Privacy: reads records, through the wall.
        """
        X, y = self._numbers(X, y, reset=True)
        labels = np.asarray(self.classes)
        if labels.shape != (2,) or labels[0] == labels[1]:
            raise ValueError(f"classes is {self.classes!r}. Declare the two labels: classes=('no', 'yes').")
        positive = y == labels[1]
        if not np.all(positive | (y == labels[0])):
            raise ValueError(
                "Only binary classification is supported. y has a label, or a continuous value, that is none of the "
                f"declared classes {labels.tolist()} (it is private and not shown). Labels found in the records would "
                "reveal them; declare classes=(...)."
            )
        self._regress("bernoulli", X, positive.astype(np.int32))
        self.classes_ = labels
        self.coef_, self.intercept_ = self._slopes.mean(0)[None], self._offsets.mean(keepdims=True)
        return self

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of both classes, averaged over the posterior.

        Privacy: post-processing.
        """
        positive = expit(self._predictor(X)).mean(1)
        return np.column_stack([1 - positive, positive])

    def predict(self, X: Any) -> Any:
        """Return the likelier class.

        Privacy: post-processing.
        """
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(1)]

    def predict_interval(self, X: Any, level: float = LEVEL) -> Any:
        """Return central intervals of the probability of the second class: records times low and high.

        Privacy: post-processing.
        """
        return _central(expit(self._predictor(X)), level, 1)

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn.

        Privacy: public.
        """
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class PrivateLinearRegression(RegressorMixin, _Regression):  # type: ignore[misc]
    """Private linear regression, whose intervals account for the privacy noise (``tacit.glm``).

    Privacy: ``fit`` reads records, through the wall. What it leaves on the object is (epsilon, delta)-differentially
    private for each record; the rest is post-processing.

    Parameters
    ----------
    bounds, target_bounds
        Lowest and highest value, for all columns or for each, and of the outcome; values outside are moved to the
        nearer one.
    size, epsilon, delta, prior_std, steps, ledger, random_state, simulate
        As in ``PrivateLogisticRegression``; the prior is for outcomes in units of a quarter of their range.

    Attributes
    ----------
    coef_, intercept_, coef_interval_
        Means of the posterior, and central 90% intervals of the coefficients.
    posterior_, certificate_
        The draws, in units of a quarter of each range around its middle, and what they reveal.
    """

    coef_: Any
    intercept_: float

    def __init__(
        self,
        *,
        bounds: Any = None,
        target_bounds: Any = None,
        prior_std: float = 4.0,
        size: int | None = None,
        steps: int = 40,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        ledger: str | os.PathLike[str] | None = None,
        random_state: int | None = None,
        simulate: int | None = None,
    ) -> None:
        self.bounds, self.target_bounds, self.prior_std = bounds, target_bounds, prior_std
        self.size, self.steps, self.epsilon, self.delta = size, steps, epsilon, delta
        self.ledger, self.random_state, self.simulate = ledger, random_state, simulate

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the regression to private records.

        Privacy: reads records, through the wall.
        """
        X, y = self._numbers(X, y, reset=True, y_numeric=True)
        (low,), (high,) = _bounds(self.target_bounds, "target_bounds", 1)
        middle, unit = (low + high) / 2, (high - low) / 4
        scaled = ((np.clip(y, low, high) - middle) / unit).astype(np.float32)
        self._regress("normal", X, scaled, noise_std=0.5)
        self._slopes, self._offsets = self._slopes * unit, self._offsets * unit + middle
        self._noise = np.asarray(self.posterior_.draws["noise"], float) * unit
        self.coef_, self.intercept_ = self._slopes.mean(0), float(self._offsets.mean())
        return self

    def predict(self, X: Any) -> Any:
        """Return the expected outcome.

        Privacy: post-processing.
        """
        return self._predictor(X).mean(1)

    def predict_interval(self, X: Any, level: float = LEVEL) -> Any:
        """Return central intervals that new outcomes fall into, their noise included: records times low and high.

        Privacy: post-processing.
        """
        predictor = self._predictor(X)
        # Normal quantiles, one for each draw: the same for all records.
        wobble = stats.norm.ppf((np.random.default_rng(0).permutation(len(self._noise)) + 0.5) / len(self._noise))
        return _central(predictor + self._noise * wobble, level, 1)
