"""Undoing of everything that a model's forward writes while its graph is traced.

`isolation.untouched` lends copies of trainable parameters, buffers and attributes. This file covers the rest: frozen
parameters of any size (a momentum encoder's), modules that are hidden in lists and other objects, and everything deeper
than one level: nested lists and dicts, objects of any class, their tensors and arrays. While a graph is traced, proxies
replace tensors, so a queue or a meter that kept a proxy would break the training that follows.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Condition, Event, Lock, RLock, Thread
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.isolation.lending import untouched

# Objects looked into before the search ends: a model that holds its trainer or data set reaches far more.
_MOST_OBJECTS = 20_000
_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Generator)
_CLOSED_TYPES = (*_PLAIN_TYPES, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
_INTERNAL_ATTRIBUTES = frozenset(vars(nn.Module()))
_CONTAINER_TYPES: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
# Objects that hold one of these are changed by other threads meanwhile; their changes must stay.
_THREADED = (type(Lock()), type(RLock()), Condition, Event, Thread)
# Optimizers, loaders, loggers: no forward works on them.
_FOREIGN_PACKAGES = frozenset({"torch", "logging", "_thread", "threading"})
_NO_VALUE = object()

Undo = Callable[[], None]


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Let the model work with copies of all its tensors inside the block; restore everything it reaches afterwards."""
    with ExitStack() as stack:
        contents = _Held(model)
        for undo in contents.undos:
            stack.callback(undo)
        for module in (model, *contents.hidden):
            originals = {id(p) for p in module.parameters()}
            stack.enter_context(untouched(module))
            _copy(module, originals)
        yield


def _copy(model: nn.Module, originals: set[int]) -> None:
    """Replace the parameters that `untouched` did not copy by copies; `untouched` restores all of them."""
    copies: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or id(parameter) not in originals:
                continue
            if id(parameter) not in copies:
                copy = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
                vars(copy).update(vars(parameter))
                copies[id(parameter)] = copy
            module._parameters[name] = copies[id(parameter)]


class _Held:
    """Everything that a model's modules hold beside parameters, buffers and submodules.

    `undos` restore it, last found first. hidden: modules found in lists and other objects.

    Containers are read and written by the methods of the built-in classes, so that no code of the user's runs.
    """

    def __init__(self, model: nn.Module) -> None:
        self.undos: list[Undo] = []
        self.hidden: list[nn.Module] = []
        self._seen = {id(module) for module in model.modules()}
        self._waiting: deque[Any] = deque()
        for module in model.modules():
            self._attributes(module)
        while self._waiting and len(self._seen) < _MOST_OBJECTS:
            self._look_into(self._waiting.popleft())

    def _attributes(self, module: nn.Module) -> None:
        """Queue the attributes of a module; tensors among them are lent already."""
        for name, value in vars(module).items():
            if name not in _INTERNAL_ATTRIBUTES and not isinstance(value, (Tensor, np.ndarray)):
                self._waiting.append(value)

    def _look_into(self, value: Any) -> None:
        if isinstance(value, _CLOSED_TYPES) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, nn.Module):
            self.hidden.append(value)
            self._seen.update(map(id, value.modules()))
            for module in value.modules():
                self._attributes(module)
        elif isinstance(value, (Tensor, np.ndarray)):
            self._values(value)
        else:
            self._contents(value)

    def _values(self, value: Any) -> None:
        """Restore a tensor's or array's values, only where they were changed."""
        if isinstance(value, np.ndarray):
            if value.dtype != object:
                kept = value.copy()
                self.undos.append(lambda: None if np.array_equal(kept, value) else np.copyto(value, kept))
        elif value.layout == torch.strided and value.device.type != "meta":
            kept, version = value.detach().clone(), value._version
            self.undos.append(lambda: None if value._version == version else _write(value, kept))

    def _contents(self, value: Any) -> None:
        container_type = next((each for each in _CONTAINER_TYPES if isinstance(value, each)), None)
        if container_type is not None:
            content = _content(value, container_type)
            self.undos.append(lambda: _refill(value, container_type, content))
            self._waiting.extend(entry[-1] for entry in content)
        elif isinstance(value, (tuple, frozenset)):
            self._waiting.extend(value)
        self._fields(value)

    def _fields(self, value: Any) -> None:
        """Queue an object's attributes, in its dictionary and its slots, unless threads share the object."""
        if type(value).__module__.split(".")[0] in _FOREIGN_PACKAGES:
            return
        try:
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            attributes = None
        if type(attributes) is dict and not any(isinstance(attribute, _THREADED) for attribute in attributes.values()):
            self._waiting.append(attributes)
        for owner in type(value).__mro__:
            names = vars(owner).get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if isinstance(slot := vars(owner).get(name), MemberDescriptorType):
                    value_in_slot = _in_slot(slot, value)
                    self.undos.append(partial(_fill, slot, value, value_in_slot))
                    self._waiting.append(value_in_slot)


def _content(container: Any, container_type: Any) -> list[tuple[Any, ...]]:
    """The keys and values of a dictionary, or the values of another container."""
    if issubclass(container_type, dict):
        return list(container_type.items(container))
    return [(value,) for value in container_type.__iter__(container)]


def _refill(container: Any, container_type: Any, content: list[tuple[Any, ...]]) -> None:
    now = _content(container, container_type)
    pairs = zip(now, content, strict=False)
    if len(now) == len(content) and all(a is b for one, two in pairs for a, b in zip(one, two, strict=True)):
        return
    container_type.clear(container)
    if issubclass(container_type, dict):
        container_type.update(container, content)
    else:
        (container_type.update if container_type is set else container_type.extend)(
            container, [value for (value,) in content]
        )


def _in_slot(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _NO_VALUE


def _fill(slot: MemberDescriptorType, value: Any, before: Any) -> None:
    if _in_slot(slot, value) is before:
        return
    if before is _NO_VALUE:
        slot.__delete__(value)
    else:
        slot.__set__(value, before)


@torch.no_grad()
def _write(tensor: Tensor, values: Tensor) -> None:
    tensor.detach().copy_(values)
