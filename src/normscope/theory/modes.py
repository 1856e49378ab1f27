r"""Eigenvalues from kernels: the mean mode, the data modes, and what finite width does to several outputs.

The tangent kernel of m samples, divided by m, has the nonzero eigenvalues of the Gauss-Newton matrix of half the
squared error. In the mean mode all samples' outputs move alike; in the data modes they move apart. This file computes
the largest eigenvalue of each from a few numbers of the kernel, and corrects both for layers of finite width.

| symbol | means |
|---|---|
| m, C, N | samples, outputs, and channels of a layer |
| Theta, theta_xx, theta_xy | tangent kernel; its value for one sample, and for two different ones |
| W, c | part of Theta that is linear in the inputs' overlaps, and what is left on the diagonal |
| T, t_j | matrix with W = Y T Y^T for inputs Y of independent entries, and its eigenvalues |
| z(u) | function whose smallest value over u is the edge of the spectrum |
| v | variance of samples' own entries on the diagonal |
| V, V_l | relative variance of the overlap with the shared gradient, and that of layer l |
| theta, c_l | the mean mode, and the part of layer l in it |

**The kernel.** Theta(x, y) is the tangent kernel of m samples. Its values are taken as theta_xx on the diagonal and
theta_xy beside it, plus a part W that is linear in the overlaps x.y of the inputs. What is left on the diagonal is c:

    Theta = theta_xy 11^T + W + c I

Divided by m, its eigenvalues are

    mean mode    (theta_xx + (m - 1) theta_xy) / m        eigenvector 1: all samples move alike
    data modes   up to (c + edge of W) / m                eigenvectors orthogonal to 1: samples move apart

**The edge of W.** Inputs of independent standard entries give W = Y T Y^T, with eigenvalues t_j of T. Where the
spectrum of a large random matrix ends is its edge. The edge of W is the smallest value that

    z(u) = 1/u + sum_j t_j / (1 - t_j m u),   0 < u < 1 / (m max t)

takes over u (Marchenko and Pastur). With d equal t_j = b/d this is b (1 + sqrt(m/d))^2.

Worked number: b = 1, m = 64 samples in d = 16 dimensions. Then z(u) = 1/u + 1 / (1 - 4 u), which is smallest at
u = 1/6: z = 6 + 3 = 9 = (1 + sqrt(64/16))^2.

    >>> z = lambda u: 1 / u + 16 * (1 / 16) / (1 - (1 / 16) * 64 * u)
    >>> round(z(1 / 6), 9), min(z(u / 1000) for u in range(1, 250)) >= z(1 / 6)
    (9.0, True)
    >>> round(Bulk([(torch.full((16,), 1 / 16, dtype=torch.float64), 1)], 64).edge(), 9)
    9.0

**Finite width.** Samples' own entries on the diagonal then differ, by a variance v. This adds to W a diagonal matrix
whose directions have nothing to do with those of W. In free probability, the theory of spectra of large random
matrices, such a pair is called free, and the functions z(u) - 1/u (R-transforms) of its summands add up. To second
order in the spread, a diagonal of variance v has z(u) - 1/u = v u, so

    z(u) = 1/u + sum_j t_j / (1 - t_j m u) + v u

**A mode beside the bulk.** A constant part that stands `spike` above the mean of the data modes has its eigenvalue at
z(1 / spike). This is a little above the mean mode, as long as that is out of the data modes' reach.

**Coupling of the shared gradient.** The gradient that all samples share overlaps with each sample's own gradient.

- Through N channels this overlap has a variance V relative to |shared|^4.
- An activation adds the rise of G_xx / G_xy, over N. Gradients that were a sample's own before and are mixed again are
  left out.
- All C outputs have one such overlap.
- Where a layer's part is a sum over n independent sites, n = tr(G K)^2 / tr(G K G K), V is n times smaller.

The two by two matrix of the mean mode theta and this coupling has the largest eigenvalue

    theta / 2 + sqrt(theta^2 / 4 + C sum_{l, k} c_l c_k min(V_l, V_k))        c_l: the layers' parts of theta

**Several outputs.** With C outputs the weights above a layer couple them. The C cotangents that reach a layer through
widths n_1, n_2, ... have a Gram matrix. Its largest eigenvalue is not 1 but that of a Wishart matrix of C in n, with
1/n = sum 1/n_j. This is exact for one width, and to first order in C/n for several. The last layer's own part is the
same for every output.

**A sample with a mode for itself.** The slopes of activations matter for the mode of a single sample: ReLU leaves this
sample about N/2 channels. Every activation adds sum_k B_k c^k / N to the variance (`lengths.py`), weighted by the
squared kernel of the sample's gradient over sites. In modes of many samples the slopes average out.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.theory.gradient_overlaps import GradientOverlaps

# Mean and variance of the Tracy-Widom law for real matrices.
_TRACY_WIDOM, _TRACY_WIDOM_VARIANCE = -1.2065, 1.6078
# Relative error of the edge where gradients overlap.
_STEP = 4e-3
# Eigenvalues too small to count in any sum here; their squares leave the range of numbers.
_NOTHING = 1e-100


def widening(outputs: float, spread: float) -> float:
    """Expected largest eigenvalue of the Gram matrix of C cotangents.

        (1 + sqrt(C/n))^2 - 1.2065 (sqrt(n) + sqrt(C)) (1/sqrt(n) + 1/sqrt(C))^(1/3) / n        Johnstone 2001

    outputs: C. For one output the answer is 1.
    spread: 1/n, the sum of 1/width over the layers above.

    Example:
        >>> round(widening(10, 1 / 1000), 3)
        1.18
    """
    if outputs <= 1 or spread <= 0:
        return 1.0
    n = 1 / spread
    top = (1 + math.sqrt(outputs / n)) ** 2
    scale = (math.sqrt(n) + math.sqrt(outputs)) * (1 / math.sqrt(n) + 1 / math.sqrt(outputs)) ** (1 / 3) / n
    return max(top + _TRACY_WIDOM * scale, 1.0)


def weighed_widening(heights: Tensor, spread: float) -> float:
    """`widening` for outputs of different curvature, as with cross-entropy.

    This is the expected largest eigenvalue of sum_k h_k w_k w_k^T / n, with vectors w_k of n independent standard
    Gaussians. Two cases are told apart:

    - The first output stands out: its own eigenvalue is the largest, raised by the other outputs.
    - The first output does not stand out: the answer is the edge of the other outputs' spectrum (Marchenko and Pastur),
      times a factor below 1. The factor is how far (sum h)^2 / sum h^2 equal outputs reach towards their edge.

    The answer is within 6 % of random matrices (10 to 1000 outputs, n of 30 to 400).

    heights: h_k, the outputs' curvatures divided by the largest curvature. The largest comes first.
    spread: 1/n, the sum of 1/width over the layers above.

    Example: eleven equal outputs; then one output that stands out of ten others, 1 + 10 (1/2) / (1 - 1/2) / n.
        >>> ones = torch.ones(10, dtype=torch.float64)
        >>> [round(weighed_widening(torch.cat([ones[:1], h * ones]), 1 / 1000), 3) for h in (1.0, 0.5)]
        [1.181, 1.01]
    """
    if spread <= 0 or len(heights) == 1:
        return 1.0
    n = 1 / spread
    others = Bulk([(heights[1:] / n, 1.0)], n)
    if pushed := others.pushed(1.0):
        return 1 + others.total + pushed
    outputs = float(heights.sum() ** 2 / heights.square().sum())
    return max(others.edge() * widening(outputs, spread) / (1 + math.sqrt(outputs / n)) ** 2, 1.0)


def unevenness(outputs: int, spread: float) -> float:
    """Relative variance of the largest eigenvalue whose mean is `widening`, by the Tracy-Widom law."""
    if outputs <= 1 or spread <= 0:
        return 0.0
    n = 1 / spread
    scale = (math.sqrt(n) + math.sqrt(outputs)) * (1 / math.sqrt(n) + 1 / math.sqrt(outputs)) ** (1 / 3) / n
    return _TRACY_WIDOM_VARIANCE * (scale / widening(outputs, spread)) ** 2


def common_spread(parts: Sequence[tuple[float, float]]) -> float:
    """Relative variance of a sum over layers, each with a part c and a relative variance `spread`.

        sum_{l, k} c_l c_k min(spread_l, spread_k) / (sum c)^2

    Two layers share the smaller one of their variances.
    """
    total = sum(c for c, _ in parts)
    if total <= 0:
        return 0.0
    ordered = sorted(parts, key=lambda part: part[1])
    shared, below, last = 0.0, 1.0, 0.0
    for c, spread in ordered:
        shared += below**2 * (spread - last)
        below, last = below - c / total, spread
    return shared


class Bulk:
    """Spectrum of the sum of Y T Y^T over independent parts, Y with m rows.

    In every method, `variance` is the variance v of the entries of the diagonal matrix that finite width adds.

    Args:
        parts: for each summand the eigenvalues of T, and how often each of them occurs.
        m: number of rows of Y.
        overlaps: overlaps of gradients (`gradient_overlaps.py`), or None.
        rows: number of rows of the Jacobian J, which `overlaps` needs.
    """

    def __init__(
        self,
        parts: Sequence[tuple[Tensor, float]],
        m: float,
        overlaps: GradientOverlaps | None = None,
        rows: float = 0.0,
    ) -> None:
        self._m, self._rows = m, rows
        self._overlaps = overlaps if overlaps is not None and overlaps.total > 0 else None
        self.total, self._t, self._copies = _joined(parts)
        self._given = self.total
        self.total += self._overlaps.total if self._overlaps else 0.0
        self._scaled, self._weights = m * self._t, self._copies * m * self._t**2

    def edge(self, variance: float = 0.0) -> float:
        """Upper edge of the spectrum.

        Example: 64 samples in 16 dimensions have their edge at (1 + sqrt(64 / 16))^2 = 9.
            >>> round(Bulk([(torch.full((16,), 1 / 16, dtype=torch.float64), 1)], 64).edge(), 9)
            9.0
        """
        if not self._t.numel() and not self._overlaps:
            return 0.0
        if variance == math.inf:
            return math.inf
        if self._overlaps:
            return self._lowest(variance)
        t, u = self._t, self._turn(variance)
        linear = float((self._copies * t * (t * self._m * u / (1 - t * self._m * u))).sum())
        return self.total + 1 / u + linear + variance * u

    def pushed(self, spike: float, variance: float = 0.0) -> float:
        """How far the data modes push up the eigenvalue of a mode that stands `spike` above their mean.

        z(1 / spike) - spike - sum t        0 where the spike is not above the edge of the data modes
        """
        if spike <= 0 or 1 / spike >= self._end():
            return 0.0
        if self._overlaps:
            u = 1 / spike
            place = self._z(u, variance)
            return place - spike - self.total if self._z(u * (1 - _STEP), variance) > place < math.inf else 0.0
        if not self._t.numel() or not self._falls(1 / spike, variance):
            return 0.0
        t, m = self._t, self._m
        return float((self._copies * t * (t * m / spike / (1 - t * m / spike))).sum()) + variance / spike

    def _z(self, u: float, variance: float) -> float:
        assert self._overlaps is not None
        return 1 / u + self._others(u, variance) + self._overlaps.above(u, self._rows)

    def _others(self, u: float, variance: float) -> float:
        """z(u) without 1/u and the overlaps of gradients."""
        if u >= self._end():
            return math.inf
        bent = self._copies * self._t * (self._scaled * u / (1 - self._scaled * u))
        return self._given + float(bent.sum()) + variance * u

    def _lowest(self, variance: float) -> float:
        """The expected largest eigenvalue, a little below the edge, where z(u) - edge = ((u - u_edge) / B)^2.

        edge - 1.2065 (B R)^(-2/3)        R: number of rows of J
        """
        overlaps = self._overlaps
        assert overlaps is not None

        def u(x: float) -> float:
            return overlaps.resolvent(x, self._rows, lambda at: self._others(at, variance))

        low = self.total
        high = 2 * low
        while not u(high):
            low, high = high, 2 * high
        while high - low > _STEP * low:
            middle = (low + high) / 2
            low, high = (low, middle) if u(middle) else (middle, high)
        near, far = (high * (1 + step) for step in (2 * _STEP, 10 * _STEP))
        bend = (u(near) - u(far)) / (math.sqrt(far - low) - math.sqrt(near - low))
        return (low + high) / 2 + _TRACY_WIDOM * (bend * self._rows) ** (-2 / 3)

    def _end(self) -> float:
        """Upper end of the interval of u."""
        return 1 / (self._m * float(self._t.max())) if self._t.numel() else math.inf

    def _falls(self, u: float, variance: float) -> bool:
        """Whether the convex z(u) falls at u."""
        return float(self._weights.dot(self._scaled.mul(-u).add_(1).pow_(-2))) + variance < 1 / u**2

    def _turn(self, variance: float) -> float:
        """The u at which z(u) is smallest, found by halving the interval in which the slope of z changes sign.

        The slope vanishes where u = (sum of weights / (1 - scaled u)^2 + v)^(-1/2). The right side is concave and falls
        with u. So the solution is at most the right side at u = 0, and at least half of that value, or half of the end
        of the interval. z(u) is flat at its minimum: half of the digits of u are enough for all digits of z.
        """
        high = min(self._end(), (float(self._weights.sum()) + variance) ** -0.5)
        low = high / 2
        for _ in range(26):
            u = (low + high) / 2
            if self._falls(u, variance):
                low = u
            else:
                high = u
        return u


def _joined(parts: Sequence[tuple[Tensor, float]]) -> tuple[float, Tensor, Tensor]:
    """The sum of all t; then t and their copies, without those t that are below a thousandth of the largest."""
    if not parts:
        return 0.0, torch.zeros(0), torch.zeros(0)
    t = torch.cat([values for values, _ in parts]).clamp_min_(0)
    each = torch.tensor([float(n) for _, n in parts], dtype=torch.float64)
    copies = each.repeat_interleave(torch.tensor([len(values) for values, _ in parts]))
    live = t > max(1e-3 * float(t.max()), _NOTHING)
    return float(t.dot(copies)), t[live], copies[live]
