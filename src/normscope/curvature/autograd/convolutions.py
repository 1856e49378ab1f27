r"""Convolutions whose second derivative costs four convolutions of the first one's size, and ReLU between them.

A convolution y = x * W + b is bilinear. Its first backward pass takes g = dL/dy and gives the gradients (gx, gW, gb) by
x, W and b. The second one takes cotangents (V, Vw, Vb) of these and gives the derivatives with respect to g, x and W:

    d/dg = V * W + x * Vw + Vb          d/dx = gx of (g, Vw)          d/dW = gW of (g, V)

Here gx of (g, W) and gW of (g, x) are the kernels of the first backward pass. Torch computes the last of the three by
a convolution whose kernel is as large as the image. A loss that holds a gradient needs third derivatives; those are
torch's.

After a convolution, BatchNorm with running statistics is a scale a and a shift c of each channel. Both go into the
weights of the convolution, so derivatives with respect to a and c need no pass over y:

    a (x * W + b - m) + c = x * (a W) + a (b - m) + c

ReLU is here for two reasons. It tells the convolutions beside it which tensors may stay in their order in memory. And
its slope is 0 or 1, so the derivative of the slope is zero; torch computes these zeros and adds them (2 % of a Hessian
product).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from normscope.curvature.autograd.convolution_layout import Image, convolved, image
from normscope.norms.batch import transformed
from normscope.norms.batch_norm_gradient import BatchNormFunction, checkpointed

_slope = torch.ops.aten.threshold_backward
_between: ContextVar[bool] = ContextVar("_between", default=True)


class _Convolution(torch.autograd.Function):
    """x * W + b; `settings` are stride, padding, dilation, transposed, output padding, groups, as torch takes them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.settings, ctx.image, ctx.checkpointed = settings, None, checkpointed()
        return convolved(x, weight, bias, settings)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, _ = ctx.saved_tensors
        if ctx.checkpointed:
            input_image, goes_on = Image(x, weight.shape, ctx.settings), False
        else:
            before = ctx.next_functions[0][0]
            goes_on = _between.get() and _follows_a_convolution(before) and not x._backward_hooks
            # Detached: x leads back to the node before it, which would keep itself alive by its attribute `ordered`.
            input_image = ctx.image = ctx.image or image(x.detach(), weight.shape, ctx.settings)
            if goes_on:
                before.ordered = input_image.x
        return *_ConvolutionGrad.apply(g, x, weight, input_image, list(ctx.needs_input_grad[:3]), goes_on), None


@contextmanager
def gradients_of_the_user() -> Iterator[None]:
    """Inside, gradients keep the usual order: a forward may need gradients of tensors between convolutions."""
    token = _between.set(False)
    try:
        yield
    finally:
        _between.reset(token)


def _follows_a_convolution(node: Any) -> bool:
    """Whether `node` is a `Rectifier` without hooks after a `_Convolution`; at most batch normalization between."""
    if not isinstance(node, Rectifier._backward_cls) or node.checkpointed or node.hooks:
        return False
    node = node.next_functions[0][0]
    if isinstance(node, BatchNormFunction._backward_cls) and not node.checkpointed:
        if node.saved_tensors[0]._backward_hooks:
            return False
        node = node.next_functions[0][0]
    return isinstance(node, _Convolution._backward_cls) and not node.checkpointed


