r"""Differences in length between samples, and how far the longest sample of a batch raises the data modes.

A sample's own entry of the tangent kernel is

    t(x) = sum over layers of G(x, x) K(x, x)

At infinite width t(x) is the same for all samples. At finite width t(x) differs from sample to sample. `fluctuations`
computes how much one activation adds to this difference. `longest` computes how far the longest sample of a batch
stands above the mean.

| symbol | means |
|---|---|
| G, K | kernel of the gradient, and kernel of the values |
| h, g | the values of a layer at one sample, and the gradient with respect to them |
| v, w | relative variance of \|h(x)\|^2, and of \|g(x)\|^2, from sample to sample |
| phi, u | the activation, and its Gaussian input |
| N, S | number of channels, and number of sites of one sample |
| C, m, n | number of outputs, number of samples, and width of the data modes (`modes.py`) |
| c | correlation of the inputs of phi at two sites a, b of one sample |
| A_k, B_k | squared Hermite coefficient k of phi^2 over mean(phi^2)^2, and the same of phi'^2 |

**One activation.** An activation of N channels and S sites changes the relative variances v and w into

    v' = slope^2 v + sum_k A_k mean_ab(c^k) / N            slope = E[phi phi' u] / E[phi^2]
    w' = w + (1 + 2/C) sum_k B_k mean_ab(c^k) / N

The mean over sites a, b in the second line is weighted by the squared gradients at a and b. A layer of weights adds
(2/C) / n to w, as far as samples do not share their gradients.

Worked number: ReLU at a single site has c = 1, and sum_k A_k = E[relu^4] / E[relu^2]^2 - 1 = 5. Hence 500 channels
give v' - slope^2 v = 5 / 500 = 0.01: lengths |h(x)|^2 that differ by 10 % (one standard deviation).

**One layer's part of t(x).** The part of a layer in t(x) has the v of the values that enter the layer, and the w of the
gradient that comes back to the layer. Two layers share the fluctuations of everything below both, or above both. The
correlation between v and w of one layer is neglected.

**The longest sample.** A sample whose t(x) is far above the mean has an eigenvector of its own. The eigenvalue of this
eigenvector is t(x) times the largest eigenvalue of the C x C block of x. The logarithm of this product is taken as
Gaussian with variance s^2. The largest of m such products is

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
    """Squared Hermite coefficients of orders 1 to _POWERS over the squared mean; the last holds higher orders too."""
    mean = float(f @ weight)
    if mean <= 0:
        return (0.0,) * _POWERS
    first = [float((f * table[k]) @ weight) ** 2 for k in range(1, _POWERS)]
    rest = float(f.square() @ weight) - mean**2 - sum(first)
    return tuple(a / mean**2 for a in (*first, max(rest, 0.0)))


def fluctuations(phi: Activation, q: float, mean: float, correlations: Tensor) -> tuple[Tensor, Tensor, float]:
    """The amounts that one channel adds to v and to w for each pair of sites of a sample, and the slope of v.

    Example: ReLU at a single site adds E[relu^4] / E[relu^2]^2 - 1 = 5 to v and E[relu'^4] / E[relu'^2]^2 - 1 = 1 to w.
        >>> found = fluctuations(Activation("relu", torch.relu, line=(0.0, 1.0)), 3.0, 0.0, torch.ones(1, 1))
        >>> [round(float(value), 2) for value in found]
        [5.0, 1.0, 1.0]
    """
    if not q > 0:
        return 0 * correlations, 0 * correlations, 0.0
    # Activations made of two half lines through zero, such as ReLU, give the same answer for every q.
    both, slope = _coefficients(phi, 1.0 if phi.line is not None and mean == 0 else q, mean)
    square = correlations * correlations
    powers = torch.stack([correlations, square, square * correlations, square * square])
    own, back = (both.to(powers) @ powers.flatten(1)).view(2, *correlations.shape).unbind(0)
    return own, back, slope


def longest(m: int, variance: float) -> float:
    """Ratio of the largest length to the mean length among m samples.

    variance: variance of the logarithm of one sample's length.

    Example: among 64 samples that differ by sqrt(0.02) = 14 %, the longest is 1.38 times the mean.
        >>> longest(64, 0.0), round(longest(64, 0.02), 2)
        (1.0, 1.38)
    """
    if m < 2 or variance <= 0:
        return 1.0
    return math.exp(NormalDist().inv_cdf((m - 0.375) / (m + 0.25)) * math.sqrt(variance) - variance / 2)
