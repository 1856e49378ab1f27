"""A network with one hidden tanh layer, trained by GDNP unit by unit, as a scikit-learn classifier."""

from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from normscope.solve.against_rest import AgainstRest, ClassFit
from normscope.solve.design import Design
from normscope.solve.margin_losses import named_loss
from normscope.solve.second_moment import SecondMomentSpectrum
from normscope.solve.tanh_network import TanhNetwork, alternate

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
        tol: stop when ||grad|| <= tol ||grad at the start||.
        max_iter: sweeps over all units; a visit is 3 direction steps.
        warm_start: start from the weights of the last fit, if classes, n_hidden and the number of features are the
            same; else from random directions.
        random_state: seed of the initial directions, and of the Lanczos iteration where d >= 128.

    Attributes: classes_, coef_ (rows, n_hidden, d), intercept_ (rows, n_hidden), n_iter_ (sweeps of the slowest
    class), n_features_in_, history_. `history_` holds one dict per row, with arrays of one entry for each sweep, the
    start included: objective, gap (above the best sweep), gradient_norm, gradient_norm_S (in the S^-1 norm, nan where
    d >= 128). gamma (sweeps + 1, n_hidden) holds the S-norms of the w_i, bound and slack are those of each unit's last
    visit. direction and offset are the last ones: `coef_[k] = gamma[-1][:, None] * direction`, `intercept_[k] =
    gamma[-1] * offset`.

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
        super().__init__(
            loss=loss,
            alpha=alpha,
            fit_intercept=fit_intercept,
            tol=tol,
            max_iter=max_iter,
            warm_start=warm_start,
            random_state=random_state,
        )
        self.n_hidden = n_hidden
        self.theta = theta

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """X (n, d), y (n,) of two or more classes, sample_weight (n,) or None."""
        number = isinstance(self.theta, Real) and np.isfinite(self.theta) and self.theta != 0
        if not isinstance(self.n_hidden, Integral) or self.n_hidden < 1 or not number:
            raise ValueError(
                "n_hidden must be an integer, at least 1, and theta a finite number other than zero; "
                f"got n_hidden={self.n_hidden!r}, theta={self.theta!r}."
            )
        return super().fit(X, y, sample_weight)

    def _units(self) -> tuple[int, ...]:
        return (self.n_hidden,)

    def _fit_row(
        self, design: Design, spectrum: SecondMomentSpectrum, start: Array | None, rng: np.random.Generator
    ) -> ClassFit:
        weights = self._random_units(design, rng) if start is None else start
        theta = np.full(self.n_hidden, float(self.theta))
        network = TanhNetwork(design, named_loss(self.loss), theta, weights, alpha=self.alpha, spectrum=spectrum)
        trained = alternate(network, sweeps=self.max_iter, steps=_STEPS, tol=self.tol)
        lengths = trained.history["gamma"][-1]
        # A unit of length zero has zero weights, whatever they are divided by.
        units = trained.weights / np.where(lengths > 0.0, lengths, 1.0)[:, None]
        direction, offset = (np.array(part) for part in zip(*map(design.coefficients, units), strict=True))
        return ClassFit(direction, offset, trained.history, trained.reason)

    def _random_units(self, design: Design, rng: np.random.Generator) -> Array:
        """Random directions with margins of root mean square 1, whatever the scale of the features."""
        units = rng.standard_normal((self.n_hidden, design.size))
        squares = np.array([design.mean_square(design.forward(unit)) for unit in units])
        return units / np.sqrt(np.where(squares > 0.0, squares, 1.0))[:, None]

    def _scores(self, x: Array) -> Array:
        hidden = np.tanh(np.einsum("nd,kud->nku", x, self.coef_, optimize=True) + self.intercept_)
        return self.theta * hidden.sum(axis=2)
