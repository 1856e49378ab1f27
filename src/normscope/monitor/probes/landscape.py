r"""Landscape: the loss and its gradient along the gradient step; how smooth the loss is here.

    theta_c = theta + c d,  d = -lr g,  g = grad L(theta)        one batch, train mode, the same random draws
    band            [min_c L(theta_c), max_c L(theta_c)]
    change_c        ||grad L(theta_c) - g||                      "gradient predictiveness"
    beta            max_c change_c / (c ||d||)                    "effective beta-smoothness"

At c = 1, beta is 2/lr if the step exactly reverses the gradient: grad L(theta_1) = -g. Training at the edge of
stability does this all the time. So the mean of beta reflects lr, and only values above 2/lr describe the network.

Source: Santurkar et al. 2018, Appendix A.2.2. The factors are those of its figures: c = 1/2, 1, 2, 4 for VGG at lr 0.1,
and c = 1/100, 1/10, 1, 10, 30 for the deep linear network at lr 1e-6.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.loss_kinds import DIVERGES, beyond_limit, outlook
from normscope.monitor.snapshot import Snapshot, as_vector, inner, length
from normscope.stability.verdict import Verdict

VGG_FACTORS = (0.5, 1.0, 2.0, 4.0)
DLN_FACTORS = (0.01, 0.1, 1.0, 10.0, 30.0)


@dataclass(frozen=True)
class Landscape:
    """Losses and gradients along one gradient step; losses, changes and cosines have one entry for each factor c.

    Attributes:
        lr: the learning rate if all parameters share one, else ||d|| / ||g||.
        factors: multiples c of the step at which the loss was taken.
        loss: the loss L(theta) before the step.
        losses: the losses L(theta_c).
        grad_norm: the norm ||g|| of the gradient before the step.
        changes: ||grad L(theta_c) - g||, in the unit of the gradient.
        cosines: cosine between grad L(theta_c) and g, from -1 to 1; nan if one is zero.
    """

    lr: float
    factors: tuple[float, ...]
    loss: float
    losses: tuple[float, ...]
    grad_norm: float
    changes: tuple[float, ...]
    cosines: tuple[float, ...]

    @property
    def band(self) -> tuple[float, float]:
        """Smallest and largest loss along the step; nan if one of the losses is not finite."""
        return _range(self.losses)

    @property
    def betas(self) -> tuple[float, ...]:
        """Change of the gradient divided by the distance moved, at each factor."""
        moved = self.lr * self.grad_norm
        pairs = zip(self.factors, self.changes, strict=True)
        return tuple(change / (c * moved) if moved else math.nan for c, change in pairs)

    @property
    def beta(self) -> float:
        """The largest of `betas`; nan if one of them is not finite."""
        return _range(self.betas)[1]

    @property
    def beta_limit(self) -> float:
        """2/lr, where beta saturates at the edge of stability; only values above it are spikes."""
        return 2 / self.lr if self.lr else math.inf

    def summary(self) -> dict[str, float]:
        """Band of the loss, gradient norm, range of the gradient's change, smallest cosine, beta and 2/lr."""
        low, high = self.band
        least, most = _range(self.changes)
        return {
            "loss_min": low,
            "loss_max": high,
            "grad_norm": self.grad_norm,
            "grad_change_min": least,
            "grad_change_max": most,
            "cosine_min": _range(self.cosines)[0],
            "beta": self.beta,
            "beta_limit": self.beta_limit,
        }

    def by_layer(self) -> dict[str, dict[str, float]]:
        """Empty: the landscape is one of the whole network."""
        return {}

    def verdicts(self, loss_kind: str) -> list[Verdict]:
        """Three verdicts: whether the step lowers the loss, keeps the gradient's direction, and has a spike of beta."""
        nearest = min(range(len(self.factors)), key=lambda i: abs(math.log(self.factors[i])))
        c, loss, cosine = self.factors[nearest], self.losses[nearest], self.cosines[nearest]
        if not math.isfinite(self.loss):
            text = f"The loss is {self.loss} here, so there is no step to judge."
            return [Verdict("step", None, text, _STEP, _SOURCE)]
        falls = loss <= self.loss
        text = f"A plain gradient step of {c * self.lr:.3g} takes this batch's loss from {self.loss:.4g} to {loss:.4g}."
        if not falls:
            text += " " + outlook(
                loss_kind,
                diverges="It overshoots: the learning rate is beyond what the curvature along the gradient allows.",
                uncertain="Whether training survives that depends on the loss; check whether the loss keeps rising.",
            )
        good = True if falls else (False if beyond_limit(loss_kind) == DIVERGES else None)
        return [Verdict("step", good, text, _STEP, _SOURCE), _turned(cosine), self._spike()]

    def _spike(self) -> Verdict:
        formula = "beta = max_c ||grad L(theta_c) - g|| / (c ||lr g||)"
        if math.isnan(self.beta):
            text = "beta is undefined: the gradient is zero here, or not finite at one of the steps."
            return Verdict("beta", None, text, formula, _SOURCE)
        spike = self.beta > self.beta_limit
        text = (
            f"The loss is {'rough' if spike else 'smooth'} here for a step of this size: the gradient changes by "
            f"{self.beta:.3g} times the distance moved, {'above' if spike else 'at most'} 2/lr = {self.beta_limit:.3g}."
        )
        return Verdict("beta", not spike, text, formula, _SOURCE)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Smallest and largest value, or nan if one is not finite: the answer of `min` and `max` depends on nan's place."""
    finite = all(map(math.isfinite, values))
    return (min(values), max(values)) if finite else (math.nan, math.nan)


