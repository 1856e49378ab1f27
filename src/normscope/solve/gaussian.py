r"""Halfspaces under the Gaussian model, with exact expectations.

    z ~ N(u, S - u u^T),   S = E z z^T
    z^T w~ ~ N(u^T w~, ||w~||_S^2 - (u^T w~)^2)          one dimension: E phi^(k) by Gauss-Hermite quadrature
    grad f = c1 u + c2 S w~,   c1 = E phi' - E phi'' (u^T w~),   c2 = E phi''
    critical points: w~ = g* S^-1 u,   g* = -c1/c2, where a finite one exists: softplus has one, sigmoid none

(E sigmoid(gamma m) falls for ever as gamma grows, to P(m > 0): its infimum lies at infinity on the same line.)

`printed=True` uses h as the source prints it, E phi' (u^T w) - E phi'' (u^T w)^2, to show that its bound fails.
Source: seed 003, learning halfspaces.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import roots_hermitenorm

from normscope.solve.length import lowest_length, next_length
from normscope.solve.losses import Loss
from normscope.solve.problem import Pull, scale_to_one
from normscope.solve.rates import gradient_history
from normscope.solve.spectrum import exact_spectrum

Array = NDArray[np.floating]

# Lengths beyond this are not looked at: the quadrature's error, about exp(-126/gamma) with 200 nodes, reaches 1e-7.
_REACH = 8.0


@lru_cache
def _nodes(count: int) -> tuple[Array, Array]:
    x, weights = roots_hermitenorm(count)
    return x, weights / weights.sum()


def gaussian_expectation(function: Callable[[Array], Array], mean: float, sd: float, *, nodes: int = 200) -> float:
    r"""E function(mean + sd xi), xi ~ N(0, 1), by Gauss-Hermite quadrature.

    Exact for polynomials of degree below 2 `nodes`; for softplus and sigmoid the error falls as exp(-c sqrt(nodes)/sd).

    Example:
        >>> round(gaussian_expectation(np.square, 1.0, 2.0), 12)
        5.0
    """
    x, weights = _nodes(nodes)
    return float(weights @ function(mean + sd * x))


def gaussian_cloud(u: Array, s: Array, *, nodes: int = 32) -> tuple[Array, Array]:
    """Points and weights of the tensor rule for N(u, S - u u^T): nodes^d rows, for few dimensions.

    A finite sample whose averages are the Gaussian's expectations: what is written for data runs on it.
    """
    x, weights = _nodes(nodes)
    root = np.linalg.cholesky(s - np.outer(u, u))
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[x] * len(u), indexing="ij")], axis=1)
    product = np.prod(np.stack([axis.ravel() for axis in np.meshgrid(*[weights] * len(u), indexing="ij")]), axis=0)
    return u + grid @ root.T, product


class GaussianHalfspace:
    """The model problem. S - u u^T must be a covariance: u^T S^-1 u < 1."""

    def __init__(self, u: Array, s: Array, loss: Loss, *, nodes: int = 200, printed: bool = False) -> None:
        self.u, self.s, self.loss, self.nodes, self.printed = u, s, loss, nodes, printed
        self.spectrum = exact_spectrum(s)
        self.best_rho = -self.spectrum.inverse_square(u)
        if not -self.best_rho < 1.0:
            raise ValueError(
                "S is the second moment E z z^T, so that S - u u^T is a covariance and u^T S^-1 u < 1; "
                f"got u^T S^-1 u = {-self.best_rho:.6g}. Add u u^T to a covariance."
            )
        self.gradient_at_zero = abs(self.expect(loss.first, 0.0, 0.0)) * float(np.linalg.norm(u))
        self.smoothness = loss.curvature * self.spectrum.largest

    def expect(self, function: Callable[[Array], Array], mean: float, square: float) -> float:
        """E function(z^T w~) from u^T w~ and ||w~||_S^2."""
        return gaussian_expectation(function, mean, np.sqrt(max(square - mean**2, 0.0)), nodes=self.nodes)

    def ray(self, w: Array) -> "GaussianRay":
        return GaussianRay(self, w)

    def coefficients(self, mean: float, square: float) -> tuple[float, float, float]:
        """E phi', c1 and c2."""
        slope = self.expect(self.loss.first, mean, square)
        c2 = self.expect(lambda m: self.loss.derivatives(m)[1], mean, square)
        return slope, slope - c2 * mean, c2

    def value_and_gradient(self, coef: Array) -> tuple[float, Array]:
        s_coef = self.s @ coef
        mean, square = float(self.u @ coef), float(coef @ s_coef)
        _, c1, c2 = self.coefficients(mean, square)
        return self.expect(self.loss.value, mean, square), c1 * self.u + c2 * s_coef

    def rate_history(self, history: dict[str, Array]) -> dict[str, Array]:
        """gap = rho - rho*; bound and slack of the squared S^-1 norm of the gradient."""
        gap = history["rho"] - self.best_rho
        return {"gap": gap} | gradient_history(history, self.spectrum, self.best_rho)


class GaussianRay:
    """A direction of the model problem: its u^T w and S w say everything."""

    def __init__(self, problem: GaussianHalfspace, w: Array) -> None:
        s_w = problem.s @ w
        scale = scale_to_one(w, float(w @ s_w))
        self.problem, self.w, self.s_w = problem, w * scale, s_w * scale
        self.correlation = float(problem.u @ self.w)

    def value(self, gamma: float) -> float:
        return self.problem.expect(self.problem.loss.value, gamma * self.correlation, gamma**2)

    def slope(self, gamma: float) -> float:
        _, c1, c2 = self.problem.coefficients(gamma * self.correlation, gamma**2)
        return c1 * self.correlation + c2 * gamma

    def first_length(self) -> float | None:
        return lowest_length(self.slope, self.value, convex=self.problem.loss.convex, reach=_REACH)

    def next_length(self, start: float, width: float, small: float) -> float | None:
        return next_length(self.slope, start, width, small=small, reach=_REACH)

    def pull(self, gamma: float) -> Pull:
        mean = gamma * self.correlation
        slope, c1, c2 = self.problem.coefficients(mean, gamma**2)
        h = slope * self.correlation - c2 * self.correlation**2 if self.problem.printed else c1 * self.correlation
        largest = self.problem.spectrum.largest
        fallback = -gamma * largest * (c2 if c2 > 0.0 else self.problem.loss.curvature)
        return Pull(c1 * self.problem.u + c2 * gamma * self.s_w, self.s_w, c1, largest * h, fallback)

    def line(self, direction: Array) -> Callable[[float], "GaussianRay"]:
        return lambda length: GaussianRay(self.problem, self.w + length * direction)
