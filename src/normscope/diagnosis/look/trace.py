"""Inputs of normalizers and weight layers in passes of a copy: the order of calls and the statistics of their inputs.

Hooks stand on the copy alone. A module is "right before" another one if the other's input is the very tensor that it
returned, not written since.
"""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from normscope.diagnosis.look.attention import AttentionReader
from normscope.diagnosis.look.normalizers import Normalizer, variances


@dataclass(frozen=True, eq=False)
class Input:
    """The input of one call of a normalizer over the batch.

    Attributes:
        samples: number of samples.
        values: number of values per channel.
        mean, var: by channel, over samples and space.
        spread: by channel, the variance over samples of each sample's own mean; nan for one sample.
        largest: by channel, the largest absolute value.
        training: whether the layer was in train mode.
        number: the number of the pass.
    """

    samples: int
    values: int
    mean: Tensor
    var: Tensor
    spread: Tensor
    largest: Tensor
    training: bool
    number: int


@dataclass
class Trace:
    """A record of passes.

    Attributes:
        order: names of the leaf modules and normalizers as they were called, in the first pass.
        before: by name, the module right before it.
        sources: by name, a number of its input: modules that take the same tensor have the same number.
        kinds: by name, the class of each called module.
        shapes: by name, the shape of the first input.
        dtypes: by name, the dtype of the first input.
        inputs: by name of a normalizer over the batch, every call.
        variances: by name of any normalizer, the variances of its statistics in the first pass.
        silent: by name of a weight layer, whether each input channel was zero for every sample of every pass.
        gradients: by name of a weight layer, the norm of the loss's gradient at its output, where one was taken.
        blocks: by name of a module of a stack of equal modules, the root mean square of its input and of its output.
        attention: mean over positions of the largest weight of attention, for each call in the first pass.
        number: the number of the present pass, set by the caller.
    """

    order: list[str] = field(default_factory=list)
    before: dict[str, str] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, type] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    inputs: dict[str, list[Input]] = field(default_factory=dict)
    variances: dict[str, Tensor] = field(default_factory=dict)
    silent: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    blocks: dict[str, tuple[float, float]] = field(default_factory=dict)
    attention: list[float] = field(default_factory=list)
    number: int = 0

    def dropouts_before(self, name: str) -> list[str]:
        """Names of dropout layers that were called before this module."""
        if name not in self.order:
            return []
        place = self.order.index(name)
        return [other for other in self.order[:place] if issubclass(self.kinds[other], _DropoutNd)]


WEIGHT_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
# The last module that returned a tensor, by the tensor's id: its name, the tensor, and the tensor's version then.
Made = dict[int, tuple[str, weakref.ref[Tensor], int]]


@contextmanager
def traced(model: nn.Module, normalizers: tuple[Normalizer, ...]) -> Iterator[Trace]:
    """While this context lasts, passes of `model`, a copy, are seen; normalizers are known by their names in it."""
    trace, by_name = Trace(), {norm.name: norm for norm in normalizers}
    inside = tuple(f"{name}." for name in by_name if name)
    made: Made = {}
    taken: dict[int, tuple[int, weakref.ref[Tensor]]] = {}
    hooks = []

    def before(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            x = next((a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), None)
            if x is None:
                return
            if name not in trace.kinds:
                _first(trace, name, module, x, made, taken)
                if name in by_name:
                    with torch.no_grad():
                        trace.variances[name] = _variances(by_name[name], x)
            norm = by_name.get(name)
            if norm is not None and norm.over_batch and x.ndim > 1 and x.numel():
                trace.inputs.setdefault(name, []).append(_input(x, module.training, trace.number))
            elif isinstance(module, WEIGHT_LAYERS):
                _silence(trace, name, module, x)

        return hook

    def after(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            y = output[0] if isinstance(output, tuple) and output else output
            if not isinstance(y, Tensor):
                return
            made[id(y)] = name, weakref.ref(y), y._version
            if isinstance(module, WEIGHT_LAYERS) and y.requires_grad and name not in trace.gradients:
                trace.gradients[name] = 0.0
                y.register_hook(lambda grad: trace.gradients.__setitem__(name, float(grad.detach().float().norm())))

        return hook

    for name, module in model.named_modules():
        leaf = name in by_name or next(module.children(), None) is None
        if leaf and not name.startswith(inside):
            hooks.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
            hooks.append(module.register_forward_hook(after(name)))
    for name in _stacked(model):
        hooks.append(model.get_submodule(name).register_forward_hook(_sizes(trace, name)))
    try:
        with AttentionReader(trace.attention, lambda: not trace.number):
            yield trace
    finally:
        for hook in hooks:
            hook.remove()


def _first(
    trace: Trace,
    name: str,
    module: nn.Module,
    x: Tensor,
    made: Made,
    taken: dict[int, tuple[int, weakref.ref[Tensor]]],
) -> None:
    trace.order.append(name)
    trace.kinds[name], trace.shapes[name], trace.dtypes[name] = type(module), tuple(x.shape), x.dtype
    source = made.get(id(x))
    if source is not None and source[1]() is x and source[2] == x._version:
        trace.before[name] = source[0]
    known = taken.get(id(x))
    if known is None or known[1]() is not x:
        known = taken[id(x)] = len(trace.order), weakref.ref(x)
    trace.sources[name] = known[0]


def _variances(norm: Normalizer, x: Tensor) -> Tensor:
    try:
        return variances(norm, x).float()
    except (RuntimeError, IndexError):
        # A hand-written layer may take another layout than its twin.
        return torch.empty(0)


@torch.no_grad()
def _input(x: Tensor, training: bool, number: int) -> Input:
    wide = x.detach().float() if x.dtype in (torch.float16, torch.bfloat16) else x.detach()
    dims = [0, *range(2, x.ndim)]
    var, mean = torch.var_mean(wide, dim=dims, correction=0)
    own = wide.flatten(2).mean(2) if x.ndim > 2 else wide
    spread = own.var(0, correction=1) if len(x) > 1 else torch.full_like(mean, torch.nan)
    largest = wide.abs().amax(dims)
    return Input(len(x), x.numel() // x.shape[1], mean, var, spread, largest, training, number)


@torch.no_grad()
def _silence(trace: Trace, name: str, module: nn.Module, x: Tensor) -> None:
    if not x.is_floating_point() or x.ndim < 2:
        return
    channel = x.ndim - 1 if isinstance(module, nn.Linear) else 1
    silent = (x.detach() == 0).all(dim=[d for d in range(x.ndim) if d != channel])
    known = trace.silent.get(name)
    trace.silent[name] = silent if known is None else known & silent


def _stacked(model: nn.Module, least: int = 4) -> list[str]:
    """Names of the modules in stacks of at least four modules of one class that hold others."""
    found = []
    for name, holder in model.named_modules():
        children = [(key, child) for key, child in holder.named_children() if next(child.children(), None) is not None]
        kinds = [type(child) for _, child in children]
        for key, child in children:
            if kinds.count(type(child)) >= least:
                found.append(f"{name}.{key}" if name else key)
    return found


def _sizes(trace: Trace, name: str) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        x = next((a for a in args if isinstance(a, Tensor)), None)
        y = output[0] if isinstance(output, tuple) and output else output
        same = isinstance(y, Tensor) and x is not None and y.shape == x.shape and y.is_floating_point()
        if same and name not in trace.blocks:
            trace.blocks[name] = _rms(x), _rms(y)

    return hook


def _rms(x: Any) -> float:
    return float(x.detach().float().square().mean().sqrt())
