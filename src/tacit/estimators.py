"""Methods in the shape of scikit-learn's estimators: constructor, ``fit``, ``predict`` or ``transform``.

What scikit-learn learns from the records is declared here: classes, bounds, the number of records. A fit spends its
budget anew each time, so fits inside scikit-learn's loops (cross-validation, searches, ensembles) are refused, unless
all are charged to one ledger with a cap.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Self

import jax
import numpy as np
from scipy import sparse, stats
from scipy.special import expit, logsumexp

from tacit.certificate import Certificate
from tacit.extras import need
from tacit.fit import fit
from tacit.ledger import Ledger
from tacit.mechanism import Budget
from tacit.methods import families
from tacit.methods.conjugate import conjugate
from tacit.methods.lda import lda
from tacit.methods.natural import natural
from tacit.posterior import Posterior
from tacit.topics import documents, perplexity, proportions
from tacit.types import Method, MethodFor
from tacit.wall.data import PrivateData

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, DensityMixin, RegressorMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError:
    need("tacit.estimators", "sklearn")
    raise

LOOPS = tuple(
    f"sklearn.{name}"
    for name in (
        *("model_selection", "calibration", "ensemble", "feature_selection", "inspection", "multiclass"),
        *("multioutput", "semi_supervised"),
    )
)
"""Where scikit-learn fits the same estimator again and again."""
LEVEL = 0.9
"""The probability of intervals, unless another is asked for."""


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
        self._refuse_loops()
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

    def _refuse_loops(self) -> None:
        if self.ledger is not None and not isinstance(self.ledger, str | os.PathLike):
            raise TypeError(
                f"The ledger is given as {type(self.ledger).__name__}. clone would copy it, and what the copies spend "
                "would not add up; give the path of its file."
            )
        frame: Any = sys._getframe()
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if name.startswith(LOOPS) and (self.ledger is None or Ledger(self.ledger).cap is None):
                raise RuntimeError(
                    f"{type(self).__name__} is being fitted by {name}, which fits many times, and every fit would "
                    f"spend epsilon {self.epsilon:g} again. Choose settings by tacit.rehearse, which is free, or by "
                    "tacit.select, which is paid once. If the whole sum may be spent, make a ledger that limits it, "
                    "tacit.Ledger(path, cap=tacit.Budget(...)), and give the estimator ledger=path."
                )
            frame = frame.f_back

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
        """Move numbers to the nearer bound, and give them in units of a quarter of the range around its middle."""
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


class _Regression(_Private):
    """A regression by ``tacit.natural``; draws are turned back into the units of the columns."""

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
        method = natural(likelihood, size=self.size, prior_std=float(self.prior_std), steps=self.steps, **more)
        w = np.asarray(self._spend(method, records).draws["w"], float)
        self._slopes = w[:, 1:] / unit
        self._offsets = w[:, 0] - self._slopes @ middle

    def _predictor(self, X: Any) -> Any:
        """Give the linear predictor: records times draws."""
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
    """Private logistic regression with two classes, whose intervals account for the privacy noise (``tacit.natural``).

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
        As in ``tacit.natural``.
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
        """Give the chances of both classes, averaged over the posterior.

        Privacy: post-processing.
        """
        positive = expit(self._predictor(X)).mean(1)
        return np.column_stack([1 - positive, positive])

    def predict(self, X: Any) -> Any:
        """Give the likelier class.

        Privacy: post-processing.
        """
        chances = self.predict_proba(X)
        return self.classes_[chances.argmax(1)]

    def predict_interval(self, X: Any, level: float = LEVEL) -> Any:
        """Give central intervals of the chance of the second class: records times low and high.

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
    """Private linear regression, whose intervals account for the privacy noise (``tacit.natural``).

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
        size: int | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        prior_std: float = 4.0,
        steps: int = 40,
        ledger: str | os.PathLike[str] | None = None,
        random_state: int | None = None,
        simulate: int | None = None,
    ) -> None:
        self.bounds, self.target_bounds, self.size = bounds, target_bounds, size
        self.epsilon, self.delta = epsilon, delta
        self.prior_std, self.steps = prior_std, steps
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
        """Give the expected outcome.

        Privacy: post-processing.
        """
        return self._predictor(X).mean(1)

    def predict_interval(self, X: Any, level: float = LEVEL) -> Any:
        """Give central intervals that new outcomes fall into, their noise included: records times low and high.

        Privacy: post-processing.
        """
        predictor = self._predictor(X)
        # Normal quantiles, one for each draw: the same for all records.
        wobble = stats.norm.ppf((np.random.default_rng(0).permutation(len(self._noise)) + 0.5) / len(self._noise))
        return _central(predictor + self._noise * wobble, level, 1)


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
        """Give the chances of the components for each record.

        Privacy: post-processing; as private as the records given.
        """
        joint = self._joint(X)
        return np.exp(joint - logsumexp(joint, 1, keepdims=True))

    def predict(self, X: Any) -> Any:
        """Give each record's likeliest component.

        Privacy: post-processing; as private as the records given.
        """
        return self._joint(X).argmax(1)

    def score_samples(self, X: Any) -> Any:
        """Give the log density of each record.

        Privacy: post-processing; as private as the records given.
        """
        return logsumexp(self._joint(X), 1)

    def score(self, X: Any, y: Any = None) -> float:
        """Give the mean log density: larger is better.

        Privacy: never publish it for the records of the fit, nor choose settings by it on them.
        """
        return float(self.score_samples(X).mean())


