"""Estimators in scikit-learn's shape: what they declare, what they refuse, and scikit-learn's own checks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import tacit

pytest.importorskip("sklearn", reason="scikit-learn is missing: pip install 'tacit[sklearn]'")
from joblib import parallel_backend
from sklearn import ensemble
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFE, SelectFromModel, SequentialFeatureSelector
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, RANSACRegressor
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import MultiOutputRegressor, RegressorChain
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils.estimator_checks import check_estimator

from tacit.adapters.sklearn import (
    BoundsScaler,
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivateMixture,
    PrivateTopics,
)

CANARY = 31.41592653
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:sklearn")


def regression(count: int = 2000, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    X = random.uniform(0, 10, (count, 2))
    return X, 3 + 2 * X[:, 0] - X[:, 1] + random.normal(0, 1, count)


def logistic(**changes: Any) -> PrivateLogisticRegression:
    given = {"classes": ("no", "yes"), "bounds": ([0, 0], [10, 10]), "size": 2000, "epsilon": 3.0, "simulate": 1}
    return PrivateLogisticRegression(**{**given, **changes})


@pytest.fixture(scope="module")
def labelled() -> tuple[Any, Any]:
    X, predictor = regression()
    return X, np.where(predictor + np.random.default_rng(1).logistic(size=len(X)) > 8, "yes", "no")


@pytest.fixture(scope="module")
def fitted(labelled: Any) -> PrivateLogisticRegression:
    return logistic().fit(*labelled)


@pytest.mark.slow  # the page docs/estimators.md fits in every submission
def test_a_logistic_regression_is_found_in_the_units_of_its_columns(fitted: Any, labelled: Any) -> None:
    X, y = labelled
    assert fitted.coef_.shape == (1, 2)
    assert fitted.intercept_.shape == (1,)
    # The slopes are 2 and -1 in logits; private, so about.
    np.testing.assert_allclose(fitted.coef_[0], [2, -1], rtol=0.3)
    interval = fitted.coef_interval_
    assert interval.shape == (2, 2)
    assert (interval[:, 0] < fitted.coef_[0]).all()
    assert (fitted.coef_[0] < interval[:, 1]).all()
    chances = fitted.predict_proba(X)
    np.testing.assert_allclose(chances.sum(1), 1)
    between = fitted.predict_interval(X[:50], level=0.99)
    assert ((between[:, 0] < chances[:50, 1]) & (chances[:50, 1] < between[:, 1])).all()
    assert fitted.score(X, y) > 0.85
    assert set(fitted.predict(X)) == {"no", "yes"}


@pytest.mark.slow  # the page docs/estimators.md fits in every submission
def test_a_fitted_estimator_is_pickled_without_a_record(fitted: Any, labelled: Any) -> None:
    X, _ = labelled
    marked = X.copy()
    marked[0] = CANARY / 10
    again = logistic(simulate=1).fit(marked, labelled[1])
    stored = pickle.dumps(again)
    assert np.float64(CANARY / 10).tobytes() not in stored
    assert np.float32(CANARY / 10).tobytes() not in stored
    assert len(stored) < 200_000
    back = pickle.loads(stored)
    np.testing.assert_array_equal(back.predict_proba(X[:5]), again.predict_proba(X[:5]))
    assert back.certificate_.simulation


@pytest.mark.slow  # the page docs/estimators.md fits in every submission
def test_a_linear_regression_predicts_new_outcomes() -> None:
    X, y = regression()
    model = PrivateLinearRegression(bounds=(0, 10), target_bounds=(-10, 30), size=2000, epsilon=3.0, simulate=1)
    model.fit(X, y)
    np.testing.assert_allclose(model.coef_, [2, -1], atol=0.2)
    assert model.intercept_ == pytest.approx(3, abs=1.0)
    assert model.score(X, y) > 0.9
    new, outcomes = regression(1000, seed=5)
    low, high = model.predict_interval(new).T
    # 1000 outcomes at 90%, and noise that is found only about: the bounds are wide.
    assert 0.85 < np.mean((low < outcomes) & (outcomes < high)) < 0.97


@pytest.mark.slow
def test_a_mixture_finds_two_clusters() -> None:
    random = np.random.default_rng(0)
    group = random.integers(0, 2, 2000)
    X = np.where(group[:, None], [70.0, 20.0], [30.0, 80.0]) + random.normal(0, 5, (2000, 2))
    model = PrivateMixture(2, bounds=(0, 100), epsilon=3.0, random_state=0, simulate=1).fit(X)
    order = np.argsort(model.means_[:, 0])
    np.testing.assert_allclose(model.means_[order], [[30, 80], [70, 20]], atol=4)
    np.testing.assert_allclose(model.weights_, 0.5, atol=0.1)
    assert np.mean(order[group] == model.predict(X)) > 0.95
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    assert model.score(X) == pytest.approx(model.score_samples(X).mean())


@pytest.mark.slow
def test_topics_in_scikit_learns_shape() -> None:
    matrix = sparse.random(40, 25, 0.3, random_state=0, format="csr")
    matrix.data = np.ceil(3 * matrix.data)
    model = PrivateTopics(3, epsilon=2.0, delta=1e-5, steps=2, rate=0.5, width=10, size=40, random_state=0)
    assert model.fit(matrix) is model
    assert model.components_.shape == (3, 25)
    assert model.certificate_ is not None
    assert not model.certificate_.simulation
    np.testing.assert_allclose(model.transform(matrix).sum(1), 1, rtol=1e-5)
    assert model.score(matrix) == pytest.approx(-np.log(model.perplexity(matrix)))
    assert list(model.get_feature_names_out()) == ["topic0", "topic1", "topic2"]
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(ValueError, match="25 features"):
        model.transform(matrix[:, :5])


@pytest.fixture
def no_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for private fits, which take seconds; what is refused is refused before them."""
    monkeypatch.setattr("tacit.adapters.sklearn.base._Private._spend", stand_in)


