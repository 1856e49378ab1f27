r"""The backward of batch normalization and its double backward, in closed form.

With g = dL/dy, xh = r (x - mu), r = 1/sqrt(v + eps) and P u = u - mean(u) - xh mean(u xh).
Means are over the m values of a channel.

    backward          dL/dx = w r P g            dL/dw = m mean(g xh)       dL/db = m mean(g)

At eps = 0, P is an orthogonal projector (Santurkar et al. 2018, Facts C.1 and C.2). With eps > 0 the same formula holds
with the eps-normalized xh, and P is not a projector. The second term of dl/dmu in the encyclopedia article is zero.

    double backward   of (gx, gw, gb) for cotangents (V, Vw, Vb), with a = w r, q = Vw - a mean(V xh), S = <V, gx>:
                      d/dg = a V + q xh + (Vb - a mean(V))
                      d/dx = r (q P g - a mean(g xh) P V - xh S/m)
                      d/dw = S / w

Derived in docs/design-notes/batchnorm-derivatives.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from normscope.norms.channels import per_channel, stat_dims, wide

_lasting = ContextVar("normscope.gradients_last", default=False)
# Smallest |weight| by which stored gradients are divided: with a smaller one the product may underflow in float32.
_SMALLEST_WEIGHT = 1e-12


@contextmanager
def gradients_last() -> Iterator[None]:
    """While this context lasts, gradients may be stored for their own derivative, since no code writes into them.

    In training, other code may write into gradients. The context acts on a CPU only, where a backward pass runs in the
    thread that calls it.
    """
    token = _lasting.set(True)
    try:
        yield
    finally:
        _lasting.reset(token)


def checkpointed() -> bool:
    """Whether activation checkpointing handles saved tensors; then nothing is stored between the passes."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def moments(x: Tensor) -> tuple[Tensor, Tensor, float]:
    """Mean, biased variance, and the factor m/(m-1) that makes it unbiased."""
    var, mean = torch.var_mean(wide(x), dim=stat_dims(x), correction=0)
    m = x.numel() // x.shape[1]
    return mean, var, m / max(m - 1, 1)


class BatchNormFunction(torch.autograd.Function):
    """Batch normalization by torch's kernels; derivatives from the second one on come from `BatchNormGrad`.

    The node's attribute `ordered` is x with channels last in memory, if stored gradients have that order
    (`curvature/autograd/convolution_layout.py`).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        factor: float,
        eps: float,
    ) -> Tensor:
        y, mean, rstd, reserve, ctx.backend = torch._batch_norm_impl_index(
            x, weight, bias, running_mean, running_var, True, factor, eps, torch.backends.cudnn.enabled
        )
        ctx.save_for_backward(x, weight, mean, rstd, reserve)
        ctx.eps, ctx.ordered, ctx.checkpointed = eps, None, checkpointed()
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, mean, rstd, reserve = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if ctx.ordered is None and _lasting.get() and _channels_last(g) and not _channels_last(x):
            ctx.ordered = x.detach().contiguous(memory_format=torch.channels_last)
        ordered = ctx.ordered if _channels_last(g) else None
        if torch.is_grad_enabled():
            grads = BatchNormGrad.apply(g, x, weight, mean, rstd, ctx.eps, ordered)
        else:
            x = x if ordered is None else ordered
            grads = torch.ops.aten._batch_norm_impl_index_backward(
                ctx.backend, x, g, weight, None, None, mean, rstd, True, ctx.eps, needs[:3], reserve
            )
        return (
            *(grad if need else None for grad, need in zip(grads, needs[:3], strict=True)),
            None,
            None,
            None,
            None,
        )


class BatchNormGrad(torch.autograd.Function):
    """The map (g, x, w) -> (dL/dx, dL/dw, dL/db) and its derivative, both in closed form.

    ordered: x in the memory order of g, if the two differ.
    """

    @staticmethod
    def forward(
        ctx: Any,
        g: Tensor,
        x: Tensor,
        weight: Tensor | None,
        mean: Tensor,
        rstd: Tensor,
        eps: float,
        ordered: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.eps, ctx.ordered = eps, ordered
        w = torch.ones_like(rstd) if weight is None else weight
        gx, gw, gb = _pull(wide(g), wide(x if ordered is None else ordered), wide(w), mean, rstd, eps)
        # gx and gw hold all that the double backward needs of g, unless a tiny weight has erased a channel. Only on a
        # CPU: the test of the weights would make a GPU wait.
        lasts = _lasting.get() and x.device.type == "cpu" and gx.dtype == x.dtype
        whole = lasts and bool((w.abs() > _SMALLEST_WEIGHT).all())
        ctx.save_for_backward(g, x, weight, mean, rstd, *((gx, gw) if whole else (None, None)))
        return gx.to(x.dtype), gw.to(w.dtype), gb.to(w.dtype)

    @staticmethod
    def backward(ctx: Any, v: Tensor, vw: Tensor, vb: Tensor) -> Any:
        g, x, weight, mean, rstd, gx, gw = ctx.saved_tensors
        w = torch.ones_like(rstd) if weight is None else weight
        if ctx.ordered is not None and not torch.is_grad_enabled():
            x = ctx.ordered
        parts = wide(x), wide(v), wide(w), mean, rstd, ctx.eps, vw, vb
        if torch.is_grad_enabled():
            d_g, d_x, d_w = _in_any_order(wide(g), *parts)
        elif gx is not None:
            d_g, d_x, d_w = _in_few_passes(gx, gw, w, *parts)
        else:
            ones = torch.ones_like(wide(w))
            r_pg, g_xh, _ = _pull(wide(g), wide(x), ones, mean, rstd, ctx.eps)
            d_g, d_x, d_w = _in_few_passes(r_pg, g_xh, ones, *parts)
        return d_g.to(x.dtype), d_x.to(x.dtype), None if weight is None else d_w.to(w.dtype), *[None] * 4


def _channels_last(t: Tensor) -> bool:
    return t.ndim == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)


def _pull(u: Tensor, x: Tensor, w: Tensor, mean: Tensor, rstd: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """w r P u, m mean(u xh) and m mean(u), by torch's kernel."""
    kernel = torch.ops.aten.native_batch_norm_backward
    mean, rstd = wide(mean), wide(rstd)
    pulled: tuple[Tensor, Tensor, Tensor] = kernel(u, x, w, None, None, mean, rstd, True, eps, [True, True, True])
    return pulled


