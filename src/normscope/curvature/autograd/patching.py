"""Replacement of torch's functions and flags while a measurement's passes run: every patch of curvature/ is here.

Each entry names the reason, the torch issue, and when the patch can be removed.

conv1d, conv2d, conv3d: torch computes one part of the double backward by a convolution with a kernel as large as the
    image. Issue: pytorch 22577. Remove when torch's double backward costs four convolutions.
batch_norm, its derivatives: torch's double backward takes about 25 passes over the input. Issue: pytorch 3076. Remove
    when torch takes about ten passes.
batch_norm, its statistics: stats="frozen" holds the batch's statistics constant in every forward that calls
    F.batch_norm. Issue: none. Remove when torch has a switch for constant statistics.
relu: torch adds zeros for the derivative of the slope, 2 % of a Hessian product. Issue: none known. Remove when torch
    adds no zeros.
_weight_norm: torch's kernel treats the length as a constant in the second derivative, so that the second derivative is
    not symmetric. Issue: none known. Remove when torch's own second derivative is symmetric.
Flags of attention: fused attention has neither a second derivative nor a forward mode. Issues: pytorch 116350 and
    128971. Remove when fused attention has both.
Precision of float32: see `precision.py`.
Autocast: products in half precision have only two or three correct digits. This patch stays, since users set autocast.

Functions are replaced by name, not by a `TorchFunctionMode`: `autograd.grad` switches modes off, and activation
checkpointing calls layers inside `autograd.grad`. A module that imported a function from torch earlier keeps torch's
function, which gives the same answer and is slower.

**Other threads.** Two settings belong to one thread: autocast, and whether statistics are held. Every other replacement
is seen by all threads. Each replacement gives all callers the values and derivatives of torch's own function, up to
rounding. The flags choose other kernels of the same functions. Replacements of one name are counted, so torch's
function is back when the last replacement has ended, in any order. Flags are not counted: measurements take turns
(`isolation/one_at_a_time.py`), so only one thread sets flags at a time.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.curvature.autograd.convolutions import Rectifier, convolution, into_weights
from normscope.curvature.autograd.precision import set_precision
from normscope.norms.batch import batch_norm, transformed
from normscope.norms.batch_norm_gradient import BatchNormFunction, gradients_last
from normscope.norms.channels import standardize
from normscope.norms.held_statistics import held

Names = Sequence[tuple[dict[str, Any], str]]

_lock = Lock()
_stacks: dict[tuple[int, str], list[Any]] = {}


@contextmanager
def replaced(names: Names, make: Callable[[str, Any], Any]) -> Iterator[None]:
    """Inside, each of `names` in a module's namespace is make(name, the function that was there)."""
    replacements: list[Any] = []
    try:
        for home, name in names:
            with _lock:
                stack = _stacks.setdefault((id(home), name), [home[name]])
                replacements.append(make(name, stack[-1]))
                stack.append(replacements[-1])
                home[name] = replacements[-1]
        yield
    finally:
        for (home, name), function in zip(names, replacements, strict=False):
            with _lock:
                stack = _stacks[id(home), name]
                stack.remove(function)
                home[name] = stack[-1]
                if len(stack) == 1:
                    del _stacks[id(home), name]


_DIMENSIONS = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
_CONVOLUTIONS = [(vars(home), name) for home in (torch, F) for name in _DIMENSIONS]
_WEIGHT_NORMS = [(vars(home), "_weight_norm") for home in (torch, sys.modules["torch.nn.utils.weight_norm"])]


@contextmanager
def fast_second_derivatives() -> Iterator[None]:
    """Inside, convolutions, batch normalization and ReLU have fast second derivatives.

    Batch normalization in train mode uses the closed form of `norms/batch_norm_gradient.py`. In eval mode batch
    normalization is a scale and a shift of each channel. A convolution before the layer takes both into its weights, so
    that no pass over the input is left. Activation checkpointing runs forwards inside backward passes, so this context
    must enclose backward passes too.
    """
    names = [(vars(torch), "batch_norm"), (vars(torch), "relu"), *_CONVOLUTIONS]
    with gradients_last(), replaced(names, _with_second_derivative):
        yield


@contextmanager
def batch_norm_held() -> Iterator[None]:
    """Inside, torch's batch normalization holds the batch's statistics where `norms.statistics_held` asks for it."""
    with replaced([(vars(torch), "batch_norm")], _holding):
        yield


@contextmanager
def differentiable_kernels(device: str) -> Iterator[None]:
    """Inside, attention and weight normalization have all derivatives, and products have all digits of float32.

    Autocast is off. Float32 is rounded to TF32 only on a GPU, and only where the search asks for rounded products.
    """
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast_path)
        torch.backends.mha.set_fastpath_enabled(False)
        set_precision(device, stack)
        stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(replaced(_WEIGHT_NORMS, lambda *_: _weight_norm))
        yield


def _with_second_derivative(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    if name in _DIMENSIONS:
        return convolution(function, _DIMENSIONS[name])
    return _rectifier(function) if name == "relu" else _normalization(function)


def _rectifier(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(input: Tensor) -> Tensor:
        if transformed() or not input.is_floating_point():
            return function(input)
        y: Tensor = Rectifier.apply(input)
        return y

    return call


class _BatchNormArguments(NamedTuple):
    """The arguments of torch.batch_norm."""

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Any
    running_var: Any
    training: bool
    momentum: float
    eps: float
    cudnn_enabled: bool


def _normalization(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*args: Any, **kwargs: Any) -> Tensor:
        asked = _BatchNormArguments(*args, **kwargs)
        x, weight, bias, mean, var, training, momentum, eps, _ = asked
        if transformed() or not x.numel() or not _fits(x, training, mean, var, weight, bias):
            return function(*asked)
        if not training:
            scale = (var + eps).rsqrt()
            folded = into_weights(x, scale if weight is None else scale * weight, mean, bias)
            return standardize(x, mean, scale, weight, bias) if folded is None else folded
        y: Tensor = BatchNormFunction.apply(x, weight, bias, mean, var, momentum, eps)
        return y

    return call


def _fits(x: Tensor, training: bool, mean: Any, var: Any, *affine: Tensor | None) -> bool:
    """Whether torch accepts these shapes. Other shapes would broadcast here; torch refuses them."""
    if x.ndim < 2 or (not training and (mean is None or var is None)):
        return False
    return all(t is None or t.shape == x.shape[1:2] for t in (mean, var, *affine))


def _holding(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(*args: Any, **kwargs: Any) -> Tensor:
        asked = _BatchNormArguments(*args, **kwargs)
        if asked.training and held():
            return batch_norm(asked.input, asked.weight, asked.bias, eps=asked.eps)
        return function(*asked)

    return call


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """g v / ||v||, with one length for each index of `dim`; a single length for dim = -1."""
    if dim == -1:
        return v * (g / torch.linalg.vector_norm(v))
    lengths = torch.linalg.vector_norm(v.movedim(dim, 0).reshape(v.shape[dim], -1), dim=1)
    return v * (g / lengths.view([-1 if i == dim else 1 for i in range(v.ndim)]))
