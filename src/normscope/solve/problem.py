r"""The interface of a problem: rays, points on them, and the cost of moving along and across a ray.

    F(w~) = E phi(z^T w~) + (alpha/2) ||w~||^2,    w~ = gamma w / ||w||_S,    ||w||_S^2 = w^T S w

A ray is a direction w scaled to ||w||_S = 1, a point a length gamma on it. Going along a ray touches no data matrix;
`pull` is one product with Z^T, `line` one product with Z. Problems: `LeastSquares`, `Halfspace` (data),
`GaussianHalfspace` (exact expectations), each in its file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from normscope.solve.second_moment import SecondMomentSpectrum

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Pull:
    """The gradient, and products of the direction with the data, at w~ = gamma w, ||w||_S = 1.

    gradient: of F at w~. s_w: S w. c1: the coefficient of u in the gradient under the Gaussian model.
    denominator: delta of the direction step w+ = w + P gradient / delta; L h without a penalty.
    fallback: a delta that always descends, from the curvature along the ray.
    """

    gradient: Array
    s_w: Array
    c1: float
    denominator: float
    fallback: float


class Point(Protocol):
    """f(w, gamma) with its first and second derivative in gamma."""

    @property
    def gamma(self) -> float: ...

    @property
    def value(self) -> float: ...

    @property
    def slope(self) -> float: ...

    @property
    def bend(self) -> float: ...

    def pull(self) -> Pull: ...


class Ray(Protocol):
    """A direction, ||w||_S = 1; `correlation` is u^T w."""

    w: Array
    correlation: float

    def at(self, gamma: float) -> Point: ...

    def line(self, direction: Array) -> Callable[[float], "Ray"]: ...


class Problem(Protocol):
    """u, the spectrum of S, and rays.

    gradient_at_zero: ||grad F(0)||, the unit in which `tol` counts. smoothness: a bound on the Hessian of F.
    rounding: of products with the data, relative. convex: whether f has one minimum along a ray.
    reach: the largest length that is tried.
    gaussian: whether `c1` is exact, which it is for least squares and under the Gaussian model.
    """

    u: Array
    spectrum: SecondMomentSpectrum
    gradient_at_zero: float
    smoothness: float

    @property
    def rounding(self) -> float: ...

    @property
    def convex(self) -> bool: ...

    @property
    def reach(self) -> float: ...

    @property
    def gaussian(self) -> bool: ...

    def ray(self, w: Array) -> Ray: ...

    def value_and_gradient(self, coef: Array) -> tuple[float, Array]: ...

    def rate_history(self, history: dict[str, Array]) -> dict[str, Array]: ...


def of_size_one(w: Array) -> Array:
    """w over its largest entry: a start such as -u has the data's scale, and w^T S w its fourth power."""
    largest = float(np.abs(w).max())
    return w / largest if largest > 0.0 else w


def scale_to_one(w: Array, square: float) -> float:
    """1/||w||_S, or a ValueError where ||w||_S = 0."""
    if not square > 0.0:
        raise ValueError(
            "A direction needs ||w||_S > 0: the start is zero or orthogonal to every sample "
            f"(||w|| = {np.linalg.norm(w):.3g}, w^T S w = {square:.3g}). Start from -u, the default."
        )
    return float(1.0 / np.sqrt(square))
