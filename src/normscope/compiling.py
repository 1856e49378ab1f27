"""Use torch.compile if there is a working compiler; otherwise run eager, with a warning."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch


@functools.cache
def why_not_compiled(device: str = "cpu") -> str:
    """The reason why `torch.compile` cannot build code for `device`; "" if it can.

    A graph of one operation is compiled, once a process, so that a compiler that is present but broken is detected.
    """
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(1, device=device))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def compile_or_eager(function: Callable[..., Any], *, device: str = "cpu") -> Callable[..., Any]:
    """`torch.compile(function)`, or `function` itself with a warning that gives the reason.

    Example:
        >>> double = compile_or_eager(lambda x: 2 * x)
        >>> double(torch.tensor([1.0])).item()
        2.0
    """
    reason = why_not_compiled(device)
    if not reason:
        return torch.compile(function)
    warnings.warn(f"torch.compile has no working compiler here; the code runs eager instead ({reason}).", stacklevel=2)
    return function
