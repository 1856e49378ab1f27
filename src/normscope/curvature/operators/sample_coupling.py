"""Coupling of samples: whether the output of one sample depends on other samples."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from normscope.curvature.operators.gauss_newton import wavy
from normscope.isolation.processes import several_processes

_FEW = 8


def depends_on_others(
    forward: Callable[[Tensor], Any], rows: Tensor, slope_of: Callable[[Tensor], Tensor | None], *, whole: bool = False
) -> bool:
    """Whether the slope of the first sample's outputs, d(output[0])/d(rows), is zero in all other rows.

    Args:
        slope_of: the slope of a scalar by `rows`.
        whole: look in a pass of all samples, for a forward that mixes larger batches only. Otherwise the pass has a few
            samples; all where the forward takes no fewer, or where other processes are in it too.
    """
    few = rows if whole or several_processes() else rows[:_FEW]
    try:
        output = forward(few.clone())
    except Exception:
        if len(few) == len(rows):
            raise
        few = rows
        output = forward(rows.clone())
    if not isinstance(output, Tensor) or not output.requires_grad or output.shape[:1] != few.shape[:1]:
        return False
    first = output[0].reshape(-1)
    slope = slope_of(first @ wavy(first))
    return slope is not None and bool(slope[1:].any())
