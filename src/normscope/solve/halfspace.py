r"""Halfspaces on data: E phi(z^T w~) + (alpha/2)||w~||^2, z = -y x, as a problem for the iteration.

    u = E z,   S = E z z^T (the second moment),   p = Z w with E p^2 = ||w||_S^2 = 1
    gradient = Z^T omega phi'(gamma p) + alpha gamma D w,      D = I without the intercept's place
    c1       = E phi'(gamma p) - E phi''(gamma p) gamma u^T w

p is kept beside w: `pull` sends phi'(gamma p) and p through Z^T together (the gradient and S w in one pass over X),
`line` sends the direction through Z once, and every length, value and halved step after that costs O(n): one
exponential an entry for value, slope, bend and the gradient's phi' together.
Differs from the source: it has no ridge; separable data have no finite minimiser without one.
Source: the encyclopedia article, learning halfspaces.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.solve.design import Design
from normscope.solve.length import FARTHEST
from normscope.solve.margin_losses import HiddenUnitLoss, Loss
from normscope.solve.problem import Pull, of_size_one, scale_to_one
from normscope.solve.rates import gradient_history
from normscope.solve.second_moment import SecondMomentSpectrum, second_moment

Array = NDArray[np.floating]

# Rows whose temporaries stay in the cache: at a million rows twice as fast as all at once.
_BLOCK = 8_192


@dataclass(frozen=True)
class Means:
    """The phi' at margins gamma p, and E phi, E phi', E phi' p, E phi'', E phi'' p^2."""

    each_first: Array
    value: float
    first: float
    first_p: float
    second: float
    second_pp: float


class Halfspace:
    """The problem on data; `spectrum` is given where several problems share one S."""

    gaussian = False
    reach = FARTHEST

    def __init__(
        self,
        design: Design,
        loss: Loss,
        *,
        alpha: float = 0.0,
        seed: int = 0,
        spectrum: SecondMomentSpectrum | None = None,
    ) -> None:
        self.design, self.loss, self.alpha = design, loss, alpha
        self.convex, self.rounding = loss.convex, float(np.finfo(design.x.dtype).eps)
        self.spectrum = second_moment(design, seed=seed)[1] if spectrum is None else spectrum
        n = len(design.x)
        _, first, _ = loss.evaluate(np.zeros(n))
        self.u, at_zero = design.backward(np.ones(n), first)
        self.gradient_at_zero = float(np.linalg.norm(at_zero))
        self.at_rest = design.is_rounding(self.gradient_at_zero, float(np.abs(first).max()), self.spectrum.largest)
        self.smoothness = loss.curvature * self.spectrum.largest + alpha

    def ray(self, w: Array) -> "DataRay":
        w = of_size_one(w)
        return DataRay(self, w, self.design.forward(w))

    def means(self, p: Array, gamma: float) -> Means:
        """Block by block, so that what is needed once never leaves the cache."""
        each, totals = np.empty(len(p)), np.zeros(5)
        for start in range(0, len(p), _BLOCK):
            rows = slice(start, start + _BLOCK)
            here, omega = p[rows], self.design.weights[rows]
            value, first, second = self.loss.rows(rows).evaluate(gamma * here)
            each[rows] = first
            weighted = omega * here
            totals += (omega @ value, omega @ first, weighted @ first, omega @ second, (weighted * here) @ second)
        return Means(each, *totals.tolist())

    def value_and_gradient(self, coef: Array) -> tuple[float, Array]:
        expected = self.means(self.design.forward(coef), 1.0)
        shrunk = self.alpha * self.design.penalized * coef
        return expected.value + 0.5 * float(shrunk @ coef), self.design.backward(expected.each_first)[0] + shrunk

    def c1(self, ray: "DataRay", gamma: float, means: Means) -> float:
        """The coefficient of u under the Gaussian model."""
        return means.first - means.second * gamma * ray.correlation

    def rate_history(self, history: dict[str, Array]) -> dict[str, Array]:
        """gap above the best iterate; the Gaussian bound on the squared S^-1 norm of the gradient, and its slack.

        Data are not Gaussian: a negative slack says how far the theorem is from them.
        """
        gap = history["objective"] - history["objective"].min()
        return {"gap": gap} | gradient_history(history, self.spectrum, -self.spectrum.inverse_square(self.u))


class UnitHalfspace(Halfspace):
    r"""One hidden unit with the others held: the loss is a `HiddenUnitLoss`, and the others lend their share to c1.

        grad_i = a_i u + sum_j b_ij (S - u u^T) w_j,      a_i = E phi', b_ij = E d^2 l / dm_i dm_j
        c1     = a_i - b_ii u^T w_i + sum_{j != i} b_ij (k_j - u^T w_j),      S w_j = k_j u

    exact where the others lie on the line of S^-1 u. `others`, one entry a row, is the sum over j != i of
    theta_j tanh'(m_j)(k_j - u^T w_j).
    """

    def __init__(
        self, design: Design, unit: HiddenUnitLoss, others: Array, *, alpha: float, spectrum: SecondMomentSpectrum
    ) -> None:
        super().__init__(design, unit, alpha=alpha, spectrum=spectrum)
        self.unit, self.others = unit, others

    def c1(self, ray: "DataRay", gamma: float, means: Means) -> float:
        t = np.tanh(gamma * ray.p)
        _, _, outer = self.unit.loss.evaluate(self.unit.offset + self.unit.theta * t)
        cross = float(self.design.weights @ (outer * self.unit.theta * (1.0 - t * t) * self.others))
        return super().c1(ray, gamma, means) + cross


class DataRay:
    """A direction and its margins p, both scaled so that E p^2 = 1; p, which it keeps, in place."""

    def __init__(self, problem: Halfspace, w: Array, p: Array) -> None:
        scale = scale_to_one(w, problem.design.mean_square(p))
        p *= scale
        self.problem, self.w, self.p = problem, w * scale, p
        self.correlation = float(problem.design.weights @ self.p)
        self.penalty = problem.alpha * float(problem.design.penalized @ self.w**2)

    def at(self, gamma: float) -> "DataPoint":
        means, penalty = self.problem.means(self.p, gamma), self.penalty
        value = means.value + 0.5 * penalty * gamma**2
        slope = means.first_p + penalty * gamma
        return DataPoint(self, gamma, value, slope, means.second_pp + penalty, means)

    def line(self, direction: Array) -> Callable[[float], "DataRay"]:
        q = self.problem.design.forward(direction)

        def stepped(length: float) -> DataRay:
            moved = length * q
            moved += self.p
            return DataRay(self.problem, self.w + length * direction, moved)

        return stepped


@dataclass(frozen=True)
class DataPoint:
    """A length on a ray; keeps phi', so that `pull` is products alone."""

    ray: DataRay
    gamma: float
    value: float
    slope: float
    bend: float
    means: Means

    def pull(self) -> Pull:
        ray, gamma, problem = self.ray, self.gamma, self.ray.problem
        gradient, s_w = problem.design.backward(self.means.each_first, ray.p)
        gradient += problem.alpha * gamma * problem.design.penalized * ray.w
        c1 = problem.c1(ray, gamma, self.means)
        largest = problem.spectrum.largest
        denominator = largest * (c1 * ray.correlation + ray.penalty * gamma) - problem.alpha * gamma
        along = self.means.second_pp if self.means.second_pp > 0.0 else problem.loss.curvature
        return Pull(gradient, s_w, c1, denominator, -gamma * (largest * along + problem.alpha))
