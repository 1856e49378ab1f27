"""Which rule a module has: the function it stands for, with its settings; and who may add one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.norms.kinds import RMSNorm
from normscope.norms.noisy import CovariateNoise, _NoisyLayer
from normscope.prediction import elementwise, functions, layer_rules, normalizers, site_rules
from normscope.prediction.field import INPUTS, Field
from normscope.prediction.refusal import UnknownOperation, misfit
from normscope.prediction.walk import Walk
from normscope.theory.gaussian import Activation

_BATCH_NORM = nn.modules.batchnorm._BatchNorm


def apply(walk: Walk, name: str, layer: Any, x: Field) -> Any:
    """The function a module of torch.nn or of ours stands for, with its settings."""
    if isinstance(layer, nn.Linear):
        return layer_rules.linear_rule(walk, name, x, layer.weight, layer.bias)
    if isinstance(layer, (nn.Conv1d, nn.Conv2d)):
        if layer.padding_mode != "zeros":
            raise UnknownOperation(f"pads with {layer.padding_mode!r}; there is a map for zeros")
        settings = (layer.stride, layer.padding, layer.dilation, layer.groups)
        return layer_rules.convolution_rule(walk, name, x, layer.weight, layer.bias, *settings)
    if isinstance(layer, _BATCH_NORM) and not isinstance(layer, _NoisyLayer):
        _check_batch_norm(layer, x)
        by_batch = layer.training or layer.running_mean is None
        statistics = (None, None) if by_batch else (layer.running_mean, layer.running_var)
        return layer_rules.batch_norm_rule(
            walk, name, x, *statistics, layer.weight, layer.bias, by_batch, 0.0, layer.eps
        )
    if isinstance(layer, nn.GroupNorm):
        _check_channels(layer.num_channels, x)
        return layer_rules.group_norm_rule(walk, name, x, layer.num_groups, layer.weight, layer.bias, layer.eps)
    if isinstance(layer, nn.LayerNorm):
        return layer_rules.layer_norm_rule(walk, name, x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)
    if isinstance(layer, nn.RMSNorm):
        if not x.flat or (x.sites.count > 1 and x.sites.form != "samples"):
            raise UnknownOperation(
                "normalizes the last dimensions of images; there is a map for (N, features) and for normscope's RMSNorm"
            )
        normalizers.check_features(x, layer.normalized_shape)
    if isinstance(layer, RMSNorm):
        _check_channels(layer.num_features, x)
    if isinstance(layer, (RMSNorm, nn.RMSNorm)):
        eps = layer.eps if layer.eps is not None else 1e-7
        return normalizers.sample_norm(walk, name, x, layer.weight, None, eps, centre=False, kind="RMSNorm")
    if isinstance(layer, CovariateNoise) and not layer.training:
        return x
    if isinstance(layer, (nn.AvgPool1d, nn.AvgPool2d)):
        override = getattr(layer, "divisor_override", None)
        shape = (layer.kernel_size, layer.stride, layer.padding)
        return site_rules.average_rule(walk, name, x, *shape, layer.ceil_mode, layer.count_include_pad, override)
    if isinstance(layer, (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)):
        return site_rules.adaptive_rule(walk, name, x, layer.output_size)
    if isinstance(layer, (nn.MaxPool1d, nn.MaxPool2d)):
        shape = (layer.kernel_size, layer.stride, layer.padding)
        return site_rules.maximum_rule(walk, name, x, *shape, layer.dilation, layer.ceil_mode)
    if isinstance(layer, nn.Flatten):
        return site_rules.flatten_rule(walk, name, x, layer.start_dim, layer.end_dim)
    if isinstance(layer, (nn.Dropout2d, nn.Dropout1d)):
        return functions.channel_dropout_rule(walk, name, x, layer.p, layer.training)
    if isinstance(layer, nn.Dropout):
        return functions.dropout_rule(walk, name, x, layer.p, layer.training)
    if isinstance(layer, nn.Identity):
        return x
    if isinstance(layer, nn.LeakyReLU):
        return elementwise.activation(walk, name, x, functions.leaky(layer.negative_slope))
    if isinstance(layer, nn.PReLU):
        if layer.num_parameters != 1:
            _check_channels(layer.num_parameters, x)
        if not bool(torch.isfinite(layer.weight.detach()).all()):
            raise ValueError("has a slope that is not finite. Initialize it, or load it again")
        if walk.trains(layer.weight):
            walk.note(f"{name}: the slope is taken as a constant; what it adds is a width's part of what weights add.")
        return elementwise.activation(walk, name, x, functions.leaky(float(layer.weight.detach().mean())))
    kind = type(layer).__name__.lower()
    if kind in functions.PLAIN:
        return elementwise.activation(walk, name, x, functions.PLAIN[kind])
    return elementwise.activation(walk, name, x, Activation(type(layer).__name__, _own(layer), monotone=False))


def _own(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """What a module does to values, which it may write to; what it keeps is then good for training too."""

    def function(z: Tensor) -> Tensor:
        with torch.inference_mode(False):
            values: Tensor = layer(z.clone())
        return values

    return function


def _check_channels(channels: int, x: Field) -> None:
    if x.flat and channels == x.shape[0] != x.channels:
        way = f"pass input_shape={x.shape}" if x.roots == {INPUTS} else "put it before the flattening"
        raise UnknownOperation(f"has numbers for each of the {channels} values of an image, no map here: {way}")
    if channels != x.channels:
        raise misfit(x, channels, "channels")


def _check_batch_norm(layer: Any, x: Field) -> None:
    """Dimensions as torch's own layers ask for them, and channels where the layer holds any."""
    taken = [n for kind, n in _BATCH_NORM_DIMENSIONS.items() if isinstance(layer, kind)]
    if taken and len(x.shape) not in taken[0]:
        raise ValueError(
            f"takes {' or '.join(f'{n + 1}' for n in taken[0])} dimensions and gets (N, {', '.join(map(str, x.shape))})"
        )
    if layer.affine or layer.track_running_stats:
        _check_channels(layer.num_features, x)


