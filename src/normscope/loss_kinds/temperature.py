r"""The inverse temperature b of a cross-entropy of b z, computed from one entry of its gradient.

    g_i(z + t e_i) = w b (sigmoid(b t + c) - q)

At t = t_0, t_0 + h, t_0 + 2 h, t_0 + 3 h this is a Moebius map of r^0, r^1, r^2, r^3 with r = exp(b h), for any w, c,
q. Such maps keep the cross-ratio:

    (g_0 - g_2)(g_1 - g_3) / ((g_0 - g_3)(g_1 - g_2)) = (1 + r)^2 / (1 + r + r^2) =: 1 + k,   2 cosh(b h) = 1/k - 1
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

# Smallest b h with which b is accurate: below it, the sigmoid is straight up to rounding.
_LEAST_STEP = 0.3
# Largest b h with which b is accurate: above it, the sigmoid is flat.
_MOST_STEP = 6.0
_STEPS = (1.0, 1 / 8, 8.0)


def inverse_temperature(gradient: Callable[[Tensor], Tensor], z: Tensor, entry: int, classes: int) -> float:
    """The inverse temperature b; nan if there is none. Takes 4 gradients for each step h tried, and 4 to refine b.

    Args:
        gradient: the gradient of the loss as a function of the outputs.
        z: outputs of moderate size.
        entry: flat index of an output that the loss reads.
        classes: number of classes of the softmax.
    """
    for h in _STEPS:
        b = _read(gradient, torch.zeros_like(z), entry, 0.0, h)
        if _LEAST_STEP <= b * h <= _MOST_STEP:
            # Measured again around equal odds, where the sigmoid is steepest.
            return _read(gradient, z / b, entry, (math.log(max(classes - 1, 1)) - 2.0) / b, 1.5 / b)
    return math.nan


def _read(gradient: Callable[[Tensor], Tensor], z: Tensor, entry: int, offset: float, h: float) -> float:
    slopes = []
    for k in range(4):
        moved = z.clone()
        moved.view(-1)[entry] += offset + k * h
        slopes.append(float(gradient(moved).view(-1)[entry]))
    a, b, c, d = slopes
    below = (a - d) * (b - c)
    excess = (a - c) * (b - d) / below - 1 if below else math.nan
    cosh = (1 / excess - 1) / 2 if excess else math.nan
    return math.acosh(cosh) / h if cosh > 1 else math.nan