class PrivateTopics(TransformerMixin, _Private):  # type: ignore[misc]
    """Private topics of a matrix of word counts, in the shape of scikit-learn's LatentDirichletAllocation.

    Privacy: ``fit`` reads records, through the wall. What it leaves on the object is (epsilon, delta)-differentially
    private for each document; ``transform`` and ``perplexity`` are not private for the documents that they are given.

    Parameters
    ----------
    n_components
        The number of topics.
    epsilon, delta
        What may be spent on each document's protection.
    doc_topic_prior, topic_word_prior
        As ``alpha`` and ``eta`` of ``tacit.lda``.
    rate, steps, clip
        As in ``tacit.fit``; by default what suits ``tacit.lda``.
    width, cap
        As in ``tacit.documents``.
    size
        A public number of documents, about right; without it chunks are of a size that suits most.
    ledger
        Path of the ledger on which fits are charged; by default a new one in memory for each.
    random_state
        Seed of the public randomness, an integer; the secret randomness never follows it.
    simulate
        As in ``tacit.fit``: fixes the secret randomness, and protects nobody.

    Attributes
    ----------
    components_
        Topics times vocabulary: the concentration of the topics' posterior.
    posterior_, certificate_
        The draws, and what they reveal.
    """

    components_: np.ndarray

    def __init__(
        self,
        n_components: int = 10,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        doc_topic_prior: float | None = None,
        topic_word_prior: float | None = None,
        rate: float | None = None,
        steps: int | None = None,
        clip: float | None = None,
        width: int = 128,
        cap: float | None = 2.0,
        size: int | None = None,
        ledger: str | os.PathLike[str] | None = None,
        random_state: int | None = None,
        simulate: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon, self.delta = epsilon, delta
        self.doc_topic_prior, self.topic_word_prior = doc_topic_prior, topic_word_prior
        self.rate, self.steps, self.clip = rate, steps, clip
        self.width, self.cap = width, cap
        self.size, self.ledger = size, ledger
        self.random_state, self.simulate = random_state, simulate

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit topics to private documents; the columns of the matrix are a public vocabulary.

        Privacy: reads records, through the wall.
        """
        X = self._counts(X, reset=True)
        method = lda(self.n_components, X.shape[1], alpha=self.doc_topic_prior, eta=self.topic_word_prior)
        records = documents(X, width=self.width, cap=self.cap)
        posterior = self._spend(method, records, rate=self.rate, steps=self.steps, clip=self.clip)
        self.components_ = posterior.points["concentration"]
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Give the topics' shares in each document.

        Privacy: the answer is as private as the documents given.
        """
        shares = proportions(self._known(), self._whole(X), alpha=self.doc_topic_prior)
        return shares.astype(X.dtype if getattr(X, "dtype", None) in (np.float32, np.float64) else np.float64)

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Fit, and give the topics' shares in each of the same documents.

        Privacy: the answer is as private as the documents given, and not covered by the certificate.
        """
        return self.fit(X).transform(X)

    def perplexity(self, X: Any) -> float:
        """Give an upper bound on the perplexity of public documents.

        Privacy: public. Never publish it for the documents of the fit.
        """
        return perplexity(self._known(), self._whole(X), alpha=self.doc_topic_prior)

    def score(self, X: Any, y: Any = None) -> float:
        """Give minus the logarithm of ``perplexity``: larger is better.

        Privacy: public. Never publish it for the documents of the fit, nor choose settings by it on them.
        """
        return -float(np.log(self.perplexity(X)))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Name the topics.

        Privacy: public.
        """
        return np.asarray([f"topic{topic}" for topic in range(self.n_components)], object)

    def __sklearn_tags__(self) -> Any:
        """Describe the estimator to scikit-learn.

        Privacy: public.
        """
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.positive_only = True
        return tags

    def _known(self) -> Any:
        check_is_fitted(self)
        return self.components_

    def _counts(self, X: Any, *, reset: bool) -> Any:
        X = self._numbers(X, reset=reset, accept_sparse="csr")
        if (X.data < 0).any() if sparse.issparse(X) else (X < 0).any():
            raise ValueError(f"Negative values in data passed to {type(self).__name__}: X holds counts of words.")
        return X

    def _whole(self, X: Any) -> dict[str, np.ndarray]:
        """Give documents as records of which nothing is thinned: what is not released needs no bound."""
        X = self._counts(X, reset=False)
        longest = int(np.asarray((X != 0).sum(1)).max(initial=8))
        # Rounded up, so that few widths are ever compiled.
        return documents(X, width=1 << (longest - 1).bit_length())


def _bounds(bounds: Any, name: str, columns: int) -> tuple[Any, Any]:
    """Give declared bounds as two vectors, one entry for each column."""
    if bounds is None:
        raise ValueError(
            f"{name} is not declared. Bounds taken from the data would reveal it; write {name}=(low, high), numbers or "
            "one for each column."
        )
    try:
        low, high = (np.broadcast_to(np.asarray(side, float), (columns,)) for side in bounds)
    except (TypeError, ValueError):
        low = high = np.zeros(columns)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(
            f"{name} is {bounds!r}. Write the lowest and the highest value, numbers or one for each of the {columns} "
            f"columns: {name}=(0, 100)."
        )
    return low, high


def _central(draws: Any, level: float, axis: int) -> Any:
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it is the probability of an interval. Write level=0.9.")
    return np.stack(np.quantile(draws, ((1 - level) / 2, (1 + level) / 2), axis=axis), 1)


def _facts(values: Any) -> tuple[tuple[int, ...] | None, str]:
    """Give the shape and the kind of what can be an array, and no shape of what cannot."""
    array = _quietly(lambda: np.asarray(values))
    return (None, "O") if array is None else (array.shape, array.dtype.kind)


def _is_real(values: Any) -> bool:
    return _quietly(lambda: np.asarray(values).astype(np.float64)) is not None


def _quietly(function: Callable[[], Any]) -> Any:
    """Call a conversion, or give None: its error may quote a record, also as the context of a later error."""
    try:
        return function()
    except Exception:
        return None
