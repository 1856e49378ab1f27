"""Cotangents: the gradients that come back to a tensor, described by kernels, with corrections for finite width."""

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
    """One summand of the gradient of one part.

    The gradient came from weights that are independent of the part's values. Then the gradient went through activations
    whose slopes depend on these values.

    Attributes:
        g: kernel of the gradient before the slopes.
        first: mean of the product of the slopes, for each cell of the part's marginal.
        second: mean of the square of this product, for each cell of the part's marginal.
    """

    g: Tensor
    first: Tensor
    second: Tensor


class Spread(NamedTuple):
    """Effects of finite width on the cotangents of several outputs and samples.

    Attributes:
        mean: relative variance of the product of two outputs' cotangents in the mean mode: the sum of 1/width over the
            weights that the cotangents came through. Only channels count as independent.
        data: the same variance in the data modes, where sites count as independent too.
        alone: the same variance for the cotangents of one sample, where slopes of activations switch channels off.
        length: relative variance, from sample to sample, of the cotangent's squared length.
        sample_separation: how much the cotangents of different samples differ in the mean mode.
    """

    mean: float = 0.0
    data: float = 0.0
    alone: float = 0.0
    length: float = 0.0
    sample_separation: float = 0.0

    def plus(self, more: "Spread") -> "Spread":
        """The sum of this spread and the spread that a layer adds."""
        return Spread(*(a + b for a, b in zip(self, more, strict=True)))


@dataclass(frozen=True, eq=False)
class Cotangent:
    """The gradient that comes back to a field, as kernels, one for each part.

    Attributes:
        g: kernel of the gradient, summed over the part's channels.
        bend: kernel of the derivative d g / d value.
        held_gradient_and_drift: two kernels of two different samples, both with statistics held: first the kernel of
            the gradient; then the drift, which is the derivative of theta_xy (the output's tangent kernel) with respect
            to the part's kernel.
        spread: effects of finite width.
        strands: the summands of g, if slopes on the way depend on the part's own values; () if g is independent of the
            values.
        origin: overlaps of the samples' own gradients, with statistics held; None if statistics after this tensor are
            differentiated through.
    """

    g: tuple[Tensor, ...]
    bend: tuple[Tensor, ...]
    held_gradient_and_drift: tuple[Tensor, ...]
    spread: Spread
    strands: tuple[tuple[Strand, ...], ...] = ()
    origin: Origin | None = None

    def __add__(self, other: "Cotangent") -> "Cotangent":
        """The sum of the cotangents from two operations that read one tensor.

        Fluctuations that both cotangents share count fully. Fluctuations of only one cotangent count with the square of
        its share of the sum.
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
            tuple(a + b for a, b in zip(self.held_gradient_and_drift, other.held_gradient_and_drift, strict=True)),
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
        """The part of the first direction's gradient that samples do not share, summed over all pairs of sites."""
        return float(sum((g[0, 0] - g[0, 1]).sum() for g in self.g))

    def weight(self) -> float:
        """Sum of the absolute entries of the kernels in the first direction."""
        return float(sum(g[0].detach().abs().sum() for g in self.g))


def _both(one: Cotangent, two: Cotangent) -> tuple[tuple[Strand, ...], ...]:
    """Strands of both cotangents, for each part: strands of the longest path first, gradients without strands last."""
    by_part = []
    for i, mixed in enumerate(one.strands or two.strands):
        ones = torch.ones_like(mixed[0].first)
        fresh = tuple(Strand(c.g[i], ones, ones) for c in (one, two) if not c.strands)
        own = (*(s for c in (one, two) if c.strands for s in c.strands[i]), *fresh)
        by_part.append((_as_one(own[: 1 - _STRANDS]), *own[1 - _STRANDS :]) if len(own) > _STRANDS else own)
    return tuple(by_part)


def _as_one(strands: tuple[Strand, ...]) -> Strand:
    """The average of many strands. Strands that went through many slopes of the same values are nearly alike."""
    sizes = [float(s.g[0, 0].detach().abs().sum()) for s in strands]
    total = sum(sizes)
    shares = [size / total if 0 < total < math.inf else 1 / len(sizes) for size in sizes]
    first, second = (
        torch.stack([share * of for share, of in zip(shares, profiles, strict=True)]).sum(0)
        for profiles in ([s.first for s in strands], [s.second for s in strands])
    )
    return Strand(torch.stack([s.g for s in strands]).sum(0), first, second)
