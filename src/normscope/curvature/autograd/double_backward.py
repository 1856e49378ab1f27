"""Second derivatives by reverse mode twice that cost what they must, for layers whose own in torch do not.

Convolutions (`convolutions.py`) and batch normalization. In train mode its double backward in torch operations takes
some 25 passes over its input, the closed form of `norms/_batch_grad.py` ten. In eval mode it is a scale and a shift for
each channel, which the weights of a convolution before it take up: no pass at all. And ReLU (`rectifiers.py`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.curvature.autograd.convolutions import convolution, into_weights
from normscope.curvature.autograd.patching import renamed
from normscope.curvature.autograd.relu import Rectifier
from normscope.norms._batch_grad import BatchNormFunction, gradients_last
from normscope.norms._inputs import standardize
from normscope.norms.batch import transformed

_CONVOLUTIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}


@contextmanager
def twice_derivable() -> Iterator[None]:
    """Inside, forwards are made of such layers.

    By their names in torch (`names.py`): activation checkpointing runs forwards inside of backward passes, so this
    belongs around those too. A name that was imported from there before keeps torch's derivatives, as right and slower.
    """
    own = [(vars(torch), "batch_norm"), (vars(torch), "relu")]
    names = [*own, *((vars(home), name) for home in (torch, F) for name in _CONVOLUTIONS)]
    with gradients_last(), renamed(names, _made):
        yield


def _made(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    if name in _CONVOLUTIONS:
        return convolution(function, _CONVOLUTIONS[name])
    return _rectifier(function) if name == "relu" else _normalization(function)


def _rectifier(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(input: Tensor) -> Tensor:
        if transformed() or not input.is_floating_point():
            return function(input)
        y: Tensor = Rectifier.apply(input)
        return y

    return call


def _normalization(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Any,
        running_var: Any,
        training: bool,
        momentum: float,
        eps: float,
        cudnn_enabled: bool,
    ) -> Tensor:
        x, mean, var = input, running_mean, running_var
        if transformed() or not x.numel() or not _fits(x, training, mean, var, weight, bias):
            return function(x, weight, bias, mean, var, training, momentum, eps, cudnn_enabled)
        if not training:
            scale = (var + eps).rsqrt()
            folded = into_weights(x, scale if weight is None else scale * weight, mean, bias)
            return standardize(x, mean, scale, weight, bias) if folded is None else folded
        y: Tensor = BatchNormFunction.apply(x, weight, bias, mean, var, momentum, eps)
        return y

    return call


def _fits(x: Tensor, training: bool, mean: Any, var: Any, *affine: Tensor | None) -> bool:
    """Whether torch takes these; what it refuses is left for it to say so, and not broadcast."""
    if x.ndim < 2 or (not training and (mean is None or var is None)):
        return False
    return all(t is None or t.shape == x.shape[1:2] for t in (mean, var, *affine))
