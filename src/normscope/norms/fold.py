r"""Fold BatchNorms into the linear maps before them, for inference.

    W' = W gamma / sqrt(Var + eps)        b' = (b - E) gamma / sqrt(Var + eps) + beta

per output channel, with the running E and Var. Source: the encyclopedia article "Batch normalization", section
"Inference" (the map it calls linear is affine). The arithmetic is that of `torch.nn.utils.fusion`.

torch.fx's own folding pass gives wrong results without an error in two cases: a layer that is used twice, and a Linear
that acts on (N, L, C) before a BatchNorm1d over L (or a Conv1d on one sample without a batch). Here a layer used twice
is left unfolded with a reason, and an input of the second kind raises an error.
"""

import copy
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from normscope.norms.call_order import CONVS, TRANSPOSED, attribute, graph_of
from normscope.norms.channels import traced
from normscope.norms.layer_places import also_held_by, replace
from normscope.norms.recognition import has_frozen_statistics, known, recognize, recognize_in_eval
from normscope.norms.wrappers import Followed, core

_BATCH_NORM = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class Folded:
    """A copy of the model with folded BatchNorms.

    Attributes:
        folded: names of the folded layers.
        left: names of the others, with the reason.
        read_by: "torch.fx", or "torch.export", whose graph is valid for inputs like the example.
    """

    model: nn.Module = field(repr=False)
    folded: tuple[str, ...]
    left: dict[str, str]
    read_by: str = "torch.fx"


