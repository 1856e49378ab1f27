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
from dataclasses import dataclass

import torch

from normscope.choices import check_choice
from normscope.loss_kinds import CROSS_ENTROPY, SQUARED
from normscope.monitor.snapshot import UPDATES, Snapshot
from normscope.stability.critical_rate import CrossingSearch
from normscope.stability.verdict import NOT_A_LIMIT, Verdict

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

    def measure(self, snapshot: Snapshot) -> CriticalStep:
        direction = list(torch._foreach_sub(snapshot.after(self.update), snapshot.theta))
        if not math.isfinite(snapshot.loss):
            return CriticalStep(self.update, math.nan, math.nan, math.nan, math.nan, 0)

        def rise(s: float) -> float:
            snapshot.at.move_to(snapshot.theta, direction, s)
            return float(snapshot.at.value()) - snapshot.loss

        search = CrossingSearch(rise, self._last)
        step = search.run()
        if 0 < step < math.inf:
            self._last = step
        return CriticalStep(self.update, step, search.low, search.high, step * max(snapshot.rates), search.passes)
