r"""The theorems of Santurkar et al. 2018 on one unit: right sides as printed, and corrected.

A linear layer gives y (m values of one unit over a batch), BatchNorm z = gamma yh + beta with yh = (y - mean)/s, the
rest of the network a loss. g and H are the gradient and the Hessian of the loss with respect to z, d and Hh those with
respect to y; M = 11^T.

    Fact C.1      d  = (gamma/(m s)) (m g - 1 <1,g> - yh <g,yh>) = (gamma/s) P g
    Fact C.2      dz/dy = (gamma/s) P,   P = I - M/m - yh yh^T/m
    Theorem 4.1   |d|^2 = (gamma^2/s^2) (|g|^2 - <1,g>^2/m - <g,yh>^2/m)                           an equality
    (41), (42)    Hh = (gamma^2/s^2) P H P - (gamma/(m s^2)) [gb yh^T + yh gb^T - (3/m) <g,yh> yh yh^T
                       + <g,yh> (I - M/m)],   gb = g - mean(g)
    Theorem 4.2   d^T Hh d = (gamma^2/s^2) d^T H d - (gamma/(m s^2)) <g,yh> |d|^2                  an equality, (50)
                          <= (gamma^2/s^2) g^T H g - (gamma/(m s^2)) <g,yh> |d|^2   if d^T H d <= g^T H g, (51)
    Theorem 4.4   max over |X| <= lam of |X^T d|^2 = (gamma^2/s^2) lam^2 (|g|^2 - m mean(g)^2 - <g,yh>^2/m)
    Lemma 4.5     |W0 - k W*|^2 = |W0 - W*|^2 - (|W*|^2 - <W*,W0>)^2/|W*|^2,   k = <W*,W0>/|W*|^2

Holds when: s^2 is the biased variance (eps = 0). With s = sqrt(v + eps) the facts and the Hessian hold as they stand,
and Theorem 4.1 with <g,yh>^2/m (2 - |yh|^2/m) in the place of <g,yh>^2/m; then |yh|^2 < m, P is no projector, and
Theorems 4.2 and 4.4 do not hold. gamma, beta and the other units are constants. "The gradient of the network without
BatchNorm" on the right sides is g: that network's own only where z = y (Observation 4.3).
Differs from the print: docs/evidence/errata.md, E-THM-1 to E-THM-5.
Source: Santurkar et al. 2018, supplement, Appendix C, of which docs/evidence/sources.md lists two versions. Equations
are from the second; the first has the same with other misprints.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Unit:
    """One unit, as the theorems take it: g = dL/dz and yh over the batch, s, and gamma."""

    g: _Array
    y_hat: _Array
    s: float
    gamma: float

    @property
    def m(self) -> int:
        """Number of samples in the batch."""
        return len(self.g)

    @property
    def along(self) -> float:
        """<g, yh>"""
        return float(self.g @ self.y_hat)

    @property
    def gain(self) -> float:
        """gamma^2 / s^2"""
        return self.gamma**2 / self.s**2

    def projected(self, v: _Array) -> _Array:
        """P v, for a vector or the columns of a matrix."""
        return v - v.mean(0) - np.multiply.outer(self.y_hat, self.y_hat @ v) / self.m


def gradient(unit: Unit) -> _Array:
    """d, Fact C.1."""
    return unit.gamma / unit.s * unit.projected(unit.g)


def jacobian(unit: Unit) -> _Array:
    """dz/dy, Fact C.2."""
    return unit.gamma / unit.s * unit.projected(np.eye(unit.m))


def squared_gradient(unit: Unit, *, printed: bool = False) -> float:
    """The right side of Theorem 4.1; printed with 1/sqrt(m) at <g,yh>^2, which makes it smaller than |d|^2 (E-THM-1).

    Example: g = yh is projected out, so that d = 0.
        >>> unit = Unit(np.array([1.0, -1.0]), np.array([1.0, -1.0]), 1.0, 1.0)
        >>> squared_gradient(unit), round(squared_gradient(unit, printed=True), 3)
        (0.0, -0.828)
    """
    m, g, shrunk = unit.m, unit.g, 2 - float(unit.y_hat @ unit.y_hat) / unit.m
    share = unit.along**2 / np.sqrt(m) if printed else unit.along**2 * shrunk / m
    return float(unit.gain * (g @ g - g.sum() ** 2 / m - share))


def hessian_times(unit: Unit, v: _Array, times_h: Callable[[_Array], _Array], *, printed: bool = False) -> _Array:
    """Hh v for a vector or the columns of a matrix, Eqs. (41) and (42), from products with H.

    printed: as in the second version of the supplement, where the first g has lost its bar; the first version has it.
    """
    m, yh, centred, outer = unit.m, unit.y_hat, unit.g - unit.g.mean(), np.multiply.outer
    rest = outer(unit.g if printed else centred, yh @ v) + outer(yh, centred @ v)
    rest = rest - 3 / m * unit.along * outer(yh, yh @ v) + unit.along * (v - v.mean(0))
    return unit.gain * unit.projected(times_h(unit.projected(v))) - unit.gamma / (m * unit.s**2) * rest


def hessian(unit: Unit, h: _Array, *, printed: bool = False) -> _Array:
    """Hh, every entry; see `hessian_times`."""
    return hessian_times(unit, np.eye(unit.m), lambda v: h @ v, printed=printed)


def separation(unit: Unit, squared: float) -> float:
    """gamma/(m s^2) <g,yh> |d|^2, which Theorem 4.2 subtracts; kappa of Theorem C.1 is this times s^2/gamma^2."""
    return unit.gamma / (unit.m * unit.s**2) * unit.along * squared


def largest_weight_gradient(unit: Unit, lam: float, *, printed: bool = False) -> float:
    """The right side of Theorem 4.4.

    Printed with g_j^2 for g_j = lam^2 |g|^2, which is a squared norm already, without lam^2 at m mean(g)^2, and without
    1/m at lam^2 <g,yh>^2 (E-THM-4).
    """
    g_j, mean = lam**2 * float(unit.g @ unit.g), float(unit.g.mean())
    if printed:
        return unit.gain * (g_j**2 - unit.m * mean**2 - lam**2 * unit.along**2)
    return unit.gain * (g_j - lam**2 * unit.m * mean**2 - lam**2 / unit.m * unit.along**2)


def largest_curvature(h_hat: _Array, d: _Array) -> float:
    r"""max over |X| <= 1 of d^T X X^T Hh X X^T d, which Eq. (58) claims to be d^T Hh d (E-THM-5).

    X X^T d runs through the ball with diameter [0, d], so this is the largest value of a quadratic on a ball: with
    u = d/2 + r w, r = |d|/2, |w| <= 1, it is attained where (nu - Hh) u = nu d/2 for a nu at least as large as all
    eigenvalues of Hh.

    Example: d = e1, Hh = e2 e2^T, where (58) says 0.
        >>> round(largest_curvature(np.diag([0.0, 1.0]), np.array([1.0, 0.0])), 9)
        0.25
    """
    values, vectors = np.linalg.eigh((h_hat + h_hat.T) / 2)
    centre = vectors.T @ d / 2
    radius, top, scale = float(np.linalg.norm(centre)), float(values[-1]), float(np.abs(values).max())
    if radius == 0 or top <= 0:
        return 0.0  # at u = 0, which is in the ball
    centre, values = centre / radius, values / scale
    # From nu = top + t on: the gaps to top are taken once, so that a small t keeps all its digits.
    gaps = values[-1] - values

    def offset(log_t: float) -> _Array:
        """u - d/2 for this nu."""
        return values * centre / (np.exp(log_t) + gaps)

    def excess(log_t: float) -> float:
        return float(np.linalg.norm(offset(log_t))) - 1

    # At t = 1 the offset is no longer than the radius; the other end has squares that float64 holds.
    low, high = -345.0, 1e-9
    if excess(low) <= 0:
        # The hard case: the top eigenvector has no share in d, and fills what is left of the radius.
        move = offset(low)
        move[-1] = np.sqrt(max(1 - float(move[:-1] @ move[:-1]), 0.0))
    else:
        move = offset(brentq(excess, low, high, xtol=1e-14))
        move /= np.linalg.norm(move)
    return scale * radius**2 * float(values @ (centre + move) ** 2)


def nearest_optimum(w0: _Array, w_star: _Array) -> tuple[float, float, float]:
    """k, |W0 - k W*|^2, and the right side of Lemma 4.5 (an equality for this k; a bound for the nearest optimum)."""
    squared, inner = float(np.sum(w_star**2)), float(np.sum(w_star * w0))
    k = inner / squared
    right = float(np.sum((w0 - w_star) ** 2)) - (squared - inner) ** 2 / squared
    return k, float(np.sum((w0 - k * w_star) ** 2)), right
