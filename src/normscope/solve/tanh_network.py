r"""One hidden tanh layer, F(x) = sum_i theta_i tanh(x^T w_i), trained by GDNP, one unit after another.

    f(W) = E l(-y F(x)) + (alpha/2) sum_i ||w_i||^2 = E l(sum_i theta_i tanh(z^T w_i)) + ...,   z = -y x, tanh is odd

For unit i the others are a fixed offset, so that f is a halfspace problem with phi(m) = l(o + theta_i tanh m). Under
the Gaussian model, with the other units on the line of S^-1 u, unit i converges as (1 - mu/L)^(2t). theta stays fixed
(the theorem's setting); its sign is no restriction, since tanh is odd.

Differs from the source: critical points do NOT all align with S^-1 u. That holds where the matrix (b_ij),
b_ij = E d^2 l/dm_i dm_j, is invertible, or for one unit while the others are on the line; joint minima with a singular
b lie off the line and below the best aligned point. Source: the encyclopedia article, neural networks.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.solve.design import Design
from normscope.solve.halfspace import DataRay, UnitHalfspace
from normscope.solve.iteration import Solution, gdnp
from normscope.solve.margin_losses import HiddenUnitLoss, Loss
from normscope.solve.second_moment import SecondMomentSpectrum

Array = NDArray[np.floating]


class TanhNetwork:
    """The problem over all units; keeps the margins Z W^T, so that a visit to a unit starts without touching Z."""

    def __init__(
        self, design: Design, loss: Loss, theta: Array, weights: Array, *, alpha: float, spectrum: SecondMomentSpectrum
    ) -> None:
        self.design, self.loss, self.theta, self.alpha, self.spectrum = design, loss, theta, alpha, spectrum
        self.weights = np.array(weights, dtype=np.float64)
        self.margins = np.stack([design.forward(w) for w in self.weights])

    def value(self) -> float:
        each, _, _ = self.loss.evaluate(self.theta @ np.tanh(self.margins))
        return float(self.design.weights @ each) + 0.5 * self.alpha * float(
            np.sum(self.design.penalized * self.weights**2)
        )

    def gradient(self) -> Array:
        """The gradient of f in every unit's weights, shape (units, size): one product with Z^T."""
        t = np.tanh(self.margins)
        _, outer, _ = self.loss.evaluate(self.theta @ t)
        columns = outer * self.theta[:, None] * (1.0 - t * t)
        return self.design.backward(*columns) + self.alpha * self.design.penalized * self.weights

    def unit_problem(self, i: int) -> UnitHalfspace:
        """Unit i with the others held."""
        t = np.tanh(self.margins)
        t[i] = 0.0
        correlation = self.margins @ self.design.weights
        square = self.margins**2 @ self.design.weights
        # S w_j = k_j u on the line, where k_j = w_j^T S w_j / u^T w_j; a unit with u^T w_j = 0 is not on it.
        on_line = np.divide(square, correlation, out=correlation.copy(), where=correlation != 0.0)
        shares = self.theta * (on_line - correlation)
        shares[i] = 0.0
        unit = HiddenUnitLoss(self.loss, self.theta @ t, float(self.theta[i]))
        return UnitHalfspace(self.design, unit, shares @ (1.0 - t * t), alpha=self.alpha, spectrum=self.spectrum)

    def visit(
        self, i: int, *, steps: int, search: bool, safeguard: bool = True, tol: float = 0.0, debug: bool = False
    ) -> Solution | None:
        """`steps` of GDNP on unit i; `search` searches the whole ray for its length. None where it cannot move."""
        problem, w = self.unit_problem(i), self.weights[i]
        if not np.any(self.margins[i]) or DataRay(problem, w, self.margins[i].copy()).at(0.0).slope == 0.0:
            return None
        length = None if search else float(np.sqrt(self.design.weights @ self.margins[i] ** 2))
        solution = gdnp(problem, w, length=length, max_iter=steps, tol=tol, safeguard=safeguard, debug=debug)
        if solution.reason == "no finite length":
            return None
        self.weights[i] = solution.coef
        self.margins[i] = self.design.forward(solution.coef)
        return solution


@dataclass(frozen=True)
class TrainedTanhNetwork:
    """weights (units, size); history, one entry for each sweep, the start included:

    objective, gap (above the best sweep), gradient_norm and gradient_norm_S (in the S^-1 norm) of the whole network;
    gamma, bound and slack (sweeps + 1, units). Bound and slack belong to the unit's own last visit and bound the
    squared S^-1 norm of its gradient; they are nan before the first visit and where the unit could not move.
    """

    weights: Array
    history: dict[str, Array]
    reason: str


def alternate(network: TanhNetwork, *, sweeps: int, steps: int, tol: float, debug: bool = False) -> TrainedTanhNetwork:
    """Visit every unit in turn, `steps` direction steps each, until ||grad f|| <= tol ||grad f at the start||.

    debug: check the identities of `rates.identities` on every iterate of every unit.
    """
    rows: list[tuple[Any, ...]] = []
    reason = "max_iter"
    promised = np.full((2, len(network.theta)), np.nan)
    for sweep in range(sweeps + 1):
        gradient = network.gradient()
        norm = float(np.linalg.norm(gradient))
        inverse = float(np.sqrt(sum(network.spectrum.inverse_square(row) for row in gradient)))
        lengths = np.sqrt(network.margins**2 @ network.design.weights)
        rows.append((network.value(), norm, inverse, lengths, *promised.copy()))
        if norm <= tol * rows[0][1]:
            reason = "tol"
        if sweep == sweeps or reason == "tol":
            break
        for i in range(len(network.theta)):
            solution = network.visit(i, steps=steps, search=sweep == 0, debug=debug)
            bound_and_slack = (
                np.nan if solution is None else (solution.history["bound"][-1], solution.history["slack"][-1])
            )
            promised[:, i] = bound_and_slack
    names = ("objective", "gradient_norm", "gradient_norm_S", "gamma", "bound", "slack")
    history = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    history["gap"] = history["objective"] - history["objective"].min()
    return TrainedTanhNetwork(network.weights, history, reason)
