r"""Gradient explosion: the growth of gradients in a stack of (linear, BatchNorm, phi) layers, for any batch size.

Per unit let x be the B normalized values of the batch. At the fixed point they are sqrt(B) times a uniform direction in
the B - 1 dimensions of centred batches, so that for one value and for two of them

    x1 = sqrt(B-1) t,     x1, x2 correlated by c = -1/(B-1)

with t a coordinate of a uniform point of the sphere in B - 1 dimensions. With f = phi(gamma x + beta), d = df/dx, the
squared norm of the gradient grows per layer, from the output backwards, by

    rate = [(B-1) E d1^2 - E x1^2 d1^2 + E d1 d2 + E x1 x2 d1 d2] / [(B-3) (E f1^2 - E f1 f2)]

and its norm by the square root of that. Proof: the gradient with respect to the preactivations is P D u / s with P = I
- 11^T/B - x x^T/B, D = diag(d), and u Gaussian with covariance I - 11^T/B over the batch (each layer's gradient is
centred); the trace of P D (I - 11^T/B) D P is the numerator, up to (B-1)/B, and the preactivations' s^2 = v
chi2_{B-1}/B, v = sw2 (E f1^2 - E f1 f2), is independent of the direction x, with E 1/s^2 = B/((B-3) v): infinite for B
<= 3. sw2 cancels.

    relu      rate = (J'(c) + B - 1)/((B-3)(1 - J(c))) - 1/(B-3)        J(c)  = (sqrt(1-c^2) + (pi - acos c) c)/pi
              fixed point E f1^2 = 1/2, correlation J(c)                J'(c) = (pi - acos c)/pi
    linear    rate = (B-2)/(B-3), the least over all phi
    B = inf   rate = E d^2 / Var f,  relu: pi/(pi-1) = 1.467, which is the mean-field theory's ratio of q_tilde

Holds when: wide layers (width >> B is not needed), independent weights, eps = 0, no skip connections.
Differs from the source: the encyclopedia article lets the *norm* grow by 1.467; it is the squared norm
(docs/evidence/errata.md, E-GE-1).
Source: the encyclopedia article "Batch normalization", section "Vanishing/exploding gradients"; Yang et al. 2019 (arXiv
1902.08129), Theorems 5, 8 and 9.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from normscope.messages.choices import check_choice
from normscope.results import plain
from normscope.theory.sphere import rule

_Array = NDArray[np.float64]
_Function = Callable[[_Array], _Array]


@dataclass(frozen=True)
class ActivationWithSlope:
    """A function phi, its derivative, and the points where either jumps or bends, on which quadrature splits."""

    phi: _Function
    slope: _Function
    kinks: tuple[float, ...] = ()


# Points where tanh and erf bend or turn flat; a large gamma draws them all close together.
_BENDS = (-10.0, -3.0, -1.0, 0.0, 1.0, 3.0, 10.0)
# Bound on the error over quadrature's last change; largest error, relative to the rate, that is accepted.
_SAFETY, _LARGEST_ERROR = 4, 1e-3
# Nodes of the finest rule; their square is the cost.
_NODES = 2000

ACTIVATIONS = {
    "relu": ActivationWithSlope(lambda z: np.maximum(z, 0.0), lambda z: np.where(z > 0, 1.0, 0.0), (0.0,)),
    "linear": ActivationWithSlope(lambda z: z, np.ones_like),
    "tanh": ActivationWithSlope(np.tanh, lambda z: 1 - np.tanh(z) ** 2, _BENDS),
    "erf": ActivationWithSlope(erf, lambda z: 2 / math.sqrt(math.pi) * np.exp(-(z**2)), _BENDS),
}


@dataclass(frozen=True)
class Explosion:
    """Growth of gradients in a deep stack at initialization.

    Attributes:
        rate: factor of the squared gradient norm per layer, backwards.
        norm_rate: its square root, the factor of the norm.
        q, correlation: fixed point of a layer's output, E f1^2 and E f1 f2 / E f1^2.
        xi: depth over which the squared norm grows by e.
        trainable_depth: 16 xi, beyond which Yang et al. saw no training.
        error: bound on the error of quadrature; 0 for closed forms.
        method: "closed form" or "quadrature".
    """

    phi: str
    batch_size: float
    gamma: float
    beta: float
    rate: float
    norm_rate: float
    q: float
    correlation: float
    xi: float
    trainable_depth: float
    error: float
    method: str

    def factor(self, depth: int) -> float:
        """The squared norm at the bottom over that at the top of `depth` layers; inf beyond float64."""
        try:
            return math.exp(depth * math.log(self.rate))
        except OverflowError:
            return math.inf

    def plain(self) -> dict[str, Any]:
        """The result as plain data, for JSON."""
        return plain(asdict(self))


def explosion(
    phi: str | ActivationWithSlope = "relu", batch_size: float = math.inf, *, gamma: float = 1.0, beta: float = 0.0
) -> Explosion:
    """Growth of squared gradients per layer of (linear, BatchNorm with gamma and beta, phi).

    Args:
        phi: "relu", "linear", "tanh", "erf", or an `ActivationWithSlope` of your own.
        batch_size: B, a whole number above 3, or inf. For statistics over positions too: samples times positions, taken
            as independent.

    Example:
        >>> found = explosion("relu", 1024)
        >>> round(found.rate, 4), round(found.norm_rate, 4), round(found.trainable_depth)
        (1.4685, 1.2118, 42)
    """
    size = _batch_size(batch_size)
    if not all(isinstance(value, Real) and (value == 0 or 1e-60 <= abs(value) <= 1e60) for value in (gamma, beta)):
        got = f"got gamma = {gamma!r} and beta = {beta!r}."
        raise ValueError(f"gamma and beta are finite numbers, 0 or of a size between 1e-60 and 1e60; {got}")
    if not isinstance(phi, ActivationWithSlope):
        check_choice("phi", phi, ACTIVATIONS)
    if phi == "linear" and gamma != 0:
        return _result(phi, size, gamma, beta, _linear(size, gamma, beta), 0.0, "closed form")
    if phi == "relu" and beta == 0 and gamma != 0:
        return _result(phi, size, gamma, beta, _relu(size, gamma), 0.0, "closed form")
    activation = phi if isinstance(phi, ActivationWithSlope) else ACTIVATIONS[phi]
    name = phi if isinstance(phi, str) else "function"
    return _result(name, size, gamma, beta, *_refined(activation, size, gamma, beta), "quadrature")


def rate(phi: str | ActivationWithSlope = "relu", batch_size: float = math.inf) -> float:
    """Growth of the squared gradient norm per layer; see `explosion`.

    Example:
        >>> rate("linear", 5), round(rate("relu"), 3)
        (1.5, 1.467)
    """
    return explosion(phi, batch_size).rate


@dataclass(frozen=True)
class _Moments:
    """E f1^2, E f1^2 - E f1 f2, E d1^2, E x1^2 d1^2, E d1 d2, E x1 x2 d1 d2."""

    square: float
    spread: float
    slope: float
    weighted: float
    slopes: float
    weighted_slopes: float


def _rate(m: _Moments, size: float) -> float:
    if math.isinf(size):
        return m.slope / m.spread
    numerator = (size - 1) * m.slope - m.weighted + m.slopes + m.weighted_slopes
    return numerator / ((size - 3) * m.spread)


def _result(phi: str, size: float, gamma: float, beta: float, m: _Moments, error: float, method: str) -> Explosion:
    rate = _rate(m, size)
    xi = 1 / math.log(rate) if rate > 1 else math.inf
    correlation = 1 - m.spread / m.square
    return Explosion(phi, size, gamma, beta, rate, math.sqrt(rate), m.square, correlation, xi, 16 * xi, error, method)


def _relu(size: float, gamma: float) -> _Moments:
    c = -1 / (size - 1)
    j, slope = (math.sqrt(1 - c * c) + (math.pi - math.acos(c)) * c) / math.pi, (math.pi - math.acos(c)) / math.pi
    half = gamma**2 / 2
    return _Moments(half, half * (1 - j), half, half, half * slope, half * j)


def _linear(size: float, gamma: float, beta: float) -> _Moments:
    c, g = -1 / (size - 1), gamma**2
    return _Moments(g + beta**2, g * (1 - c), g, g, g, g * c)


def _refined(activation: ActivationWithSlope, size: float, gamma: float, beta: float) -> tuple[_Moments, float]:
    """Moments from more and more panels, until the rate no longer moves, with a bound on its error."""
    places = len(activation.kinks) + 1
    panels = max(1, 6 // places)
    rates: list[float] = []
    while len(rates) < 2 or 24 * places * panels <= _NODES:
        moments = _moments(activation, size, gamma, beta, panels)
        if not moments.spread > 1e-28 * moments.square:
            raise ValueError(
                f"phi(gamma x + beta) is constant over the batch for gamma = {gamma} and beta = {beta}: the next "
                "BatchNorm has no variance to divide by. Take a gamma that is not 0, or a smaller beta."
            )
        rates.append(_rate(moments, size))
        error = _SAFETY * max((abs(rates[-1] - earlier) for earlier in rates[-3:-1]), default=math.inf)
        if error <= 1e-12 * rates[-1]:
            break
        panels *= 2
    least = 1.0 if math.isinf(size) else (size - 2) / (size - 3)
    if not error <= _LARGEST_ERROR * rates[-1] or rates[-1] + error < least * (1 - 1e-9):
        raise ValueError(
            f"Quadrature does not find the rate for gamma = {gamma} and beta = {beta}: {rates[-1]:.4g} within "
            f"{error:.1g}, and no phi has less than {least:.4g}. Name the points where phi jumps or turns fast as its "
            "kinks, or take a smaller gamma."
        )
    return moments, error


def _moments(activation: ActivationWithSlope, size: float, gamma: float, beta: float, panels: int) -> _Moments:
    """Moments by Gauss-Legendre quadrature in angles, on panels that end at the kinks."""
    kinks = np.array([(kink - beta) / gamma for kink in activation.kinks]) if gamma else np.zeros(0)

    def f(x: _Array) -> _Array:
        return activation.phi(gamma * x + beta)

    def d(x: _Array) -> _Array:
        return gamma * activation.slope(gamma * x + beta)

    n = size - 1
    x1, w1 = rule(n, kinks[None], panels)
    x1, w1 = x1[0], w1[0]
    square, slope, weighted = (float(w1 @ values) for values in (f(x1) ** 2, d(x1) ** 2, (x1 * d(x1)) ** 2))
    # Without its mean, which E f1^2 - E f1 f2 does not see, f keeps its digits where beta is large.
    mean = float(w1 @ f(x1))
    centred = float(w1 @ (f(x1) - mean) ** 2)
    if math.isinf(size):
        slopes, pulls = (float(w1 @ values) ** 2 for values in (d(x1), x1 * d(x1)))
        return _Moments(square, centred, slope, weighted, slopes, pulls)
    # x2 = c x1 + width y, y a coordinate of the remaining sphere, whose radius may round to zero.
    c = -1 / n
    width = np.sqrt((1 - c * c) * np.maximum(n - x1**2, 1e-30) / (n - 1))[:, None]
    y, w2 = rule(n - 1, (kinks[None] - c * x1[:, None]) / width, panels)
    x2 = c * x1[:, None] + width * y
    product, slopes, pulls = (
        float(w1 @ (values1 * (w2 * values2).sum(1)))
        for values1, values2 in ((f(x1) - mean, f(x2) - mean), (d(x1), d(x2)), (x1 * d(x1), x2 * d(x2)))
    )
    return _Moments(square, centred - product, slope, weighted, slopes, pulls)


def _batch_size(value: float) -> float:
    if isinstance(value, Real) and value == math.inf:
        return math.inf
    if not isinstance(value, Real) or not value > 3 or value != int(value):
        raise ValueError(
            f"The batch size is a whole number above 3, or inf; got {value!r}. With 3 samples or fewer the mean of "
            "1/s^2, and with it the rate, is infinite."
        )
    return int(value)
