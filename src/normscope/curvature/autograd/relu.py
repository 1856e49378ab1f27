"""ReLU without a second derivative: its slope is constant wherever it has one.

Torch computes zeros for the derivative of the slope, and adds them (2 % of a Hessian product).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.norms._batch_grad import checkpointed

_slope = torch.ops.aten.threshold_backward


class Rectifier(torch.autograd.Function):
    """ReLU, whose node has two attributes for the convolutions beside it (`convolutions.py`).

    ordered: the output with channels last, where the next convolution has put it in that order. hooks: the user's
    hooks on gradients by the input.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten.relu(x)
        ctx.save_for_backward(y)
        ctx.ordered, ctx.hooks, ctx.checkpointed = None, _hooks(x), checkpointed()
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        gradient: Tensor = _RectifierGrad.apply(g, y if ctx.ordered is None or g.is_contiguous() else ctx.ordered)
        return gradient


def _hooks(x: Tensor) -> Mapping[int, Any]:
    """The mapping of hooks of x, into which later hooks go too; x itself may be gone by then."""
    if x.grad_fn is None:
        return {}
    # Registering a hook creates the mapping that later hooks go into.
    x.register_hook(lambda _: None).remove()
    assert x._backward_hooks is not None
    return x._backward_hooks


class _RectifierGrad(torch.autograd.Function):
    """g -> g where y > 0, linear in g and its own derivative."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        gradient: Tensor = _slope(g, y, 0)
        return gradient

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        return _RectifierGrad.apply(v, *ctx.saved_tensors), None
