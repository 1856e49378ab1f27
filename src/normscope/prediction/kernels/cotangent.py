"""Kernels of the gradients that come back to a tensor, and what finite width does to them."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from normscope.theory.gradient_overlaps import Origin

# Largest number of strands kept apart, so that the cost of a chain of blocks is linear in its length.
_STRANDS = 24


@dataclass(frozen=True, eq=False)
class Strand:
    """A gradient of one part that came from independent weights, and then through slopes that the values decide.

    Attributes:
        g: its kernel before those slopes.
        first, second: means of the slopes' product and of its square, for each cell of the part's marginal.
    """

    g: Tensor
    first: Tensor
    second: Tensor


class Spread(NamedTuple):
    """Effects of finite width on the cotangents of several outputs and samples.

    Attributes:
        mean, data: relative variance of the product of two outputs' cotangents, the sum of 1/width over the weights
            they came through; in the mean mode only channels are independent, in the data modes sites are too.
        alone: the same of one sample's cotangents, whose slopes switch channels off.
        length: relative variance of the squared length, from sample to sample.
        sample_separation: how far samples' cotangents stand apart in the mean mode.
    """

    mean: float = 0.0
    data: float = 0.0
    alone: float = 0.0
    length: float = 0.0
    sample_separation: float = 0.0

    def plus(self, more: "Spread") -> "Spread":
        """The spread after weights or an activation that add `more`."""
        return Spread(*(a + b for a, b in zip(self, more, strict=True)))


@dataclass(frozen=True, eq=False)
class Cotangent:
    """The gradient that comes back to a field, as kernels, one for each part.

    Attributes:
        g: kernel of the gradient, summed over the part's channels.
        bend: kernel of d g / d value.
        statistics_held: two kernels of two different samples, with statistics held: that of the gradient, and the
            drift, which is the derivative of theta_xy (the output's tangent kernel) with respect to the part's kernel.
        spread: effects of finite width.
        strands: the summands of g, where slopes on the way are decided by the part's own values; () where g is
            independent of the values.
        origin: overlaps of samples' own gradients, with statistics held; None below statistics that are differentiated.
    """

    g: tuple[Tensor, ...]
    bend: tuple[Tensor, ...]
    statistics_held: tuple[Tensor, ...]
    spread: Spread
    strands: tuple[tuple[Strand, ...], ...] = ()
    origin: Origin | None = None

    def __add__(self, other: "Cotangent") -> "Cotangent":
        """The sum of the cotangents of two readers of one tensor, independent where they came through other weights.

        Fluctuations that both have are added whole, fluctuations of one alone by the square of its share.
        """
        own, its = self.weight(), other.weight()
        share = own / (own + its) if own + its > 0 else 0.5
        shared = [min(a, b) for a, b in zip(self.spread, other.spread, strict=True)]
        spread = (
            c + share**2 * (a - c) + (1 - share) ** 2 * (b - c)
            for a, b, c in zip(self.spread, other.spread, shared, strict=True)
        )
        return Cotangent(
            tuple(a + b for a, b in zip(self.g, other.g, strict=True)),
            tuple(a + b for a, b in zip(self.bend, other.bend, strict=True)),
            tuple(a + b for a, b in zip(self.statistics_held, other.statistics_held, strict=True)),
            Spread(*spread),
            _both(self, other),
            self._origin(other),
        )

    def _origin(self, other: "Cotangent") -> Origin | None:
        if self.origin is None or other.origin is None:
            return None
        own, its = self.own(), other.own()
        return self.origin.plus(other.origin, own / (own + its) if own > 0 and its > 0 else float(own >= its))

    def own(self) -> float:
        """The part of the first direction's gradient that one sample has for itself, summed over all pairs of sites."""
        return float(sum((g[0, 0] - g[0, 1]).sum() for g in self.g))

    def weight(self) -> float:
        """Sum of the sizes of the first direction's kernels."""
        return float(sum(g[0].detach().abs().sum() for g in self.g))


def _both(one: Cotangent, two: Cotangent) -> tuple[tuple[Strand, ...], ...]:
    """Strands of both for each part; the strands of the longest way first, gradients without strands last."""
    by_part = []
    for i, mixed in enumerate(one.strands or two.strands):
        ones = torch.ones_like(mixed[0].first)
        fresh = tuple(Strand(c.g[i], ones, ones) for c in (one, two) if not c.strands)
        own = (*(s for c in (one, two) if c.strands for s in c.strands[i]), *fresh)
        by_part.append((_as_one(own[: 1 - _STRANDS]), *own[1 - _STRANDS :]) if len(own) > _STRANDS else own)
    return tuple(by_part)


def _as_one(strands: tuple[Strand, ...]) -> Strand:
    """Many strands as one: strands that went through many of the same slopes differ little by how many."""
    sizes = [float(s.g[0, 0].detach().abs().sum()) for s in strands]
    total = sum(sizes)
    shares = [size / total if 0 < total < math.inf else 1 / len(sizes) for size in sizes]
    first, second = (
        torch.stack([share * of for share, of in zip(shares, profiles, strict=True)]).sum(0)
        for profiles in ([s.first for s in strands], [s.second for s in strands])
    )
    return Strand(torch.stack([s.g for s in strands]).sum(0), first, second)
