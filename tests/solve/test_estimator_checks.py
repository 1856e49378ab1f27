"""What the estimators refuse, what they fit by a documented rule, and how far apart scales may be."""

import warnings

import numpy as np
import pytest
from problems import ESTIMATORS, small
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression

from normscope.solve import GDNPClassifier, GDNPMLPClassifier, GDNPRegressor


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_are_refused(estimator, bad):
    x, y = small(estimator)
    x[3, 1] = bad
    with pytest.raises(ValueError, match="NaN|infinity"):
        estimator().fit(x, y)


@pytest.mark.parametrize("estimator", [GDNPClassifier, GDNPMLPClassifier])
def test_one_class_is_refused(estimator):
    x, y = small(estimator)
    with pytest.raises(ValueError, match="at least 2 classes.*only one class"):
        estimator().fit(x, np.full(len(y), "yes"))
    with pytest.raises(ValueError, match="only one class"):
        estimator().fit(x, y, sample_weight=(y == "yes").astype(float))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_target_with_several_columns_is_refused(estimator):
    x, y = small(estimator)
    with pytest.raises(ValueError, match="1d array"):
        estimator().fit(x, np.column_stack([y, y]))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_fewer_samples_than_features_and_constant_features_are_fitted(estimator):
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.standard_normal((20, 30)), np.full(20, 7.0)])
    y = x[:, 0] if estimator is GDNPRegressor else x[:, 0] > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = estimator(max_iter=2000 if estimator is not GDNPMLPClassifier else 20, random_state=0).fit(x, y)
    assert model.score(x, y) > 0.99
    assert np.isfinite(model.coef_).all()
    if estimator is not GDNPMLPClassifier:
        assert abs(model.coef_.ravel()[-1]) < 1e-8


def test_no_correlation_at_all_gives_zero_coefficients():
    x = np.array([[-1.0], [1.0], [-1.0], [1.0]])
    model = GDNPRegressor().fit(x, [1.0, 1.0, 2.0, 2.0])
    assert (model.coef_.item(), model.intercept_, model.n_iter_) == (0.0, 1.5, 0)
    model = GDNPClassifier().fit(x, [0, 0, 1, 1])
    assert model.coef_.item() == 0.0
    # A warm start from zero (rho = 0) begins again at -u.
    model = GDNPRegressor(warm_start=True).fit(x, [1.0, 1.0, 2.0, 2.0]).fit(x, [0.0, 1.0, 0.0, 1.0])
    assert model.coef_.item() == pytest.approx(0.5)


def test_separable_data_without_a_penalty_are_told_to_take_one():
    with pytest.warns(ConvergenceWarning, match="Take alpha > 0"):
        GDNPClassifier(alpha=0.0).fit([[-2.0], [-1.0], [1.0], [2.0]], [0, 0, 1, 1])


