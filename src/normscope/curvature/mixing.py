"""Whether the output of one sample depends on other samples than its own."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from normscope.curvature.vectors import wavy


def depends_on_others(output: Any, rows: Tensor, slope_of: Callable[[Tensor], Tensor | None]) -> bool:
    """By the slope of the first sample's outputs, d(output[0])/d(rows); slope_of: a scalar's by `rows`."""
    if not isinstance(output, Tensor) or not output.requires_grad or output.shape[:1] != rows.shape[:1]:
        return False
    first = output[0].reshape(-1)
    slope = slope_of(first @ wavy(first))
    return slope is not None and bool(slope[1:].any())
