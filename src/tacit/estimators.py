"""Methods in the shape of scikit-learn's estimators: constructor, ``fit``, ``predict`` or ``transform``.

What scikit-learn learns from the records is declared here: classes, bounds, the number of records. A fit spends its
budget anew each time, so fits inside cross-validation are refused, unless all are charged to one ledger with a cap. A
certificate counts what the estimator reads and nothing else, so a fit is refused beside steps that are fitted on the
same records without noise: in pipelines, searches and ensembles. scikit-learn does not tell an estimator what it is a
part of; the stack of calls does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
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
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        DensityMixin,
        OneToOneFeatureMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.utils.validation import check_array, check_is_fitted, validate_data
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
"""Made-up records on which a function of whole tables is told from one of single records."""
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
                "would not add up; give the path of its file."
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
                "tacit.Ledger(path, cap=tacit.Budget(...)), and give the estimator ledger=path."
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
        method = natural(likelihood, prior_std=float(self.prior_std), **more)
        w = np.asarray(self._spend(method, records, steps=self.steps).draws["w"], float)
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


class BoundsScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scale columns from declared bounds to a range: what ``MinMaxScaler`` does, without learning from the records.

    Privacy: public. ``fit`` learns the number of columns and their names only, and every record is scaled by itself.

    Parameters
    ----------
    bounds
        Lowest and highest value, for all columns or for each; values outside are moved to the nearer one.
    feature_range
        Where the bounds are moved to; give these as ``bounds`` to the estimator that follows.
    """

    def __init__(self, *, bounds: Any = None, feature_range: tuple[float, float] = (-1.0, 1.0)) -> None:
        self.bounds, self.feature_range = bounds, feature_range

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the number of columns against the bounds.

        Privacy: public.
        """
        X = validate_data(self, X, reset=True, dtype=(np.float64, np.float32))
        self._range(X.shape[1])
        return self

    def transform(self, X: Any) -> Any:
        """Return the columns, moved from the bounds to the range.

        Privacy: of the records: each is scaled by itself.
        """
        X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        low, high, start, stop = self._range(X.shape[1])
        return (start + (np.clip(X, low, high) - low) * ((stop - start) / (high - low))).astype(X.dtype)

    def inverse_transform(self, X: Any) -> Any:
        """Return scaled columns in their own units again; what was outside the bounds stays on them.

        Privacy: of the records: each is scaled by itself.
        """
        X = check_array(X, dtype=(np.float64, np.float32))
        low, high, start, stop = self._range(X.shape[1])
        return (low + (X - start) * ((high - low) / (stop - start))).astype(X.dtype)

    def _range(self, columns: int) -> tuple[Any, Any, float, float]:
        (start,), (stop,) = _bounds(self.feature_range, "feature_range", 1)
        return *_bounds(self.bounds, "bounds", columns), float(start), float(stop)

    def __sklearn_tags__(self) -> Any:
        """Describe the transformer to scikit-learn.

        Privacy: public.
        """
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
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
            "and they are not charged to one ledger. Give all of them the same ledger=path."
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

    return bool(_quietly(same))


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
