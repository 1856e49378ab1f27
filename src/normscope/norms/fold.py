r"""BatchNorm folded into the linear map before it, for inference.

    W' = W gamma / sqrt(Var + eps)        b' = (b - E) gamma / sqrt(Var + eps) + beta

per output channel, with the running E and Var (seed 003, "Inference"; the map there is affine, not linear).
The arithmetic is `torch.nn.utils.fusion`'s. torch.fx's own pass is silently wrong where a layer is used twice
and where a Linear acts on (N, L, C) before a BatchNorm1d over L (or a Conv1d on one sample without a batch);
here the first is left alone with a reason, the second raises when such an input arrives.
"""

import copy
import functools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from normscope.norms._inputs import traced
from normscope.norms._places import also_held_by, replace
from normscope.norms.batch import BatchNormNd
from normscope.norms.noisy import NoisyBatchNormNd

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_FORWARDS = (_BATCH_NORM.forward, nn.SyncBatchNorm.forward, BatchNormNd.forward, NoisyBatchNormNd.forward)
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Folded:
    """A copy of the model with its BatchNorms folded; `left` names those that were not, with the reason."""

    model: nn.Module = field(repr=False)
    folded: tuple[str, ...]
    left: dict[str, str]


class Batched(nn.Module):
    """Stands where a BatchNorm of several input shapes was: passes on those with channels in dimension 1 only.

    After a Linear these are (N, C), not (N, L, C); after a Conv1d (N, C, L), not one sample (C, L).
    """

    def __init__(self, ndim: int) -> None:
        super().__init__()
        self.ndim = ndim

    def forward(self, x: Tensor) -> Tensor:
        node = traced(self, x)
        if node is not None:
            return node  # type: ignore[return-value]
        if x.ndim != self.ndim:
            raise ValueError(
                "The BatchNorm that was here is folded into the layer before it, which is right for inputs of "
                f"{self.ndim} dimensions only; got shape {tuple(x.shape)}. Use the model as it was before fold_norms."
            )
        return x


def fold_norms(model: nn.Module) -> Folded:
    """Folds every eval-mode BatchNorm into the Linear or convolution before it, in a copy.

    A BatchNorm is left as it is, and named in `left`, where folding would change the result: a layer used
    twice or also held in a plain list, another reader of the un-normalized value, no running statistics, a subclass
    with a forward of its own, no linear map before it.

    Args:
        model: in eval mode; its forward must be traceable by `torch.fx`.

    Example:
        >>> result = fold_norms(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()).eval())
        >>> result.folded, result.left
        (('1',), {})
    """
    training = [name for name, layer in _batch_norms(model).items() if layer.training]
    if training:
        raise ValueError(
            "fold_norms folds running statistics, which a BatchNorm uses in eval mode only; in train mode are "
            f"{', '.join(map(repr, training))}. Call model.eval() first."
        )
    model = copy.deepcopy(model)
    graph = _trace(model)
    folded: list[str] = []
    left: dict[str, str] = {}
    seen: set[str] = set()
    for node in list(graph.nodes):
        if node.op != "call_module" or not isinstance(norm := model.get_submodule(node.target), _BATCH_NORM):
            continue
        seen.add(node.target)
        reason = _obstacle(model, graph, node, norm)
        if reason:
            left[node.target] = reason
        else:
            _fold(model, node.args[0].target, node.target)
            folded.append(node.target)
    for name in _batch_norms(model):
        if name not in seen:
            left[name] = "it does not appear in the traced graph"
    return Folded(model, tuple(folded), left)


def _batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, _BATCH_NORM)}


class _Tracer(fx.Tracer):
    """Takes every BatchNorm as a leaf, a user's subclass too."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, _BATCH_NORM) or super().is_leaf_module(m, module_qualified_name)


def _trace(model: nn.Module) -> fx.Graph:
    try:
        return _Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            "fold_norms reads the order of the layers with torch.fx, which cannot trace "
            f"{type(model).__name__}: {error}. Fold the traceable parts of the model one by one."
        ) from error


def _obstacle(model: nn.Module, graph: fx.Graph, node: fx.Node, norm: nn.Module) -> str:
    """Why this BatchNorm must stay; empty where folding is exact."""
    before = node.args[0] if node.args else None
    if not isinstance(before, fx.Node) or before.op != "call_module":
        return "no linear or convolutional layer stands directly before it"
    source = str(before.target)
    linear = model.get_submodule(source)
    if not isinstance(linear, (nn.Linear, *_CONVS, *_TRANSPOSED)):
        return f"{source!r} before it is a {type(linear).__name__}, no linear or convolutional layer"
    calls = Counter(id(model.get_submodule(str(n.target))) for n in graph.nodes if n.op == "call_module")
    if calls[id(linear)] > 1:
        return f"{source!r} before it is used {calls[id(linear)]} times"
    if calls[id(norm)] > 1:
        return f"it is used {calls[id(norm)]} times"
    if len(before.users) > 1:
        readers = sorted(user.name for user in before.users if user is not node)
        return f"the un-normalized output of {source!r} is also read by {', '.join(readers)}"
    read = [functools.reduce(getattr, str(n.target).split("."), model) for n in graph.nodes if n.op == "get_attr"]
    if any(tensor is own for tensor in read for layer in (linear, norm) for own in _tensors(layer)):
        return f"the parameters of {source!r} or of the layer itself are also read directly"
    if type(norm).forward not in _FORWARDS:
        return f"its class {type(norm).__name__} has a forward of its own"
    for layer in (linear, norm):
        if holder := also_held_by(model, layer):
            return f"{holder!r} holds {source!r} or the layer itself in a plain container"
    if norm.running_mean is None:
        return "it keeps no running statistics"
    if isinstance(linear, nn.Linear) and isinstance(norm, (nn.BatchNorm2d, nn.BatchNorm3d)):
        return f"it normalizes dimension 1, and {source!r} maps the last one"
    outputs = linear.out_features if isinstance(linear, nn.Linear) else linear.out_channels
    if norm.num_features != outputs:
        return f"it normalizes {norm.num_features} channels, and {source!r} has {outputs} outputs in another dimension"
    if hasattr(linear, "parametrizations"):
        return f"the weight of {source!r} is parametrized"
    if _hooked(linear) or _hooked(norm):
        return f"{source!r} or the layer itself carries forward hooks"
    if isinstance(linear, _TRANSPOSED) and linear.groups > 1:
        return f"{source!r} is a grouped transposed convolution"
    return ""


def _tensors(layer: nn.Module) -> list[Tensor]:
    return [*layer.parameters(), *layer.buffers()]


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def _fold(model: nn.Module, linear_name: str, norm_name: str) -> None:
    linear: Any = model.get_submodule(linear_name)
    norm: Any = model.get_submodule(norm_name)
    statistics = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
    with torch.no_grad():
        # A Linear's weight is a convolution's without space; torch's own fuse_linear_bn_weights needs affine=True.
        linear.weight, linear.bias = fuse_conv_bn_weights(
            linear.weight, linear.bias, *statistics, transpose=isinstance(linear, _TRANSPOSED)
        )
    one_shape = isinstance(norm, (nn.BatchNorm2d, nn.BatchNorm3d))
    stand_in = nn.Identity() if one_shape else Batched(linear.weight.ndim)
    replace(model, norm, stand_in.eval())