def linear(**changes: Any) -> PrivateLinearRegression:
    return PrivateLinearRegression(**{"bounds": (0, 10), "target_bounds": (-10, 30), "size": 2000, **changes})


LOOPS: dict[str, Callable[[Any], Any]] = {
    "cross_val_score": lambda one: partial(cross_val_score, one, cv=2, error_score="raise"),
    "cross_validate": lambda one: partial(cross_validate, one, cv=2, error_score="raise"),
    "cross_val_predict": lambda one: partial(cross_val_predict, one, cv=2),
    "in a pipeline": lambda one: partial(
        cross_val_score, make_pipeline(FunctionTransformer(), one), cv=2, error_score="raise"
    ),
}


@pytest.mark.usefixtures("no_fit")
@pytest.mark.parametrize("loop", LOOPS)
def test_loops_of_fits_are_refused_unless_a_capped_ledger_pays(loop: str, tmp_path: Path) -> None:
    X, y = regression(60)
    with pytest.raises(RuntimeError, match=r"spend epsilon 1 again.*tacit.rehearse"):
        LOOPS[loop](linear())(X, y)
    path = tmp_path / "ledger.jsonl"
    tacit.Ledger(path, cap=tacit.Budget(4.0, 1e-6))
    LOOPS[loop](linear(ledger=str(path)))(X, y)
    with pytest.raises(RuntimeError, match="n_jobs=1"), parallel_backend("threading", n_jobs=2):
        LOOPS[loop](linear(ledger=str(path)))(X, y)


class Mine(BaseEstimator):  # type: ignore[misc]
    """Somebody's own meta-estimator, of which scikit-learn knows nothing."""

    def __init__(self, scaler: Any = None, model: Any = None) -> None:
        self.scaler, self.model = scaler, model

    def fit(self, X: Any, y: Any) -> Mine:
        self.model.fit(self.scaler.fit_transform(X), y)
        return self


