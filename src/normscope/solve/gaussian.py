r"""Halfspaces under the Gaussian model, with exact expectations.

    z ~ N(u, S - u u^T),   S = E z z^T
    z^T w~ ~ N(u^T w~, ||w~||_S^2 - (u^T w~)^2)          one dimension: E phi^(k) by Gauss-Hermite quadrature
    grad f = c1 u + c2 S w~,   c1 = E phi' - E phi'' (u^T w~),   c2 = E phi''
    critical points: w~ = g* S^-1 u,   g* = -c1/c2, where a finite one exists: softplus has one, sigmoid none

(E sigmoid(gamma m) falls for ever as gamma grows, to P(m > 0): its infimum lies at infinity on the same line.)

`printed=True` uses h as the source prints it, E phi' (u^T w) - E phi'' (u^T w)^2, to show that its bound fails.
Source: the encyclopedia article, learning halfspaces.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import roots_hermitenorm

from normscope.solve.margin_losses import Loss
from normscope.solve.problem import Pull, of_size_one, scale_to_one
from normscope.solve.rates import gradient_history
from normscope.solve.second_moment import exact_spectrum

Array = NDArray[np.floating]


@lru_cache
def _nodes(count: int) -> tuple[Array, Array]:
    x, weights = roots_hermitenorm(count)
    return x, weights / weights.sum()


def gaussian_expectation(function: Callable[[Array], Array], mean: float, sd: float, *, nodes: int = 200) -> Any:
    r"""E function(mean + sd xi), xi ~ N(0, 1), by Gauss-Hermite quadrature; `function` may return columns.

    Exact for polynomials of degree below 2 `nodes`; for softplus and sigmoid the error falls as exp(-c sqrt(nodes)/sd).

    Args:
        function: function of an array of values.
        mean: mean of the Gaussian.
        sd: standard deviation of the Gaussian.
        nodes: quadrature nodes.

    Returns:
        The expectation, one for each column.

    Example:
        >>> round(float(gaussian_expectation(np.square, 1.0, 2.0)), 12)
        5.0
    """
    x, weights = _nodes(nodes)
    return weights @ function(mean + sd * x)


def gaussian_cloud(u: Array, s: Array, *, nodes: int = 32) -> tuple[Array, Array]:
    """Points and weights of the tensor rule for N(u, S - u u^T): nodes^d rows, for few dimensions.

    A finite sample whose averages are the Gaussian's expectations, so that code written for data runs on it.

    Args:
        u: the mean.
        s: the second moment S.
        nodes: quadrature nodes in each dimension.

    Returns:
        (points, weights): an array of nodes^d rows, and the weight of each row.
    """
    x, weights = _nodes(nodes)
    root = np.linalg.cholesky(s - np.outer(u, u))
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[x] * len(u), indexing="ij")], axis=1)
    product = np.prod(np.stack([axis.ravel() for axis in np.meshgrid(*[weights] * len(u), indexing="ij")]), axis=0)
    return u + grid @ root.T, product


class GaussianHalfspace:
    """The model problem. S - u u^T must be a covariance: u^T S^-1 u < 1."""

    gaussian = True
    rounding = float(np.finfo(np.float64).eps)
    # The largest length: beyond, the quadrature's error, about exp(-126/gamma) with 200 nodes, reaches 1e-7.
    reach = 8.0

    def __init__(self, u: Array, s: Array, loss: Loss, *, nodes: int = 200, printed: bool = False) -> None:
        self.u, self.s, self.loss, self.nodes, self.printed = u, s, loss, nodes, printed
        self.convex = loss.convex
        self.spectrum = exact_spectrum(s)
        self.best_rho = -self.spectrum.inverse_square(u)
        if not -self.best_rho < 1.0:
            raise ValueError(
                "S is the second moment E z z^T, so that S - u u^T is a covariance and u^T S^-1 u < 1; "
                f"got u^T S^-1 u = {-self.best_rho:.6g}. Add u u^T to a covariance."
            )
        self.gradient_at_zero = abs(self.expect(0.0, 0.0)[1]) * float(np.linalg.norm(u))
        self.smoothness = loss.curvature * self.spectrum.largest

    def expect(self, mean: float, square: float) -> tuple[float, float, float]:
        """E phi, E phi' and E phi'' of z^T w~ from u^T w~ and ||w~||_S^2."""
        sd = np.sqrt(max(square - mean**2, 0.0))
        value, first, second = gaussian_expectation(
            lambda m: np.stack(self.loss.evaluate(m), axis=-1), mean, sd, nodes=self.nodes
        )
        return float(value), float(first), float(second)

    def ray(self, w: Array) -> "GaussianRay":
        return GaussianRay(self, of_size_one(w))

    def value_and_gradient(self, coef: Array) -> tuple[float, Array]:
        s_coef = self.s @ coef
        mean = float(self.u @ coef)
        value, first, c2 = self.expect(mean, float(coef @ s_coef))
        return value, (first - c2 * mean) * self.u + c2 * s_coef

    def rate_history(self, history: dict[str, Array]) -> dict[str, Array]:
        """gap = rho - rho*; bound and slack of the squared S^-1 norm of the gradient."""
        gap = history["rho"] - self.best_rho
        return {"gap": gap} | gradient_history(history, self.spectrum, self.best_rho)


class GaussianRay:
    """A direction of the model problem, described by u^T w and S w."""

    def __init__(self, problem: GaussianHalfspace, w: Array) -> None:
        s_w = problem.s @ w
        scale = scale_to_one(w, float(w @ s_w))
        self.problem, self.w, self.s_w = problem, w * scale, s_w * scale
        self.correlation = float(problem.u @ self.w)

    def at(self, gamma: float) -> "GaussianPoint":
        return GaussianPoint(self, gamma, *self.problem.expect(gamma * self.correlation, gamma**2))

    def line(self, direction: Array) -> Callable[[float], "GaussianRay"]:
        return lambda length: GaussianRay(self.problem, self.w + length * direction)


@dataclass(frozen=True)
class GaussianPoint:
    """A length on a ray, with E phi, E phi' and c2 = E phi''."""

    ray: GaussianRay
    gamma: float
    value: float
    first: float
    c2: float

    @property
    def c1(self) -> float:
        return self.first - self.c2 * self.gamma * self.ray.correlation

    @property
    def slope(self) -> float:
        return self.c1 * self.ray.correlation + self.c2 * self.gamma

    @property
    def bend(self) -> float:
        """E phi''(gamma t) t^2, t = z^T w ~ N(u^T w, 1 - (u^T w)^2)."""
        mean, problem = self.ray.correlation, self.ray.problem
        sd = np.sqrt(max(1.0 - mean**2, 0.0))
        along = gaussian_expectation(
            lambda t: problem.loss.evaluate(self.gamma * t)[2] * t * t, mean, sd, nodes=problem.nodes
        )
        return float(along)

    def pull(self) -> Pull:
        ray, problem, along = self.ray, self.ray.problem, self.c2
        h = self.first - self.c2 * ray.correlation if problem.printed else self.c1
        largest = problem.spectrum.largest
        fallback = -self.gamma * largest * (along if along > 0.0 else problem.loss.curvature)
        gradient = self.c1 * problem.u + self.c2 * self.gamma * ray.s_w
        return Pull(gradient, ray.s_w, self.c1, largest * h * ray.correlation, fallback)
