r"""Differences in length between samples, and the effect of the longest sample of a batch on the data modes.

A sample's own entry of the kernel, t(x) = sum over layers of G(x, x) K(x, x), is the same for all samples only at
infinite width. Through an activation of N channels and S sites the relative variance v of |h(x)|^2 and w of the squared
gradient |g(x)|^2 become

    v' = slope^2 v + sum_k A_k mean_ab(c^k) / N            slope = E[phi phi' u] / E[phi^2]
    w' = w + (1 + 2/C) sum_k B_k mean_ab(c^k) / N          c: correlation of two sites a, b of one sample

with A_k and B_k the squared Hermite coefficients of phi^2 and phi'^2 over the squares of their means (sum_k A_k = 5 and
sum_k B_k = 1 for ReLU). The mean for w is weighted by the gradient's squares at a and b, and weights add (2/C) / n to
w, n being the width of the data modes, as far as samples do not share their gradients. Each layer's part of t has the v
of what enters it and the w of what comes back; layers share what lies below both, or above both. That a layer's v and w
go together is left out.

A sample that stands out of the batch has an eigenvector of its own. In logarithms t(x) times the largest eigenvalue of
the C x C block of x is taken as Gaussian, so that the largest of m of them is

    mean * exp(z s - s^2 / 2)        z = Phi^-1((m - 3/8) / (m + 1/4))       (Blom 1958)
"""

import math
from functools import lru_cache
from statistics import NormalDist

import torch
from torch import Tensor

from normscope.theory.gaussian import Activation, derivative, hermite

# Powers of the correlation that are kept apart; the last holds the remainder.
_POWERS = 4


@lru_cache(maxsize=256)
def _coefficients(phi: Activation, q: float, mean: float) -> tuple[Tensor, float]:
    z, weight, table = hermite()
    u = math.sqrt(q) * z
    values, slopes = phi.function(mean + u), derivative(phi.function, mean + u)
    square = float(values.square() @ weight)
    coefficients = [_relative(f.square(), weight, table) for f in (values, slopes)]
    slope = float((values * slopes * u) @ weight) / square if square > 0 else 0.0
    return torch.tensor(coefficients, dtype=torch.float64), slope


def _relative(f: Tensor, weight: Tensor, table: Tensor) -> tuple[float, ...]:
    """Squared Hermite coefficients of orders 1 ... _POWERS over the squared mean, the last with all that follow."""
    mean = float(f @ weight)
    if mean <= 0:
        return (0.0,) * _POWERS
    first = [float((f * table[k]) @ weight) ** 2 for k in range(1, _POWERS)]
    rest = float(f.square() @ weight) - mean**2 - sum(first)
    return tuple(a / mean**2 for a in (*first, max(rest, 0.0)))


def fluctuations(phi: Activation, q: float, mean: float, correlations: Tensor) -> tuple[Tensor, Tensor, float]:
    """Parts that one channel adds to v and to w for each pair of sites of a sample, and the slope of v.

    Example: ReLU at a single site, E[relu^4] / E[relu^2]^2 - 1 and E[relu'^4] / E[relu'^2]^2 - 1.
        >>> found = fluctuations(Activation("relu", torch.relu, line=(0.0, 1.0)), 3.0, 0.0, torch.ones(1, 1))
        >>> [round(float(value), 2) for value in found]
        [5.0, 1.0, 1.0]
    """
    if not q > 0:
        return 0 * correlations, 0 * correlations, 0.0
    # Half lines through zero have no scale.
    both, slope = _coefficients(phi, 1.0 if phi.line is not None and mean == 0 else q, mean)
    square = correlations * correlations
    powers = torch.stack([correlations, square, square * correlations, square * square])
    own, back = (both.to(powers) @ powers.flatten(1)).view(2, *correlations.shape).unbind(0)
    return own, back, slope


def longest(m: int, variance: float) -> float:
    """The longest of m samples over their mean, where logarithms of lengths have this variance.

    Example:
        >>> longest(64, 0.0), round(longest(64, 0.02), 2)
        (1.0, 1.38)
    """
    if m < 2 or variance <= 0:
        return 1.0
    return math.exp(NormalDist().inv_cdf((m - 0.375) / (m + 0.25)) * math.sqrt(variance) - variance / 2)