class Batched(nn.Module):
    """Stand-in for a folded BatchNorm that takes several input shapes: lets inputs with channels in dimension 1 pass.

    After a Linear these are (N, C), not (N, L, C); after a Conv1d they are (N, C, L), not one sample (C, L).
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
                "The BatchNorm that was here is folded into the layer before it, which is exact for inputs of "
                f"{self.ndim} dimensions only; got shape {tuple(x.shape)}. Use the model as it was before fold_norms."
            )
        return x


def fold_norms(model: nn.Module, example: Any = None) -> Folded:
    """Fold every eval-mode BatchNorm into the Linear or convolution before it, in a copy of the model.

    A BatchNorm is left as it is, and named in `left`, if folding would change the result: a layer used twice or also
    held in a plain list, another reader of the un-normalized value, no running statistics, or no linear map before it.
    A subclass with a forward of its own is folded if a probe shows that it computes a BatchNorm followed by its
    children (timm's BatchNormAct2d); the children stay. A frozen BatchNorm is folded in the same way.

    Args:
        model: the network, in eval mode.
        example: an input of the model: a tensor, a tuple of arguments, or a dict of named ones. It is needed if
            torch.fx cannot trace the forward; torch.export then reads the graph for such inputs.

    Returns:
        The folded copy, the names of folded layers, and the reasons for the others.

    Raises:
        ValueError: a BatchNorm in train mode, or a model that neither torch.fx nor torch.export can read.

    Example:
        >>> result = fold_norms(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()).eval())
        >>> result.folded, result.left
        (('1',), {})
    """
    norms = _batch_norms(model).items()
    training = [name for name, layer in norms if layer.training and isinstance(layer, _BATCH_NORM)]
    if training:
        raise ValueError(
            "fold_norms folds running statistics, which a BatchNorm uses in eval mode only; in train mode are "
            f"{', '.join(map(repr, training))}. Call model.eval() first."
        )
    model = copy.deepcopy(model)
    if not norms:
        return Folded(model, (), {}, "")
    graph, read_by = graph_of(copy.deepcopy(model), example)
    folded: list[str] = []
    left: dict[str, str] = {}
    examined: set[str] = set()
    for node in list(graph.nodes):
        if node.op != "call_module" or not _is_batch_norm(norm := model.get_submodule(node.target)):
            continue
        examined.add(node.target)
        plain, reason = _plain(norm)
        if reason := reason or _obstacle(model, graph, node, norm, core(plain)):
            left[node.target] = reason
        else:
            _fold(model, node.args[0].target, norm, plain)
            folded.append(node.target)
    for name in _batch_norms(model):
        if name not in examined:
            left[name] = "it does not appear in the traced graph"
    return Folded(model, tuple(folded), left, read_by)


def _is_batch_norm(layer: nn.Module) -> bool:
    return isinstance(layer, _BATCH_NORM) or has_frozen_statistics(layer)


def _batch_norms(model: nn.Module) -> dict[str, nn.Module]:
    return {name: layer for name, layer in model.named_modules() if _is_batch_norm(layer)}


def _plain(norm: nn.Module) -> tuple[nn.Module, str]:
    """The BatchNorm that a layer computes, possibly followed by its children; or the reason why it must stay."""
    if known(norm):
        return norm, ""
    frozen = not isinstance(norm, _BATCH_NORM)
    recognized = recognize_in_eval(norm) if frozen else recognize(norm, modes=(False,))
    if recognized is not None and recognized.twin is not None:
        return recognized.twin, ""
    why = recognized.reason if recognized else "it does not compute the BatchNorm of its buffers"
    return norm, f"its class {type(norm).__name__} has a forward of its own: {why}"


def _obstacle(model: nn.Module, graph: fx.Graph, node: fx.Node, norm: nn.Module, plain: nn.Module) -> str:
    """The reason why this BatchNorm must stay; "" if folding is exact. plain: the BatchNorm that the layer computes."""
    before = node.args[0] if node.args else None
    if not isinstance(before, fx.Node) or before.op != "call_module":
        return "no linear or convolutional layer stands directly before it"
    source = str(before.target)
    linear = model.get_submodule(source)
    if not isinstance(linear, (nn.Linear, *CONVS, *TRANSPOSED)):
        return f"{source!r} before it is a {type(linear).__name__}, not a linear or convolutional layer"
    calls = Counter(id(model.get_submodule(str(n.target))) for n in graph.nodes if n.op == "call_module")
    if calls[id(linear)] > 1:
        return f"{source!r} before it is used {calls[id(linear)]} times"
    if calls[id(norm)] > 1:
        return f"it is used {calls[id(norm)]} times"
    if len(before.users) > 1:
        readers = sorted(user.name for user in before.users if user is not node)
        return f"the un-normalized output of {source!r} is also read by {', '.join(readers)}"
    read = [attribute(model, str(n.target)) for n in graph.nodes if n.op == "get_attr"]
    if any(tensor is own for tensor in read for layer in (linear, norm) for own in _tensors(layer)):
        return f"the parameters of {source!r} or of the layer itself are also read directly"
    for layer in (linear, norm):
        if holder := also_held_by(model, layer):
            return f"{holder!r} holds {source!r} or the layer itself in a plain container"
    assert isinstance(plain, _BATCH_NORM)
    if plain.running_mean is None:
        return "it keeps no running statistics"
    if isinstance(linear, nn.Linear) and isinstance(plain, (nn.BatchNorm2d, nn.BatchNorm3d)):
        return f"it normalizes dimension 1, and {source!r} maps the last one"
    outputs = linear.out_features if isinstance(linear, nn.Linear) else linear.out_channels
    if plain.num_features != outputs:
        return f"it normalizes {plain.num_features} channels, and {source!r} has {outputs} outputs in another dimension"
    if hasattr(linear, "parametrizations"):
        return f"the weight of {source!r} is parametrized"
    if _hooked(linear) or _hooked(norm):
        return f"{source!r} or the layer itself carries forward hooks"
    if isinstance(linear, TRANSPOSED) and linear.groups > 1:
        return f"{source!r} is a grouped transposed convolution"
    return ""


def _tensors(layer: nn.Module) -> list[Tensor]:
    return [*layer.parameters(), *layer.buffers()]


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def _fold(model: nn.Module, linear_name: str, norm: nn.Module, plain: nn.Module) -> None:
    linear: Any = model.get_submodule(linear_name)
    batch_norm: Any = core(plain)
    statistics = (
        batch_norm.running_mean,
        batch_norm.running_var,
        batch_norm.eps,
        batch_norm.weight,
        batch_norm.bias,
    )
    with torch.no_grad():
        # Used for a Linear, too, as a convolution without space: torch's fuse_linear_bn_weights needs affine=True.
        linear.weight, linear.bias = fuse_conv_bn_weights(
            linear.weight, linear.bias, *statistics, transpose=isinstance(linear, TRANSPOSED)
        )
    one_shape = isinstance(batch_norm, (nn.BatchNorm2d, nn.BatchNorm3d))
    stand_in: nn.Module = nn.Identity() if one_shape else Batched(linear.weight.ndim)
    stand_in.eval()
    if isinstance(plain, Followed):
        stand_in = nn.Sequential(OrderedDict(folded=stand_in, **plain.children_after))
        stand_in.training = norm.training
    replace(model, norm, stand_in)
