r"""Least squares, E (y - x^T w~)^2 + alpha ||w~||^2, as a problem for the iteration.

    u = E[-y x],   S = E[x x^T] + alpha I
    f(w, gamma) = 2 gamma u^T w/||w||_S + gamma^2 (+ E y^2),      gamma* = -u^T w/||w||_S
    rho(w) = f(w, gamma*) - E y^2 = -(u^T w)^2 / (w^T S w),       rho* = -u^T S^-1 u at w parallel to S^-1 u
    rho(w_t) - rho* <= (1 - mu/L)^(2t) (rho(w_0) - rho*)

Differs from the source: it prints "+ gamma^2" inside the denominator, whose value is not the loss. S singular (mu = 0):
no rate is promised; the iteration still converges, to the shortest solution, because it never leaves the range of S.
Source: seed 003, least-square problem.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from normscope.solve.design import Design
from normscope.solve.problem import Pull, scale_to_one
from normscope.solve.spectrum import SMALL, exact_spectrum, lanczos_spectrum

Array = NDArray[np.floating]


class LeastSquares:
    """The problem on data. For d <= SMALL, S is a matrix and an iteration costs d^2; above, one pass over X."""

    def __init__(self, design: Design, y: Array, *, alpha: float = 0.0, seed: int = 0) -> None:
        self.u = -design.backward(y)[0]
        self.energy = float(design.weights @ (y * y))
        if design.size <= SMALL:
            s = design.gram() + alpha * np.eye(design.size)
            self.product: Callable[[Array], Array] = lambda v: s @ v
            self.spectrum = exact_spectrum(s)
        else:
            self.product = lambda v: design.product(v) + alpha * v
            self.spectrum = lanczos_spectrum(self.product, design.size, np.random.default_rng(seed))
        self.gradient_at_zero = 2.0 * float(np.linalg.norm(self.u))
        self.smoothness = 2.0 * self.spectrum.largest
        self.best_rho = -self.spectrum.inverse_square(self.u)

    def ray(self, w: Array) -> "QuadraticRay":
        return QuadraticRay(self, w)

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

    def value(self, gamma: float) -> float:
        return self.problem.energy + gamma * (2.0 * self.correlation + gamma)

    def slope(self, gamma: float) -> float:
        return 2.0 * (self.correlation + gamma)

    def first_length(self) -> float:
        return -self.correlation

    def next_length(self, start: float, width: float, small: float) -> float:
        return -self.correlation

    def pull(self, gamma: float) -> Pull:
        gradient = 2.0 * (self.problem.u + gamma * self.s_w)
        largest = self.problem.spectrum.largest
        return Pull(gradient, self.s_w, 2.0, 2.0 * largest * self.correlation, -2.0 * largest * gamma)

    def line(self, direction: Array) -> Callable[[float], "QuadraticRay"]:
        return lambda length: QuadraticRay(self.problem, self.w + length * direction)
