"""A network's graph, read by torch.fx (or torch.export where fx cannot), and walked node by node."""

import contextlib
import io
import math
import operator
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, fx, nn

from normscope.prediction import functions, modules
from normscope.prediction.field import Field
from normscope.prediction.inputs import vectors
from normscope.prediction.mutation import WritingProxy, check_writes
from normscope.prediction.refusal import WAY_OUT, UnknownOperation, check_gradients_on
from normscope.prediction.walk import Walk

# What may give (N, everything else) of an input, and what only asks for its sizes.
_RESHAPING = (torch.flatten, torch.reshape, "flatten", "view", "reshape")
_SIZES = (getattr, "size", "dim")
_PLAIN = frozenset({bool, int, float, str, type(None)})


class _Tracer(fx.Tracer):
    """Modules with a rule are leaves; torch's other modules too, to be refused by name."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return modules.has_rule(m) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return WritingProxy(node, self)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A leaf has no calls inside, for which fx would keep where they are made.

        fx patches the class of all modules: calls that other threads make meanwhile come here too, and are theirs.
        """
        if get_ident() != self._thread:
            return forward(*args, **kwargs)
        name = self.path_of_module(m)
        if self.is_leaf_module(m, name):
            return self.create_proxy("call_module", name, args, kwargs)
        return super().call_module(m, forward, args, kwargs)

    def create_arg(self, a: Any) -> Any:
        """What nearly all arguments are, without asking after everything else that fx knows."""
        if isinstance(a, fx.Proxy):
            return a.node
        if type(a) is tuple:
            return tuple(map(self.create_arg, a))
        return a if type(a) in _PLAIN or (type(a) is dict and not a) else super().create_arg(a)

    def create_node(self, kind: str, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        if kind not in ("placeholder", "get_attr", "output"):
            check_gradients_on(str(getattr(target, "__name__", target)))
        return super().create_node(kind, target, *args, **kwargs)


def walk_through(model: nn.Module, x: Field, walk: Walk, images: Tensor | None = None) -> Field:
    """The field of the model's output; images: a real batch, taken as vectors where the network begins by that."""
    try:
        graph = _Tracer().trace(model)
    except UnknownOperation:
        raise
    except Exception as error:
        return _by_export(model, x, walk, error)
    submodule = _submodules(model)
    if images is not None and (flat := _flattenings(graph, x, walk, submodule)):
        for node in flat:
            node.replace_all_uses_with(node.all_input_nodes[0])
        x = vectors(images.flatten(1))
    return _interpret(graph, x, walk, lambda path: _attribute(model, path), submodule)


def _flattenings(graph: fx.Graph, x: Field, walk: Walk, submodule: Callable[[str], nn.Module]) -> list[fx.Node]:
    """The calls that flatten the input, where the network does nothing else with it; none otherwise."""

    def value(node: fx.Node) -> Any:
        args, kwargs = (fx.node.map_arg(given, value) for given in (node.args, node.kwargs))
        return x if node.op == "placeholder" else _call(node, args, kwargs, walk, submodule)

    def reshapes(node: fx.Node) -> bool:
        layer = submodule(str(node.target)) if node.op == "call_module" else None
        return isinstance(layer, nn.Flatten) or node.target in _RESHAPING

    start = next(node for node in graph.nodes if node.op == "placeholder")
    found = [node for node in start.users if node.target not in _SIZES]
    flat = all(map(reshapes, found)) and all(value(node).shape == (math.prod(x.shape),) for node in found)
    return found if flat else []


def _submodules(model: nn.Module) -> Callable[[str], nn.Module]:
    """By path, under every name that a module has."""
    return dict(model.named_modules(remove_duplicate=False)).__getitem__


def _attribute(model: nn.Module, path: str) -> Any:
    found: Any = model
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _interpret(
    graph: fx.Graph,
    x: Field,
    walk: Walk,
    attribute: Callable[[str], Any],
    submodule: Callable[[str], nn.Module],
    given: dict[str, Any] | None = None,
) -> Field:
    check_writes(
        graph, submodule, [name for name, value in (given or {}).items() if not isinstance(value, nn.Parameter)]
    )
    # Where every pair of a batch is known, what comes back is differentiated: that takes tensors of the common kind.
    quiet = torch.no_grad if x.sites.form == "samples" else torch.inference_mode
    with quiet():
        return _run(graph, x, walk, attribute, submodule, given)


def _run(
    graph: fx.Graph,
    x: Field,
    walk: Walk,
    attribute: Callable[[str], Any],
    submodule: Callable[[str], nn.Module],
    given: dict[str, Any] | None,
) -> Field:
    env: dict[fx.Node, Any] = {}
    inputs = 0
    live = _live(graph)
    for node in graph.nodes:
        if node not in live:
            continue
        args = fx.node.map_arg(node.args, env.__getitem__)
        kwargs = fx.node.map_arg(node.kwargs, env.__getitem__)
        if node.op == "placeholder":
            if given is not None and node.name in given:
                env[node] = given[node.name]
                continue
            inputs += 1
            if inputs > 1 and not node.args:
                raise UnknownOperation(
                    f"The network takes more than one input ({node.name!r}); predict knows one tensor of samples. "
                    + WAY_OUT
                )
            env[node] = x if inputs == 1 else node.args[0]
        elif node.op == "get_attr":
            env[node] = attribute(str(node.target))
        elif node.op == "output":
            out = args[0]
            out = out[0] if given is not None and isinstance(out, (tuple, list)) else out
            if not isinstance(out, Field):
                raise UnknownOperation(
                    f"The network returns {type(out).__name__}; predict needs one tensor (N, outputs). " + WAY_OUT
                )
            return out
        else:
            env[node] = _call(node, args, kwargs, walk, submodule)
    raise AssertionError("a graph ends in its output")


def _live(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that the output depends on, and the inputs; what is computed and dropped has no part in lambda."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if "set_grad_enabled" in str(getattr(node.target, "__name__", node.target)) and node.args[:1] == (False,):
            with torch.no_grad():
                check_gradients_on(node.name)
        if node.op in ("output", "placeholder") or any(user in live for user in node.users):
            live.add(node)
    return live


def _call(node: fx.Node, args: Any, kwargs: Any, walk: Walk, submodule: Callable[[str], nn.Module]) -> Any:
    if node.op == "call_module":
        layer, name = submodule(str(node.target)), str(node.target)
        if not modules.has_rule(layer):
            raise UnknownOperation(f"{name!r} is a {type(layer).__name__}, which has no moment map. {WAY_OUT}")
        rule: Callable[..., Any] = lambda w, n, *a, **k: modules.apply(w, n, layer, *a, **k)  # noqa: E731
        called = type(layer).__name__
    else:
        called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        name = node.name
        known = _shapes(node, args, kwargs)
        if known is not None:
            return known[0]
        found = _rule(node)
        if found is None:
            where = f" (in {_where(node)})" if _where(node) else ""
            raise UnknownOperation(f"The operation {called!r}{where} has no moment map. {WAY_OUT}")
        rule = found
        name = _weight_name(node) or name
    walk.called.append(called)
    try:
        return rule(walk, name, *args, **kwargs)
    except UnknownOperation as error:
        said = str(error).rstrip(".")
        raise UnknownOperation(
            f"{name!r} ({called}) {said}. {'' if 'ns.measure' in said else WAY_OUT}".rstrip()
        ) from error
    except ValueError as error:
        raise ValueError(f"{name!r} ({called}) {str(error).rstrip('.')}.") from error
    except (TypeError, AttributeError, IndexError) as error:
        raise UnknownOperation(
            f"{name!r} ({called}) is called in a way that has no rule: {error}. {WAY_OUT}"
        ) from error


def _rule(node: fx.Node) -> Callable[..., Any] | None:
    if node.op == "call_method":
        return functions.METHODS.get(str(node.target))
    if isinstance(node.target, torch._ops.OpOverload):
        return functions.ATEN.get(node.target._schema.name.removeprefix("aten::"))
    return functions.FUNCTIONS.get(node.target)


def _shapes(node: fx.Node, args: Any, kwargs: Any) -> tuple[Any] | None:
    """Sizes, and arithmetic on them, are computed; None where a tensor of the network is asked for values."""
    target = node.target
    if args and isinstance(args[0], Field):
        field = args[0]
        if target == "size":
            return (field.size()[args[1]] if len(args) > 1 else field.size(),)
        if target in ("dim", "ndimension"):
            return (len(field.size()),)
        if target is getattr:
            of_field = {"shape": field.size(), "ndim": len(field.size()), "dtype": torch.float64, "device": "cpu"}
            return (of_field[args[1]],) if args[1] in of_field else None
        return None
    if node.op == "call_function" and not _has_field((args, kwargs)) and not isinstance(target, torch._ops.OpOverload):
        if getattr(target, "__module__", "") not in ("_operator", "math") or not callable(target):
            return None
        # What is computed of parameters has to show it.
        with torch.inference_mode(False), torch.enable_grad():
            return (target(*args, **kwargs),)
    if target is operator.getitem:
        return (args[0][args[1]],)
    if isinstance(target, torch._ops.OpOverload) and not _has_field((args, kwargs)):
        return (None,)
    return None


def _has_field(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_field, value))
    if isinstance(value, dict):
        return any(map(_has_field, value.values()))
    return isinstance(value, Field)


def _where(node: fx.Node) -> str:
    """The module whose forward makes the call."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [entry[0] for entry in stack.values() if entry[0]]
    return names[-1] if names else ""


def _weight_name(node: fx.Node) -> str:
    """A functional layer is called by the module whose weight it reads, or by the parameter where that has another."""
    for argument in (*node.args, *node.kwargs.values()):
        if isinstance(argument, fx.Node) and argument.op == "get_attr":
            return str(argument.target).removesuffix(".weight")
    return ""


def _by_export(model: nn.Module, x: Field, walk: Walk, error: Exception) -> Field:
    """torch.export's graph of plain operations, for forwards that fx cannot trace."""
    # One number seen as a batch: export asks for shapes alone.
    example = torch.zeros((), dtype=_dtype(model)).expand(x.sites.batch, *x.shape)
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
            program = torch.export.export(model, (example,))
    except Exception as second:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        last = str(second).strip().splitlines()[0] if str(second).strip() else type(second).__name__
        raise UnknownOperation(
            f"The graph of {type(model).__name__} could not be read: torch.fx says {first!r}, torch.export says "
            f"{last!r}. A forward that branches on values of tensors has no one graph. " + WAY_OUT
        ) from error
    walk.note("torch.fx could not trace the network; torch.export read its graph.")
    signature = program.graph_signature
    state: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    state |= dict(model.named_buffers(remove_duplicate=False)) | dict(program.constants)
    names = signature.inputs_to_parameters | signature.inputs_to_buffers
    names |= getattr(signature, "inputs_to_lifted_tensor_constants", {})
    given = {node: state[path] for node, path in names.items()}
    out = next(node for node in program.graph.nodes if node.op == "output")
    users = {spec.arg.name for spec in signature.output_specs if spec.kind.name == "USER_OUTPUT"}
    out.args = (tuple(a for a in out.args[0] if getattr(a, "name", None) in users),)
    return _interpret(program.graph, x, walk, state.get, _submodules(model), given)


def _dtype(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
