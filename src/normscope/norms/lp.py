r"""l_p normalization: BatchNorm's mean subtraction, with an l_p norm instead of the standard deviation.

    y = w (x - mean(x)) / (n_p(x) + eps) + b        n_1 = mean|x|    n_2 = sqrt(mean x^2)    n_inf = max|x|

per channel, over batch and space. The norm is that of x *before* the mean is subtracted; with `centered=True` it is
that of x - mean(x), and l_2 is then BatchNorm. The gradient goes through both statistics. For a channel of zeros the
norm has no derivative; zero is used.

Source: Santurkar et al. 2018, Section 3.3 and Figures 11 to 14. The paper gives no formula for eps or for inference.
Here eps is added to the norm, and eval mode uses running averages of mean and norm, as torch's BatchNorm does.
"""

import math

import torch
from torch import Tensor, nn

from normscope.isolation.processes import several_processes
from normscope.norms.channels import check_input, per_channel, standardize, stat_dims, traced, track, wide
from normscope.norms.held_statistics import constant
from normscope.norms.process_sums import max_over_processes, sum_over_processes


def lp_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    p: float,
    eps: float = 1e-5,
    centered: bool = False,
    sync: bool = False,
) -> Tensor:
    r"""Normalize each channel of `x` by n_p, the l_p norm of this batch as a mean (mean |x| for p = 1).

        y = weight (x - mean(x)) / (n_p + eps) + bias

    Holds when: p is 1, 2 or inf. Differs from the source: eps, which it does not mention.
    Source: arXiv 1805.11604, Section 3.3.

    Args:
        x: (N, C, *space); half precision is normalized with float32 statistics.
        weight: scales gamma, (C,), or None for 1.
        bias: shifts beta, (C,), or None for 0.
        p: 1, 2 or math.inf.
        eps: number added to the norm; 0 is allowed.
        centered: take the norm of x - mean(x) instead of x.
        sync: statistics over all processes of the default `torch.distributed` group.

    Returns:
        The normalized tensor, of the shape of `x`.

    Example:
        >>> lp_norm(torch.tensor([[1.0], [3.0]]), p=1, eps=0.0)
        tensor([[-0.5000],
                [ 0.5000]])
    """
    sync = sync and several_processes()
    num_features = None if weight is None else len(weight)
    check_input(x, "lp_norm", num_features, (2, 3, 4, 5), batch_stats=not sync)
    mean, norm = constant(*lp_statistics(x, _known_p(p), centered, sync))
    return standardize(x, mean, 1 / (norm + eps), weight, bias)


def _known_p(p: float) -> float:
    if p not in (1, 2, math.inf):
        raise ValueError(f"p is one of 1, 2 and inf; got {p!r}. For the max norm pass p=math.inf.")
    return float(p)


def lp_statistics(x: Tensor, p: float, centered: bool, sync: bool) -> tuple[Tensor, Tensor]:
    """Mean and l_p norm of each channel of this batch."""
    x = wide(x)
    dims = stat_dims(x)
    total = sum_over_processes if sync else _itself
    m = total(x.new_full((1,), x.numel() // x.shape[1]))
    mean = total(x.sum(dims)) / m
    if centered:
        x = x - per_channel(mean, x)
    if p == 1:
        return mean, total(x.abs().sum(dims)) / m
    if p == 2:
        square = total(x.square().sum(dims)) / m
        # The square root has no derivative at 0; the norm of a zero channel is the constant 0.
        zero = square == 0
        return mean, torch.where(zero, 0.0, torch.where(zero, 1.0, square).sqrt())
    largest = x.abs().amax(dims) if x.numel() else x.sum(dims)
    return mean, max_over_processes(largest) if sync else largest


def _itself(x: Tensor) -> Tensor:
    return x


class LpNormLayer(nn.Module):
    _ndims: tuple[int, ...]
    running_mean: Tensor
    running_norm: Tensor
    num_batches_tracked: Tensor
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        p: float,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        centered: bool = False,
        sync: bool = False,
    ) -> None:
        super().__init__()
        self.num_features, self.p, self.eps, self.momentum = num_features, _known_p(p), eps, momentum
        self.affine, self.centered, self.sync = affine, centered, sync
        for name in ("weight", "bias"):
            value = torch.empty(num_features, device=device, dtype=dtype) if affine else None
            self.register_parameter(name, None if value is None else nn.Parameter(value))
        for name in ("running_mean", "running_norm"):
            self.register_buffer(name, torch.empty(num_features, device=device, dtype=dtype))
        self.register_buffer("num_batches_tracked", torch.tensor(0, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.running_mean.zero_()
        self.running_norm.fill_(1)
        self.num_batches_tracked.zero_()
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        node = traced(self, input)
        if node is not None:
            return node  # type: ignore[return-value]
        sync = self.sync and self.training and several_processes()
        batch_stats = self.training and not sync
        check_input(input, type(self).__name__, self.num_features, self._ndims, batch_stats=batch_stats)
        if not self.training or (input.numel() == 0 and not sync):
            mean, norm = wide(self.running_mean), wide(self.running_norm)
        else:
            mean, norm = constant(*lp_statistics(input, self.p, self.centered, sync))
            self._track(mean, norm)
        return standardize(input, mean, 1 / (norm + self.eps), self.weight, self.bias)

    def _track(self, mean: Tensor, norm: Tensor) -> None:
        self.num_batches_tracked.add_(1)
        factor = 1 / self.num_batches_tracked.double() if self.momentum is None else self.momentum
        track(self.running_mean, mean, factor)
        track(self.running_norm, norm, factor)

    def extra_repr(self) -> str:
        p = "inf" if math.isinf(self.p) else f"{self.p:g}"
        flags = "".join(f", {name}=True" for name in ("centered", "sync") if getattr(self, name))
        return f"{self.num_features}, p={p}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}{flags}"


class LpNorm1d(LpNormLayer):
    """l_p normalization of (N, C) or (N, C, L): y = w (x - mean) / (n_p + eps) + b, p in 1, 2, inf."""

    _ndims = (2, 3)


class LpNorm2d(LpNormLayer):
    """l_p normalization of (N, C, H, W); see `LpNorm1d`."""

    _ndims = (4,)


class LpNorm3d(LpNormLayer):
    """l_p normalization of (N, C, D, H, W); see `LpNorm1d`."""

    _ndims = (5,)


class LpNormNd(LpNormLayer):
    """l_p normalization of (N, C, *space) with up to three dimensions of space; see `LpNorm1d`."""

    _ndims = (2, 3, 4, 5)