def test_directions_go_on_where_no_length_is_finite():
    """Two clouds apart, long across the line between them, so that -u is a bad start; the warning comes after."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], 100)
    x = rng.standard_normal((200, 2)) * [0.2, 4.0] + np.where(y == 1, 1.0, -1.0)[:, None] * [1.0, 1.5]
    with pytest.warns(ConvergenceWarning, match="no finite minimiser"):
        model = GDNPClassifier(alpha=0.0, fit_intercept=False).fit(x, y)
    history = model.history_[0]
    assert model.n_iter_ > 5
    assert np.isfinite(model.coef_).all()
    assert history["objective"][-1] < 0.1 * history["objective"][0]
    assert model.score(x, y) == 1.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e100])
def test_features_of_any_ordinary_scale_are_fitted(estimator, scale):
    """A power of ten off: the same predictions, with the penalty scaled too."""
    x, y = small(estimator)
    settings = {"tol": 0.01, "random_state": 0}
    plain = estimator(alpha=0.0 if estimator is GDNPRegressor else 1e-3, **settings).fit(x, y)
    scaled = estimator(alpha=0.0 if estimator is GDNPRegressor else 1e-3 * scale**2, **settings).fit(x * scale, y)
    if estimator is GDNPRegressor:
        np.testing.assert_allclose(scaled.predict(x * scale), plain.predict(x), rtol=1e-6)
    else:
        np.testing.assert_allclose(scaled.decision_function(x * scale), plain.decision_function(x), rtol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("intercept", [True, False])
def test_features_whose_squares_are_no_numbers_are_refused(estimator, intercept):
    x, y = small(estimator)
    for scale in (1e-300, 1e-130, 1e130, 1e300):
        with pytest.raises(ValueError, match="The largest (spread|size) of a feature must lie between"):
            estimator(fit_intercept=intercept).fit(x * scale, y)
    one = x * [1.0, 1e200, 1e-200]
    with pytest.raises(ValueError, match="must lie between"):
        estimator(fit_intercept=intercept).fit(one, y)
    with pytest.raises(ValueError, match="in float32"):
        estimator(fit_intercept=intercept).fit((x * 1e20).astype(np.float32), y)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_features_of_very_different_scales_give_finite_results(estimator):
    x, y = small(estimator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = estimator(max_iter=20, random_state=0).fit(x * [1.0, 1e50, 1e-50], y)
    assert np.isfinite(model.coef_).all()
    histories = [model.history_] if estimator is GDNPRegressor else model.history_
    assert all(np.isfinite(history["objective"]).all() for history in histories)


def test_targets_and_weights_of_extreme_scale():
    x, y = small(GDNPRegressor)
    plain = GDNPRegressor().fit(x, y).coef_
    for scale in (1e-100, 1e100):
        np.testing.assert_allclose(GDNPRegressor().fit(x, y * scale).coef_ / scale, plain, rtol=1e-7)
    for scale in (1e-200, 1e200):
        with pytest.raises(ValueError, match="The largest size of y"):
            GDNPRegressor().fit(x, y * scale)
    np.testing.assert_allclose(GDNPRegressor().fit(x, y, np.full(len(y), 1e308)).coef_, plain, rtol=1e-7)
    assert GDNPRegressor(alpha=1e100).fit(x, y).predict(x) == pytest.approx(y.mean())


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"alpha": -1.0}, "alpha must be"), ({"max_iter": 0}, "max_iter must be"), ({"tol": np.nan}, "tol must be")],
)
def test_settings_without_sense_are_refused(settings, words):
    for estimator in ESTIMATORS:
        x, y = small(estimator)
        with pytest.raises(ValueError, match=words):
            estimator(**settings).fit(x, y)
    with pytest.raises(ValueError, match="Did you mean 'softplus'"):
        GDNPClassifier(loss="softmax_plus").fit(*small(GDNPClassifier))
    with pytest.raises(ValueError, match="non-negative"):
        GDNPRegressor().fit(*small(GDNPRegressor), sample_weight=np.r_[-1.0, np.ones(79)])


@pytest.mark.parametrize("value", [0.1, 7.0, 1000.1])
@pytest.mark.parametrize("n", [10, 37])
def test_constant_features_have_no_coefficient_and_do_no_harm(n, value):
    """Their rounded mean leaves rounding error behind, which must not become a feature."""
    rng = np.random.default_rng(0)
    only = np.full((n, 1), value)
    y, labels = rng.standard_normal(n), np.arange(n) % 3 == 0
    model = GDNPRegressor().fit(only, y)
    assert model.coef_.tolist() == [0.0]
    np.testing.assert_allclose(model.predict(only), y.mean())
    assert set(model.history_) == set(GDNPRegressor().fit(rng.standard_normal((n, 1)), y).history_)
    classifier = GDNPClassifier().fit(only, labels)
    assert classifier.coef_.tolist() == [[0.0]]
    assert classifier.intercept_[0] == pytest.approx(np.log(labels.mean() / (1 - labels.mean())), rel=1e-3)
    beside = np.column_stack([1e-9 * rng.standard_normal(n), only])
    model = GDNPRegressor().fit(beside, y)
    assert model.coef_[1] == 0.0
    np.testing.assert_allclose(model.coef_[0], LinearRegression().fit(beside[:, :1], y).coef_[0], rtol=1e-6)
    network = GDNPMLPClassifier(n_hidden=2, tol=0.5, random_state=0).fit(np.column_stack([y, only]), labels)
    assert (network.coef_[:, :, 1] == 0.0).all()
