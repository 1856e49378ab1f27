r"""BatchNorm folded into the linear map before it, for inference.

    W' = W gamma / sqrt(Var + eps)        b' = (b - E) gamma / sqrt(Var + eps) + beta

per output channel, with the running E and Var (seed 003, "Inference"; the map there is affine, not linear).
The arithmetic is `torch.nn.utils.fusion`'s. torch.fx's own pass is silently wrong where a layer is used twice
and where a Linear acts on (N, L, C) before a BatchNorm1d over L; here the first is left alone with a reason,
the second raises when such an input arrives.
"""

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Folded:
    """A copy of the model with its BatchNorms folded; `left` names those that were not, with the reason."""

    model: nn.Module = field(repr=False)
    folded: tuple[str, ...]
    left: dict[str, str]


class Rows(nn.Module):
    """Stands where a BatchNorm1d after a Linear was: passes (N, C) on and refuses (N, L, C)."""

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 2:
            raise ValueError(
                "The BatchNorm1d that was here is folded into the Linear before it, which is right for inputs "
                f"(N, C) only; got shape {tuple(x.shape)}. Use the model as it was before fold_norms."
            )
        return x


def fold_norms(model: nn.Module) -> Folded:
    """Folds every eval-mode BatchNorm into the Linear or convolution before it, in a copy.

    A BatchNorm is left as it is, and named in `left`, where folding would change the result: a layer used
    twice, another reader of the un-normalized value, no running statistics, no linear map before it.

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


def _trace(model: nn.Module) -> fx.Graph:
    try:
        return fx.Tracer().trace(model)
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
    if any(n.op == "get_attr" and str(n.target).startswith(f"{source}.") for n in graph.nodes):
        return f"the parameters of {source!r} are also read directly"
    if norm.running_mean is None:
        return "it keeps no running statistics"
    if hasattr(linear, "parametrizations"):
        return f"the weight of {source!r} is parametrized"
    if _hooked(linear) or _hooked(norm):
        return f"{source!r} or the layer itself carries forward hooks"
    if isinstance(linear, _TRANSPOSED) and linear.groups > 1:
        return f"{source!r} is a grouped transposed convolution"
    return ""


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def _fold(model: nn.Module, linear_name: str, norm_name: str) -> None:
    linear: Any = model.get_submodule(linear_name)
    norm: Any = model.get_submodule(norm_name)
    statistics = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
    stand_in: nn.Module
    with torch.no_grad():
        if isinstance(linear, nn.Linear):
            linear.weight, linear.bias = fuse_linear_bn_weights(linear.weight, linear.bias, *statistics)
            stand_in = Rows()
        else:
            transpose = isinstance(linear, _TRANSPOSED)
            linear.weight, linear.bias = fuse_conv_bn_weights(
                linear.weight, linear.bias, *statistics, transpose=transpose
            )
            stand_in = nn.Identity()
    parent, _, child = norm_name.rpartition(".")
    setattr(model.get_submodule(parent), child, stand_in.eval())
