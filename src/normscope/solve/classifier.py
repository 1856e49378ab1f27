"""Halfspaces by GDNP as a scikit-learn classifier."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from normscope.solve.design import Design
from normscope.solve.fitting import check_settings, check_weights, rest, usable_start, warn_if_unfinished
from normscope.solve.gdnp import Solution, gdnp
from normscope.solve.halfspace import Halfspace, design_spectrum
from normscope.solve.losses import named_loss

Array = NDArray[np.floating]


class GDNPClassifier(ClassifierMixin, BaseEstimator):
    r"""A linear classifier, solved by gradient descent in normalized parametrization; one against the rest.

        minimise  sum_i omega_i phi(-y_i (x_i^T w + b)) / sum_i omega_i + (alpha/2) ||w||^2,     y_i = -1 or 1

    With loss="softplus" the minimiser of `LogisticRegression(C=1/(alpha * n))`, one class against the rest. The closed-form step
    size stands on Gaussian data; on others it is halved until the loss falls. Where u = E[-y x] = 0, coef_ is zero.

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
    (above the best iterate), bound and slack (of the Gaussian theorem on the squared S^-1 norm of the gradient; negative
    slack: the data are not Gaussian), gradient_norm, gradient_norm_S, gamma, rho, c1, slope, step, and the last direction
    and offset: coef_[k] = gamma[-1] * direction, intercept_[k] = gamma[-1] * offset.

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
        x, y = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y)
        weights = check_weights(sample_weight, x)
        previous = self._previous() if self.warm_start else {}
        self.classes_ = _classes(y, weights)
        positives = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        whole = Design(x, weights, center=self.fit_intercept, constant=self.fit_intercept)
        spectrum = design_spectrum(whole, seed)
        rows, intercepts, self.history_, unfinished = [], [], [], []
        for k, label in enumerate(positives):
            design = whole.signed(np.where(y == label, -1.0, 1.0))
            problem = Halfspace(design, loss, alpha=self.alpha, spectrum=spectrum)
            old = previous.get((tuple(self.classes_), k))
            solution = self._solve(problem, None if old is None else design.direction(*old))
            direction, offset = design.coefficients(solution.direction)
            rows.append(solution.gamma * direction)
            intercepts.append(solution.gamma * offset)
            self.history_.append(solution.history | {"direction": direction, "offset": offset})
            unfinished += [] if solution.converged else [solution]
        self.coef_, self.intercept_ = np.array(rows), np.array(intercepts)
        self.n_iter_ = max(len(history["objective"]) - 1 for history in self.history_)
        if unfinished:
            warn_if_unfinished(unfinished[0], self)
        return self

    def decision_function(self, X: Any) -> Array:
        """x^T coef_ + intercept_: (n,) for two classes, positive for the second; else (n, classes)."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        scores = x @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> Any:
        """The class of the largest decision value."""
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[chosen]

    def _solve(self, problem: Halfspace, start: Array | None) -> Solution:
        if problem.gradient_at_zero == 0.0:
            return rest(problem)
        return gdnp(problem, usable_start(problem, start), max_iter=self.max_iter, tol=self.tol)

    def _previous(self) -> dict[Any, tuple[Array, float]]:
        if not hasattr(self, "coef_"):
            return {}
        old = zip(self.coef_, self.intercept_, strict=True)
        return {(tuple(self.classes_), k): pair for k, pair in enumerate(old)}


def _classes(y: Any, weights: Array) -> Any:
    """The classes that carry weight; two or more, or scikit-learn's error."""
    classes = np.unique(y)
    if len(np.unique(y[weights > 0])) < 2:
        raise ValueError(
            "This solver needs samples of at least 2 classes in the data, but the data contains only one class: "
            f"{y[weights > 0][0]!r}"
        )
    return classes
