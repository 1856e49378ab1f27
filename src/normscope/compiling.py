"""torch.compile where a compiler is, eager where none is, and word of which."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def why_not_compiled(device: str = "cpu") -> str:
    """Empty where `torch.compile` can build code for `device`; else the reason it cannot.

    Tried once, on a graph of one operation: a compiler that is named but broken is found out too.
    """
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(1, device=device))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def compile_or_eager(function: Callable[..., Any], *, device: str = "cpu") -> Callable[..., Any]:
    """`torch.compile(function)`, or `function` itself with a warning that says why.

    Example:
        >>> double = compile_or_eager(lambda x: 2 * x)
        >>> double(torch.tensor([1.0])).item()
        2.0
    """
    reason = why_not_compiled(device)
    if not reason:
        return torch.compile(function)
    warnings.warn(f"torch.compile has no working compiler here and runs eager instead ({reason}).", stacklevel=2)
    return function