COMPANY: dict[str, Callable[[Any, Any], Any]] = {
    "a class that scikit-learn does not know": lambda one, _: Mine(StandardScaler(), one.set_params(bounds=(-5, 5))),
    "GridSearchCV": lambda one, _: GridSearchCV(one, {"epsilon": [1.0, 2.0]}, cv=2, error_score="raise"),
    "RandomizedSearchCV": lambda one, _: RandomizedSearchCV(
        one, {"epsilon": [1.0]}, n_iter=1, cv=2, error_score="raise"
    ),
    "HalvingGridSearchCV": lambda one, _: HalvingGridSearchCV(one, {"epsilon": [1.0, 2.0]}, cv=2, error_score="raise"),
    "a search of a pipeline": lambda one, _: GridSearchCV(
        make_pipeline(BoundsScaler(bounds=(0, 10)), one), {}, cv=2, error_score="raise"
    ),
    "bagging": lambda one, _: ensemble.BaggingRegressor(one, n_estimators=2),
    "boosting": lambda one, _: ensemble.AdaBoostRegressor(one, n_estimators=2),
    "stacking": lambda one, _: ensemble.StackingRegressor([("ours", one)], cv=2),
    "voting by classes": lambda _, two: ensemble.VotingClassifier([("ours", two)]),
    "voting beside another": lambda one, _: ensemble.VotingRegressor([("ours", one), ("theirs", LinearRegression())]),
    "one against the rest": lambda _, two: OneVsRestClassifier(two),
    "one against one": lambda _, two: OneVsOneClassifier(two),
    "calibration": lambda _, two: CalibratedClassifierCV(two, cv=2),
    "thresholds": lambda _, two: TunedThresholdClassifierCV(two, cv=2),
    "selection of features": lambda one, _: RFE(one, n_features_to_select=1),
    "sequential selection": lambda one, _: SequentialFeatureSelector(one, cv=2, n_features_to_select=1),
    "selection by coefficients": lambda one, _: SelectFromModel(one),
    "a chain": lambda one, _: RegressorChain(one),
    "consensus": lambda one, _: RANSACRegressor(one, min_samples=10),
    "self-training": lambda _, two: SelfTrainingClassifier(two),
    "a scaler": lambda one, _: make_pipeline(StandardScaler(), one),
    "a scaler after it": lambda _, two: make_pipeline(PrivateTopics(2), StandardScaler(), two),
    "a fitted scaler": lambda one, _: make_pipeline(
        FrozenEstimator(StandardScaler().fit([[0.0, 0.0], [1.0, 1.0]])), one
    ),
    "a scaler of some columns": lambda one, _: make_pipeline(
        ColumnTransformer([("scale", StandardScaler(), [0])], remainder="passthrough"), one
    ),
    "a scaler of the other columns": lambda one, _: make_pipeline(
        ColumnTransformer([("keep", "passthrough", [0])], remainder=StandardScaler()), one
    ),
    "a scaler in a pipeline within": lambda one, _: make_pipeline(make_pipeline(MinMaxScaler()), one),
    "a scaler in a union": lambda one, _: make_pipeline(FeatureUnion([("scale", StandardScaler())]), one),
    "a scaled outcome": lambda one, _: TransformedTargetRegressor(one, transformer=StandardScaler()),
    "a function of all records": lambda one, _: make_pipeline(FunctionTransformer(lambda X: X - X.mean(0)), one),
    "a scaler in a function": lambda one, _: make_pipeline(FunctionTransformer(StandardScaler().fit_transform), one),
    "levels that are learned": lambda one, _: make_pipeline(OneHotEncoder(sparse_output=False), one),
    "records on disk": lambda one, _: Pipeline([("pass", "passthrough"), ("ours", one)], memory="kept"),
    "two budgets": lambda one, _: ensemble.VotingRegressor([("one", one), ("two", linear(epsilon=2.0))]),
    "a class made from scikit-learn's": lambda one, _: type("Mine", (Pipeline,), {})(
        [("scale", StandardScaler()), ("ours", one)]
    ),
}
"""What learns from the same records beside the estimator; a ledger with a cap does not help."""


@pytest.mark.usefixtures("no_fit")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", COMPANY)
def test_company_that_no_certificate_counts_is_refused(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "ledger.jsonl")
    tacit.Ledger(path, cap=tacit.Budget(50.0, 1e-6))
    X, y = regression(60)
    whole = COMPANY[kind](linear(ledger=path), logistic(ledger=path, classes=(0, 1)))
    outcome = y if is_regressor(whole) or isinstance(whole, Mine) else (y > np.median(y)).astype(int)
    # Some of scikit-learn's loops put the refusal into an error of their own.
    said = r"certificate would not count that|keeps records on disk|the same ledger"
    with pytest.raises((RuntimeError, ValueError), match=said):
        whole.fit(X, np.column_stack([outcome] * 2) if kind == "a chain" else outcome)


