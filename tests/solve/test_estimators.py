"""The estimators as scikit-learn and its users meet them."""

import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from problems import ESTIMATORS, small
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, make_moons
from sklearn.exceptions import ConvergenceWarning, SkipTestWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from normscope.solve import GDNPClassifier, GDNPMLPClassifier, GDNPRegressor


@pytest.mark.parametrize(
    "estimator",
    [
        GDNPRegressor(),
        GDNPRegressor(alpha=0.1, fit_intercept=False),
        GDNPClassifier(),
        GDNPClassifier(loss="sigmoid", fit_intercept=False),
        GDNPMLPClassifier(n_hidden=3, max_iter=5),
        pytest.param(GDNPMLPClassifier(), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_scikit_learns_own_checks_pass_with_no_expected_failure(estimator):
    with warnings.catch_warnings():
        # scikit-learn fits on tiny and random data and does not mind either; array-api needs an environment variable.
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", SkipTestWarning)
        results = check_estimator(estimator)
    statuses = {result["check_name"]: result["status"] for result in results}
    assert len(statuses) > 40
    assert {name for name, status in statuses.items() if status != "passed"} <= {"check_array_api_input"}


def test_history_alone_reconstructs_the_coefficients():
    x, y = small(GDNPRegressor)
    model = GDNPRegressor().fit(x, y)
    np.testing.assert_array_equal(model.coef_, model.history_["gamma"][-1] * model.history_["direction"])
    for name in ("gap", "bound", "slack", "gradient_norm_S", "gamma", "objective"):
        assert len(model.history_[name]) == model.n_iter_ + 1
        assert np.isfinite(model.history_[name]).all()
    x, y = small(GDNPClassifier)
    model = GDNPClassifier().fit(x, y)
    (history,) = model.history_
    np.testing.assert_array_equal(model.coef_[0], history["gamma"][-1] * history["direction"])
    assert model.intercept_[0] == history["gamma"][-1] * history["offset"]
    for name in ("gap", "bound", "slack", "gradient_norm_S", "gamma", "objective"):
        assert len(history[name]) == model.n_iter_ + 1
        assert np.isfinite(history[name]).all()
    model = GDNPMLPClassifier(n_hidden=2, random_state=0, tol=0.05).fit(x, y)
    (history,) = model.history_
    np.testing.assert_allclose(model.coef_[0], history["gamma"][-1][:, None] * history["direction"], rtol=1e-12)
    np.testing.assert_allclose(model.intercept_[0], history["gamma"][-1] * history["offset"], rtol=1e-12)
    for name in ("gap", "gradient_norm_S", "objective", "gamma", "bound", "slack"):
        assert len(history[name]) == model.n_iter_ + 1
    assert history["gap"].min() == 0.0
    assert np.isfinite(history["gradient_norm_S"]).all()
    # The S^-1 norm against the Euclidean one: ||g||^2 / L <= g^T S^-1 g.
    largest = np.linalg.eigvalsh(np.cov(x.T, bias=True)).max()
    assert (history["gradient_norm_S"] ** 2 * max(largest, 1.0) >= 0.999 * history["gradient_norm"] ** 2).all()
    assert np.isnan(history["bound"][0]).all()
    assert (history["bound"][1:] >= 0.0).all()


def test_the_classifier_is_logistic_regression():
    x, y = small(GDNPClassifier, n=300)
    for alpha in (1e-3, 1.0):
        ours = GDNPClassifier(alpha=alpha, tol=1e-9, max_iter=20_000).fit(x + 2.0, y)
        theirs = LogisticRegression(C=1 / (alpha * 300), tol=1e-10, max_iter=1000).fit(x + 2.0, y)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-5)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-5)
        assert (np.diff(ours.history_[0]["objective"]) <= 1e-14).all()


@pytest.mark.parametrize("load", [load_breast_cancer, load_digits])
@pytest.mark.parametrize("alpha", [1e-3, 1e-2])
def test_accuracy_is_within_a_point_of_logistic_regression(load, alpha):
    """Standardized, same alpha; digits one against the rest; each of three splits."""
    x, y = load(return_X_y=True)
    points = []
    for seed in range(3):
        xa, xb, ya, yb = train_test_split(x, y, test_size=0.3, random_state=seed, stratify=y)
        scaler = StandardScaler().fit(xa)
        xa, xb = scaler.transform(xa), scaler.transform(xb)
        ours = GDNPClassifier(alpha=alpha, tol=1e-3).fit(xa, ya)
        theirs = OneVsRestClassifier(LogisticRegression(C=1 / (alpha * len(xa)), max_iter=2000)).fit(xa, ya)
        points.append(100 * (ours.score(xb, yb) - theirs.score(xb, yb)))
    assert max(np.abs(points)) <= 1.0, points


def test_the_network_learns_what_no_halfspace_can():
    x, y = make_moons(400, noise=0.15, random_state=0)
    linear = GDNPClassifier().fit(x, y).score(x, y)
    network = GDNPMLPClassifier(random_state=0, tol=1e-2).fit(x, y).score(x, y)
    assert linear < 0.9
    assert network > 0.97


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_weights_are_repetitions(estimator):
    x, y = small(estimator)
    repeats = np.random.default_rng(1).integers(0, 4, len(x))
    settings = {"tol": 1e-6, "max_iter": 20_000} if estimator is not GDNPMLPClassifier else {"tol": 1e-2}
    weighted = estimator(random_state=0, **settings).fit(x, y, sample_weight=repeats)
    repeated = estimator(random_state=0, **settings).fit(np.repeat(x, repeats, axis=0), np.repeat(y, repeats))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_pandas_pipelines_and_grids(estimator):
    x, y = small(estimator)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    model = estimator(tol=0.05).fit(frame, y)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "c"]])
    pipeline = make_pipeline(StandardScaler(), estimator(tol=0.05))
    name = estimator.__name__.lower()
    grid = GridSearchCV(pipeline, {f"{name}__alpha": [1e-3, 1e-1]}, cv=3).fit(frame, y)
    assert grid.best_score_ > 0.8


