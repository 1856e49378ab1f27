"""Where torch has a fused kernel without derivatives, the path that has them all; products in full precision."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.curvature.autograd.patching import renamed

_KINDS = ("matmul", "conv", "rnn")
_FAMILIES = {"cuda": "cuda", "cpu": "mkldnn"}
# torch.backends.mkldnn writes the setting of all backends in place of its own: these name what they write.
_bindings: Any = torch._C
_get, _set = _bindings._get_fp32_precision_getter, _bindings._set_fp32_precision_setter
_rounded: ContextVar[bool] = ContextVar("_rounded", default=False)


@contextmanager
def rounded() -> Iterator[None]:
    """Inside, `derivable` has float32 rounded to TF32 on a GPU."""
    token = _rounded.set(True)
    try:
        yield
    finally:
        _rounded.reset(token)


def is_rounded() -> bool:
    return _rounded.get()


@contextmanager
def derivable(device: str) -> Iterator[None]:
    """Inside, attention is made of plain products, without fused paths; autocast is off, and TF32 unless `rounded`.

    Fused attention has neither forward mode nor a second derivative; products of half-precision layers, or of float32
    ones rounded to TF32 or bfloat16, would be right to two or three digits alone. The second derivative of torch's
    weight normalization is wrong.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
        torch.backends.mha.set_fastpath_enabled(False)
        if device in _FAMILIES:
            family, digits = _FAMILIES[device], "tf32" if device == "cuda" and is_rounded() else "ieee"
            # First the family: what follows it follows now, and is not written. A convolution that nobody has set uses
            # TF32 on a GPU, and once it is set there is no word that brings that back.
            stack.callback(_set, family, "all", _own((family, "all"), ("generic", "all"), _get("generic", "all")))
            _set(family, "all", digits)
            for kind in _KINDS:
                found = _get(family, kind)
                if found != digits:
                    stack.callback(_set, family, kind, found)
                    _set(family, kind, digits)
        stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(renamed(_WEIGHT_NORMS, lambda *_: _weight_norm))
        yield


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """g v / ||v||, a length for each place in `dim`, one for all at -1.

    Torch's kernel takes ||v|| for a constant in the second derivative, which is then not symmetric.
    """
    if dim == -1:
        return v * (g / torch.linalg.vector_norm(v))
    lengths = torch.linalg.vector_norm(v.movedim(dim, 0).reshape(v.shape[dim], -1), dim=1)
    return v * (g / lengths.view([-1 if i == dim else 1 for i in range(v.ndim)]))


_WEIGHT_NORMS = [(vars(home), "_weight_norm") for home in (torch, sys.modules["torch.nn.utils.weight_norm"])]


def _own(setting: tuple[str, str], parent: tuple[str, str], parents: str) -> str:
    """What `setting` itself is set to: "none" where it only reads as `parent`, itself set to `parents`, does.

    Set to the value it reads as, a flag would no longer follow its parent: so that one is turned for a moment.
    """
    found: str = _get(*setting)
    try:
        seen = set()
        for value in ("ieee", "tf32"):
            _set(*parent, value)
            seen.add(_get(*setting))
    finally:
        _set(*parent, parents)
    return found if len(seen) == 1 else "none"


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
