"""Halfspaces by GDNP as a scikit-learn classifier."""

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from normscope.solve.against_rest import AgainstRest
from normscope.solve.fitting import check_settings, rest, usable_start, warn_if_unfinished
from normscope.solve.halfspace import Halfspace, design_spectrum
from normscope.solve.iteration import Solution, gdnp
from normscope.solve.losses import named_loss

Array = NDArray[np.floating]


class GDNPClassifier(AgainstRest):
    r"""A linear classifier, solved by gradient descent in normalized parametrization; one against the rest.

        minimise  sum_i omega_i phi(-y_i (x_i^T w + b)) / sum_i omega_i + (alpha/2) ||w||^2,     y_i = -1 or 1

    With loss="softplus" the minimiser of `LogisticRegression(C=1/(alpha * n))`, one class against the rest. The
    closed-form step size stands on Gaussian data; on others it is halved until the loss falls. Where u = E[-y x] = 0,
    coef_ is zero.

    Args:
        loss: "softplus" (logistic) or "sigmoid" (bounded, not convex: outliers count little).
        alpha: L2 penalty, not on the intercept. Separable data have no finite minimiser without one.
        fit_intercept: centre x and carry an intercept as one more weight.
        tol: ends when ||grad|| <= tol ||grad at zero||.
        max_iter: direction steps per class; each costs one product with X and one with X^T.
        warm_start: start from the directions of the last fit, if it had the same classes.
        random_state: of the Lanczos iteration that finds L where d >= 128.

    Attributes: classes_, coef_ (1 or classes, d), intercept_, n_iter_ (of the slowest class), n_features_in_, history_.
    `history_` holds one dict per row of coef_, arrays with one entry an iterate, the start included: objective, gap
    (above the best iterate), bound and slack (of the Gaussian theorem on the squared S^-1 norm of the gradient;
    negative slack: the data are not Gaussian), gradient_norm, gradient_norm_S, gamma, rho, c1, slope, step, and the
    last direction and offset: coef_[k] = gamma[-1] * direction, intercept_[k] = gamma[-1] * offset.

    Example:
        >>> model = GDNPClassifier().fit([[0.0], [1.0], [3.0], [4.0]], ["a", "a", "b", "b"])
        >>> model.predict([[0.5], [3.5]]).tolist()
        ['a', 'b']
    """

    def __init__(
        self,
        *,
        loss: str = "softplus",
        alpha: float = 1e-4,
        fit_intercept: bool = True,
        tol: float = 1e-4,
        max_iter: int = 1000,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """X (n, d), y (n,) of two or more classes, sample_weight (n,) or None."""
        seed, loss = check_settings(self), named_loss(self.loss)
        old = self._last_fit()
        whole, labels = self._read(X, y, sample_weight)
        usable = self.warm_start and old and np.array_equal(old[0], self.classes_)
        spectrum = design_spectrum(whole, seed)
        rows, intercepts, unfinished = [], [], []
        self.history_: list[dict[str, Any]] = []
        for k, design in enumerate(self._signed(whole, labels)):
            problem = Halfspace(design, loss, alpha=self.alpha, spectrum=spectrum)
            solution = self._solve(problem, design.direction(old[1][k], old[2][k]) if usable else None)
            direction, offset = design.coefficients(solution.direction)
            rows.append(solution.gamma * direction)
            intercepts.append(solution.gamma * offset)
            self.history_.append(solution.history | {"direction": direction, "offset": offset})
            unfinished += [] if solution.converged else [solution]
        self.coef_, self.intercept_ = np.array(rows), np.array(intercepts)
        self.n_iter_ = max(len(history["objective"]) - 1 for history in self.history_)
        if unfinished:
            warn_if_unfinished(unfinished[0].reason, unfinished[0].history["gradient_norm"], self)
        return self

    def _solve(self, problem: Halfspace, start: Array | None) -> Solution:
        if problem.gradient_at_zero == 0.0:
            return rest(problem)
        solution = gdnp(problem, usable_start(problem, start), max_iter=self.max_iter, tol=self.tol)
        if self.alpha == 0.0 and problem.design.forward(solution.coef).max() < 0.0:
            return replace(solution, reason="no finite length")
        return solution

    def _scores(self, x: Array) -> Array:
        return x @ self.coef_.T + self.intercept_
