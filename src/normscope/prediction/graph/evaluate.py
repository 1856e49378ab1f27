"""Evaluation of a traced graph node by node: each operation by its rule, or refused by name."""

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_unflatten

from normscope.prediction.graph.in_place import check_writes
from normscope.prediction.graph.trace import TracedGraph, trace
from normscope.prediction.kernels.field import Field
from normscope.prediction.kernels.inputs import vectors
from normscope.prediction.refusals import (
    WAY_OUT,
    UnknownOperation,
    check_gradients_on,
    integer_input,
    more_inputs,
    place,
)
from normscope.prediction.rules.registry import rule_of_exported, rule_of_function, rule_of_method, rule_of_module
from normscope.prediction.walk import Walk

# Operations that may flatten the input to (N, everything else), and operations that only ask for its sizes.
_RESHAPING = (torch.flatten, torch.reshape, "flatten", "view", "reshape")
_SIZES = (getattr, "size", "dim")


def walk_through(model: nn.Module, x: Field, walk: Walk, images: Tensor | None = None) -> Field:
    """The field of the model's output.

    images: a real batch (m, C, H, W); taken as vectors where the network begins by flattening it.
    """
    traced = trace(model, (x.sites.batch, *x.shape))
    if traced.exported is not None:
        walk.remarks.note("torch.fx could not trace the network; torch.export read its graph.")
    elif images is not None and (flat := _flattenings(traced.graph, x, walk, traced.submodule)):
        for node in flat:
            node.replace_all_uses_with(node.all_input_nodes[0])
        x = vectors(images.flatten(1))
    tensors = [name for name, value in (traced.exported or {}).items() if not isinstance(value, nn.Parameter)]
    check_writes(traced.graph, traced.submodule, tensors)
    # Where every pair of samples is known, the way back is differentiated by autograd, which refuses inference tensors.
    quiet = torch.no_grad if x.sites.each_sample else torch.inference_mode
    with quiet():
        return _run(traced, x, walk)


def _flattenings(graph: fx.Graph, x: Field, walk: Walk, submodule: Callable[[str], nn.Module]) -> list[fx.Node]:
    """The calls that flatten the input, if the network does nothing else with it; an empty list otherwise."""

    def value(node: fx.Node) -> Any:
        args, kwargs = (fx.node.map_arg(arguments, value) for arguments in (node.args, node.kwargs))
        return x if node.op == "placeholder" else _call(node, args, kwargs, walk, submodule)

    def reshapes(node: fx.Node) -> bool:
        layer = submodule(str(node.target)) if node.op == "call_module" else None
        return isinstance(layer, nn.Flatten) or node.target in _RESHAPING

    input_node = next(node for node in graph.nodes if node.op == "placeholder")
    calls = [node for node in input_node.users if node.target not in _SIZES]
    flat = all(map(reshapes, calls)) and all(value(node).shape == (math.prod(x.shape),) for node in calls)
    return calls if flat else []


def _run(traced: TracedGraph, x: Field, walk: Walk) -> Field:
    env: dict[fx.Node, Any] = {}
    inputs = 0
    live = _live(traced.graph)
    for node in traced.graph.nodes:
        if node not in live:
            continue
        args = fx.node.map_arg(node.args, env.__getitem__)
        kwargs = fx.node.map_arg(node.kwargs, env.__getitem__)
        if node.op == "placeholder":
            if node.name in (traced.exported or {}):
                env[node] = (traced.exported or {})[node.name]
                continue
            inputs += 1
            if inputs > 1 and not node.args and node.users:
                raise UnknownOperation(more_inputs(str(node.target)))
            env[node] = x if inputs == 1 else node.args[0] if node.args else None
        elif node.op == "get_attr":
            env[node] = traced.attribute(str(node.target))
        elif node.op == "output":
            return _returned(traced, args[0])
        else:
            env[node] = _call(node, args, kwargs, walk, traced.submodule)
    raise AssertionError("a graph ends in its output")


def _returned(traced: TracedGraph, out: Any) -> Field:
    if traced.returns is not None:
        out = tree_unflatten(list(out), traced.returns)
    if isinstance(out, Field):
        return out
    said = "tensor that its input has no part in" if isinstance(out, Tensor) else type(out).__name__
    # torch.fx keeps what a forward returns in lists and dicts of its own.
    said = said.removeprefix("immutable_")
    said += f" of {len(out)}" if isinstance(out, (tuple, list)) else ""
    said += f" with the keys {', '.join(map(str, out))}" if isinstance(out, dict) else ""
    raise UnknownOperation(
        f"The network returns a {said}; predict needs one tensor (N, outputs). Wrap the network in a module whose "
        "forward returns that one, or measure this network on one batch instead (ns.measure)."
    )


