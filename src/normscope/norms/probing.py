"""Run copies of a layer on inputs of several scales, to compare it with others; the layer itself is not run."""

import contextlib
import copy
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from normscope.isolation.generators import Generators

# Scales of inputs, from large, where eps is negligible, to small, where it dominates: at a variance of 1e-6 the outputs
# for eps 1e-5 and 1e-6 differ.
SCALES = (100.0, 1.0, 0.1, 1e-2, 1e-3)
# Relative tolerance: layers may compute in float32 in any case, and sum some hundred values in another order.
TOLERANCE = 2e-5
_HOOKS = tuple(name for name in vars(nn.Module()) if name.endswith(("_hooks", "_hooks_with_kwargs")))


class NoCopy(Exception):
    """A layer that cannot be copied; the message says why."""


def copies(*layers: nn.Module) -> tuple[nn.Module, ...]:
    """Copies on the CPU, in float32 or float64 and without hooks; parameters that `layers` share stay shared.

    Parameters get random values, so that no parameter equals another one or a multiple of it.

    Raises:
        NoCopy: a layer cannot be copied.
    """
    try:
        with torch.device("cpu"):
            copied = copy.deepcopy(tuple(map(_unhooked, layers)))
            wide = any(p.dtype == torch.float64 for layer in copied for p in layer.parameters())
            for layer in copied:
                layer.to(device="cpu", dtype=torch.float64 if wide else torch.float32)
    except Exception as error:
        raise NoCopy(f"it cannot be copied for a probe ({type(error).__name__}: {_first_line(error)})") from error
    draws = torch.Generator("cpu").manual_seed(11)
    for parameter in dict.fromkeys(p for layer in copied for p in layer.parameters()):
        parameter.copy_(torch.rand(parameter.shape, generator=draws, device="cpu") + 0.5)
    for layer in copied:
        for module in layer.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.clone()
    return copied


def _unhooked(module: nn.Module) -> nn.Module:
    """A module with the same attributes and no hooks: a hook may hold other objects, and may write anywhere."""
    bare: nn.Module = object.__new__(type(module))
    attributes = dict(vars(module)) | {name: type(vars(module)[name])() for name in _HOOKS if name in vars(module)}
    children = module._modules.items()
    attributes["_modules"] = {name: None if child is None else _unhooked(child) for name, child in children}
    vars(bare).update(attributes)
    return bare


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """While this context lasts, gradients and autocast are off; random generators are put back at the end."""
    generators = Generators()
    generators.save()
    try:
        with torch.inference_mode(False), torch.no_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        generators.restore()


def shapes(channels: int, *, last: bool) -> list[tuple[int, ...]]:
    """Shapes of probe inputs with channels last or second; all other sizes differ from the number of channels."""
    a, b, c, d = [size for size in (3, 4, 2, 5, 7) if size != channels][:4]
    if last:
        return [(c, a, channels), (c, a, b, channels), (a, channels), (c, d, a, b, channels)]
    return [(c, channels, a, b), (c, channels, d), (c, channels, d, a, b), (a, channels)]


def draw(shape: tuple[int, ...], scale: float, like: nn.Module) -> Tensor:
    """Random values of this scale, whose mean and spread vary along each dimension but the first."""
    return scale * _drawn(shape, next((p.dtype for p in like.parameters()), torch.float32))


@lru_cache(maxsize=16)
def _drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    draws = torch.Generator("cpu").manual_seed(5)
    x = torch.randn(shape, generator=draws, dtype=dtype, device="cpu")
    for dim, size in enumerate(shape[1:], 1):
        sizes = [size if other == dim else 1 for other in range(len(shape))]
        ramp = torch.rand(sizes, generator=draws, dtype=dtype, device="cpu")
        x = x * (0.5 + ramp) + ramp
    return x


def output(layer: nn.Module, x: Tensor) -> Tensor | Exception:
    """The output of `layer` for `x`, or the exception; two calls draw the same random numbers."""
    torch.default_generator.manual_seed(0)
    try:
        y: Any = layer(x.clone())
    except Exception as error:
        return error
    if not isinstance(y, Tensor) or y.shape != x.shape:
        return ValueError(f"it returns {tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__}")
    return y


def agree(
    layer: nn.Module, other: nn.Module, channels: int, *, last: bool, modes: tuple[bool, ...] = (True, False)
) -> bool:
    """Whether two layers compute the same on all inputs that both take, in train mode and then in eval mode."""
    first, second = copies(layer, other)
    _set_mode(False, first, second)
    taken = [
        shape
        for shape in shapes(channels, last=last)
        if not any(isinstance(output(part, draw(shape, 1.0, first)), Exception) for part in (first, second))
    ]
    for training in modes:
        if not _set_mode(training, first, second):
            return False
        for shape in taken:
            for scale in SCALES[::2] if training else SCALES:
                expected, actual = (output(part, draw(shape, scale, first)) for part in (first, second))
                if isinstance(expected, Exception) or isinstance(actual, Exception) or not _close(actual, expected):
                    return False
    return bool(taken)


def takes_both(layer: nn.Module, channels: int) -> bool:
    """Whether a layer takes its channels last in inputs of some rank, and second in those of another."""
    (copied,) = copies(layer)
    copied.eval()
    taken = [
        any(
            isinstance(output(copied, draw(shape, 1.0, copied)), Tensor)
            for shape in shapes(channels, last=last)
            if len(shape) > 2
        )
        for last in (True, False)
    ]
    return all(taken)


def _set_mode(training: bool, *layers: nn.Module) -> bool:
    """Set the mode; returns whether all layers took it, since a frozen BatchNorm may stay in eval mode."""
    for layer in layers:
        layer.train(training)
    return all(layer.training == training for layer in layers)


def _close(actual: Tensor, expected: Tensor) -> bool:
    error = (actual.double() - expected.double()).abs().max()
    return bool(error <= TOLERANCE * expected.double().abs().max())
