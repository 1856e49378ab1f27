r"""Overlaps of samples' own gradients, handed down from layer to layer: the mirror of the overlaps of their inputs.

Gradients of many samples in a layer of few channels cannot all be orthogonal: they overlap. Layers that see overlapping
gradients have top eigenvectors in common, so that their largest eigenvalues add up. This file follows the overlaps from
layer to layer, and computes the edge of the spectrum that they give.

| symbol | means |
|---|---|
| m, C, R | samples, outputs, and rows of J: R = C m |
| n | channels of the tensor, the columns of s |
| s, s_k | matrix of the rows' gradients at a tensor, and the k-th draw of one |
| S, X, Y | part that came down as it is, part before the last weights, and these weights |
| a_k, b_k, e | shares of draw k in S S^T and in X X^T, and the share that each row has alone |
| phi, G, G' | activation; kernels of the gradient after and before it |
| F, c_k | what parameters add to J J^T, and the weight of draw k in it |
| kappa_k, g_k, C_k, N_k, P_k, Z_k | unknowns of the equations of the resolvent |

**The matrix of gradients.** J has R = C m rows, one for each output of each sample. With statistics held, every row
comes down through the network by itself. Its gradient at a tensor of n channels, summed over sites, is a vector of n
entries. All rows together are a matrix s of R rows and n columns,

    s = S + X Y        S S^T = sum_k a_k s_k s_k^T,   X X^T = sum_k b_k s_k s_k^T + e I,   Y of variance 1/n

- S came down as it is, as through a skip connection.
- X came through weights Y that nothing above has seen.
- e is what activations make a row's own. Of the overlap of two samples x and y an activation keeps
  sum G E[phi'(x) phi'(y)] / sum G'.

**A draw** is one such s, numbered k: a set of weights was drawn there. Each new draw is made of earlier ones.

**What parameters add.** Some parameters see nothing of a sample but s: beta, gamma as far as its gradient is correlated
with beta's, and weights as far as two samples share their inputs. They add F = sum_k c_k s_k s_k^T to J J^T. Where n is
small beside R, s_k and s_l have nearly the same column space, so that their largest eigenvalues add up.

**The spectrum of F.** Taking the weights out one after the other, the last drawn first, gives its resolvent:

    kappa_k = C_k / (1 - (R/n) C_k N_k)        N_k = e u + sum_l b_l P_l      P_k = r N_k + r^2 Z_k,   r = kappa_k / C_k
    g_k = kappa_k (1 + (R/n) kappa_k Z_k)      Z_k = sum_l a_l P_l
    C_l = c_l + sum over k drawn from l of (kappa_k a_l + g_k b_l)

and z(u) = 1/u + sum_k g_k e_k in the notation of `modes`.

Example: one draw of n = 16 channels, R = 64 rows, c = e = 1 and nothing handed down. There is one equation,
z(u) = 1/u + 1 / (1 - 4 u): Marchenko and Pastur's, with the edge 9 at u = 1/6 (`GradientOverlaps.above`).

Against drawn matrices of n = 64 the edges are 0 to 8 % too high. The law of the largest eigenvalue, which would lower
them, holds for many columns and is left out here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

# At the edge the iteration converges slowly; 80 steps find the edge within 0.3 %.
_STEPS, _PRECISION = 80, 1e-5


@dataclass(frozen=True)
class Origin:
    """Origin of the gradients' overlaps at a tensor, as shares of sum 1.

    Attributes:
        same: shares that came down from draws as they are, by draw.
        mixed: shares that came through weights that nothing above has seen, by draw.
        own: the share of every sample alone.

    Example: half of an activation's slopes are those of the other sample too.
        >>> Origin({3: 1.0}).masked(0.5)
        Origin(same={3: 0.5}, mixed={}, own=0.5)
    """

    same: dict[int, float] = field(default_factory=dict)
    mixed: dict[int, float] = field(default_factory=dict)
    own: float = 0.0

    def masked(self, kept: float) -> "Origin":
        """The origin after an activation that keeps this share; the rest becomes `own`."""
        return self.plus(Origin(own=1.0), min(max(kept, 0.0), 1.0))

    def plus(self, other: "Origin", share: float) -> "Origin":
        """The origin of a sum, of which `share` is this one's."""
        same, mixed = ({k: share * w for k, w in overlaps.items()} for overlaps in (self.same, self.mixed))
        for overlaps, more in ((same, other.same), (mixed, other.mixed)):
            for k, w in more.items():
                overlaps[k] = overlaps.get(k, 0.0) + (1 - share) * w
        return Origin(same, mixed, share * self.own + (1 - share) * other.own)


