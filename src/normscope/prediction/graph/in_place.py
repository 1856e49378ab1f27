"""Operations that write into a tensor, which a graph of values shows only if nobody else reads it later."""

import inspect
import operator
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import fx, nn

from normscope.prediction.refusals import WAY_OUT, UnknownOperation, place
from normscope.prediction.rules.registry import rule_of_function

_VIEWS = frozenset({
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "contiguous", "transpose", "permute", "t", "expand",
    "expand_as", "view_as", "unflatten", "narrow", "select", "slice", "chunk", "split", "unbind", "movedim", "getitem",
    "getattr", "detach", "alias", "to", "float", "double", "type", "type_as", "identity", "dropout", "dropout1d",
    "dropout2d", "_unsafe_view",
})  # fmt: skip
_VIEWING_MODULES = (nn.Flatten, nn.Unflatten, nn.Identity, nn.modules.dropout._DropoutNd)
_WRITING_OPERATORS = {
    name: getattr(operator, name)
    for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand", "ior", "ixor")
}
_WRITING_METHODS = {"__setitem__", "__delitem__"} | {f"__{name}__" for name in _WRITING_OPERATORS}


def _writer(function: Any) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


class WritingProxy(fx.Proxy):
    """A proxy that records h += z as a write; fx's own records h = h + z, which leaves other names of h unchanged."""

    @classmethod
    def __torch_function__(cls, orig_method: Any, types: Any, args: Any = None, kwargs: Any = None) -> Any:
        """Record functions that have a rule at once; fx would first look through a list of all of torch's methods."""
        if rule_of_function(orig_method) is not None and args and isinstance(args[0], cls):
            return args[0].tracer.create_proxy("call_function", orig_method, args, kwargs or {})
        return super().__torch_function__(orig_method, types, args, kwargs)


for _name, _function in _WRITING_OPERATORS.items():
    setattr(WritingProxy, f"__{_name}__", _writer(_function))


def check_writes(graph: fx.Graph, submodule: Callable[[str], nn.Module], buffers: Iterable[str] = ()) -> None:
    """Refuse in-place operations whose result is dropped, or whose tensor is read later under another name.

    buffers: names of graph inputs that are the model's own buffers, which a normalizer may update.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    own = set(buffers)
    family: dict[fx.Node, fx.Node] = {}
    members: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        written = [a for a in _written(node, submodule) if a.name not in own]
        for tensor in written:
            _check(node, tensor, members[family[tensor]], order)
        source = written[0] if written else _viewed(node, submodule)
        family[node] = family[source] if source is not None else node
        members.setdefault(family[node], []).append(node)


def _check(node: fx.Node, tensor: fx.Node, others: list[fx.Node], order: dict[fx.Node, int]) -> None:
    if not node.users:
        raise UnknownOperation(
            f"{node.name!r} in {place(node)} changes a tensor in place without using the result, which a graph of "
            f"values does not show. Write it as an assignment. {WAY_OUT}"
        )
    late = [user for other in others for user in other.users if order[user] > order[node]]
    if late or any(other.op == "get_attr" for other in others):
        seen = f", and {late[0].name!r} reads it afterwards" if late else ", a parameter"
        raise UnknownOperation(
            f"{node.name!r} in {place(node)} changes {tensor.name!r} in place{seen}, which a graph of values "
            f"does not show. Use the form that is not in place. {WAY_OUT}"
        )


def _written(node: fx.Node, submodule: Callable[[str], nn.Module]) -> list[fx.Node]:
    """The tensors that a node writes into."""
    first = [a for a in node.args[:1] if isinstance(a, fx.Node)] or [
        a for key in ("input", "self") if isinstance(a := node.kwargs.get(key), fx.Node)
    ]
    if node.op == "call_module":
        return first if getattr(submodule(str(node.target)), "inplace", False) is True else []
    if node.op == "call_method":
        return first if _marked(str(node.target)) else []
    if node.op != "call_function":
        return []
    if isinstance(out := node.kwargs.get("out"), fx.Node):
        return [out]
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        if not target._schema.is_mutable:
            return []
        passed = dict(zip((a.name for a in target._schema.arguments), node.args, strict=False)) | node.kwargs
        wrote = [passed.get(a.name) for a in target._schema.arguments if a.alias_info and a.alias_info.is_write]
        return [a for a in wrote if isinstance(a, fx.Node)]
    if target in _WRITING_OPERATORS.values() or target in (operator.setitem, operator.delitem):
        return [tensor for tensor in first if not _number(tensor)]
    return first if _marked(getattr(target, "__name__", "")) or _inplace(target, node) else []


def _number(node: fx.Node) -> bool:
    """Whether a node is a size, or is computed from sizes alone."""
    if node.target in ("size", "dim", "numel") or (node.target is getattr and node.args[1] in ("shape", "ndim")):
        return True
    plain = getattr(node.target, "__module__", "") == "_operator"
    return plain and all(_number(a) for a in node.args if isinstance(a, fx.Node))


def _marked(name: str) -> bool:
    """Whether the name marks an operation in place: one underscore at the end, or one of Python's own methods."""
    return (name.endswith("_") and not name.endswith("__")) or name in _WRITING_METHODS


def _inplace(target: Any, node: fx.Node) -> bool:
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    place = _inplace_argument(target)
    return place is not None and len(node.args) > place and bool(node.args[place])


@lru_cache(maxsize=256)
def _inplace_argument(target: Any) -> int | None:
    """Position of the function's argument `inplace`; None without one."""
    try:
        names = [*inspect.signature(target).parameters]
    except (TypeError, ValueError):
        return None
    return names.index("inplace") if "inplace" in names else None


def _viewed(node: fx.Node, submodule: Callable[[str], nn.Module]) -> fx.Node | None:
    """The tensor that a node's result may share its values with."""
    first = node.args[0] if node.args else None
    if not isinstance(first, fx.Node):
        return None
    if node.op == "call_module":
        return first if isinstance(submodule(str(node.target)), _VIEWING_MODULES) else None
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return first if name.split(".")[0] in _VIEWS else None
