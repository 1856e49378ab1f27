"""A network with one hidden tanh layer, trained by GDNP unit by unit, as a scikit-learn classifier."""

from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from normscope.solve.against_rest import AgainstRest
from normscope.solve.fitting import check_settings, warn_if_unfinished
from normscope.solve.halfspace import design_spectrum
from normscope.solve.losses import named_loss
from normscope.solve.network import Network, alternate

Array = NDArray[np.floating]

# Direction steps a visit: 3 and 10 reach the same losses on moons, digits and breast cancer, 3 in half the time.
_STEPS = 3


class GDNPMLPClassifier(AgainstRest):
    r"""F(x) = theta sum_i tanh(x^T w_i + b_i), trained unit by unit; one class against the rest.

        minimise  E l(-y F(x)) + (alpha/2) sum_i ||w_i||^2,      y = -1 or 1

    theta is fixed, as in the theorem; its sign is no restriction, tanh being odd. Not convex: the result depends on the
    random start, and never has a larger loss than it.

    Args:
        n_hidden: units per class.
        theta: output weight of every unit; |F| <= n_hidden * theta.
        loss: "softplus" or "sigmoid".
        alpha: L2 penalty on the input weights, not on the b_i.
        fit_intercept: centre x and give each unit a b_i.
        tol: ends when ||grad|| <= tol ||grad at the start||.
        max_iter: sweeps over all units; a visit is 3 direction steps.
        warm_start: start from the weights of the last fit, if classes and n_hidden are the same.
        random_state: of the initial directions, and of the Lanczos iteration where d >= 128.

    Attributes: classes_, coef_ (rows, n_hidden, d), intercept_ (rows, n_hidden), n_iter_ (sweeps of the slowest
    class), n_features_in_, history_: one dict per row, one entry a sweep, the start included: objective, gap (above the
    best sweep), gradient_norm, gradient_norm_S (in the S^-1 norm, nan where d >= 128), gamma (sweeps + 1, n_hidden; the
    S-norms of the w_i), bound and slack of each unit's last visit, and the last direction and offset:
    coef_[k] = gamma[-1][:, None] * direction, intercept_[k] = gamma[-1] * offset.

    Example:
        >>> x = [[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]
        >>> GDNPMLPClassifier(tol=0.05, random_state=0).fit(x, [0, 0, 1, 1]).predict(x).tolist()
        [0, 0, 1, 1]
    """

    def __init__(
        self,
        *,
        n_hidden: int = 10,
        theta: float = 1.0,
        loss: str = "softplus",
        alpha: float = 1e-4,
        fit_intercept: bool = True,
        tol: float = 1e-3,
        max_iter: int = 50,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_hidden = n_hidden
        self.theta = theta
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
        number = isinstance(self.theta, Real) and np.isfinite(self.theta) and self.theta != 0
        if not isinstance(self.n_hidden, Integral) or self.n_hidden < 1 or not number:
            raise ValueError(
                "n_hidden must be an integer, at least 1, and theta a finite number other than zero; "
                f"got n_hidden={self.n_hidden!r}, theta={self.theta!r}."
            )
        rng = np.random.default_rng(seed)
        old = self._last_fit()
        whole, labels = self._read(X, y, sample_weight)
        usable = self.warm_start and old and np.array_equal(old[0], self.classes_) and old[1].shape[1] == self.n_hidden
        spectrum = design_spectrum(whole, seed)
        theta = np.full(self.n_hidden, float(self.theta))
        rows, intercepts, unfinished = [], [], []
        self.history_: list[dict[str, Any]] = []
        for k, design in enumerate(self._signed(whole, labels)):
            start = rng.standard_normal((self.n_hidden, design.size))
            if usable:
                for i in range(self.n_hidden):
                    start[i] = design.direction(old[1][k, i], old[2][k, i])
            network = Network(design, loss, theta, start, alpha=self.alpha, spectrum=spectrum)
            trained = alternate(network, sweeps=self.max_iter, steps=_STEPS, tol=self.tol)
            units = [design.coefficients(w) for w in trained.weights]
            rows.append(np.stack([coef for coef, _ in units]))
            intercepts.append(np.array([intercept for _, intercept in units]))
            lengths = trained.history["gamma"][-1]
            lengths = np.where(lengths > 0.0, lengths, 1.0)
            last = {"direction": rows[-1] / lengths[:, None], "offset": intercepts[-1] / lengths}
            self.history_.append(trained.history | last)
            unfinished += [] if trained.converged else [trained]
        self.coef_, self.intercept_ = np.array(rows), np.array(intercepts)
        self.n_iter_ = max(len(history["objective"]) - 1 for history in self.history_)
        if unfinished:
            warn_if_unfinished(unfinished[0].reason, unfinished[0].history["gradient_norm"], self)
        return self

    def _scores(self, x: Array) -> Array:
        hidden = np.tanh(np.einsum("nd,kud->nku", x, self.coef_, optimize=True) + self.intercept_)
        return self.theta * hidden.sum(axis=2)