def _in_few_passes(
    pulled: Tensor,
    g_xh: Tensor,
    c: Tensor,
    x: Tensor,
    v: Tensor,
    w: Tensor,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    vw: Tensor,
    vb: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The double backward with torch's kernel, in a quarter of the time of the formula in torch operations.

    pulled: c r P g, with g_xh = m mean(g xh).
    """
    dims, m = stat_dims(x), x.numel() // x.shape[1]

    def channel(u: Tensor) -> Tensor:
        return per_channel(u, x)

    a_pv, v_xh, _ = _pull(v, x, w, mean, rstd, eps)
    s_over_w = (v * pulled).sum(dims) / c
    q = vw - w * rstd * v_xh / m
    centred = x - channel(mean)
    d_x = (pulled * channel(q / c)).addcmul_(a_pv, channel(-rstd * g_xh / m))
    d_x.addcmul_(centred, channel(-rstd.square() * w * s_over_w / m))
    d_g = a_pv.addcmul_(centred, channel(rstd * vw)).add_(channel(vb))
    return d_g, d_x, s_over_w


def _in_any_order(
    g: Tensor, x: Tensor, v: Tensor, w: Tensor, mean: Tensor, rstd: Tensor, eps: float, vw: Tensor, vb: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The double backward by torch operations, which autograd can differentiate again.

    The saved statistics are constants to autograd, so they are computed again here.
    """
    dims, m = stat_dims(x), x.numel() // x.shape[1]
    mean, var, _ = moments(x)
    rstd = (var + eps).rsqrt()
    xh = (x - per_channel(mean, x)) * per_channel(rstd, x)
    pg, pv = (u - u.mean(dims, keepdim=True) - xh * (u * xh).mean(dims, keepdim=True) for u in (g, v))
    a = w * rstd
    s_over_w = rstd * (v * pg).sum(dims)
    q = vw - a * (v * xh).mean(dims)
    cg = (g * xh).mean(dims)

    def channel(u: Tensor) -> Tensor:
        return per_channel(u, x)

    d_g = channel(a) * v + channel(q) * xh + channel(vb - a * v.mean(dims))
    d_x = channel(rstd) * (channel(q) * pg - channel(a * cg) * pv - xh * channel(w * s_over_w / m))
    return d_g, d_x, s_over_w
