"""Check whether copies of a network can be trained as one stack; if not, name the module that prevents it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.norms import CovariateNoise

_PLAIN = (bool, int, float, str, tuple, type(None))


class NotStackable(ValueError):
    """Networks cannot be stacked; the message names the module and the reason."""


def check_alike(models: Sequence[nn.Module]) -> None:
    """Raise NotStackable if members differ in anything but the values of parameters and buffers.

    One network computes the forward of all members, so their modules and attributes must be the same.
    """
    first = models[0]
    for other in models[1:]:
        if other is first:
            continue
        if [name for name, _ in first.named_modules()] != [name for name, _ in other.named_modules()]:
            raise NotStackable("the factory builds networks of different modules for different cells")
        for (name, module), (_, twin) in zip(first.named_modules(), other.named_modules(), strict=True):
            _check_module(name or "the network", module, twin)


def _check_module(name: str, module: nn.Module, twin: nn.Module) -> None:
    label = f"{name} ({type(module).__name__})"
    if type(module) is not type(twin):
        raise NotStackable(f"{name} is a {type(module).__name__} in one cell and a {type(twin).__name__} in another")
    for attribute in ("_parameters", "_buffers"):
        for key, tensor in getattr(module, attribute).items():
            shapes = [None if t is None else tuple(t.shape) for t in (tensor, getattr(twin, attribute).get(key))]
            if shapes[0] != shapes[1]:
                raise NotStackable(f"{label}: its {key} has shape {shapes[0]} in one cell and {shapes[1]} in another")
    # The noise draws from its buffer; the attribute `seed` only resets that buffer.
    ignored = {"seed"} if isinstance(module, CovariateNoise) else set()
    for key, value in vars(module).items():
        if key in ignored:
            continue
        other = vars(twin).get(key)
        if isinstance(value, Tensor) and isinstance(other, Tensor):
            same = value.shape == other.shape and torch.equal(value, other)
        else:
            same = not isinstance(value, _PLAIN) or value == other or value != value
        if not same:
            raise NotStackable(f"{label}: {key} is {value!r} in one cell and {other!r} in another")


def check_runs(model: nn.Module, run: Callable[[], Any]) -> None:
    """Call `run`, which steps a stack through `model`; if it fails, NotStackable names the innermost running module."""
    running: list[str] = []
    names = {module: name or "the network" for name, module in model.named_modules()}

    def enter(module: nn.Module, *_: Any) -> None:
        running.append(f"{names[module]} ({type(module).__name__})")

    def leave(module: nn.Module, *_: Any) -> None:
        running.pop()

    hooks = [m.register_forward_pre_hook(enter) for m in names] + [m.register_forward_hook(leave) for m in names]
    try:
        run()
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        where = running[-1] if running else "the backward pass or the loss"
        said = "".join(f": {line[:200]}" for line in str(error).splitlines()[:1])
        raise NotStackable(f"{where}: {type(error).__name__}{said}") from error
    finally:
        for hook in hooks:
            hook.remove()
