"""Halfspaces by GDNP as a scikit-learn classifier."""

import numpy as np
from numpy.typing import NDArray

from normscope.solve.against_rest import AgainstRest, ClassFit
from normscope.solve.design import Design
from normscope.solve.estimator_checks import rest, usable_start
from normscope.solve.halfspace import Halfspace
from normscope.solve.iteration import gdnp
from normscope.solve.margin_losses import named_loss
from normscope.solve.second_moment import SecondMomentSpectrum

Array = NDArray[np.floating]


class GDNPClassifier(AgainstRest):
    r"""A linear classifier, solved by gradient descent in normalized parametrization; one against the rest.

        minimise  sum_i omega_i phi(-y_i (x_i^T w + b)) / sum_i omega_i + (alpha/2) ||w||^2,     y_i = -1 or 1

    With loss="softplus" this is the minimiser of `LogisticRegression(C=1/(alpha * n))`, one class against the rest. The
    closed-form step size assumes Gaussian data; on other data it is halved until the loss falls. Where u = E[-y x] = 0,
    coef_ is zero.

    Args:
        loss: "softplus" (logistic) or "sigmoid" (bounded, not convex: outliers count little).
        alpha: L2 penalty, not on the intercept. Separable data have no finite minimiser without one.
        fit_intercept: centre x and carry an intercept as one more weight.
        tol: stop when ||grad|| <= tol ||grad at zero||.
        max_iter: direction steps per class; each costs one product with X and one with X^T.
        warm_start: start from the directions of the last fit, if it had the same classes and as many features; else
            from -u.
        random_state: seed of the Lanczos iteration that finds L where d >= 128.

    Attributes: classes_, coef_ (1 or classes, d), intercept_, n_iter_ (of the slowest class), n_features_in_, history_.
    `history_` holds one dict per row of coef_, with arrays of one entry for each iterate, the start included.
    objective, gap (above the best iterate), gradient_norm, gradient_norm_S, gamma, rho, c1, slope and step are numbers
    of the iterate. bound and slack are those of the Gaussian theorem on the squared S^-1 norm of the gradient; a
    negative slack means that the data are not Gaussian. direction and offset are the last ones: coef_[k] = gamma[-1] *
    direction, intercept_[k] = gamma[-1] * offset. `step` is the share of the closed-form step that was taken; 0 means
    that the ray was searched again and a lower minimum found.

    Example:
        >>> model = GDNPClassifier().fit([[0.0], [1.0], [3.0], [4.0]], ["a", "a", "b", "b"])
        >>> model.predict([[0.5], [3.5]]).tolist()
        ['a', 'b']
    """

    def _units(self) -> tuple[int, ...]:
        return ()

    def _fit_row(
        self, design: Design, spectrum: SecondMomentSpectrum, start: Array | None, rng: np.random.Generator
    ) -> ClassFit:
        problem = Halfspace(design, named_loss(self.loss), alpha=self.alpha, spectrum=spectrum)
        if problem.at_rest:
            solution = rest(problem)
        else:
            solution = gdnp(problem, usable_start(problem, start), max_iter=self.max_iter, tol=self.tol)
        separated = self.alpha == 0.0 and design.forward(solution.coef).max() < 0.0
        direction, offset = design.coefficients(solution.direction)
        return ClassFit(direction, offset, solution.history, "no finite length" if separated else solution.reason)

    def _scores(self, x: Array) -> Array:
        return x @ self.coef_.T + self.intercept_