def _turned(cosine: float) -> Verdict:
    formula = "cos(grad L(theta_c), g) > 0"
    if math.isnan(cosine):
        return Verdict("gradient", None, "The gradient is zero or not finite: it has no direction.", formula, _SOURCE)
    angle = math.degrees(math.acos(max(-1.0, min(1.0, cosine))))
    back = "" if cosine > 0 else "points back: it "
    text = f"After that step the gradient {back}has turned by {angle:.0f} degrees (cosine {cosine:.2f})."
    return Verdict("gradient", cosine > 0, text, formula, _SOURCE)


_STEP = "L(theta - c lr g) <= L(theta)"
_SOURCE = "Santurkar et al. 2018, Appendix A.2.2"


class LandscapeProbe:
    """Measures `Landscape`; costs one forward and backward pass for each factor, and one for the present gradient.

    Args:
        factors: multiples c > 0 of the step -lr g; by default those of the paper's VGG figures.

    Raises:
        ValueError: no factor, or one that is not positive.
    """

    name = "landscape"
    forward_only = False

    def __init__(self, factors: Sequence[float] = VGG_FACTORS) -> None:
        if not factors or any(c <= 0 for c in factors):
            raise ValueError(
                f"factors are positive multiples of the step; got {tuple(factors)}. Santurkar et al. use 1/2, 1, 2, 4."
            )
        self.factors = tuple(map(float, factors))

    def measure(self, snapshot: Snapshot) -> Landscape:
        """The landscape along the gradient step.

        Raises:
            ValueError: a step is so small that half-precision weights round it away.
        """
        g, d = as_vector(snapshot.gradient), snapshot.descent
        buffer = torch.empty_like(g)  # first d, then the gradient at theta_c
        half = any(weight.dtype.itemsize < 4 for weight in snapshot.theta)
        # Numbers stay on the device until the end: each transfer to the host would wait for the device.
        scalars = [inner(g, g), inner(as_vector(d, buffer), buffer)]
        for c in self.factors:
            snapshot.at.move_to(snapshot.theta, d, c)
            if half:
                _check_moved(snapshot, c, d)
            loss, grads = snapshot.at.gradient()
            as_vector(grads, buffer)
            scalars += [loss, inner(buffer, g), inner(buffer, buffer)]
            buffer -= g
            scalars.append(inner(buffer, buffer))
        numbers = torch.stack(scalars).double().tolist()
        g_norm, d_norm = map(math.sqrt, numbers[:2])
        losses, along, squares, changes = (tuple(numbers[i::4]) for i in range(2, 6))
        products = (g_norm * math.sqrt(square) for square in squares)
        cosines = (a / product if product else math.nan for a, product in zip(along, products, strict=True))
        shared = len(set(snapshot.rates)) == 1 or not g_norm
        lr = max(snapshot.rates) if shared else d_norm / g_norm
        return Landscape(
            lr, self.factors, snapshot.loss, losses, g_norm, tuple(map(math.sqrt, changes)), tuple(cosines)
        )


def _check_moved(snapshot: Snapshot, c: float, d: list[Tensor]) -> None:
    """Raise if half-precision weights round so small a step away."""
    asked = c * length(as_vector(d))
    moved = length(as_vector([leaf.detach() for leaf in snapshot.at.lent.leaves]) - as_vector(snapshot.theta))
    if abs(moved - asked) > 0.1 * asked:
        raise ValueError(
            f"A step of {c:g} lr rounds away in weights of {snapshot.theta[0].dtype}: it moves them by "
            f"{float(moved):.2g} instead of {float(asked):.2g}. Keep the weights in float32 (autocast casts them) to "
            "measure along it."
        )
