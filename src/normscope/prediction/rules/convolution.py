"""The rule of convolutions over one and two dimensions, with zero padding."""

from typing import Any

from torch import Tensor, nn

from normscope.prediction.kernels.field import INPUTS, Field
from normscope.prediction.refusals import UnknownOperation, misfit
from normscope.prediction.rules.registry import rule
from normscope.prediction.rules.weighted_sums import NARROW, weighted_sum
from normscope.prediction.rules.windows import as_pair
from normscope.prediction.walk import Walk
from normscope.theory.taps import Window


def _settings(layer: nn.Conv1d | nn.Conv2d, x: Field) -> dict[str, Any]:
    if layer.padding_mode != "zeros":
        raise UnknownOperation(f"pads with {layer.padding_mode!r}; there is a map for zeros")
    arguments = ("weight", "bias", "stride", "padding", "dilation", "groups")
    return {each: getattr(layer, each) for each in arguments}


@rule("conv1d", "conv2d", "conv3d", modules=[nn.Conv1d, nn.Conv2d], settings=_settings)
def convolution(
    walk: Walk,
    name: str,
    x: Field,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Field:
    """A convolution with torch's arguments. Convolutions over three dimensions are refused."""
    dims = weight.ndim - 2
    if dims == 3:
        raise UnknownOperation("is a convolution in three dimensions, which has no map here")
    dilated = as_pair(dilation, dims)
    kernel = (1, *weight.shape[2:])[-2:]
    strides, padded = as_pair(stride, dims), _padding(padding, dims, kernel, dilated)
    _check_channels(x, weight, groups)
    window = Window(x.sites, (kernel[0], kernel[1]), strides, padded, dilated)
    after = window.after
    shape = (weight.shape[0], after.height, after.width) if dims == 2 else (weight.shape[0], after.width)
    if groups > 1 and weight[0].numel() < NARROW:
        walk.remarks.note(f"each channel sums {weight[0].numel()} inputs, few for a theory of sums of many.", name)
    return weighted_sum(walk, name, f"Conv{dims}d", x, weight, bias, window, shape, groups)


def _padding(padding: Any, dims: int, kernel: tuple[int, ...], dilation: tuple[int, int]) -> tuple[int, int]:
    """Padding in height and width, of torch's number, tuple or word."""
    if padding == "valid":
        padding = 0
    if padding == "same":
        span = [dilation[i] * (kernel[i] - 1) for i in range(2)]
        if any(s % 2 for s in span):
            raise UnknownOperation("pads 'same' on one side more than on the other, which has no map here")
        padding = (span[0] // 2, span[1] // 2)
    if dims == 2 or (isinstance(padding, tuple) and len(padding) == 2):
        return as_pair(padding, dims)
    return (0, as_pair(padding, 1)[1])


def _check_channels(x: Field, weight: Tensor, groups: int) -> None:
    """Refuse inputs of another number of dimensions or channels than the weights take."""
    dims = weight.ndim - 2
    if len(x.shape) != dims + 1:
        sides = "H, W" if dims == 2 else "L"
        said = f"takes (N, C, {sides}) and gets {x.said()}"
        if x.roots == {INPUTS}:
            said += f". Pass input_shape=({weight.shape[1] * groups}, {sides}), that of one sample"
        raise ValueError(said)
    if weight.shape[0] % groups:
        raise ValueError(f"gives {weight.shape[0]} channels in {groups} groups, which do not divide them")
    if weight.shape[1] * groups != x.channels:
        raise misfit(x, weight.shape[1] * groups, "channels")