ALONE: dict[str, Callable[[Any], Any]] = {
    "a pipeline of its own": make_pipeline,
    "bounds": lambda one: make_pipeline(BoundsScaler(bounds=(0, 10)), one.set_params(bounds=(-1, 1))),
    "steps that learn nothing": lambda one: make_pipeline(
        "passthrough", FunctionTransformer(np.log1p), Normalizer(), PolynomialFeatures(2), one
    ),
    "a function of each record": lambda one: make_pipeline(
        FunctionTransformer(lambda X: X @ np.ones((2, 3)) / X.sum(1, keepdims=True)), one
    ),
    "columns": lambda one: make_pipeline(
        ColumnTransformer(
            [("scale", BoundsScaler(bounds=(0, 10)), [0]), ("levels", OneHotEncoder(categories=[[0, 1]]), [1])]
        ),
        one,
    ),
    "a class that scikit-learn does not know": lambda one: Mine(BoundsScaler(bounds=(0, 10)), one),
    "a transformed outcome": lambda one: TransformedTargetRegressor(one, func=np.tanh, inverse_func=np.arctanh),
}


@pytest.mark.usefixtures("no_fit")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ALONE)
def test_steps_that_learn_nothing_are_let_be(kind: str) -> None:
    X, y = regression(60)
    X[:, 1] = X[:, 1] > 5
    ALONE[kind](linear()).fit(X, y)


@pytest.mark.usefixtures("no_fit")
def test_several_of_ours_on_one_ledger_are_let_be(tmp_path: Path) -> None:
    X, y = regression(60)
    path = str(tmp_path / "ledger.jsonl")
    tacit.Ledger(path, cap=tacit.Budget(50.0, 1e-6))
    ensemble.VotingRegressor([("one", linear(ledger=path)), ("two", linear(ledger=path, epsilon=2.0))]).fit(X, y)
    MultiOutputRegressor(linear(ledger=path)).fit(X, np.column_stack([y, y]))


def test_a_scaler_of_declared_bounds() -> None:
    X, _ = regression(50)
    X[0] = [-3.0, 99.0]
    scaler = BoundsScaler(bounds=([0, 0], [10, 5]))
    scaled = scaler.fit_transform(X)
    np.testing.assert_allclose(scaled[0], [-1, 1])
    np.testing.assert_allclose(scaled[1:, 0], X[1:, 0] / 5 - 1)
    np.testing.assert_allclose(scaler.inverse_transform(scaled), np.clip(X, 0, [10, 5]))
    assert {name for name in vars(scaler) if name.endswith("_")} <= {"n_features_in_"}
    assert BoundsScaler(bounds=(0, 1), feature_range=(0, 2)).fit_transform([[0.5]]) == [[1.0]]
    with pytest.raises(ValueError, match=r"bounds=\(low, high\)"):
        BoundsScaler().fit(X)
    check_estimator(BoundsScaler(bounds=(-5, 5)), on_skip=None)


@pytest.mark.slow  # the page docs/estimators.md fits in every submission
def test_a_capped_ledger_pays_for_a_loop_until_it_is_used_up(labelled: Any, tmp_path: Path) -> None:
    X, y = labelled
    path = tmp_path / "ledger.jsonl"
    tacit.Ledger(path)
    model = logistic(epsilon=0.5, steps=5, ledger=str(path))
    with pytest.raises(RuntimeError, match=r"spend epsilon 0\.5 again"):  # a ledger without a cap limits nothing
        cross_val_score(model, X, y, cv=2, error_score="raise")
    capped = tmp_path / "capped.jsonl"
    tacit.Ledger(capped, cap=tacit.Budget(1.0, 1e-6))  # two fits cost 0.89 by its rule, three 1.12
    model.set_params(ledger=str(capped))
    assert len(cross_val_score(model, X, y, cv=2, error_score="raise")) == 2
    with pytest.raises(tacit.BudgetExceeded):
        cross_val_score(model, X, y, cv=2, error_score="raise")


def test_a_ledger_that_clone_would_copy_is_refused(labelled: Any) -> None:
    with pytest.raises(TypeError, match="pass the path"):
        logistic(ledger=tacit.Ledger()).fit(*labelled)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": None}, r"bounds=\(low, high\)"),
        ({"bounds": (3, 1)}, r"bounds=\(0, 100\)"),
        ({"bounds": ([0, 0, 0], [1, 1, 1])}, "each of the 2 columns"),
        ({"size": None}, "size=1000"),
        ({"classes": ("no",)}, "Declare the two labels"),
        ({"classes": ("no", "maybe")}, "private and not shown"),
    ],
)
def test_what_is_not_declared_is_asked_for(changes: dict[str, Any], message: str, labelled: Any) -> None:
    with pytest.raises(ValueError, match=message):
        logistic(**changes).fit(*labelled)


