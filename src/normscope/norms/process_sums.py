"""Sums and maxima over the processes of `torch.distributed`, with their gradients."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def sum_over_processes(x: Tensor) -> Tensor:
    """The sum of `x` over all processes; differentiable."""
    total: Tensor = _Sum.apply(x)
    return total


def max_over_processes(x: Tensor) -> Tensor:
    """The maximum of `x` over all processes; its gradient is shared equally by the processes that hold the maximum."""
    largest: Tensor = _Max.apply(x)
    return largest


class _Sum(torch.autograd.Function):
    """The sum over processes: linear and self-adjoint, so its derivative of any order is the sum itself."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Sum.apply(grad)


class _Max(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        largest = x.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        here = (inputs[0] == output).to(output.dtype)
        everywhere = here.clone()
        dist.all_reduce(everywhere)
        ctx.save_for_backward(here / everywhere)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (share,) = ctx.saved_tensors
        return share * _Sum.apply(grad)
