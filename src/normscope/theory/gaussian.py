r"""Gaussian expectations of an elementwise function phi at a pair of jointly Gaussian values.

    (u, v) ~ N(mean, [[q_a, k], [k, q_b]])       c = k / sqrt(q_a q_b)

    value   E[phi(u) phi(v)]       slope   E[phi'(u) phi'(v)]       mean   E[phi(u)]       bend   E[phi''(u)]
    curve   E[phi''(u) phi''(v)]   d value / dk = slope,  d slope / dk = curve

Closed forms for combinations a z + b relu(z) (linear, ReLU, leaky ReLU, |z|) and for erf; everything else by Hermite
coefficients. With orthonormal Hermite polynomials h_k and alpha_k(q) = E[phi(mean + sqrt(q) z) h_k(z)], z standard,

    value = sum_k alpha_k(q_a) alpha_k(q_b) c^k         (Mehler's formula)
    slope = sum_k beta_k(q_a) beta_k(q_b) c^k           beta_k = sqrt((k + 1) / q) alpha_{k+1}   (Stein's lemma)

The coefficients are a sum over the midpoints of 2000 cells of [-10, 10], exact to rounding for smooth functions and off
by about 1e-5 where there is a kink. What the first 64 terms leave of c = 1 is put on the 65th power, so that
the diagonal is right whatever the function. No random numbers: two calls give the same bits.
Sources: Wei et al. 2019, Eq. (20)-(22), for ReLU (Cho and Saul's arc-cosine kernels); Williams 1997 for erf.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor

TERMS = 64
_TINY = 1e-300
# Standard deviations below which values are a single point, and the step of a second derivative there.
_POINT, _STEP = 1e-7, 1e-4
# E[phi'' phi''] of a kink grows without bound as c goes to 1; no pair of different values comes nearer than this.
_KINK = 1e-6


@dataclass(frozen=True)
class Moments:
    """Expectations at all pairs and places.

    Attributes:
        value, slope, curve: one for each pair. mean, rise = E[phi'], bend: one for each place.
        fourth: the parts that a unit of excess kurtosis adds (Edgeworth) to E[phi^2], E[phi'^2], E[phi] and E[phi'] of
            a place, E[f''''] / 24 = E[f h_4] / sqrt(24).
    """

    value: Tensor
    slope: Tensor
    curve: Tensor
    mean: Tensor
    rise: Tensor
    bend: Tensor
    fourth: tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Pairs:
    """Covariances k of pairs of places, with variances q and means of places.

    Attributes:
        ends: function that gives a place's number at both ends of every pair.
        curved: whether curves are asked for; they are 0 otherwise.
    """

    k: Tensor
    q: Tensor
    mean: Tensor
    ends: Callable[[Tensor], tuple[Tensor, Tensor]]
    curved: bool = True

    @cached_property
    def centred(self) -> bool:
        return not bool(self.mean.any())


@dataclass(frozen=True)
class Activation:
    """An elementwise function.

    Attributes:
        name: in messages.
        function: on tensors.
        line: (a, b) of a function a z + b relu(z), which has closed forms; None for others.
        monotone: whether the function never falls.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    line: tuple[float, float] | None = None
    monotone: bool = True

    def moments(self, pairs: Pairs) -> Moments:
        """All moments of every pair.

        Example: E[relu(z)^2] = 1/2 and E[relu'(z)^2] = 1/2 for standard z.
            >>> one = torch.ones(1, 1, dtype=torch.float64)
            >>> pairs = Pairs(one, one[0], 0 * one[0], lambda v: (v[:, None], v[None, :]))
            >>> found = RELU.moments(pairs)
            >>> found.value.item(), found.slope.item(), round(found.mean.item(), 4)
            (0.5, 0.5, 0.3989)
        """
        if self.line is not None and (pairs.centred or self.line[1] == 0):
            return _lines(pairs, *self.line)
        if self.name == "erf" and pairs.centred:
            return _erf(pairs)
        return _series(pairs, self.function)


def _lines(pairs: Pairs, a: float, b: float) -> Moments:
    """Moments of a z + b relu(z): value a^2 k + a b k + b^2 J(k); with b = 0 for any mean."""
    k, q, mean = pairs.k, pairs.q, pairs.mean
    if b == 0:
        left, right = pairs.ends(mean)
        return Moments(a * a * (k + left * right), a * a + 0 * k, 0 * k, a * mean, a + 0 * q, 0 * q, (0 * q,) * 4)
    qa, qb = pairs.ends(q)
    n = (qa * qb).clamp_min(_TINY).sqrt()
    c = (k / n).clamp(-1, 1)
    angle = math.pi / 2 + torch.asin(c)
    rest = (1.0 - c * c).sqrt()
    root = q.clamp_min(_TINY).sqrt()
    bend = (b / math.sqrt(2 * math.pi)) / root
    part = b * b / (2 * math.pi)
    slope, value = part * angle, part * n * (rest + c * angle)
    if not float(n.min()) > 2 * _TINY**0.5:
        live = n > 2 * _TINY**0.5
        slope, value = torch.where(live, slope, -a * b), torch.where(live, value, 0.0)
        bend = torch.where(q > 2 * _TINY, bend, 0.0)
    if a:
        slope, value = a * (a + b) + slope, a * (a + b) * k + value
    curve = part / (n * rest.clamp_min(_KINK)) if pairs.curved else 0 * q
    mean = root * (b / math.sqrt(2 * math.pi))
    nothing = torch.zeros_like(q)
    # Only the mean of relu has an even part beyond the second order.
    return Moments(value, slope, curve, mean, nothing + (a + b / 2), bend, (nothing, nothing, mean / -24, nothing))


def _erf(pairs: Pairs) -> Moments:
    qa, qb = pairs.ends(pairs.q)
    square = (1 + 2 * qa) * (1 + 2 * qb)
    value = 2 / math.pi * torch.asin(2 * pairs.k / square.sqrt())
    slope = 4 / math.pi / (square - 4 * pairs.k**2).sqrt()
    curve = math.pi**2 / 4 * pairs.k * slope**3 if pairs.curved else 0 * pairs.q
    return replace(_series(pairs, torch.erf), value=value, slope=slope, curve=curve)


@lru_cache(maxsize=1)
def hermite() -> tuple[Tensor, Tensor, Tensor]:
    """Points, weights of the standard Gaussian, and h_0 ... h_{TERMS} at the points."""
    z = torch.linspace(-9.995, 9.995, 2000, dtype=torch.float64)
    weight = torch.exp(-z * z / 2)
    weight /= weight.sum()
    rows = [torch.ones_like(z), z]
    for k in range(2, TERMS + 1):
        rows.append((z * rows[-1] - math.sqrt(k - 1) * rows[-2]) / math.sqrt(k))
    return z, weight, torch.stack(rows)


@lru_cache(maxsize=1)
def _projection() -> Tensor:
    """Coefficients on h_0 ... h_{TERMS - 1} of a function with these values at the points."""
    _, weight, table = hermite()
    return (table[:-1] * weight).T.contiguous()


def derivative(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """phi'(z), elementwise, by autograd; also where gradients are off.

    The derivative of relu, which nearly all networks ask for, is written out, which is faster.
    """
    if function is torch.relu:
        return (z > 0).to(z.dtype)
    with torch.inference_mode(False), torch.enable_grad():
        leaf = z.clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(leaf).sum(), leaf)
    return slope


def _series(pairs: Pairs, function: Callable[[Tensor], Tensor]) -> Moments:
    z, weight, table = hermite()
    # Equal places share their coefficients: without borders there is one.
    both = torch.stack([pairs.q.flatten(), pairs.mean.flatten()])
    place = torch.zeros(1, dtype=torch.long)
    if both.shape[1] > 1:
        both, place = torch.unique(both, dim=1, return_inverse=True)
    root = both[0].clamp_min(0).sqrt()[:, None]
    at = both[1][:, None] + root * z
    values, slopes = function(at), derivative(function, at)
    alpha, beta = (torch.cat([values, slopes]) @ _projection()).chunk(2)
    gamma = beta[:, 1:] * torch.arange(1, TERMS, dtype=torch.float64).sqrt() / root.clamp_min(_POINT)
    point = root[:, 0] < _POINT
    if bool(point.any()):
        gamma[point] = 0
        gamma[point, 0] = _second(function, both[1][point])
    # The remainder of the terms at c = 1 goes on the next power.
    alpha = torch.cat([alpha, _rest((values * values) @ weight, alpha)], 1)
    beta = torch.cat([beta, _rest((slopes * slopes) @ weight, beta)], 1)
    qa, qb = pairs.ends(pairs.q)
    c = (pairs.k / (qa * qb).clamp_min(_TINY).sqrt()).clamp(-1, 1)
    needed = [alpha, beta, gamma] if pairs.curved else [alpha, beta]
    if len(both[0]) == 1:
        # Far apart, most offsets of a torus have the same correlation.
        few, which = torch.unique(c, return_inverse=True)
        powers = torch.cat([torch.ones_like(few)[:, None], few[:, None].expand(-1, TERMS).cumprod(-1)], -1)
        sums = [(powers[:, : row.shape[1]] @ row[0].square())[which] for row in needed]
    else:
        sums = _horner(c, [rows[place].reshape(*pairs.q.shape, -1) for rows in needed], pairs.ends)
    curve = sums[2] if pairs.curved else 0 * pairs.q
    shape = pairs.q.shape
    he4 = table[4] * weight / math.sqrt(24)
    fourth = tuple((f @ he4)[place].reshape(shape) for f in (values * values, slopes * slopes, values, slopes))
    bend = gamma[:, 0][place].reshape(shape)
    mean, rise = (rows[place, 0].reshape(shape) for rows in (alpha, beta))
    return Moments(sums[0], sums[1], curve, mean, rise, bend, (fourth[0], fourth[1], fourth[2], fourth[3]))


def _second(function: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """phi''(z) from two slopes."""
    return (derivative(function, z + _STEP) - derivative(function, z - _STEP)) / (2 * _STEP)


def length_slope(phi: Activation, q: float, mean: float) -> float:
    r"""Factor by which phi and a BatchNorm after it multiply the relative excess of one sample's squared length.

        (E[phi phi' u] - E[phi] E[phi' u]) / Var[phi]        u = sqrt(q) z,  phi at mean + u

    1 for ReLU of centred values. Above 1, samples longer than the others grow longer from layer to layer.

    Example:
        >>> round(length_slope(RELU, 1.0, 0.0), 3), round(length_slope(RELU, 1.0, -1.0), 2)
        (1.0, 2.02)
    """
    z, weight, _ = hermite()
    u = math.sqrt(max(q, 0.0)) * z
    values, slopes = phi.function(mean + u), derivative(phi.function, mean + u)
    first = float(values @ weight)
    variance = float(values.square() @ weight) - first**2
    return float((values - first) * slopes * u @ weight) / variance if variance > 0 else 0.0


@lru_cache(maxsize=256)
def gamma_beta_correlation(phi: Activation, q: float, mean: float) -> float:
    r"""Correlation of gradients with respect to a gamma and a beta before phi, which are as phi' z and phi'.

        E[phi'^2 z] / sqrt(E[phi'^2] E[phi'^2 z^2])        phi' at mean + sqrt(q) z

    0 for odd functions of centred values; where phi' is 0 or 1 by the sign of z the two nearly agree.

    Example:
        >>> round(gamma_beta_correlation(RELU, 1.0, 0.0), 2)
        0.8
    """
    z, weight, _ = hermite()
    squares = derivative(phi.function, mean + math.sqrt(max(q, 0.0)) * z).square() * weight
    size = math.sqrt(float(squares.sum()) * float(squares @ z.square()))
    return float(squares @ z) / size if size > 0 else 0.0


def _rest(square: Tensor, coefficients: Tensor) -> Tensor:
    return (square - coefficients.square().sum(1)).clamp_min(0).sqrt()[:, None]


def _horner(c: Tensor, sets: list[Tensor], ends: Callable[[Tensor], tuple[Tensor, Tensor]]) -> list[Tensor]:
    """sum_k row_k row_k c^k for each set of rows, with coefficients of each place."""
    terms = max(rows.shape[-1] for rows in sets)
    padded = [torch.cat([rows, rows.new_zeros(*rows.shape[:-1], terms - rows.shape[-1])], -1) for rows in sets]
    # Terms in front, then the sets; classes of pairs share the places.
    rows = torch.stack(padded).movedim(-1, 0).reshape(terms, len(sets), *(1,) * (c.ndim - 2), -1)
    sums = c.new_zeros(len(sets), *c.shape)
    left, right = ends(rows)
    for a, b in zip(reversed(left.unbind(0)), reversed(right.unbind(0)), strict=True):
        sums.mul_(c).addcmul_(a, b)
    return list(sums.unbind(0))


RELU = Activation("relu", torch.relu, line=(0.0, 1.0))
LINEAR = Activation("linear", lambda z: z, line=(1.0, 0.0))
ERF = Activation("erf", torch.erf)
