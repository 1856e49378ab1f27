r"""Batch normalization: the transform and its layers.

    mu = mean(x)    v = mean((x - mu)^2)    r = 1/sqrt(v + eps)    xh = r (x - mu)    y = w xh + b

Means run over batch and space, per channel; m is the number of values per channel; w, b = gamma, beta.
Source: the encyclopedia article "Batch normalization", section "Batch normalizing transform".

torch's own `batch_norm` gives wrong derivatives without an error in reverse-over-forward mode, in nested forward mode,
and from the third derivative on. The one here is right in every order.
"""

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from normscope.isolation.processes import several_processes
from normscope.norms.batch_norm_gradient import BatchNormFunction, moments
from normscope.norms.channels import check_input, per_channel, standardize, stat_dims, traced, track, wide
from normscope.norms.held_statistics import constant, held
from normscope.norms.process_sums import sum_over_processes


def batch_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float = 1e-5,
    sync: bool = False,
) -> Tensor:
    r"""Normalize each channel of `x` by the statistics of this batch.

        y = weight (x - mean) / sqrt(var + eps) + bias        var: biased, divided by m

    Holds when: m > 1; a constant channel needs eps > 0 (eps = 0 gives nan there). Differs from the source: no.
    Source: the encyclopedia article "Batch normalization", section "Batch normalizing transform".

    Args:
        x: (N, C, *space). Half precision is normalized with float32 statistics and returned in half.
        weight: scales gamma, (C,), or None for 1.
        bias: shifts beta, (C,), or None for 0.
        eps: 1e-5 as in torch; 0 is allowed, since the theory needs it.
        sync: statistics over all processes of the default `torch.distributed` group.

    Returns:
        The normalized tensor, of the shape of `x`.

    Example:
        >>> x = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
        >>> batch_norm(x, eps=0.0)
        tensor([[-1., -1.],
                [ 1.,  1.]])
    """
    sync = sync and several_processes()
    num_features = None if weight is None else len(weight)
    check_input(x, "batch_norm", num_features, (2, 3, 4, 5), batch_stats=not sync)
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
    """Normalize by batch statistics, and move the running statistics, if given, by `factor`."""
    if x.numel() == 0 and not sync:
        nothing = wide(x).sum(stat_dims(x))
        return standardize(x, nothing, nothing, weight, bias)
    compiling = torch.compiler.is_compiling()
    if sync or held() or transformed() or (compiling and isinstance(factor, Tensor)):
        return _composed(x, weight, bias, running_mean, running_var, factor, eps, sync)
    tensors, constants = (x, weight, bias, running_mean, running_var), (float(factor), eps)
    if compiling:
        # First order only (a compiled function has no double backward), where torch's own decomposition is right.
        return torch.batch_norm(*tensors, True, *constants, torch.backends.cudnn.enabled)
    y: Tensor = BatchNormFunction.apply(*tensors, *constants)
    return y


def transformed() -> bool:
    """Whether a torch.func transform or forward-mode differentiation is active.

    In that case the normalization is composed of torch operations, which is right in every order and nesting. torch's
    kernel is wrong from the second order on, and an autograd.Function drops second-order terms in nested forward mode.
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
    z, shift = wide(x), torch.zeros((), device=x.device)
    bessel: float | Tensor
    if sync:
        mean, var, bessel = _synced_moments(z)
    else:
        # Statistics of x minus one of its values: near a large mean that difference is exact, so the rounding error of
        # the mean does not enter the output.
        shift = z.detach()[0].flatten(1)[:, 0] if z.ndim > 2 else z.detach()[0]
        z = z - per_channel(shift, z)
        mean, var, bessel = moments(z)
    mean, var = constant(mean, var)
    if running_mean is not None and running_var is not None:
        track(running_mean, mean + shift, factor)
        track(running_var, var * bessel, factor)
    return standardize(z, mean, (var + eps).rsqrt(), weight, bias).to(x.dtype)


def _synced_moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and m/(m-1) over all processes.

    Two reductions, the second one of centred squares: E[x^2] - E[x]^2 loses all digits at a large mean.
    """
    dims = stat_dims(x)
    local_count = x.new_full((1,), x.numel() // x.shape[1])
    totals = sum_over_processes(torch.cat([x.sum(dims), local_count]))
    mean, count = totals[:-1] / totals[-1], totals[-1]
    var = sum_over_processes((x - per_channel(mean, x)).square().sum(dims)) / count
    return mean, var, count / (count - 1).clamp(min=1)


class BatchNormLayer(nn.modules.batchnorm._BatchNorm):
    """Base of the BatchNorm layers; `_ndims` lists the numbers of input dimensions that a layer takes."""

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
        sync = self.sync and self.training and several_processes()
        need_values = batch_stats and not sync
        check_input(input, type(self).__name__, self.num_features, self._ndims, batch_stats=need_values)
        if not batch_stats:
            return self._with_running_stats(input)
        mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
        if not (self.training and self.track_running_stats):
            mean = var = count = None
        factor: float | Tensor = self.momentum or 0.0
        if self.momentum is None and count is not None:
            factor = 1 / (count.double() + 1)
        y = _normalize(input, self.weight, self.bias, mean, var, factor, self.eps, sync)
        if count is not None:
            count.add_(1)
        return y

    def _with_running_stats(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        assert mean is not None
        assert var is not None
        if not transformed():
            return nn.functional.batch_norm(x, mean, var, self.weight, self.bias, eps=self.eps)
        return standardize(x, wide(mean), (wide(var) + self.eps).rsqrt(), self.weight, self.bias)

    def extra_repr(self) -> str:
        return super().extra_repr() + (", sync=True" if self.sync else "")


class BatchNorm1d(BatchNormLayer, nn.BatchNorm1d):
    """Batch normalization of (N, C) or (N, C, L); a `torch.nn.BatchNorm1d` in arguments, state and type.

    Differences from torch's layer: `eps=0` in training, right derivatives of every order, `sync=True` across processes
    (also on the CPU), `momentum=None` under compile and vmap, and checks before anything is written.
    """

    _ndims = (2, 3)


class BatchNorm2d(BatchNormLayer, nn.BatchNorm2d):
    """Batch normalization of (N, C, H, W); see `BatchNorm1d`."""

    _ndims = (4,)


class BatchNorm3d(BatchNormLayer, nn.BatchNorm3d):
    """Batch normalization of (N, C, D, H, W); see `BatchNorm1d`."""

    _ndims = (5,)


class BatchNormNd(BatchNormLayer):
    """Batch normalization of (N, C, *space) with up to three dimensions of space; see `BatchNorm1d`."""

    _ndims = (2, 3, 4, 5)
