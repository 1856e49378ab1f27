r"""Critical step: the multiple of the coming update at which the loss is back at its present value.

    k_c = min { k > 0 : L(theta + k d) > L(theta) }        d: the coming update, or -lr g
    s_c = k_c lr                                           the critical rate

k_c < 1 means that the coming update raises this batch's loss. The critical step k_c is the cheapest measure of
stability: fewer than ten forward passes, no gradient.

On a quadratic, along the gradient, s_c = 2 g'g / g'Hg: the limit set by the curvature along g. The critical rate s_c is
at least 2/lambda_max. The two are equal only if g is the top eigenvector. Critical sharpness is 2/s_c.

Search: on a quadratic, (L(theta + k d) - L(theta)) / k is linear in k. Its root is sought by the secant method, and by
halving the bracket where the secant does not shrink it. The bracket is found by growing factors, starting from the
last known step. A rise and fall between two points of the search is missed: the result is a crossing, and the first
one on any loss that is convex along d.

Source: arXiv 2601.16979, critical sharpness 2/eta_c (there by bisection).
"""

import math
from dataclasses import dataclass

import torch

from normscope.loss_kinds import DIVERGES, beyond_limit, outlook
from normscope.messages.choices import check_choice
from normscope.monitor.snapshot import UPDATES, Snapshot
from normscope.stability.critical_rate import CrossingSearch
from normscope.stability.verdict import Verdict

_SOURCE = "arXiv 2601.16979"


@dataclass(frozen=True)
class CriticalRate:
    """The critical step of one update, and the bracket that holds it.

    Attributes:
        update: "optimizer" for the coming update, "gradient" for a plain gradient step.
        step: the critical step k_c, a multiple of the update; inf if no rise was found, 0 if the loss rises from the
            start, nan if the loss is not finite.
        low: lower end of the bracket, a multiple of the update; the loss there is at most L(theta).
        high: upper end of the bracket, a multiple of the update; the loss there is above L(theta).
        eta: the critical rate s_c, k_c times the learning rate; a learning rate.
        passes: number of forward passes of the search.
    """

    update: str
    step: float
    low: float
    high: float
    eta: float
    passes: int

    def summary(self) -> dict[str, float]:
        """The critical step and the critical rate."""
        return {"critical_step": self.step, "critical_rate": self.eta}

    def by_layer(self) -> dict[str, dict[str, float]]:
        """Empty: the critical step is one number of the whole network."""
        return {}

    def verdicts(self, loss_kind: str) -> list[Verdict]:
        """One verdict: whether the coming update raises this batch's loss."""
        formula = "k_c = min{k: L(theta + k d) > L(theta)}; on a quadratic k_c lr = 2 g'g/g'Hg, not 2/lambda"
        if math.isnan(self.step):
            text = "The loss is not finite here, so there is no step to judge."
            return [Verdict("critical rate", None, text, formula, _SOURCE)]
        lowers = self.step > 1
        rate = f" (a learning rate of {self.eta:.3g})" if math.isfinite(self.eta) else ""
        text = (
            f"The coming {'update' if self.update == 'optimizer' else 'gradient step'} "
            f"{'does not raise' if lowers else 'raises'} this batch's loss; "
        )
        if self.step == 0:
            text += f"no step along this update lowers the loss (tried down to {self.high:.2g} times the update)."
        elif math.isinf(self.step):
            text += f"no multiple up to {self.low:.3g} times it raises the loss."
        else:
            text += f"the loss is back at its present value at {self.step:.3g} times this update{rate}."
        good: bool | None = lowers
        if not lowers:
            text += " " + outlook(
                loss_kind,
                diverges="The learning rate is beyond what the curvature along the update allows."
                if self.step
                else "The update points uphill on this batch, or is far beyond what the curvature along it allows.",
                uncertain="A single such step means little; whether training survives many depends on the loss.",
            )
            good = False if beyond_limit(loss_kind) == DIVERGES else None
        return [Verdict("critical rate", good, text, formula, _SOURCE)]


class CriticalProbe:
    """Measures `CriticalRate` in at most eight forward passes; the search starts from the last result.

    Args:
        update: "optimizer" for the optimizer's coming update, "gradient" for a plain gradient step (needs a gradient).
    """

    name = "critical"
    forward_only = True

    def __init__(self, update: str = "optimizer") -> None:
        check_choice("update", update, UPDATES)
        self.update = update
        self.forward_only = update == "optimizer"
        self._last = 1.0

    def measure(self, snapshot: Snapshot) -> CriticalRate:
        """The critical step along the update."""
        direction = list(torch._foreach_sub(snapshot.after(self.update), snapshot.theta))
        if not math.isfinite(snapshot.loss):
            return CriticalRate(self.update, math.nan, math.nan, math.nan, math.nan, 0)
        rate = max(snapshot.rates)

        def rise(multiple: float) -> float:
            snapshot.at.move_to(snapshot.theta, direction, multiple)
            return float(snapshot.at.value()) - snapshot.loss

        search = CrossingSearch(rise, self._last)
        step = search.run()
        if 0 < step < math.inf:
            self._last = step
        return CriticalRate(self.update, step, search.low, search.high, step * rate, search.passes)