_BATCH_NORM_DIMENSIONS = {nn.BatchNorm1d: (1, 2), nn.BatchNorm2d: (3,), nn.BatchNorm3d: (4,)}

ELEMENTWISE: set[type] = {
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.ReLU6, nn.Hardtanh, nn.Hardswish,
    nn.Hardsigmoid, nn.Mish, nn.CELU, nn.SELU, nn.Softsign, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink,
}  # fmt: skip
_KNOWN = (
    nn.Linear, nn.Conv1d, nn.Conv2d, _BATCH_NORM, nn.GroupNorm, nn.LayerNorm, RMSNorm, nn.RMSNorm, nn.AvgPool1d,
    nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.MaxPool1d, nn.MaxPool2d, nn.Flatten, nn.Dropout,
    nn.Dropout1d, nn.Dropout2d, nn.Identity, nn.LeakyReLU, nn.PReLU,
)  # fmt: skip


def has_rule(layer: nn.Module) -> bool:
    """Whether a module as a whole has one; a noisy BatchNorm adds noise that has none."""
    if isinstance(layer, _NoisyLayer):
        return False
    own_forward = type(layer).__module__.split(".")[0] not in ("torch", "normscope")
    if type(layer) in ELEMENTWISE or (isinstance(layer, CovariateNoise) and not layer.training):
        return True
    return isinstance(layer, _KNOWN) and not own_forward


def elementwise_module(kind: type[nn.Module]) -> type[nn.Module]:
    """Says that modules of this class act on each value by itself; their moments are then found by quadrature.

    Use as a decorator on the class, or call it once.
    """
    ELEMENTWISE.add(kind)
    return kind
