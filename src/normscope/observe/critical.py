r"""Critical step: how much of the coming update the loss takes before it is no better than here.

    s_c = min { s > 0 : L(theta + s d) > L(theta) }        d: the coming update, or -lr g

The cheapest word on stability: fewer than ten forward passes, no gradient. s_c < 1 says that the step about to be
made raises this batch's loss. On a quadratic and along the gradient s_c lr = 2 g'g / g'Hg, by the curvature along
*this* direction ("critical sharpness" is 2/(s_c lr)); it is not 2/lambda_max, which it exceeds unless g is the top
eigenvector. (L(theta + s d) - L(theta)) / s is linear in s on a quadratic, so its root is sought by the secant, and by
halving a bracket where that does not shrink it; the bracket is found by growing factors from the last known step. A
rise and fall between two points of that search is missed: the step found is a crossing, the first one on any loss that
is convex along d.
Source: arXiv 2601.16979, critical sharpness 2/eta_c (there by bisection).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from normscope.choices import check_choice
from normscope.loss_kinds import CROSS_ENTROPY, SQUARED
from normscope.observe.probe import UPDATES, Probe
from normscope.observe.verdict import NOT_A_LIMIT, Verdict

PASSES = 8
_TOLERANCE = 1e-3
_SOURCE = "arXiv 2601.16979"


@dataclass(frozen=True)
class CriticalStep:
    """step: s_c as a multiple of the update; inf if no rise was found, 0 if the loss rises from the start; nan where
    the loss is not finite.

    low, high: the loss is at most L(theta) at low and above it at high. eta: s_c times the learning rate.
    """

    update: str
    step: float
    low: float
    high: float
    eta: float
    passes: int

    def summary(self) -> dict[str, float]:
        return {"critical_step": self.step, "critical_eta": self.eta}

    def by_layer(self) -> dict[str, dict[str, float]]:
        return {}

    def verdicts(self, kind: str) -> list[Verdict]:
        formula = "s_c = min{s: L(theta + s d) > L(theta)}; on a quadratic s_c lr = 2 g'g/g'Hg, not 2/lambda"
        if math.isnan(self.step):
            text = "The loss is not finite here, so there is no step to judge."
            return [Verdict("critical step", None, text, formula, _SOURCE)]
        lowers = self.step > 1
        rate = f" (a learning rate of {self.eta:.3g})" if math.isfinite(self.eta) else ""
        text = (
            f"The coming {'update' if self.update == 'optimizer' else 'gradient step'} "
            f"{'does not raise' if lowers else 'raises'} this batch's loss; "
        )
        if self.step == 0:
            text += f"no step along this update lowers the loss, tried down to {self.high:.2g} times it."
        elif math.isinf(self.step):
            text += f"no rise was found up to {self.low:.3g} times it."
        else:
            text += f"up to {self.step:.3g} times it{rate} the loss would be no worse than here."
        good: bool | None = lowers
        if not lowers:
            text += {
                SQUARED: " The learning rate is beyond what the curvature along the update allows."
                if self.step
                else " It points uphill on this batch, or is far beyond what the curvature along it allows.",
                CROSS_ENTROPY: " " + NOT_A_LIMIT,
            }.get(kind, " One such step says little; whether training survives many of them depends on the loss.")
            good = False if kind == SQUARED else None
        return [Verdict("critical step", good, text, formula, _SOURCE)]


class CriticalProbe:
    """Measures `CriticalStep` in at most eight forward passes beside the one at theta; starts from the last result."""

    name = "critical"
    result = CriticalStep
    forward_only = True

    def __init__(self, update: str = "optimizer") -> None:
        check_choice("update", update, UPDATES)
        self.update = update
        self.forward_only = update == "optimizer"
        self._last = 1.0

    def measure(self, probe: Probe) -> CriticalStep:
        direction = list(torch._foreach_sub(probe.after(self.update), probe.theta))
        if not math.isfinite(probe.loss):
            return CriticalStep(self.update, math.nan, math.nan, math.nan, math.nan, 0)

        def rise(s: float) -> float:
            probe.at.move_to(probe.theta, direction, s)
            return float(probe.at.value()) - probe.loss

        search = Search(rise, self._last)
        step = search.run()
        if 0 < step < math.inf:
            self._last = step
        return CriticalStep(self.update, step, search.low, search.high, step * max(probe.rates), search.passes)


class Search:
    """The first s > 0 at which `rise(s)` turns positive, from `guess`, in at most `most` calls.

    Example:
        >>> search = Search(lambda s: s * s - 3 * s, 1.0)
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
        """inf where no rise was found, 0 where the loss is higher at every step tried."""
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
