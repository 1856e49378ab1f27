"""Where torch has a fused kernel without derivatives, the path that has them all; products in full precision."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

_cuda: Any = torch.backends.cuda
_cudnn: Any = torch.backends.cudnn
_mkldnn: Any = torch.backends.mkldnn
_ROUNDING = (_cuda.matmul, _cudnn.conv, _cudnn.rnn, _mkldnn.matmul, _mkldnn.conv, _mkldnn.rnn)


@contextmanager
def derivable(device: str) -> Iterator[None]:
    """Inside, attention is made of plain products, without fused paths; autocast and TF32 are off.

    Fused attention has neither forward mode nor a second derivative; products of half-precision layers, or of float32
    ones rounded to TF32 or bfloat16, would be right to two or three digits alone.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    kept = [(kind, kind.fp32_precision) for kind in _ROUNDING]
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for kind in _ROUNDING:
            kind.fp32_precision = "ieee"
        with torch.autocast(device, enabled=False), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for kind, precision in kept:
            kind.fp32_precision = precision


def working_dtype(model: nn.Module, asked: torch.dtype | None) -> torch.dtype | None:
    """The dtype to lend the model's tensors in, None where they are of the right one: float32 at least.

    Example:
        >>> working_dtype(nn.Linear(1, 1), None), working_dtype(nn.Linear(1, 1).bfloat16(), None)
        (None, torch.float32)
    """
    if asked not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype is torch.float32 or torch.float64, for products of enough digits; got {asked}.")
    present = {p.dtype for p in model.parameters() if p.is_floating_point()}
    wanted = asked
    if wanted is None and any(dtype.itemsize < 4 for dtype in present):
        wanted = torch.float64 if torch.float64 in present else torch.float32
    return None if wanted is None or present == {wanted} else wanted
