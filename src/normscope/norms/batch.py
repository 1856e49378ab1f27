r"""Batch normalization: the transform, its backward and its double backward in closed form.

    mu = mean(x)    v = mean((x - mu)^2)    r = 1/sqrt(v + eps)    xh = r (x - mu)    y = w xh + b

Means run over batch and space, per channel; m is the number of values per channel. Symbols below:
w, b = gamma, beta;  g = dL/dy;  P u = u - mean(u) - xh mean(u xh).

    backward          dL/dx = w r P g            dL/dw = m mean(g xh)       dL/db = m mean(g)

At eps = 0, P is an orthogonal projector (Facts C.1 and C.2 of seed 000); with eps > 0 the same formula holds
with the eps-normalized xh, and P is no projector. The second term of dl/dmu that the article prints is zero.

    double backward   of (gx, gw, gb) for cotangents (V, Vw, Vb), with a = w r, q = Vw - a mean(V xh),
                      S = <V, gx>:
                      d/dg = a V + q xh + (Vb - a mean(V))
                      d/dx = r (q P g - a mean(g xh) P V - xh S/m)
                      d/dw = S / w
Sources: seed 003 (transform, backward), seed 000 Fact C.1; the double backward is derived in
docs/architecture.md. torch's own `batch_norm` is silently wrong in reverse-over-forward, in nested forward
mode and from the third derivative on; these are right in every order.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad

from normscope.norms._inputs import check_input, per_channel, scale_and_shift, stat_dims, traced, track, wide


def batch_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    sync: bool = False,
) -> Tensor:
    r"""Normalizes each channel of `x` by the statistics of this batch.

        y = weight (x - mean) / sqrt(var + eps) + bias        var: biased, divided by m

    Holds when: m > 1; a constant channel needs eps > 0 (eps = 0 gives nan there). Differs from the source: no.
    Source: seed 003, "Batch normalizing transform".

    Args:
        x: (N, C, *space). Half precision is normalized with float32 statistics and returned in half.
        weight, bias: (C,) or None for 1 and 0.
        eps: 1e-5 as torch has it; 0 is allowed, the theory needs it.
        sync: statistics over all processes of the default `torch.distributed` group.

    Example:
        >>> x = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
        >>> batch_norm(x, eps=0.0)
        tensor([[-1., -1.],
                [ 1.,  1.]])
    """
    return _normalize(x, weight, bias, None, None, 0.0, eps, sync)


def _normalize(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    factor: float | Tensor,
    eps: float,
    sync: bool,
) -> Tensor:
    """Batch statistics; moves the running ones by `factor` where they are given."""
    sync = sync and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    if x.numel() == 0 and not sync:
        return scale_and_shift(wide(x), weight, bias).to(x.dtype)
    compiling = torch.compiler.is_compiling()
    if sync or _transformed() or (compiling and isinstance(factor, Tensor)):
        return _composed(x, weight, bias, running_mean, running_var, factor, eps, sync)
    tensors, constants = (x, weight, bias, running_mean, running_var), (float(factor), eps)
    if compiling:
        # First order only (a compiled function has no double backward), where torch's own decomposition is right.
        return torch.batch_norm(*tensors, True, *constants, torch.backends.cudnn.enabled)
    y: Tensor = _BatchNorm.apply(*tensors, *constants)
    return y


def _transformed() -> bool:
    """Whether torch.func or forward-mode AD looks on.

    There the transform is composed of torch operations, which is right in every order and nesting: torch's kernel
    is wrong from the second order on, and an autograd.Function drops second-order terms in nested forward mode.
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _composed(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    factor: float | Tensor,
    eps: float,
    sync: bool,
) -> Tensor:
    mean, var, bessel = _synced_moments(x) if sync else _moments(x)
    if running_mean is not None and running_var is not None:
        track(running_mean, mean, factor)
        track(running_var, var * bessel, factor)
    xh = (wide(x) - per_channel(mean, x)) * per_channel((var + eps).rsqrt(), x)
    return scale_and_shift(xh, weight, bias).to(x.dtype)


def _moments(x: Tensor) -> tuple[Tensor, Tensor, float]:
    """Mean, biased variance, and the factor m/(m-1) that makes it unbiased."""
    var, mean = torch.var_mean(wide(x), dim=stat_dims(x), correction=0)
    m = x.numel() // x.shape[1]
    return mean, var, m / max(m - 1, 1)