def test_a_warm_start_continues():
    for estimator in (GDNPRegressor, GDNPClassifier):
        x, y = small(estimator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = estimator(warm_start=True, max_iter=2, tol=1e-12).fit(x, y)
            first = np.atleast_1d(model.history_)[0]["objective"]
            model.fit(x, y)
        second = np.atleast_1d(model.history_)[0]["objective"]
        # The last length is only as exact as the step needed; the new start finds it to rounding.
        assert first[-1] * (1 - 1e-3) < second[0] <= first[-1] * (1 + 1e-12)
        assert second[-1] < first[-1]


def test_float32_data_give_the_same_coefficients_to_its_rounding():
    x, y = small(GDNPRegressor, n=500)
    narrow = GDNPRegressor(tol=1e-5).fit(x.astype(np.float32), y)
    np.testing.assert_allclose(narrow.coef_, LinearRegression().fit(x, y).coef_, rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "model", [GDNPRegressor(), GDNPClassifier(), GDNPMLPClassifier(n_hidden=1, max_iter=1, random_state=0)], ids=str
)
def test_the_data_are_not_copied_and_not_widened(model, dtype):
    """Peak memory beside 8 or 16 MB of data: vectors of 10,000 entries and blocks of half a megabyte."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((10_000, 200), dtype=dtype)
    y = np.where(rng.random(10_000) < 0.5, 1.0, -1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        clone(model).set_params(max_iter=2).fit(x[:500], y[:500])
        tracemalloc.start()
        clone(model).set_params(max_iter=2).fit(x, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 0.6 * x.nbytes


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_warm_start_with_other_features_or_classes_begins_anew(estimator):
    x, y = small(estimator)
    model = estimator(warm_start=True, tol=0.05, random_state=0).fit(x, y)
    wide, labels = np.column_stack([x, x[:, 0] ** 2]), y
    for data, target in ((wide, labels), (wide[:, :2], labels)):
        again = model.fit(data, target)
        anew = estimator(tol=0.05, random_state=0).fit(data, target)
        assert again.n_features_in_ == data.shape[1]
        np.testing.assert_allclose(again.coef_, anew.coef_, rtol=1e-10)
    if estimator is not GDNPRegressor:
        three = np.where(x[:, 0] > 1.0, "maybe", y)
        assert model.fit(x, three).coef_.shape[0] == 3


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_data_whose_classes_have_one_mean_rest_at_zero_without_a_warning(dtype):
    """Every row in both classes: u is zero but for rounding."""
    x = np.random.default_rng(0).normal(size=(57, 5)).astype(dtype) * 0.1 + 3.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = GDNPClassifier(alpha=0.0).fit(np.vstack([x, x]), np.repeat([0, 1], len(x)))
        flat = GDNPRegressor().fit(np.vstack([x, x]), np.repeat([-0.1, 0.1], len(x)))
    assert not model.coef_.any()
    assert not flat.coef_.any()
    assert np.max(model.n_iter_) <= 1
