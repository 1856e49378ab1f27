"""Random numbers in float64 that equal the numbers drawn in float32.

A generator gives each dtype other numbers. A float64 pass that repeats a float32 pass needs the same dropout masks.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten: Any = torch.ops.aten
_FILLING = {
    _aten.bernoulli_,
    _aten.uniform_,
    _aten.normal_,
    _aten.exponential_,
    _aten.cauchy_,
    _aten.log_normal_,
}
_DRAWING = {_aten.rand, _aten.randn, _aten.rand_like, _aten.randn_like, _aten.normal, _aten.bernoulli}


class NarrowDraws(TorchDispatchMode):
    """Inside, random operations that would give float64 draw in float32 and widen it.

    Example:
        >>> expected = (torch.manual_seed(0), torch.randn(20))[1].double()
        >>> with NarrowDraws():
        ...     found = (torch.manual_seed(0), torch.randn(20, dtype=torch.float64))[1]
        >>> torch.equal(found, expected)
        True
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, packet = kwargs or {}, func.overloadpacket
        if packet is _aten.native_dropout and args[0].dtype == torch.float64:
            _, mask = func(torch.ones_like(args[0], dtype=torch.float32), *args[1:], **kwargs)
            return args[0] * mask / (1 - args[1]) if args[1] < 1 else torch.zeros_like(args[0]), mask
        if packet in _FILLING and args[0].dtype == torch.float64:
            drawn = torch.empty_like(args[0], dtype=torch.float32)
            func(drawn, *args[1:], **kwargs)
            return args[0].copy_(drawn)
        if packet in _DRAWING:
            like = next((a.dtype for a in args if isinstance(a, Tensor)), torch.get_default_dtype())
            if (kwargs.get("dtype") or like) == torch.float64:
                return func(*map(_narrowed, args), **_in_float32(kwargs)).double()
        return func(*args, **kwargs)


def _narrowed(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.float64 else value


def _in_float32(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**kwargs, "dtype": torch.float32} if kwargs.get("dtype") == torch.float64 else kwargs
