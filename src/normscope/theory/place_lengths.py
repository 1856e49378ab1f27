r"""Differences in length between single places, the first effect of finite width on BatchNorm.

Given the weights, the values that one channel takes over samples and places are not Gaussian: each place has a variance
of its own, q(x, a), the squared length over N channels of what entered there. With a relative variance u of q they have
an excess kurtosis of 3 u, so that E[relu] is smaller by u / 8 and what BatchNorm divides by larger. Through an
activation of N channels and the taps of the next window

    u' = (v + (1 + v) D / N) t        v = slope^2 u, slope = (E[phi phi' z] - E[phi] E[phi' z]) / Var[phi]
                                      D = Var[(phi - E phi)^2] / Var[phi]^2         4.41 for ReLU, 2 for Gaussian values
                                      t = mean over pairs of taps of c^2              c: correlation of two places

A batch takes 6 / (nu + 2) off that kurtosis: for Gaussian inputs in d dimensions and a large batch nu is d, u is 2/d,
and nothing is left, as it must be. A sample's own share of the batch damps u, to u / (1 + 4 (1 + u) / m): a long
sample lengthens what it is divided by.
"""

from functools import lru_cache

import torch
from torch import Tensor

from normscope.theory.gaussian import Activation, derivative, hermite, length_slope
from normscope.theory.site_pairs import Sites, average
from normscope.theory.taps import Window, membership, shares_of_pairs

# Mean of an activation, over the root of its mean square, that counts as zero.
_NO_MEAN = 1e-3


@lru_cache(maxsize=256)
def deviations(phi: Activation, q: float, mean: float) -> tuple[float, float, float]:
    """D, the slope, and the rise of log E[phi] by log q, of Gaussian values.

    Example:
        >>> from normscope.theory.gaussian import RELU
        >>> [round(value, 2) for value in deviations(RELU, 1.0, 0.0)]
        [4.41, 1.0, 0.5]
    """
    z, weight, _ = hermite()
    u = max(q, 0.0) ** 0.5 * z
    values, slopes = phi.function(mean + u), derivative(phi.function, mean + u)
    middle, root = float(values @ weight), float(values.square() @ weight) ** 0.5
    rise = float((slopes * u) @ weight) / (2 * middle) if abs(middle) > _NO_MEAN * root else 0.0
    return scatter(values, weight), length_slope(phi, q, mean), rise


def kurtosis(uneven: float) -> float:
    """Excess kurtosis: 3 u for small u; else the one that gives E[relu] as log-normal variances, (1 + u)^(-1/8), do.

    Example:
        >>> round(kurtosis(0.01), 3), round(kurtosis(1.0), 2)
        (0.03, 1.99)
    """
    return 24 * (1 - (1 + uneven) ** -0.125)


def scatter(values: Tensor, weight: Tensor) -> float:
    """Var[(v - E v)^2] / Var[v]^2; 0 for values that do not differ."""
    square = (values - values @ weight).square()
    variance = float(square @ weight)
    return float(square.square() @ weight) / variance**2 - 1 if variance > 1e-150 else 0.0


def tied(window: Window, kernel: Tensor) -> float:
    """Mean over pairs of a window's taps of the squared correlation of their places; padding counts as zeros."""
    before = window.before
    if before.each_sample or window.taps == 1:
        return 1.0
    shared = average(kernel[1])
    own = average(before.diagonal(kernel)) - shared
    if not own > 0:
        return 1.0 / window.taps
    if before.has_borders:
        taken = membership(window)
        square = (kernel[0] - shared).square_()
        return float((taken @ square).mul_(taken).sum()) / (len(taken) * own**2)
    at = [
        d * torch.arange(1 - k, k) % n
        for k, d, n in zip(window.kernel, window.dilation, (before.height, before.width), strict=True)
    ]
    square = (kernel[0][at[0][:, None], at[1]] - shared).square_()
    return float(shares_of_pairs(window, 0) @ square @ shares_of_pairs(window, 1)) / own**2


def all_tied(sites: Sites, kernel: Tensor) -> float:
    """`tied` over all pairs of places of one sample."""
    if sites.count == 1:
        return 1.0
    shared, same = average(kernel[1]), kernel[0].reshape(-1)
    own = average(sites.diagonal(kernel)) - shared
    square = float(same.dot(same)) / len(same) - 2 * shared * average(same) + shared**2
    return square / own**2 if own > 0 else 1.0


def variance(sites: Sites, kernel: Tensor) -> float:
    """Variance of the values of a batch, over samples and places."""
    return average(sites.diagonal(kernel)) - average(kernel[-1])
