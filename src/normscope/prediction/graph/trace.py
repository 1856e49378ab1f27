"""A network's graph, read by torch.fx, or by torch.export where fx cannot: the forward runs, on copies of the model."""

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import TreeSpec

from normscope.prediction import rules
from normscope.prediction.graph.in_place import WritingProxy
from normscope.prediction.graph.trace_failure import not_traced
from normscope.prediction.refusals import UnknownOperation, check_gradients_on

_PLAIN = frozenset({bool, int, float, str, type(None)})


@dataclass(frozen=True)
class TracedGraph:
    """A graph, and what its nodes name.

    exported: the model's own tensors by the names of the graph's inputs, for a graph of torch.export; None for one of
    torch.fx. returns: of an exported graph, the form of what the network returns; its tensors are the graph's outputs.
    """

    graph: fx.Graph
    attribute: Callable[[str], Any]
    submodule: Callable[[str], nn.Module]
    exported: dict[str, Any] | None = None
    returns: TreeSpec | None = None


def trace(model: nn.Module, shape: tuple[int, ...]) -> TracedGraph:
    """The graph for inputs of this shape; refused, with the place in the forward, where neither way can read it."""
    submodule = dict(model.named_modules(remove_duplicate=False)).__getitem__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _check_forwards(model)
            graph = _Tracer().trace(model, _defaults(model))
            return TracedGraph(graph, lambda path: _attribute(model, path), submodule)
        except UnknownOperation:
            raise
        except Exception as by_fx:
            try:
                return _exported(model, shape, submodule)
            except Exception as by_export:
                raise not_traced(model, by_fx, by_export) from by_fx


class _Tracer(fx.Tracer):
    """Modules with a rule are leaves; torch's other modules too, to be refused by name."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return rules.rule_of_module(m) is not None or super().is_leaf_module(m, module_qualified_name)

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
            where = next((path for path, _ in reversed(self.module_stack.values())), "")
            check_gradients_on(str(getattr(target, "__name__", target)), repr(where) if where else "")
        return super().create_node(kind, target, *args, **kwargs)


def _check_forwards(model: nn.Module) -> None:
    """torch.fx goes by classes; torch.export calls what a module was given in the place of its class's forward."""
    for name, module in model.named_modules():
        if "forward" in vars(module):
            raise TypeError(f"{name or type(model).__name__!r} has a forward of its own beside its class's")


def _defaults(model: nn.Module) -> dict[str, Any]:
    """Further inputs of the forward take their defaults, so that `if mask is not None` goes the way that it would."""
    given = list(inspect.signature(type(model).forward).parameters.values())[2:]
    return {p.name: p.default for p in given if type(p.default) in _PLAIN}


def _attribute(model: nn.Module, path: str) -> Any:
    found: Any = model
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _exported(model: nn.Module, shape: tuple[int, ...], submodule: Callable[[str], nn.Module]) -> TracedGraph:
    """torch.export's graph of plain operations; shape: of a batch."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    # One number seen as a batch: export asks for shapes alone.
    example = torch.zeros((), dtype=like.dtype, device=like.device).expand(shape)
    with _quiet():
        program = torch.export.export(model, (example,))
    signature = program.graph_signature
    state: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    state |= dict(model.named_buffers(remove_duplicate=False)) | dict(program.constants)
    names = signature.inputs_to_parameters | signature.inputs_to_buffers
    names |= getattr(signature, "inputs_to_lifted_tensor_constants", {})
    given = {node: state[path] for node, path in names.items()}
    out = next(node for node in program.graph.nodes if node.op == "output")
    # Buffers that were written are outputs of the graph too.
    both = zip(out.args[0], signature.output_specs, strict=True)
    out.args = (tuple(value for value, spec in both if spec.kind.name == "USER_OUTPUT"),)
    return TracedGraph(program.graph, state.__getitem__, submodule, given, program.call_spec.out_spec)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the page that torch.export prints, and logs, where it fails."""
    this = get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != this

    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith("torch")]
    handlers = [handler for logger in loggers for handler in logger.handlers]
    written = io.StringIO()
    try:
        for handler in handlers:
            handler.addFilter(others)
        with contextlib.redirect_stderr(written), contextlib.redirect_stdout(written):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(others)
