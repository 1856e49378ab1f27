r"""Quadrature for coordinates of a uniform point on a sphere, the law of a Gaussian batch after BatchNorm.

    x = sqrt(n) t,   density of x proportional to (1 - x^2/n)^((n-3)/2),   E x = 0,  E x^2 = 1

n = 3 is uniform, n = inf Gaussian. In the angle a, x = sqrt(n) sin a, the weight is cos(a)^(n-2), smooth for every n.
"""

import math

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
# Beyond this point the density is below float64's precision for large n: exp(-12^2/2) = 5e-32.
_REACH = 12.0


def rule(n: float, kinks: _Array, panels: int) -> tuple[_Array, _Array]:
    """Nodes and weights (of sum 1) for sqrt(n) times a coordinate of a uniform point of the sphere in n dimensions.

    Gauss-Legendre with 24 nodes on each of `panels` parts between neighbouring kinks.

    Args:
        n: dimension, at least 2; or inf, for a Gaussian.
        kinks: (rows, k): where the functions of each row are not smooth. Those outside the sphere do no harm.

    Example:
        >>> x, w = rule(5, np.zeros((1, 1)), 2)
        >>> round(float((w * x**2).sum()), 12), round(float((w * (x > 0)).sum()), 12)
        (1.0, 0.5)
    """
    reach = min(_REACH, math.sqrt(n))
    ends = np.full((len(kinks), 1), reach)
    edges = np.sort(np.concatenate([-ends, np.clip(kinks, -reach, reach), ends], axis=1), axis=1)
    if math.isfinite(n):
        edges = np.arcsin(edges / math.sqrt(n))
    parts = np.linspace(edges[:, :-1], edges[:, 1:], panels + 1, axis=-1)
    middle, half = (parts[..., 1:] + parts[..., :-1]) / 2, (parts[..., 1:] - parts[..., :-1]) / 2
    at = (middle[..., None] + half[..., None] * _NODES).reshape(len(kinks), -1)
    weights = (half[..., None] * _WEIGHTS).reshape(len(kinks), -1)
    if math.isfinite(n):
        weights = weights * np.cos(at) ** (n - 2)
        at = math.sqrt(n) * np.sin(at)
    else:
        weights = weights * np.exp(-(at**2) / 2)
    return at, weights / weights.sum(axis=1, keepdims=True)
