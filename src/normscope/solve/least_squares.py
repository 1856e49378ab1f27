r"""Least squares, E (y - x^T w~)^2 + alpha ||w~||^2, as a problem for the iteration.

    u = E[-y x],   S = E[x x^T] + alpha I
    f(w, gamma) = 2 gamma u^T w/||w||_S + gamma^2 (+ E y^2),      gamma* = -u^T w/||w||_S
    rho(w) = f(w, gamma*) - E y^2 = -(u^T w)^2 / (w^T S w),       rho* = -u^T S^-1 u at w parallel to S^-1 u
    rho(w_t) - rho* <= (1 - mu/L)^(2t) (rho(w_0) - rho*)

Differs from the source: it prints "+ gamma^2" inside the denominator, whose value is not the loss. S singular (mu = 0):
no rate is promised; the iteration still converges, to the shortest solution, because it never leaves the range of S.
Source: the encyclopedia article, least-square problem.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.solve.design import Design
from normscope.solve.problem import Pull, of_size_one, scale_to_one
from normscope.solve.second_moment import second_moment

Array = NDArray[np.floating]


class LeastSquares:
    """The problem on data. For d <= 128, S is a matrix and an iteration costs d^2; above, one pass over X."""

    gaussian = convex = True
    reach = np.inf

    def __init__(self, design: Design, y: Array, *, alpha: float = 0.0, seed: int = 0) -> None:
        self.rounding = float(np.finfo(design.x.dtype).eps)
        self.u = -design.backward(y)[0]
        self.energy = float(design.weights @ (y * y))
        self.product, self.spectrum = second_moment(design, ridge=alpha, seed=seed)
        self.gradient_at_zero = 2.0 * float(np.linalg.norm(self.u))
        self.at_rest = design.is_rounding(self.gradient_at_zero, 2.0 * np.sqrt(self.energy), self.spectrum.largest)
        self.smoothness = 2.0 * self.spectrum.largest
        self.best_rho = -self.spectrum.inverse_square(self.u)

    def ray(self, w: Array) -> "QuadraticRay":
        return QuadraticRay(self, of_size_one(w))

    def value_and_gradient(self, coef: Array) -> tuple[float, Array]:
        s_coef = self.product(coef)
        return self.energy + float(coef @ (2.0 * self.u + s_coef)), 2.0 * (self.u + s_coef)

    def rate_history(self, history: dict[str, Array]) -> dict[str, Array]:
        """gap = rho - rho*, its bound and slack = bound - gap; nan where S was not formed."""
        gap = history["rho"] - self.best_rho
        bound = self.spectrum.rate ** (2.0 * np.arange(len(gap))) * gap[0]
        return {"gap": gap, "bound": bound, "slack": bound - gap}


class QuadraticRay:
    """A direction of a least-squares problem with its S w: one product with S, everything else is closed form."""

    def __init__(self, problem: LeastSquares, w: Array) -> None:
        s_w = problem.product(w)
        scale = scale_to_one(w, float(w @ s_w))
        self.problem, self.w, self.s_w = problem, w * scale, s_w * scale
        self.correlation = float(problem.u @ self.w)

    def at(self, gamma: float) -> "QuadraticPoint":
        return QuadraticPoint(self, gamma)

    def line(self, direction: Array) -> Callable[[float], "QuadraticRay"]:
        return lambda length: QuadraticRay(self.problem, self.w + length * direction)


@dataclass(frozen=True)
class QuadraticPoint:
    """A length on a ray of the parabola E y^2 + 2 gamma u^T w + gamma^2; Newton's first move is its minimum."""

    ray: QuadraticRay
    gamma: float

    bend = 2.0

    @property
    def value(self) -> float:
        return self.ray.problem.energy + self.gamma * (2.0 * self.ray.correlation + self.gamma)

    @property
    def slope(self) -> float:
        return 2.0 * (self.ray.correlation + self.gamma)

    def pull(self) -> Pull:
        gradient = 2.0 * (self.ray.problem.u + self.gamma * self.ray.s_w)
        largest = self.ray.problem.spectrum.largest
        return Pull(gradient, self.ray.s_w, 2.0, 2.0 * largest * self.ray.correlation, -2.0 * largest * self.gamma)
