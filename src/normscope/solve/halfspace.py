r"""Halfspaces on data: E phi(z^T w~) + (alpha/2)||w~||^2, z = -y x, as a problem for the iteration.

    u = E z,   S = E z z^T (the second moment),   p = Z w with E p^2 = ||w||_S^2 = 1
    gradient = Z^T omega phi'(gamma p) + alpha gamma D w,      D = I without the intercept's place
    c1       = E phi'(gamma p) - E phi''(gamma p) gamma u^T w

p is kept beside w: `pull` sends phi'(gamma p) and p through Z^T together (that is the gradient and S w in one reading),
`line` sends the direction through Z once, and every length, value and halved step after that costs O(n).
Differs from the source: it has no ridge; separable data have no finite minimiser without one.
Source: seed 003, learning halfspaces.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from normscope.solve.design import Design
from normscope.solve.length import lowest_length, next_length
from normscope.solve.losses import Loss, Unit
from normscope.solve.problem import Pull, scale_to_one
from normscope.solve.rates import gradient_history
from normscope.solve.spectrum import SMALL, Spectrum, exact_spectrum, lanczos_spectrum

Array = NDArray[np.floating]

# Rows whose temporaries stay in the cache: at a million rows twice as fast as all at once.
_BLOCK = 16_384


def design_spectrum(design: Design, seed: int = 0) -> Spectrum:
    """Exact for d <= SMALL, else L by Lanczos."""
    if design.size <= SMALL:
        return exact_spectrum(design.gram())
    return lanczos_spectrum(design.product, design.size, np.random.default_rng(seed))


class Halfspace:
    """The problem on data; `spectrum` is given where several problems share one S."""

    def __init__(
        self, design: Design, loss: Loss, *, alpha: float = 0.0, seed: int = 0, spectrum: Spectrum | None = None
    ) -> None:
        self.design, self.loss, self.alpha = design, loss, alpha
        n, d = design.x.shape
        self.penalized = np.ones(design.size)
        self.penalized[d:] = 0.0
        self.spectrum = design_spectrum(design, seed) if spectrum is None else spectrum
        first = np.broadcast_to(loss.first(np.zeros(n)), (n,))
        self.u, at_zero = design.backward(np.ones(n), first)
        self.gradient_at_zero = float(np.linalg.norm(at_zero))
        self.smoothness = loss.curvature * self.spectrum.largest + alpha

    def ray(self, w: Array) -> "DataRay":
        return DataRay(self, w, self.design.forward(w))

    def value_and_gradient(self, coef: Array) -> tuple[float, Array]:
        p = self.design.forward(coef)
        shrunk = self.penalized * coef
        value = float(self.design.weights @ self.loss.value(p)) + 0.5 * self.alpha * float(shrunk @ coef)
        return value, self.design.backward(self.loss.first(p))[0] + self.alpha * shrunk

    def c1(self, margin: Array, slope: Array, bend: Array, correlation: float) -> float:
        """The coefficient of u under the Gaussian model; `correlation` is u^T w~."""
        weights = self.design.weights
        return float(weights @ slope - (weights @ bend) * correlation)

    def rate_history(self, history: dict[str, Array]) -> dict[str, Array]:
        """gap above the best iterate; the Gaussian bound on the squared S^-1 norm of the gradient, and its slack.

        Data are not Gaussian: a negative slack says how far the theorem is from them.
        """
        gap = history["objective"] - history["objective"].min()
        return {"gap": gap} | gradient_history(history, self.spectrum, -self.spectrum.inverse_square(self.u))


class UnitHalfspace(Halfspace):
    r"""One hidden unit with the others held: the loss is a `Unit`, and the others lend their share to c1.

        grad_i = a_i u + sum_j b_ij (S - u u^T) w_j,      a_i = E phi', b_ij = E d^2 l / dm_i dm_j
        c1     = a_i - b_ii u^T w_i + sum_{j != i} b_ij (k_j - u^T w_j),      S w_j = k_j u

    exact where the others lie on the line of S^-1 u. `others`, one entry a row, is the sum over j != i of
    theta_j tanh'(m_j)(k_j - u^T w_j).
    """

    def __init__(self, design: Design, unit: Unit, others: Array, *, alpha: float, spectrum: Spectrum) -> None:
        super().__init__(design, unit, alpha=alpha, spectrum=spectrum)
        self.unit, self.others = unit, others

    def c1(self, margin: Array, slope: Array, bend: Array, correlation: float) -> float:
        t = np.tanh(margin)
        _, outer = self.unit.loss.derivatives(self.unit.offset + self.unit.theta * t)
        cross = float(self.design.weights @ (outer * self.unit.theta * (1.0 - t * t) * self.others))
        return super().c1(margin, slope, bend, correlation) + cross


class DataRay:
    """A direction and its margins p, both scaled so that E p^2 = 1."""

    def __init__(self, problem: Halfspace, w: Array, p: Array) -> None:
        scale = scale_to_one(w, float(problem.design.weights @ (p * p)))
        self.problem, self.w, self.p = problem, w * scale, p * scale
        self.correlation = float(problem.design.weights @ self.p)
        self._square = float(problem.penalized @ self.w**2)

    def value(self, gamma: float) -> float:
        data = self._average(lambda loss, p: loss.value(gamma * p))
        return data + 0.5 * self.problem.alpha * gamma**2 * self._square

    def slope(self, gamma: float) -> float:
        """d f(w, gamma) / d gamma = w^T grad F(w~)."""
        data = self._average(lambda loss, p: loss.first(gamma * p) * p)
        return data + self.problem.alpha * gamma * self._square

    def _average(self, of: Callable[[Loss, Array], Array]) -> float:
        """E of(loss, p), block by block."""
        weights, loss, total = self.problem.design.weights, self.problem.loss, 0.0
        for start in range(0, len(self.p), _BLOCK):
            rows = slice(start, start + _BLOCK)
            total += float(weights[rows] @ of(loss.rows(rows), self.p[rows]))
        return total

    def first_length(self) -> float | None:
        return lowest_length(self.slope, self.value, convex=self.problem.loss.convex)

    def next_length(self, start: float, width: float, small: float) -> float | None:
        return next_length(self.slope, start, width, small=small)

    def pull(self, gamma: float) -> Pull:
        problem, alpha = self.problem, self.problem.alpha
        margin = gamma * self.p
        slope, bend = problem.loss.derivatives(margin)
        gradient, s_w = problem.design.backward(slope, self.p)
        gradient += alpha * gamma * problem.penalized * self.w
        c1 = problem.c1(margin, slope, bend, gamma * self.correlation)
        largest = problem.spectrum.largest
        denominator = largest * (c1 * self.correlation + alpha * gamma * self._square) - alpha * gamma
        along = float(problem.design.weights @ (bend * self.p**2))
        along = along if along > 0.0 else problem.loss.curvature
        return Pull(gradient, s_w, c1, denominator, -gamma * (largest * along + alpha))

    def line(self, direction: Array) -> Callable[[float], "DataRay"]:
        q = self.problem.design.forward(direction)
        return lambda length: DataRay(self.problem, self.w + length * direction, self.p + length * q)
