"""The layers of any network in the order they run, and their results used again.

A *unit* is a module that the network calls and that is looked at as a whole: one without children, or one that owns
parameters and runs the forward of a torch or normscope layer. No graph is traced: the units' `forward` is wrapped for
one pass, so residual networks, loops and branches in Python are served alike. A unit called once can be answered from
memory in a later pass, which then costs what the units after it cost (`Replay`).
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
    """Names and modules, each module once, in the order of registration.

    Example:
        >>> list(units(nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(2)))))
        ['0', '1.0', '1.1']
    """
    found: dict[str, nn.Module] = {}
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        if module in inside:
            continue
        library = str(type(module).forward.__module__).startswith(("torch.nn.", "normscope.norms."))
        # Asked of `_modules`, not of the module: its `__getattr__` may raise.
        owns = "parametrizations" in vars(module).get("_modules", {}) or any(True for _ in module.parameters(False))
        if (library and owns) or not any(True for _ in module.children()):
            found[name] = module
            inside.update(module.modules())
    return found


@contextmanager
def answering(modules: dict[str, nn.Module], answer: Answer) -> Iterator[None]:
    """Inside, a call of one of `modules` is `answer(name, module, forward, args, kwargs)`."""
    # Accelerate and others put a forward of their own on the module itself.
    places = [(name, module, object.__getattribute__(module, "__dict__")) for name, module in modules.items()]
    own = {id(attributes): attributes["forward"] for _, _, attributes in places if "forward" in attributes}
    try:
        for name, module, attributes in places:
            attributes["forward"] = _wrapped(name, module, module.forward, answer)
        yield
    finally:
        for _, _, attributes in places:
            if id(attributes) in own:
                attributes["forward"] = own[id(attributes)]
            else:
                attributes.pop("forward", None)


def _wrapped(name: str, module: nn.Module, forward: Callable[..., Any], answer: Answer) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        deliver()
        return answer(name, module, forward, args, kwargs)

    vars(call)["__wrapped__"] = forward  # the signature stays the forward's own
    return call


def in_backward() -> bool:
    """Whether this call repeats an earlier one for activation checkpointing."""
    return torch._C._current_graph_task_id() != -1


@dataclass
class Trace:
    """What ran in one pass, units and the containers around them.

    starts: unit or container -> its number in the order of first calls.
    repeated: units called more than once. changed: those whose result was changed in place afterwards.
    """

    watchers: tuple[Watcher, ...] = ()
    starts: dict[str, int] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[Callable[[], None]]:
        """Around one pass; gives the function to call when its forward ends."""
        outputs: list[tuple[str, Tensor, int]] = []
        known = units(model)
        inside = {module for unit in known.values() for module in unit.modules()}
        containers = {name: module for name, module in model.named_modules() if module not in inside}

        def see(name: str, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if in_backward():
                return forward(*args, **kwargs)
            if name in self.starts and name in known:
                self.repeated.add(name)
            self.starts.setdefault(name, len(self.starts))
            output = forward(*args, **kwargs)
            if name in known:
                outputs.extend((name, t, t._version) for t in tree_leaves(output) if isinstance(t, Tensor))
                for watcher in self.watchers:
                    watcher(name, module, (*args, *kwargs.values()), output)
            return output

        def forward_ends() -> None:
            self.changed |= {name for name, tensor, version in outputs if tensor._version != version}
            outputs.clear()

        with answering(known | containers, see):
            yield forward_ends


class Replay:
    """Passes in which the units before a given one are answered from memory.

    The first pass that a unit precedes runs it, without gradient, and remembers; its parameters must not change
    after that. A unit that drew random numbers leaves the generators as it left them then, and one that set attributes
    of its own sets them again.
    """

    def __init__(self, model: nn.Module, trace: Trace, generators: Generators, *, draws: bool) -> None:
        once = {name: module for name, module in units(model).items() if name in trace.starts}
        self._units = {name: module for name, module in once.items() if name not in trace.repeated}
        self._trace = trace
        self._generators = generators
        self._draws = draws
        self._memory: dict[str, tuple[Any, list[Any] | None, dict[str, Any]]] = {}

    @contextmanager
    def before(self, start: int) -> Iterator[None]:
        """Inside, units whose first call comes before number `start` are not run again."""

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
        """A copy for those who will write into it."""
        return tree_map_only(Tensor, torch.clone, output) if name in self._trace.changed else output