class _AllReduceSum(torch.autograd.Function):
    """Sum over processes; linear and self-adjoint, so its derivative of any order is itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _AllReduceSum.apply(grad)


def _synced_moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two reductions, the second of centred squares: E[x^2] - E[x]^2 loses all digits at a large mean."""
    x = wide(x)
    dims = stat_dims(x)
    reduce: Callable[[Tensor], Tensor] = _AllReduceSum.apply
    local_count = x.new_full((1,), x.numel() // x.shape[1])
    totals = reduce(torch.cat([x.sum(dims), local_count]))
    mean, count = totals[:-1] / totals[-1], totals[-1]
    var = reduce((x - per_channel(mean, x)).square().sum(dims)) / count
    return mean, var, count / (count - 1).clamp(min=1)


class _BatchNorm(torch.autograd.Function):
    """The plain first-order pass over torch's kernels; from the second derivative on, `_BatchNormGrad`."""

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
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, mean, rstd, reserve = ctx.saved_tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():
            grads = _BatchNormGrad.apply(g, x, weight, mean, rstd, ctx.eps)
        else:
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


class _BatchNormGrad(torch.autograd.Function):
    """(g, x, w) -> (dL/dx, dL/dw, dL/db) and the derivative of that map, both in closed form."""

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, rstd: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(g, x, weight, mean, rstd)
        ctx.eps = eps
        xh, project = _standardized(x, mean, rstd)
        g = wide(g)
        a = rstd if weight is None else weight * rstd
        gx = (per_channel(a, x) * project(g)).to(x.dtype)
        dims = stat_dims(x)
        dtype = rstd.dtype if weight is None else weight.dtype
        return gx, (g * xh).sum(dims).to(dtype), g.sum(dims).to(dtype)

    @staticmethod
    def backward(ctx: Any, v: Tensor, vw: Tensor, vb: Tensor) -> Any:
        g, x, weight, mean, rstd = ctx.saved_tensors
        if torch.is_grad_enabled():
            # A third derivative is asked for: the saved statistics are constants to autograd, so take them anew.
            mean, var, _ = _moments(x)
            rstd = (var + ctx.eps).rsqrt()
        xh, project = _standardized(x, mean, rstd)
        g, v, dims = wide(g), wide(v), stat_dims(x)
        m = x.numel() // x.shape[1]
        w = torch.ones_like(rstd) if weight is None else weight
        pg, pv = project(g), project(v)
        a = w * rstd
        s_over_w = rstd * (v * pg).sum(dims)
        q = vw - a * (v * xh).mean(dims)
        cg = (g * xh).mean(dims)

        def channel(u: Tensor) -> Tensor:
            return per_channel(u, x)

        d_g = channel(a) * v + channel(q) * xh + channel(vb - a * v.mean(dims))
        d_x = channel(rstd) * (channel(q) * pg - channel(a * cg) * pv - xh * channel(w * s_over_w / m))
        d_w = None if weight is None else s_over_w.to(weight.dtype)
        return d_g.to(x.dtype), d_x.to(x.dtype), d_w, None, None, None


def _standardized(x: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """xh and the map P: u -> u - mean(u) - xh mean(u xh)."""
    dims = stat_dims(x)
    xh = (wide(x) - per_channel(mean, x)) * per_channel(rstd, x)

    def project(u: Tensor) -> Tensor:
        return u - u.mean(dims, keepdim=True) - xh * (u * xh).mean(dims, keepdim=True)

    return xh, project


class _BatchNormLayer(nn.modules.batchnorm._BatchNorm):
    """What the three layers share; `_ndims` says which inputs each takes."""

    _ndims: tuple[int, ...]
    sync: bool

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        sync: bool = False,
    ) -> None:
        if eps < 0:
            raise ValueError(f"eps is added to a variance and must not be negative; got {eps}. Use 0 or 1e-5.")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        if not bias:
            self.register_parameter("bias", None)
        self.sync = sync

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        for parameter, value in ((self.weight, 1.0), (self.bias, 0.0)):
            if parameter is not None:
                nn.init.constant_(parameter, value)

    def forward(self, input: Tensor) -> Tensor:
        node = traced(self, input)
        if node is not None:
            return node  # type: ignore[return-value]
        batch_stats = self.training or self.running_mean is None
        check_input(
            input,
            type(self).__name__,
            self.num_features,
            self._ndims,
            batch_stats=batch_stats and not self.sync,
        )
        if not batch_stats:
            return self._with_running_stats(input)
        mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
        if not (self.training and self.track_running_stats):
            mean = var = count = None
        return _normalize(input, self.weight, self.bias, mean, var, self._average_factor(count), self.eps, self.sync)

    def _average_factor(self, count: Tensor | None) -> float | Tensor:
        if count is None:
            return 0.0
        count.add_(1)
        return 1 / count.double() if self.momentum is None else self.momentum

    def _with_running_stats(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        assert mean is not None
        assert var is not None
        if not _transformed():
            return nn.functional.batch_norm(x, mean, var, self.weight, self.bias, eps=self.eps)
        rstd = (wide(var) + self.eps).rsqrt()
        xh = (wide(x) - per_channel(wide(mean), x)) * per_channel(rstd, x)
        return scale_and_shift(xh, self.weight, self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        return super().extra_repr() + (", sync=True" if self.sync else "")


class BatchNorm1d(_BatchNormLayer, nn.BatchNorm1d):
    """Batch normalization of (N, C) or (N, C, L); a `torch.nn.BatchNorm1d` in arguments, state and type.

    Beyond torch's: `eps=0` in training, right derivatives of every order, `sync=True` across processes (also
    on the CPU), `momentum=None` under compile and vmap, checks before anything is written.
    """

    _ndims = (2, 3)


class BatchNorm2d(_BatchNormLayer, nn.BatchNorm2d):
    """Batch normalization of (N, C, H, W); see `BatchNorm1d`."""

    _ndims = (4,)


class BatchNorm3d(_BatchNormLayer, nn.BatchNorm3d):
    """Batch normalization of (N, C, D, H, W); see `BatchNorm1d`."""

    _ndims = (5,)


class BatchNormNd(_BatchNormLayer):
    """Batch normalization of (N, C, *space) with up to three dimensions of space; see `BatchNorm1d`."""

    _ndims = (2, 3, 4, 5)
