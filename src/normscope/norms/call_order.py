"""The order in which a model calls its layers, as a graph of module calls read by torch.fx or torch.export.

A forward may compute a convolution or linear map with the weight and bias of a module, without calling that module:
aten operations in torch.export's graph, or a user's Conv2d that pads first. Such operations appear as calls of the
module.
"""

import contextlib
import copy
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from normscope.norms.recognition import has_frozen_statistics

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
LINEAR = (nn.Linear,)
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_FUNCTIONS = {
    getattr(F, name): kind
    for name, kind in {
        "conv1d": nn.Conv1d, "conv2d": nn.Conv2d, "conv3d": nn.Conv3d, "linear": nn.Linear,
        "conv_transpose1d": nn.ConvTranspose1d, "conv_transpose2d": nn.ConvTranspose2d,
        "conv_transpose3d": nn.ConvTranspose3d,
    }.items()
}  # fmt: skip
_ATEN = {
    "aten::conv1d": nn.Conv1d, "aten::conv2d": nn.Conv2d, "aten::conv3d": nn.Conv3d, "aten::linear": nn.Linear,
    "aten::conv_transpose1d": nn.ConvTranspose1d, "aten::conv_transpose2d": nn.ConvTranspose2d,
    "aten::conv_transpose3d": nn.ConvTranspose3d,
}  # fmt: skip


class NoGraph(ValueError):
    """The model could be read neither by torch.fx nor by torch.export; the message says why and what to do."""


class _Tracer(fx.Tracer):
    """A tracer that treats every BatchNorm as a leaf, also a user's subclass and a frozen one."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        norm = isinstance(m, _BATCH_NORM) or has_frozen_statistics(m)
        return norm or super().is_leaf_module(m, module_qualified_name)


def graph_of(model: nn.Module, example: Any) -> tuple[fx.Graph, str]:
    """The graph, and the name of the reader ("torch.fx" or "torch.export"). The model may be changed: pass a copy.

    Args:
        model: a copy of the model to read.
        example: the model's input (a tensor, a tuple of positional or a dict of named arguments), or None.

    Raises:
        NoGraph: no reader could read the model.
    """
    for layer in model.modules():
        if isinstance(layer, (*LINEAR, *CONVS, *TRANSPOSED)) and layer.bias is None:
            # Folding may add a bias. A zero bias in the graph shows whether the forward would read it.
            outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
            layer.bias = nn.Parameter(layer.weight.new_zeros(outputs))
    spare = copy.deepcopy(model)
    try:
        graph, reader = _Tracer().trace(model), "torch.fx"
    except Exception as error:
        if example is None:
            raise NoGraph(
                f"fold_norms reads the order of the layers with torch.fx, which cannot trace {type(model).__name__}: "
                f"{_first_line(error)}. Pass example=, an input of the model: torch.export then reads it."
            ) from error
        graph, reader = _exported(spare, example, error), "torch.export"
    for node in graph.nodes:
        _show_module(model, node)
    for node in list(graph.nodes):
        if node.op == "get_attr" and not node.users:
            graph.erase_node(node)
    return graph, reader


def _exported(model: nn.Module, example: Any, first: Exception) -> fx.Graph:
    """torch.export's graph, with parameters and buffers as attributes of the model."""
    arguments = example if isinstance(example, tuple) else () if isinstance(example, dict) else (example,)
    named = example if isinstance(example, dict) else {}
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet), torch.no_grad():
            program = torch.export.export(model, arguments, named)
    except Exception as error:
        raise NoGraph(
            f"fold_norms could not read the order of the layers of {type(model).__name__}: torch.fx says "
            f"{_first_line(first)!r}, torch.export says {_first_line(error)!r}. Fold parts of the model one by one."
        ) from error
    signature = program.graph_signature
    paths: dict[str, Any] = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in paths:
            node.op, node.target = "get_attr", paths[node.name]
    return program.graph


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def attribute(model: nn.Module, path: str) -> Any:
    """The tensor or module at a dotted path; None for an attribute that torch.export added to the graph."""
    value: Any = model
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _show_module(model: nn.Module, node: fx.Node) -> None:
    """Turn an operation on the weights of a module into a call of that module."""
    if node.op != "call_function":
        return
    name = node.target._schema.name if isinstance(node.target, torch._ops.OpOverload) else ""
    norm_class = _ATEN.get(name) or _FUNCTIONS.get(node.target)
    find: Callable[[str], Any] = lambda key: _argument(node, key)  # noqa: E731
    if norm_class is not None:
        owner = _owner(model, {"weight": find("weight"), "bias": find("bias")})
        shown = owner and isinstance(model.get_submodule(owner), norm_class)
    elif name == "aten::batch_norm":
        owner = _owner(model, {key: find(key) for key in ("running_mean", "running_var", "weight", "bias")})
        shown = owner and isinstance(model.get_submodule(owner), _BATCH_NORM) and _called_by(model, node, owner)
    else:
        return
    if shown and isinstance(source := find("input"), fx.Node):
        node.op, node.target, node.args, node.kwargs = "call_module", owner, (source,), {}


_ORDER = ("input", "weight", "bias", "running_mean", "running_var")


def _argument(node: fx.Node, key: str) -> Any:
    place = _ORDER.index(key)
    return node.kwargs[key] if key in node.kwargs else node.args[place] if len(node.args) > place else None


def _owner(model: nn.Module, arguments: dict[str, Any]) -> str:
    """The path of the module that holds all these tensors under these names; "" if there is none."""
    first = next(iter(arguments.values()))
    if not isinstance(first, fx.Node) or first.op != "get_attr":
        return ""
    path = str(first.target).rpartition(".")[0]
    layer = model.get_submodule(path)
    for key, node in arguments.items():
        own = getattr(layer, key, None)
        read = attribute(model, str(node.target)) if isinstance(node, fx.Node) and node.op == "get_attr" else node
        if read is not own or (own is not None and not isinstance(own, Tensor)):
            return ""
    return path


def _called_by(model: nn.Module, node: fx.Node, owner: str) -> bool:
    """Whether the module itself makes the call, rather than other code with the module's tensors."""
    stack = [*(node.meta.get("nn_module_stack") or {}).values()]
    caller = str(stack[-1][0]).split("@")[0] if stack else ""
    try:
        return model.get_submodule(caller) is model.get_submodule(owner)
    except AttributeError:
        return False