class _ConvolutionGrad(torch.autograd.Function):
    """(g, x, W) -> (gx, gW, gb), those `wanted`, by an `image` of x.

    A derivative has the order of the tensor that it is taken by. One exception: gx keeps the image's order where it
    meets only a `Rectifier`, with or without a `BatchNormFunction`, before the next convolution.
    """

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, image: Image, wanted: list[bool], goes_on: bool) -> Any:
        ctx.save_for_backward(g, x, weight)
        ctx.set_materialize_grads(False)
        ctx.image, ctx.g, ctx.goes_on = image, image.ordered(g), goes_on
        gx = _by_input(ctx, image, ctx.g, x, weight) if wanted[0] else None
        gw = image.by_weight(ctx.g) if wanted[1] else None
        return gx, gw, ctx.g.sum((0, *range(2, g.ndim))) if wanted[2] else None

    @staticmethod
    def backward(ctx: Any, v: Tensor | None, vw: Tensor | None, vb: Tensor | None) -> Any:
        (slope, x, weight), g, image = ctx.saved_tensors, ctx.g, ctx.image
        if torch.is_grad_enabled():
            g, image = slope, Image(x, weight.shape, image.settings)
        by_g, by_x, by_weight = (_asked(ctx, i) for i in range(3))
        d_g = d_x = d_weight = None
        if by_g and vw is not None:
            d_g = image.by(vw, vb)
        elif by_g and vb is not None:
            d_g = vb.view(1, -1, *[1] * (g.ndim - 2)).expand_as(g)
        if v is not None and (by_g or by_weight):
            image_of_v = image.alike(v)
            if by_g:
                through = image_of_v.by(weight, None)
                d_g = through if d_g is None else through.add_(d_g)
            d_weight = image_of_v.by_weight(g) if by_weight else None
        if d_g is not None and slope.is_contiguous():
            d_g = d_g.contiguous()
        if by_x and vw is not None:
            d_x = _by_input(ctx, image, g, x, vw)
        return d_g, d_x, d_weight, None, None, None


def _by_input(ctx: Any, image: Image, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    gradient = image.by_input(g, weight)
    return gradient.contiguous() if x.is_contiguous() and not ctx.goes_on else gradient


def _asked(ctx: Any, i: int) -> bool:
    """Whether the pass that is running goes on to input i; `needs_input_grad` covers every pass.

    The engine gives no answer for leaves, so leaves count as asked for.
    """
    node = ctx.next_functions[i][0]
    return bool(ctx.needs_input_grad[i]) and (hasattr(node, "variable") or torch._C._will_engine_execute_node(node))


def into_weights(y: Tensor, scale: Tensor, mean: Tensor, shift: Tensor | None) -> Tensor | None:
    """scale (y - mean) + shift for each channel, by the convolution that made y with other weights.

    None where y is no convolution's output, where a hook of the user's sees y, where y was written into behind
    autograd's back (`y.detach().clamp_()` keeps its node), and under activation checkpointing, where the convolution's
    inputs are not at hand. Later changes are not seen: a hook that changes the gradient of y, a write into `y.data`.
    """
    node: Any = y.grad_fn
    if not isinstance(node, _Convolution._backward_cls) or y.dtype != scale.dtype:
        return None
    if y._backward_hooks or y._version or node.checkpointed or checkpointed():
        return None
    x, weight, bias = node.saved_tensors
    shifted = scale * (-mean if bias is None else bias - mean)
    shifted = shifted if shift is None else shifted + shift
    scaled = weight * scale.view(-1, *[1] * (weight.ndim - 1))
    normalized: Tensor = _Convolution.apply(x, scaled, shifted, node.settings)
    return normalized


def convolution(function: Callable[..., Tensor], space: int) -> Callable[..., Tensor]:
    """Torch's `function` over `space` dimensions with these derivatives, for real batches; torch's in forward mode."""

    def call(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        plain = input.ndim == space + 2 and not isinstance(padding, str) and not input.is_complex()
        # Autocast gives the operator other dtypes than its derivatives would get.
        if not plain or torch.is_autocast_enabled(input.device.type):
            return function(input, weight, bias, stride, padding, dilation, groups)
        sizes = [[n] * space if isinstance(n, int) else list(n) for n in (stride, padding, dilation)]
        settings = (*sizes, False, [0] * space, groups)
        if transformed():
            return convolved(input, weight, bias, settings)
        y: Tensor = _Convolution.apply(input, weight, bias, settings)
        return y

    return call


class Rectifier(torch.autograd.Function):
    """ReLU, whose node has two attributes for the convolutions beside it.

    ordered: the output with channels last, where the next convolution has put it in that order. hooks: the user's
    hooks on gradients with respect to the input.
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