class GradientOverlaps:
    """All draws of one network from the output down, and the sizes that parameters add which see them."""

    def __init__(self) -> None:
        self._draws: list[tuple[Origin, float]] = []
        self._adds: list[float] = []

    def drawn(self, origin: Origin, channels: float) -> int:
        """The number of the draw of a tensor of so many channels; no new draw where all comes from one as it is."""
        if list(origin.same.values()) == [1.0]:
            return next(iter(origin.same))
        self._draws.append((origin, float(channels)))
        self._adds.append(0.0)
        return len(self._draws) - 1

    def add(self, draw: int, size: float) -> None:
        """Add parameters that see this draw; size: their part of one row's own entry of J J^T."""
        self._adds[draw] += max(size, 0.0)

    @property
    def total(self) -> float:
        """Sum of the sizes that all parameters add."""
        return sum(self._adds)

    def above(self, u: float, rows: float) -> float:
        """z(u) - 1/u; infinite where the resolvent does not exist.

        Example: 64 rows in 16 dimensions, at the edge (1 + sqrt(4))^2.
            >>> overlaps = GradientOverlaps()
            >>> overlaps.add(overlaps.drawn(Origin(own=1.0), 16), 1.0)
            >>> round(6 + overlaps.above(1 / 6, 64), 9)
            9.0
        """
        ratios = [1.0] * len(self._draws)
        for _ in range(_STEPS):
            rise, new = self._step(u, rows, ratios)
            if rise == math.inf or _close(ratios, new):
                return rise
            ratios = new
        return math.inf

    def resolvent(self, x: float, rows: float, others: Callable[[float], float]) -> float:
        """u with z(u) = x above the edge, 0 below it; others: the terms of z(u) beside 1/u and `above`.

        The iteration begins at u = 0, rises, and ends at the smallest solution, if there is one.
        """
        u, ratios = 0.0, [1.0] * len(self._draws)
        for _ in range(_STEPS):
            rise, new = self._step(u, rows, ratios)
            left = x - rise - others(u)
            if not left > 0:
                return 0.0
            if _close([u, *ratios], [1 / left, *new]):
                return 1 / left
            u, ratios = 1 / left, new
        return 0.0

    def _step(self, u: float, rows: float, ratios: list[float]) -> tuple[float, list[float]]:
        through: list[float] = []
        noise, signal = [], []
        for (origin, _), r in zip(self._draws, ratios, strict=True):
            noise.append(origin.own * u + sum(w * through[k] for k, w in origin.mixed.items()))
            signal.append(sum(w * through[k] for k, w in origin.same.items()))
            through.append(r * noise[-1] + r * r * signal[-1])
        sizes, rise, new = list(self._adds), 0.0, list(ratios)
        for j in range(len(self._draws) - 1, -1, -1):
            origin, n = self._draws[j]
            left = 1 - rows / n * sizes[j] * noise[j]
            if left <= 0:
                return math.inf, new
            new[j] = 1 / left
            kappa = sizes[j] * ratios[j]
            g = kappa * (1 + rows / n * kappa * signal[j])
            rise += g * origin.own
            for k, w in origin.same.items():
                sizes[k] += kappa * w
            for k, w in origin.mixed.items():
                sizes[k] += g * w
        return rise, new


def _close(old: list[float], new: list[float]) -> bool:
    return all(abs(a - b) <= _PRECISION * b for a, b in zip(old, new, strict=True))
