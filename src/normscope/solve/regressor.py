"""Least squares by GDNP as a scikit-learn estimator."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from normscope.solve.design import Design, check_range
from normscope.solve.estimator_checks import check_settings, check_weights, rest, usable_start, warn_if_unfinished
from normscope.solve.iteration import gdnp
from normscope.solve.least_squares import LeastSquares

Array = NDArray[np.floating]


class GDNPRegressor(RegressorMixin, BaseEstimator):
    r"""Linear least squares, solved by gradient descent in normalized parametrization.

        minimise  sum_i omega_i (y_i - x_i^T w - b)^2 / sum_i omega_i + alpha ||w||^2

    The minimiser is that of `Ridge(alpha=n * alpha)` and, for alpha = 0, `LinearRegression`. The error shrinks as
    (1 - mu/L)^(2t), where mu and L are the ends of the spectrum of cov(x) + alpha I: fast for well-conditioned data,
    slow (as gradient descent is) for others, so standardize first. Where mu = 0 (see `mu_`) no rate is promised, and
    the iteration converges to the shortest solution. Where no feature correlates with y (u = 0), coef_ is zero.

    Args:
        alpha: L2 penalty, not on the intercept.
        fit_intercept: centre x and y.
        tol: stop when ||grad|| <= tol ||grad at zero||; at least ten times the rounding of X's type.
        max_iter: direction steps; each costs one pass over X, or d^2 where d <= 128.
        warm_start: start from the direction of the last fit, if it had as many features; else from -u.
        random_state: seed of the Lanczos iteration that finds L where d > 128.

    Attributes: coef_ (d,), intercept_, n_iter_, n_features_in_, mu_ (nan where d > 128), lipschitz_ (L), history_.
    `history_` is a dict of arrays, one entry for each iterate, the start included: objective, gap (rho - rho*), bound,
    slack (bound - gap), gradient_norm, gradient_norm_S (in the S^-1 norm), gamma, rho, c1, slope, step, and the last
    direction: coef_ = gamma[-1] * direction. gap, bound, slack and gradient_norm_S are nan where d > 128; there L is an
    estimate, and a `step` below 1 means that L was too small and has been doubled.

    Example:
        >>> model = GDNPRegressor().fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
        >>> round(float(model.coef_[0]), 6), round(model.intercept_, 6)
        (2.0, 1.0)
    """

    coef_: Array

    def __init__(
        self,
        *,
        alpha: float = 0.0,
        fit_intercept: bool = True,
        tol: float = 1e-8,
        max_iter: int = 10_000,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """X (n, d), y (n,), sample_weight (n,) or None."""
        seed = check_settings(self)
        x, y = validate_data(self, X, y, dtype=[np.float64, np.float32], y_numeric=True)
        design = Design(x, check_weights(sample_weight, x), center=self.fit_intercept)
        y = y.astype(np.float64)
        check_range("size of y", float(np.abs(y).max()), y.dtype)
        y_mean = float(design.weights @ y) if self.fit_intercept else 0.0
        problem = LeastSquares(design, y - y_mean, alpha=self.alpha, seed=seed)
        warm = self.warm_start and hasattr(self, "coef_") and self.coef_.shape == x.shape[1:]
        start = self.coef_ if warm else None
        if problem.at_rest:
            solution = rest(problem)
        else:
            # Products with float32 data carry its rounding: no smaller gradient can be seen.
            tol = max(self.tol, 10.0 * problem.rounding)
            solution = gdnp(problem, usable_start(problem, start), max_iter=self.max_iter, tol=tol, safeguard=False)
        coef, shift = design.coefficients(solution.coef)
        self.coef_, self.intercept_ = coef, y_mean + shift
        self.n_iter_ = solution.n_iter
        self.mu_ = problem.spectrum.smallest
        # A halved step is a doubled L.
        self.lipschitz_ = problem.spectrum.largest / float(solution.history["step"][-1])
        self.history_ = solution.history | {"direction": solution.direction}
        warn_if_unfinished([(solution.reason, solution.history["gradient_norm"])], self)
        return self

    def predict(self, X: Any) -> Array:
        """x^T coef_ + intercept_, shape (n,)."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return x @ self.coef_ + self.intercept_
