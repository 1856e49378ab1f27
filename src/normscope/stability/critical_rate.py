r"""The critical rate: the learning rate at which the loss along the coming update is back at its value here.

    s_c = min { s > 0 : L(theta + s d) > L(theta) }        d: the optimizer's coming update at a learning rate of 1

s_c is a learning rate. The Monitor's critical step k_c = s_c / lr is a multiple of the update. On a quadratic and along
the gradient s_c = 2 g'g / g'Hg >= 2 / lambda_max. The search takes at most `most` forward passes on the copies that the
curvature was measured on. It takes one more pass if the loss at the present parameters is not known.
Source: arXiv 2601.16979, critical sharpness 2 / s_c.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normscope.isolation.coming_update import updated
from normscope.isolation.flat_vectors import split
from normscope.isolation.lending import Lent

PASSES = 8
_TOLERANCE = 1e-3


class CrossingSearch:
    """The first s > 0 at which `rise(s)` turns positive, from `guess`, in at most `most` calls.

    Example:
        >>> search = CrossingSearch(lambda s: s * s - 3 * s, 1.0)
        >>> round(search.run(), 12), search.passes
        (3.0, 5)
    """

    def __init__(self, rise: Callable[[float], float], guess: float, most: int = PASSES) -> None:
        self._rise = rise
        self._guess = guess
        self._most = most
        self.low, self.high = 0.0, math.inf
        self._at_low, self._at_high = math.nan, math.nan
        self.passes = 0

    def run(self) -> float:
        """The first rate at which the loss rises; inf where none was found, 0 where it rises at every rate tried."""
        s = self._guess
        while self.passes < self._most and not self.low:
            if self._higher(s):
                s /= 4
        grow = 2.0
        while self.passes < self._most and self.high == math.inf:
            self._higher(self.low * grow)
            grow *= 2
        if not self.low or self.high == math.inf:
            return math.inf if self.low else 0.0
        shrinks = True
        while self.passes < self._most and self.high > self.low * (1 + _TOLERANCE):
            s = self._crossing() if shrinks else math.sqrt(self.low * self.high)
            if not self.low < s < self.high:
                break
            before = self.high / self.low
            self._higher(s)
            shrinks = self.high / self.low <= math.sqrt(before)
        return self._crossing()

    def _higher(self, s: float) -> bool:
        self.passes += 1
        rise = self._rise(s)
        if rise <= 0:
            self.low, self._at_low = s, rise / s
        else:
            self.high, self._at_high = s, rise / s
        return self.high == s

    def _crossing(self) -> float:
        """Zero of the line through both ends; the geometric mean where the loss at one is not finite."""
        span = self._at_high - self._at_low
        if not math.isfinite(span) or span <= 0:
            return math.sqrt(self.low * self.high)
        return self.low - self._at_low * (self.high - self.low) / span


def find_critical_rate(
    lent: Lent,
    chosen: Sequence[int],
    loss: Callable[[], float],
    gradient: Tensor,
    optimizer: torch.optim.Optimizer | None,
    guess: float,
    here: float | None = None,
    most: int = PASSES,
) -> float:
    """The critical rate; inf where no rise was found, 0 where the loss is higher at every rate tried.

    Args:
        chosen: numbers of the lent parameters that move. loss: gives L at their present values.
        gradient: of L by the chosen parameters. optimizer: moves them by its coming update; None for gradient descent.
        guess: the rate where the search begins. here: L at the start, where it is known. most: passes at most.
    """
    leaves: list[Tensor] = [lent.leaves[i] for i in chosen]
    origin, slopes = [leaf.detach().clone() for leaf in leaves], split(gradient, leaves)
    start = guess if 0 < guess < math.inf else 1.0
    if optimizer is None:
        way = [-slope for slope in slopes]
    else:
        # The update is taken at the rate where the search begins: at a rate near 0 rounding would swallow it.
        after = updated(optimizer, [lent.originals[i] for i in chosen], gradients=slopes, lr=start)
        way = [(new - old) / start for new, old in zip(after, origin, strict=True)]

    def at(s: float) -> float:
        with torch.no_grad():
            for leaf, old, direction in zip(leaves, origin, way, strict=True):
                torch.add(old, direction, alpha=s, out=leaf)
        return loss()

    at_start = loss() if here is None else here
    try:
        return CrossingSearch(lambda s: at(s) - at_start, start, most).run()
    finally:
        with torch.no_grad():
            torch._foreach_copy_(leaves, origin)