@pytest.mark.parametrize("kind", ["text", "complex", "line", "object"])
def test_errors_quote_no_record(kind: str) -> None:
    X: Any = {
        "text": np.array([["1.0", "canary"]] * 3),
        "complex": np.full((3, 2), complex(CANARY)),
        "line": np.full(3, CANARY),
        "object": np.array([[{"canary": CANARY}, 1.0]] * 3, dtype=object),
    }[kind]
    with pytest.raises((TypeError, ValueError)) as caught:
        logistic().fit(X, ["yes", "no", "no"])
    error: BaseException | None = caught.value
    while error is not None:
        assert "canary" not in str(error)
        assert "31.4" not in str(error)
        error = error.__context__


CHECKED = {"epsilon": 10.0, "delta": 0.1, "simulate": 1, "random_state": 0}
ESTIMATORS = {
    "logistic": PrivateLogisticRegression(bounds=(-5, 5), size=100, steps=5, **CHECKED),
    "linear": PrivateLinearRegression(bounds=(-5, 5), target_bounds=(-5, 5), size=100, steps=5, **CHECKED),
    "mixture": PrivateMixture(2, bounds=(-5, 5), steps=3, **CHECKED),
    "topics": PrivateTopics(2, steps=2, rate=1.0, width=8, **CHECKED),
}
DECLARED = "classes are declared, not learned from y: learned ones would reveal it"
EXPECTED: dict[str, dict[str, str]] = {
    "logistic": dict.fromkeys(
        (
            "check_classifier_data_not_an_array",
            "check_classifiers_classes",
            "check_estimators_dtypes",
            "check_fit2d_1feature",
        ),
        DECLARED,
    ),
    "linear": {},
    "mixture": {},
    "topics": {},
}
"""Checks of scikit-learn that contradict privacy, with the reason."""


def stand_in(self: Any, method: Any, records: dict[str, Any], **settings: Any) -> tacit.Posterior:
    """Stand in for a private fit, which takes seconds: ridge regression, parts of the records, words' counts."""
    self._refuse_company()
    self.certificate_ = None
    if "word" in records:
        topics = 1.0 + np.zeros((self.n_components, self.n_features_in_))
        for word, count in zip(records["word"].ravel(), records["count"].ravel(), strict=True):
            if count:
                topics[word % self.n_components, word] += count
        self.posterior_ = tacit.Posterior({}, None, point_estimates={"concentration": topics})
        return self.posterior_
    x = np.asarray(records["x"], float)
    if "y" in records:
        y = np.asarray(records["y"], float)
        square = x.T @ x + 1e-2 * np.eye(x.shape[1])
        if records["y"].dtype.kind == "i":
            w = 4 * np.linalg.solve(square, x.T @ (y - 0.5))
        else:
            w = np.linalg.solve(square, x.T @ y)
        draws = {"w": np.tile(w, (50, 1)), "noise": np.full(50, 0.1)}
    else:
        parts = np.array_split(x[np.argsort(x[:, 0], kind="stable")], self.n_components)
        means = np.stack([part.mean(0) if len(part) else np.zeros(x.shape[1]) for part in parts])
        draws = {
            "weight": np.full((50, self.n_components), 1 / self.n_components),
            "mean": np.tile(means, (50, 1, 1)),
            "covariance": np.tile(np.eye(x.shape[1]), (50, self.n_components, 1, 1)),
        }
    self.posterior_ = tacit.Posterior(draws, None)
    return self.posterior_


def failures(name: str) -> dict[str, str]:
    """Run scikit-learn's checks; give those that failed and were not expected to."""
    results = check_estimator(ESTIMATORS[name], expected_failed_checks=EXPECTED[name], on_fail=None, on_skip=None)
    assert {r["check_name"] for r in results if r["status"] == "xfail"} == set(EXPECTED[name])
    assert sum(r["status"] == "passed" for r in results) > 30
    return {r["check_name"]: repr(r["exception"]) for r in results if r["status"] == "failed"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "topics" else name for name in ESTIMATORS]
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_with_a_stand_in_for_the_fit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.adapters.sklearn.base._Private._spend", stand_in)
    assert failures(name) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks(name: str) -> None:
    assert failures(name) == {}
