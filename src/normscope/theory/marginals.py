r"""Distribution of one place of a channel after repeated relu(skip + branch), whose values are not Gaussian.

    z = r + g       r = phi(z') of the block before (half of it may be one point), g ~ N(mean, q) independent of it

A Gaussian of the same moments is wrong there: after five sums Var relu(z), which BatchNorm divides by, is 2.14 and not
1.72. So the distribution itself is carried along, on cells of equal size with an edge at zero:

    P(cell) = sum_i p_i [Phi((b - r_i - mean) / sqrt(q)) - Phi((a - r_i - mean) / sqrt(q))]        exact for the r_i

Two places are joined as Gaussian values are (a Gaussian copula): z = Z(w), Z rising and w standard Gaussian, and the
correlation c of w and w~ is the one that gives z and z~ the covariance of their kernel. With A_k = E[A h_k(w)]

    E[A(z) A(z~)] = sum_k A_k^2 c^k        exact for c = 0 (other samples, under BatchNorm) and c = 1 (the same place)

The variance that A leaves open, because it depends on branches further on, is taken times 2/pi asin(c), the law of two
signs. Derivatives by g: E[A'(z)] = sum over edges of density times jump, exact for A that is constant on cells.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from normscope.theory.gaussian import Activation, Moments, Pairs, derivative

# Cells; standard deviations to either side; powers of c; correlations in a table, by equal steps of the angle.
_CELLS, _REACH, _TERMS, _ANGLES = 192, 6.5, 24, 129
# Cosines below which the slope of a table is that of a kink.
_KINK = 1e-3


@dataclass(frozen=True, eq=False)
class Marginal:
    """Distribution of one place over cells.

    Attributes:
        at: middle of each cell.
        weight: probability of each cell.
        falls: density at the lower edge less density at the upper edge, so that falls @ A = E[A'(z)].
        moved: for a sum, probability of each cell given each value of the summand that is not Gaussian.
        which: index of those values by cell of that summand.
        centre: the value where places do not differ.
    """

    at: Tensor
    weight: Tensor
    falls: Tensor
    moved: Tensor | None = None
    which: Tensor | None = None
    centre: float = 0.0

    def through(self, phi: Activation) -> "Marginal":
        """Distribution of phi(z); cells keep their order and number."""
        centre = float(phi.function(self.at.new_tensor(self.centre)))
        return Marginal(phi.function(self.at), self.weight, self.falls, centre=centre)

    def plus(self, mean: float, q: float) -> "Marginal":
        """Distribution of the sum with an independent N(mean, q)."""
        values, which = torch.unique(self.at, return_inverse=True)
        weight = torch.zeros_like(values).index_add_(0, which, self.weight)
        root = math.sqrt(q)
        middle = float(weight @ values)
        far = _REACH * math.sqrt(q + max(float(weight @ values.square()) - middle**2, 0.0)) + middle
        edges = _edges(float(values[0]) + mean - _REACH * root, min(float(values[-1]) + _REACH * root, far) + mean)
        away = edges / root - ((values + mean) / root)[:, None]
        moved = _cells(torch.special.ndtr(away))
        density = weight @ torch.exp(-away * away / 2) / (root * math.sqrt(2 * math.pi))
        return Marginal((edges[1:] + edges[:-1]) / 2, weight @ moved, -density.diff(), moved, which, self.centre + mean)

    def pulled(self, profile: Tensor) -> Tensor:
        """E[profile(z) | r] for each cell of the summand r; profiles of cells, one in each row."""
        assert self.moved is not None
        assert self.which is not None
        return (profile @ self.moved.T)[..., self.which]

    @cached_property
    def square(self) -> float:
        return float(self.at.square() @ self.weight)

    @cached_property
    def basis(self) -> Tensor:
        """h_0(w), h_1(w), ... times the cells' weights: products with it are Hermite coefficients."""
        middle = self.weight.cumsum(0) - self.weight / 2
        w = torch.special.ndtri(middle.clamp(1e-14, 1 - 1e-14))
        order, size = _orders()
        return torch.special.hermite_polynomial_he(w[:, None], order) * (self.weight[:, None] / size)

    @cached_property
    def powers(self) -> Tensor:
        """Powers c^0, c^1, ... of the Gaussian values' correlation, for each correlation of z in the table."""
        wanted = torch.sin(_angles())
        moments = _powers_of_table() @ self._weights(self.at[None])[0]
        mean = float(self.at @ self.weight)
        moments = ((moments - mean**2) / (self.square - mean**2)).cummax(0).values
        upper = torch.searchsorted(moments, wanted).clamp(1, _ANGLES - 1)
        low, high = moments[upper - 1], moments[upper]
        share = ((wanted - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
        c = wanted[upper - 1] + share * (wanted[upper] - wanted[upper - 1])
        return _powers(c)

    def _weights(self, first: Tensor) -> Tensor:
        """A_k^2 for each row of profiles, with the remainder of E[A^2] on the last power."""
        mean = (first @ self.weight)[:, None]
        # On cells h_k have small means, which a large mean of A would raise.
        apart = first - mean
        squares = (apart @ self.basis[:, 1:]).square()
        rest = (apart.square() @ self.weight - squares.sum(1)).clamp_min(0)
        return torch.cat([mean.square(), squares, rest[:, None]], 1)

    def tables(self, first: Tensor, second: Tensor) -> Tensor:
        """E[A A~] by the angle of the correlation; first, second: E[A | z] and E[A^2 | z], a profile in each row."""
        open_ = (second - first.square()) @ self.weight
        return self._weights(first) @ self.powers.T + open_[:, None] * (2 / math.pi * _angles())


def gaussian(mean: float, q: float) -> Marginal:
    """The distribution N(mean, q) on cells.

    Example: E[relu] of a standard Gaussian, 1/sqrt(2 pi) = 0.3989, and of its sum with another, relu'd: P(z > 0) = 5/8.
        >>> from normscope.theory.gaussian import RELU
        >>> r = gaussian(0.0, 1.0).through(RELU)
        >>> z = r.plus(0.0, 1.0)
        >>> round(float(r.at @ r.weight), 3), round(float(z.weight[z.at > 0].sum()), 4)
        (0.399, 0.625)
    """
    root = math.sqrt(q)
    edges = _edges(mean - _REACH * root, mean + _REACH * root)
    away = (edges - mean) / root
    density = torch.exp(-away * away / 2) / (root * math.sqrt(2 * math.pi))
    return Marginal((edges[1:] + edges[:-1]) / 2, _cells(torch.special.ndtr(away)), -density.diff(), centre=mean)


def of_distribution(below: Callable[[Tensor], Tensor], mean: float, q: float) -> Marginal:
    """The distribution with P(value <= t) = below(t), of values in the range of N(mean, q)."""
    root = math.sqrt(q)
    edges = _edges(mean - _REACH * root, mean + _REACH * root)
    weight = _cells(below(edges)).clamp_min(0)
    # No caller differentiates by these.
    return Marginal((edges[1:] + edges[:-1]) / 2, weight, torch.zeros_like(weight), centre=mean)


def _edges(low: float, high: float) -> Tensor:
    """Edges of cells of equal size from low to high; zero is an edge if it lies between."""
    size = (high - low) / (_CELLS - 1)
    return size * (math.floor(low / size) + torch.arange(_CELLS + 1, dtype=torch.float64))


def _cells(below: Tensor) -> Tensor:
    """Probabilities of cells from the probabilities below each edge.

    The outermost cells hold everything beyond: probability lost here would come back as a variance, times mean^2.
    """
    none = torch.zeros_like(below[..., :1])
    return below[..., 1:-1].diff(dim=-1, prepend=none, append=none + 1)


@lru_cache(maxsize=1)
def _angles() -> Tensor:
    return torch.linspace(-math.pi / 2, math.pi / 2, _ANGLES, dtype=torch.float64)


@lru_cache(maxsize=1)
def _orders() -> tuple[Tensor, Tensor]:
    """k, and the length sqrt(k!) of the k-th Hermite polynomial."""
    sizes = [math.sqrt(math.factorial(k)) for k in range(_TERMS)]
    return torch.arange(_TERMS), torch.tensor(sizes, dtype=torch.float64)


@lru_cache(maxsize=1)
def _powers_of_table() -> Tensor:
    return _powers(torch.sin(_angles()))


def _powers(c: Tensor) -> Tensor:
    """Powers c^0 to c^_TERMS, one row for each c."""
    return torch.cat([torch.ones_like(c)[:, None], c[:, None].expand(-1, _TERMS).cumprod(-1)], -1)


class Joined:
    """A kernel of places that share a marginal up to scale, for expectations of functions of pairs."""

    def __init__(self, marginal: Marginal, pairs: Pairs) -> None:
        self.marginal, self._pairs = marginal, pairs
        qa, qb = pairs.ends(pairs.q)
        self._root = (qa * qb).clamp_min(1e-300).sqrt()
        angle = torch.asin((pairs.k / self._root).clamp(-1, 1))
        place = (angle / math.pi + 0.5) * (_ANGLES - 1)
        self._cell = place.long().clamp_(0, _ANGLES - 2)
        self._share = place - self._cell
        self._cos = torch.cos(angle).clamp_min_(_KINK)

    @cached_property
    def scale(self) -> Tensor:
        return ((self._pairs.q + self._pairs.mean.square()) / self.marginal.square).sqrt().clamp_min(1e-150)

    def moments(self, phi: Activation) -> Moments:
        """Moments as for Gaussian places; phi(s z) = s phi(z) for s > 0, so that a place's own scale passes through."""
        marginal, pairs = self.marginal, self._pairs
        values, slopes = phi.function(marginal.at), derivative(phi.function, marginal.at)
        scale = self.scale
        both = torch.stack([values, slopes])
        tables = marginal.tables(both, both.square())
        value, slope = self.read(tables)
        left, right = pairs.ends(scale)
        steps = tables[1:].diff(dim=1) * ((_ANGLES - 1) / math.pi)
        curve = steps[0][self._cell] / (self._cos * self._root) if pairs.curved else 0 * pairs.q
        mean, rise = (float(f @ marginal.weight) for f in (values, slopes))
        bend = float(marginal.falls @ slopes) / scale
        nothing = torch.zeros_like(scale)
        # Places apart from the centre by a common factor of their own, to second order in it; phi bends at zero alone.
        apart = marginal.at - marginal.centre
        moved = slopes * apart * marginal.weight
        bent = float(marginal.falls @ (slopes - slopes[-1]))
        mean4 = (marginal.centre**2 * bent - float(moved.sum())) / 24
        value4 = float(moved @ (slopes * apart - values)) / 12
        return Moments(
            left * right * value,
            slope,
            curve,
            mean * scale,
            nothing + rise,
            bend,
            (value4 * scale.square(), nothing, mean4 * scale, nothing),
        )

    def bend(self, profiles: Tensor) -> list[Tensor]:
        """E[A'(z)] E[A'(z~)] of every pair, for each row."""
        left, right = self._pairs.ends(1 / self.scale)
        return [left * right * float(fall) ** 2 for fall in profiles @ self.marginal.falls]

    def read(self, tables: Tensor) -> Tensor:
        """Values of every pair, interpolated in a table for each row."""
        return tables[:, self._cell].lerp(tables[:, self._cell + 1], self._share)