def _live(graph: fx.Graph) -> set[fx.Node]:
    """The inputs, and the nodes that the output depends on. Other nodes have no part in lambda_max."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if "set_grad_enabled" in str(getattr(node.target, "__name__", node.target)) and node.args[:1] == (False,):
            with torch.no_grad():
                check_gradients_on(node.name, place(node))
        if node.op in ("output", "placeholder") or any(user in live for user in node.users):
            live.add(node)
    return live


def _call(node: fx.Node, args: Any, kwargs: Any, walk: Walk, submodule: Callable[[str], nn.Module]) -> Any:
    layer = submodule(str(node.target)) if node.op == "call_module" else None
    called = _called(node, layer)
    computed = not _has_field((args, kwargs))
    if "embedding" in called.lower() and not computed:
        path = str(node.target) if layer is not None else _weight_name(node)
        raise UnknownOperation(integer_input(repr(path) if path else place(node), called))
    try:
        if computed:
            return _computed(node, layer, args, kwargs)
        if layer is None and (known := _sizes(node.target, args)) is not None:
            return known[0]
        rule = _rule(node, layer)
        walk.met.called.append(called)
        name = str(node.target) if layer is not None else _weight_name(node) or node.name
        return rule(walk, name, *args, **kwargs)
    except UnknownOperation as error:
        text = str(error).rstrip(".")
        way = "" if "ns.measure" in text else WAY_OUT
        raise UnknownOperation(f"{_named(node, called)} {text}. {way}".rstrip()) from error
    except ValueError as error:
        raise ValueError(f"{_named(node, called)} {str(error).rstrip('.')}.") from error
    except Exception as error:
        arguments = ", ".join([*map(_kind, args), *(f"{key}={_kind(value)}" for key, value in kwargs.items())])
        raise UnknownOperation(
            f"{_named(node, called)} has no rule for its arguments here, ({arguments}). {WAY_OUT}"
        ) from error


def _called(node: fx.Node, layer: nn.Module | None) -> str:
    if layer is not None:
        return type(layer).__name__
    if isinstance(node.target, torch._ops.OpOverload):
        return _aten(node.target)
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _aten(operation: torch._ops.OpOverload) -> str:
    """The operation's name without its overload."""
    return operation._schema.name.removeprefix("aten::")


def _named(node: fx.Node, called: str) -> str:
    """The operation as messages name it: its path or node, what it is, and in which module's forward."""
    if node.op == "call_module":
        return f"{str(node.target)!r} ({called})"
    return (
        f"{_weight_name(node)!r} ({called} in {place(node)})"
        if _weight_name(node)
        else f"{called!r} (in {place(node)})"
    )


def _kind(value: Any) -> str:
    """An argument in words, for messages."""
    if isinstance(value, Field):
        return f"activations {value.said()}"
    if isinstance(value, Tensor):
        return f"{type(value).__name__} {tuple(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_kind, value))})"
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__


def _computed(node: fx.Node, layer: nn.Module | None, args: Any, kwargs: Any) -> Any:
    """Evaluate an operation of numbers, sizes, parameters and constants by torch itself.

    With gradients on, so that a tensor made of parameters has a `grad_fn`.
    """
    with torch.inference_mode(False), torch.enable_grad():
        if layer is not None:
            return layer(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)


def _rule(node: fx.Node, layer: nn.Module | None) -> Callable[..., Any]:
    if layer is not None:
        rule = rule_of_module(layer)
    elif node.op == "call_method":
        rule = rule_of_method(str(node.target))
    elif isinstance(node.target, torch._ops.OpOverload):
        rule = rule_of_exported(_aten(node.target))
    else:
        rule = rule_of_function(node.target)
    if rule is None:
        raise UnknownOperation("has no moment map")
    return rule


def _sizes(target: Any, args: Any) -> tuple[Any] | None:
    """Sizes of a tensor of the network, and items of tuples, each in a tuple; None where values are asked for."""
    if not args or not isinstance(args[0], Field):
        return (args[0][args[1]],) if target is operator.getitem else None
    field = args[0]
    if target == "size":
        return (field.size()[args[1]] if len(args) > 1 else field.size(),)
    if target in ("dim", "ndimension"):
        return (len(field.size()),)
    if target is getattr:
        of_field = {"shape": field.size(), "ndim": len(field.size()), "dtype": torch.float64, "device": "cpu"}
        return (of_field[args[1]],) if args[1] in of_field else None
    return None


def _has_field(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_field, value))
    if isinstance(value, dict):
        return any(map(_has_field, value.values()))
    return isinstance(value, Field)


def _weight_name(node: fx.Node) -> str:
    """The name of a functional layer: the module whose weight it reads, else the parameter; empty without one."""
    for argument in (*node.args, *node.kwargs.values()):
        if isinstance(argument, fx.Node) and argument.op == "get_attr":
            return str(argument.target).removesuffix(".weight")
    return ""
