"""Normalizers by name: the values of the models' `norm=` and the targets of `swap_norms`.

To add a kind, these places need it:

    NORM_KINDS (here)                 its name, its layer, and what the layer takes over from an old one
    NORM_LAYERS (here)                its class, unless the class derives from one in the list
    prediction/rules/                 its rule, so that `predict` goes through it
    monitor/probes/health.py          its statistics, if they are neither a mean and variance nor an l_p norm
    diagnosis/look/normalizers.py     whether it subtracts a mean (`Normalizer.centers`)
    tests/reference.py                a slow version of it; a row in `MAKERS` of tests/norms/test_transforms.py

A kind whose statistics are taken over the batch needs two more:

    OVER_BATCH_LAYERS (here)          its class, so that `measure` and `diagnose` know that samples share statistics
    its own forward                   passes the statistics through `constant` of norms/held_statistics.py, so that
                                      stats="frozen" holds them
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.messages.choices import check_choice
from normscope.norms.batch import BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormNd
from normscope.norms.channels import check_input, per_channel, traced, wide
from normscope.norms.lp import LpNorm1d, LpNorm2d, LpNorm3d, LpNormLayer, LpNormNd
from normscope.norms.noisy import (
    CovariateNoise,
    NoisyBatchNorm1d,
    NoisyBatchNorm2d,
    NoisyBatchNorm3d,
    NoisyBatchNormNd,
)

_BATCH = {1: BatchNorm1d, 2: BatchNorm2d, 3: BatchNorm3d, None: BatchNormNd}
_NOISY = {1: NoisyBatchNorm1d, 2: NoisyBatchNorm2d, 3: NoisyBatchNorm3d, None: NoisyBatchNormNd}
_LP = {1: LpNorm1d, 2: LpNorm2d, 3: LpNorm3d, None: LpNormNd}


class Identity(nn.Identity):
    """The identity, for a network without normalizer.

    torch's TransformerEncoderLayer has a fused eval path that computes LayerNorm whatever its norms are. That path is
    taken only if the eps of its two norms are equal; nan is never equal to nan, so `eps = nan` disables it.
    """

    eps = math.nan
    copies = False

    def stand_in(self, weight: Tensor | None) -> None:
        """Prepare this layer to replace a normalizer with this weight.

        The output becomes a new tensor, since later layers may write into a normalizer's output. An empty weight is
        registered, since some forwards read the dtype or the device of a normalizer's weight.
        """
        self.copies = True
        if weight is not None:
            self.register_buffer("weight", weight.detach().new_empty(0), persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        return input.clone() if self.copies else input


class RMSNorm(nn.Module):
    r"""Root-mean-square normalization of each sample of (N, C, *space) over channels and space together.

        y = w x / sqrt(mean_{C, space}(x^2) + eps)        w per channel

    `torch.nn.RMSNorm` normalizes the last dimensions and has one weight per element; this is its
    channel-second form, as GroupNorm(1, C) is LayerNorm's.
    """

    weight: nn.Parameter | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features, self.eps = num_features, eps
        weight = nn.Parameter(torch.ones(num_features, device=device, dtype=dtype)) if affine else None
        self.register_parameter("weight", weight)

    def forward(self, input: Tensor) -> Tensor:
        node = traced(self, input)
        if node is not None:
            return node  # type: ignore[return-value]
        check_input(input, "RMSNorm", self.num_features, (2, 3, 4, 5), batch_stats=False)
        x = wide(input)
        y = x * (x.square().mean(dim=list(range(1, x.ndim)), keepdim=True) + self.eps).rsqrt()
        if self.weight is not None:
            y = y * per_channel(self.weight, y)
        return y.to(input.dtype)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}"


NORM_LAYERS = (
    nn.modules.batchnorm._NormBase,
    LpNormLayer,
    CovariateNoise,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    RMSNorm,
)
# Layers with statistics over the samples of a batch.
OVER_BATCH_LAYERS = (nn.modules.batchnorm._BatchNorm, LpNormLayer)


class InstanceNorm(nn.GroupNorm):
    """Instance normalization of each channel of each sample over space: GroupNorm with one channel a group."""

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True, **factory: Any) -> None:
        super().__init__(num_features, num_features, eps, affine, **factory)

    def forward(self, input: Tensor) -> Tensor:
        node = traced(self, input)
        if node is not None:
            return node  # type: ignore[return-value]
        check_input(input, "InstanceNorm", self.num_channels, (2, 3, 4, 5), batch_stats=False)
        if input.shape[2:].numel() == 1:
            raise ValueError(
                f"InstanceNorm takes statistics over space and needs inputs (N, C, *space); got shape "
                f"{tuple(input.shape)}, one value per channel and sample. Use 'layer', 'group' or 'batch' there."
            )
        return super().forward(input)


def _group(num_features: int, groups: int = 32, **options: Any) -> nn.GroupNorm:
    """GroupNorm with the largest number of groups that divides the channels, at most `groups` (32 in its source).

    Each group has at least two channels: groups of one channel are "instance", and their output is constant if there
    is no space.
    """
    most = min(groups, num_features // 2)
    fitting = max((g for g in range(1, most + 1) if num_features % g == 0), default=1)
    return nn.GroupNorm(fitting, num_features, **options)


@dataclass(frozen=True)
class NormKind:
    """One kind of normalizer: how to make its layer, and which arguments and tensors of an old layer it can take over.

    Attributes:
        make: a function of the dimensions of space (None for any) that gives a constructor, called with the number of
            channels and keyword options.
        has_weight, has_bias: whether the layer can have a scale and a shift for each channel.
        takes_eps: whether its eps is added to a variance, as most layers have it.
        takes_momentum: whether it has running statistics, averaged with a momentum.
        takes_running: whether it has the running statistics of BatchNorm, and its options for them.
        takes_noise: whether it has the constants and the seed of the covariate noise.
        takes_groups: whether channels are normalized in groups, as many as the option says.
        needs_space: whether its statistics are taken over space alone.
        each_position: whether statistics are taken within each sample over channels, so that the layer can also
            normalize each position by itself.
    """

    make: Callable[[int | None], Callable[..., nn.Module]]
    has_weight: bool = True
    has_bias: bool = True
    takes_eps: bool = True
    takes_momentum: bool = False
    takes_running: bool = False
    takes_noise: bool = False
    takes_groups: bool = False
    needs_space: bool = False
    each_position: bool = False


def _lp(p: float) -> NormKind:
    # The eps of an l_p layer is added to a norm, not to a variance.
    return NormKind(lambda dim: partial(_LP[dim], p=p), takes_eps=False, takes_momentum=True)


NORM_KINDS = {
    "none": NormKind(
        lambda dim: lambda num_features, **options: Identity(), has_weight=False, has_bias=False, takes_eps=False
    ),
    "batch": NormKind(lambda dim: _BATCH[dim], takes_momentum=True, takes_running=True),
    "layer": NormKind(lambda dim: partial(nn.GroupNorm, 1), each_position=True),
    "group": NormKind(lambda dim: _group, takes_groups=True, each_position=True),
    "instance": NormKind(lambda dim: InstanceNorm, needs_space=True),
    "rms": NormKind(lambda dim: RMSNorm, has_bias=False, each_position=True),
    "l1": _lp(1),
    "l2": _lp(2),
    "linf": _lp(math.inf),
    "noisy": NormKind(lambda dim: _NOISY[dim], takes_momentum=True, takes_running=True, takes_noise=True),
    "noise": NormKind(lambda dim: CovariateNoise, has_weight=False, has_bias=False, takes_eps=False, takes_noise=True),
}
NORM_NAMES = tuple(NORM_KINDS)


def make_norm(name: str, num_features: int, *, dim: int | None, gamma: float = 1.0, **options: Any) -> nn.Module:
    """The normalizer called `name`, for inputs (N, C, *space) with `dim` dimensions of space.

    "layer" is GroupNorm(1, C), and "rms" is the same without the mean: statistics per sample, over channels and space.

    Args:
        name: one of `NORM_NAMES`.
        num_features: C, the number of channels.
        dim: 1 (also for no space), 2 or 3; None for a layer that takes any.
        gamma: initial value of the scale, if the layer has one.
        options: passed to the layer's constructor, e.g. eps, momentum, groups, centered, seed, sync.

    Returns:
        The layer.

    Raises:
        ValueError: an unknown name or another `dim`.

    Example:
        >>> make_norm("group", 48, dim=2).num_groups
        24
    """
    if dim not in (1, 2, 3, None):
        raise ValueError(f"dim counts the dimensions of space: 1, 2, 3, or None for any; got {dim!r}.")
    check_choice("normalizer", name, NORM_NAMES)
    layer = NORM_KINDS[name].make(dim)(num_features, **options)
    weight = getattr(layer, "weight", None)
    if weight is not None:
        nn.init.constant_(weight, gamma)
    return layer
