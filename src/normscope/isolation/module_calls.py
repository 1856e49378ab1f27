"""Record the order in which a network calls its layers, and answer calls from stored outputs.

A *unit* is a module that is treated as a whole: a module without children, or one that owns parameters and runs the
forward of a torch or normscope layer. No graph is traced: `forward` of every unit is wrapped for one pass, so residual
networks, loops and branches in Python all work. The output of a unit that is called once can be stored, and answers the
call in a later pass. That pass then costs only the units after it (`Replay`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from normscope.isolation.generators import Generators
from normscope.isolation.signals import deliver

Watcher = Callable[[str, nn.Module, tuple[Any, ...], Any], None]
Answer = Callable[[str, nn.Module, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def units(model: nn.Module) -> dict[str, nn.Module]:
    """The units of a network by name, each module once, in the order of registration.

    Example:
        >>> list(units(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(2)))))
        ['0', '1.0', '1.1']
    """
    by_name: dict[str, nn.Module] = {}
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            continue
        library = str(type(module).forward.__module__).startswith(("torch.nn.", "normscope.norms."))
        # Read from `_modules`: the module's own `__getattr__` may raise.
        owns = "parametrizations" in vars(module).get("_modules", {}) or any(True for _ in module.parameters(False))
        if (library and owns) or not any(True for _ in module.children()):
            by_name[name] = module
            inside.update(module.modules())
    return by_name


@contextmanager
def answering(modules: dict[str, nn.Module], answer: Answer) -> Iterator[None]:
    """While this context lasts, a call of one of `modules` returns `answer(name, module, forward, args, kwargs)`."""
    # Accelerate and other libraries set a `forward` on the instance; that one is put back at the end.
    lent = [(name, module, object.__getattribute__(module, "__dict__")) for name, module in modules.items()]
    own_forwards = {id(attributes): attributes["forward"] for _, _, attributes in lent if "forward" in attributes}
    try:
        for name, module, attributes in lent:
            attributes["forward"] = _wrapped(name, module, module.forward, answer)
        yield
    finally:
        for _, _, attributes in lent:
            if id(attributes) in own_forwards:
                attributes["forward"] = own_forwards[id(attributes)]
            else:
                attributes.pop("forward", None)


def _wrapped(name: str, module: nn.Module, forward: Callable[..., Any], answer: Answer) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        deliver()
        return answer(name, module, forward, args, kwargs)

    vars(call)["__wrapped__"] = forward  # keeps the signature that `inspect` reports
    return call


def in_backward() -> bool:
    """Whether this call is inside a backward pass, where activation checkpointing repeats an earlier call."""
    return torch._C._current_graph_task_id() != -1


@dataclass
class CallTrace:
    """The order of the calls in one pass, of units and of the containers around them.

    watchers: functions watcher(name, module, inputs, output), called after every unit. starts: number of each unit and
    container in the order of first calls. repeated: units called more than once. changed: units whose output was
    changed in place later in the pass.
    """

    watchers: tuple[Watcher, ...] = ()
    starts: dict[str, int] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[Callable[[], None]]:
        """Record one pass; yields a function to call when the forward ends."""
        outputs: list[tuple[str, Tensor, int]] = []
        unit_of = units(model)
        inside = {module for unit in unit_of.values() for module in unit.modules()}
        containers = {name: module for name, module in model.named_modules() if module not in inside}

        def record(name: str, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if in_backward():
                return forward(*args, **kwargs)
            if name in self.starts and name in unit_of:
                self.repeated.add(name)
            self.starts.setdefault(name, len(self.starts))
            output = forward(*args, **kwargs)
            if name in unit_of:
                outputs.extend((name, t, t._version) for t in tree_leaves(output) if isinstance(t, Tensor))
                for watcher in self.watchers:
                    watcher(name, module, (*args, *kwargs.values()), output)
            return output

        def forward_ends() -> None:
            self.changed |= {name for name, tensor, version in outputs if tensor._version != version}
            outputs.clear()

        with answering(unit_of | containers, record):
            yield forward_ends


class Replay:
    """Passes in which calls of the units before a given one are answered from stored outputs.

    A unit runs once, without gradient, in the first pass that answers it; its parameters must not change after that.
    Side effects are repeated: if the unit drew random numbers, the generators are set to the state they had after it;
    if it set attributes of its module, they are set again.

    Args:
        model: the network.
        trace: the trace of one full pass.
        generators: the generators the forward may draw from.
        draws: whether the forward drew random numbers.
    """

    def __init__(self, model: nn.Module, trace: CallTrace, generators: Generators, *, draws: bool) -> None:
        once = {name: module for name, module in units(model).items() if name in trace.starts}
        self._units = {name: module for name, module in once.items() if name not in trace.repeated}
        self._trace = trace
        self._generators = generators
        self._draws = draws
        self._memory: dict[str, tuple[Any, list[Any] | None, dict[str, Any]]] = {}

    @contextmanager
    def before(self, start: int) -> Iterator[None]:
        """While this context lasts, units whose first call has a number below `start` are answered from memory."""

        def answer(name: str, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if self._trace.starts[name] >= start:
                return forward(*args, **kwargs)
            if name not in self._memory:
                self._memory[name] = self._run(name, module, forward, args, kwargs)
            output, states, attributes = self._memory[name]
            if states is not None:
                self._generators.restore(states)
            vars(module).update(attributes)
            return self._private(name, output)

        with answering(self._units, answer):
            yield

    def _run(
        self, name: str, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[Any, list[Any] | None, dict[str, Any]]:
        before = dict(vars(module))
        with torch.no_grad():
            output = tree_map_only(Tensor, Tensor.detach, forward(*args, **kwargs))
        attributes = {key: value for key, value in vars(module).items() if before.get(key, before) is not value}
        return self._private(name, output), self._generators.states() if self._draws else None, attributes

    def _private(self, name: str, output: Any) -> Any:
        """The output, or a copy of it if the network writes into this output later in the pass."""
        return tree_map_only(Tensor, torch.clone, output) if name in self._trace.changed else output
