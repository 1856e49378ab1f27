"""The trace of a network's graph by torch.fx, or by torch.export where fx cannot; the forward runs on copies."""

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
    """A graph, and access to the tensors and modules that its nodes name.

    Attributes:
        exported: for a graph of torch.export, the model's own tensors by the names of the graph's inputs; else None.
        returns: for a graph of torch.export, the structure of what the network returns (tuple, dict, ...).
    """

    graph: fx.Graph
    attribute: Callable[[str], Any]
    submodule: Callable[[str], nn.Module]
    exported: dict[str, Any] | None = None
    returns: TreeSpec | None = None


def trace(model: nn.Module, shape: tuple[int, ...]) -> TracedGraph:
    """The graph for inputs of this shape; where neither way can trace it, refused with the place in the forward."""
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
    """A tracer that keeps modules with a rule whole, and torch's other modules too, which are then refused by name."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return rules.rule_of_module(m) is not None or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return WritingProxy(node, self)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Record a call of a module, without fx's bookkeeping for calls inside where the module is kept whole.

        fx patches the class of all modules, so that calls of other threads come here too; they are passed on.
        """
        if get_ident() != self._thread:
            return forward(*args, **kwargs)
        name = self.path_of_module(m)
        if self.is_leaf_module(m, name):
            return self.create_proxy("call_module", name, args, kwargs)
        return super().call_module(m, forward, args, kwargs)

    def create_arg(self, a: Any) -> Any:
        """Convert the common kinds of arguments directly; fx's own conversion tries many more first."""
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
    """Refuse torch.fx for modules with a forward of their own: fx uses the class's forward, torch.export this one."""
    for name, module in model.named_modules():
        if "forward" in vars(module):
            raise TypeError(f"{name or type(model).__name__!r} has a forward of its own beside its class's")


def _defaults(model: nn.Module) -> dict[str, Any]:
    """Defaults of the forward's further inputs, so that a branch such as `if mask is not None` goes as in a call."""
    further = list(inspect.signature(type(model).forward).parameters.values())[2:]
    return {p.name: p.default for p in further if type(p.default) in _PLAIN}


def _attribute(model: nn.Module, path: str) -> Any:
    value: Any = model
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _exported(model: nn.Module, shape: tuple[int, ...], submodule: Callable[[str], nn.Module]) -> TracedGraph:
    """The graph of plain operations that torch.export makes; shape: with the batch dimension."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    # One number expanded to a batch: torch.export asks for shapes alone.
    example = torch.zeros((), dtype=like.dtype, device=like.device).expand(shape)
    with _quiet():
        program = torch.export.export(model, (example,))
    signature = program.graph_signature
    state: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    state |= dict(model.named_buffers(remove_duplicate=False)) | dict(program.constants)
    names = signature.inputs_to_parameters | signature.inputs_to_buffers
    names |= getattr(signature, "inputs_to_lifted_tensor_constants", {})
    values = {node: state[path] for node, path in names.items()}
    out = next(node for node in program.graph.nodes if node.op == "output")
    # Buffers that were written are outputs of the graph too.
    both = zip(out.args[0], signature.output_specs, strict=True)
    out.args = (tuple(value for value, spec in both if spec.kind.name == "USER_OUTPUT"),)
    return TracedGraph(program.graph, state.__getitem__, submodule, values, program.call_spec.out_spec)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch.export from printing and logging a page where it fails; other threads' log records pass."""
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
