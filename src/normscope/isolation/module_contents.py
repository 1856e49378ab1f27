"""Find everything that the modules of a network hold, without running any of their code.

Attributes are read from `__dict__` and from slots. Containers are read through their base classes (`containers.py`), at
any depth. Modules are found wherever they are held: in a plain list, behind a weak reference, in an attribute of an
object, in the closure of a function. In objects that a module holds, the attributes, slots and containers are found, so
that they can be put back. Objects further away, and what functions close over, are searched for modules alone: the rest
belongs to the program around the model. Tensors in objects are not lent; `guarded` names them, for the guard of the
first forward.
"""

import copy
import functools
import io
import itertools
import random
import sys
import threading
import weakref
from collections import ChainMap, UserDict, UserList
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from normscope.isolation.containers import BASES, DICT, SET, Base
from normscope.isolation.refusals import NotLent

# Largest container, inside an object that is not a module, that is put back: comparing a larger one before each pass
# would cost too much.
MOST = 10_000
_NOTHING: Any = object()
_INERT: frozenset[type] = frozenset(
    {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, type}
)
_EXACT = frozenset(base.kind for base in BASES)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_LIBRARIES = {"torch", "numpy", "normscope", "lightning", "pytorch_lightning", "accelerate"}
_FRESH: tuple[Any, ...] = (
    iter([]), iter(()), iter(range(0)), iter(""), iter({}), iter({}.values()), iter({}.items()), iter(set()),
    reversed([]), itertools.count(),
)  # fmt: skip
_COPYABLE = frozenset(map(type, _FRESH))
_EMPTY_CELL = CellType()
_FACTORIES = (UserDict, UserList, SimpleNamespace, ChainMap, weakref.WeakValueDictionary, weakref.WeakSet)
# Objects that are searched for modules: a model that leads to its whole program would take seconds to search.
_MOST_OBJECTS = 2_000


class ReplaceableEntry(NamedTuple):
    """An entry that can be replaced: put(holder, key, other).

    where: the module's name and the name of its attribute, for error messages.
    """

    put: Callable[[Any, Any, Any], None]
    holder: Any
    key: Any
    value: Any
    where: tuple[str, Any]


class Contents:
    """Contents of a model; each object is listed once.

    parameters: triples of name, parameter, and whether a registered module has it. containers: triples of base,
    container and name; `empty` lists the plain containers without entries. tensors, arrays, iterators, tuples,
    references: places where a copy can be lent. owned: random generators. slots: triples of module, slot and name.
    guarded: pairs of name and tensor, of tensors in objects.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters: list[tuple[str, nn.Parameter, bool]] = []
        self.containers: list[tuple[Base, Any, Any]] = []
        self.empty: list[Any] = []
        self.tensors: list[ReplaceableEntry] = []
        self.arrays: list[ReplaceableEntry] = []
        self.iterators: list[ReplaceableEntry] = []
        self.tuples: list[ReplaceableEntry] = []
        self.references: list[ReplaceableEntry] = []
        self.slots: list[tuple[Any, Any, tuple[str, Any]]] = []
        self.owned: list[Any] = []
        self.guarded: list[tuple[str, Tensor]] = []
        self._module_ids: set[int] = set()
        self._others: list[ReplaceableEntry] = []
        self._searched: set[int] = set()
        self._seen: set[int] = set()
        self._modules: list[tuple[str, Any, dict[str, Any]]] = []
        self._handlers: dict[type, Callable[[Contents, ReplaceableEntry], None]] = dict.fromkeys(_INERT, _nothing_to_do)
        self._slotted: dict[type, list[Any]] = {}
        self._add("", model)
        registered = len(self._modules)
        read = 0
        while read < len(self._modules) or self._others:
            if read < len(self._modules):
                # Appends to both lists: modules that are not registered are found inside other modules.
                self._module(*self._modules[read], read < registered)
                read += 1
            else:
                self._read_other(self._others.pop(0))

    @property
    def compiled(self) -> bool:
        """Whether a module is what `torch.compile` makes of one."""
        return any(type(module).__name__ == "OptimizedModule" for _, module, _ in self._modules)

    def holds(self, module: nn.Module) -> bool:
        """Whether the module is the model, in it, or was found in what it holds."""
        return id(module) in self._module_ids

    def _add(self, name: str, module: nn.Module) -> None:
        """Add the module and its registered submodules, in torch's order."""
        if id(module) in self._seen:
            return
        self._seen.add(id(module))
        attributes = object.__getattribute__(module, "__dict__")
        self._modules.append((name, module, attributes))
        self._module_ids.add(id(module))
        for key, child in dict.items(attributes.get("_modules", {})):
            if isinstance(child, nn.Module):
                self._add(f"{name}.{key}" if name else key, child)

    def _module(self, name: str, module: Any, attributes: dict[str, Any], registered: bool) -> None:
        self.containers.append((DICT, attributes, (name, "__dict__")))
        for key, parameter in dict.items(attributes.get("_parameters", {})):
            if parameter is not None and id(parameter) not in self._seen:
                self._seen.add(id(parameter))
                self.parameters.append((f"{name}.{key}" if name else key, parameter, registered))
        handlers = self._handlers
        for key, value in attributes.items():
            kind = type(value)
            if kind in _INERT:
                continue
            if kind in _EXACT and not value:
                self.empty.append(value)
            else:
                (handlers.get(kind) or self._handler(kind))(
                    self, ReplaceableEntry(DICT.put, attributes, key, value, (name, key))
                )
        for member in self._members(type(module)):
            self.slots.append((module, member, (name, member.__name__)))
            self._value(ReplaceableEntry(put_slot, module, member, read_slot(module, member), (name, member.__name__)))

    def _members(self, kind: type) -> list[Any]:
        if kind not in self._slotted:
            bases = [vars(cls) for cls in kind.__mro__ if "__slots__" in vars(cls)]
            members = [m for attributes in bases for m in attributes.values() if type(m) is MemberDescriptorType]
            self._slotted[kind] = members
        return self._slotted[kind]

    def _value(self, place: ReplaceableEntry) -> None:
        kind = type(place.value)
        (self._handlers.get(kind) or self._handler(kind))(self, place)

    def _handler(self, kind: type) -> Callable[["Contents", ReplaceableEntry], None]:
        handler = self._handlers[kind] = _handler_of(kind)
        return handler

    def container(self, place: ReplaceableEntry, base: Base) -> None:
        """List a container, and handle its entries."""
        value = place.value
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if type(value) in _EXACT and not value:
            self.empty.append(value)
            return
        self.containers.append((base, value, place.where))
        handlers, where = self._handlers, place.where
        for key, entry in dict.items(value) if base is DICT else _entries(base, value):
            kind = type(entry)
            if kind not in _INERT:
                (handlers.get(kind) or self._handler(kind))(self, ReplaceableEntry(base.put, value, key, entry, where))
            if type(key) not in _INERT:
                self._inside(key, where)

    def tensor(self, place: ReplaceableEntry) -> None:
        if place.put is not SET.put:
            _check_key(place)
            self.tensors.append(place)

    def array(self, place: ReplaceableEntry) -> None:
        if place.put is not SET.put:
            _check_key(place)
            self.arrays.append(place)

    def iterator(self, place: ReplaceableEntry) -> None:
        """List an iterator, or refuse one that cannot be copied."""
        if type(place.value) not in _COPYABLE or place.put is SET.put:
            raise NotLent(
                f"{called(place.where)} holds an iterator ({type(place.value).__name__}). A forward may advance it, "
                "and it cannot be put back. Keep it outside the model, or set it to None while the model is measured."
            )
        self.iterators.append(place)

    def in_a_tuple(self, place: ReplaceableEntry) -> None:
        """List a tuple that holds tensors, and handle the members of tuples and frozen sets."""
        plain = tuple if issubclass(type(place.value), tuple) else frozenset
        members = [*plain.__iter__(place.value)]
        kinds = {*map(type, members)}
        if kinds <= _INERT:
            return
        if plain is tuple and place.put is not SET.put and any(issubclass(kind, Tensor) for kind in kinds):
            self.tuples.append(place)
        for member in members:
            if not issubclass(type(member), (Tensor, np.ndarray)):
                self._value(place._replace(put=SET.put, value=member))

    def module(self, place: ReplaceableEntry) -> None:
        """Add a module that is held in a plain attribute or container."""
        name, key = place.where
        self._add(f"{name}.{key}" if name else str(key), place.value)

    def generator(self, place: ReplaceableEntry) -> None:
        if id(place.value) not in self._seen:
            self._seen.add(id(place.value))
            self.owned.append(place.value)

    def reference(self, place: ReplaceableEntry) -> None:
        """Add the module behind a weak reference, or list a weak reference to a tensor."""
        target = weakref.ref.__call__(place.value)
        if issubclass(type(target), nn.Module):
            self.module(place._replace(value=target))
        elif issubclass(type(target), Tensor) and type(place.value) is weakref.ref and place.put is not SET.put:
            self.references.append(place._replace(value=target))

    def outside(self, place: ReplaceableEntry) -> None:
        """Keep an object or a function for later: what modules hold themselves is read first."""
        if id(place.value) not in self._seen:
            self._seen.add(id(place.value))
            self._others.append(place)

    def _read_other(self, place: ReplaceableEntry) -> None:
        """An object that a module holds: its attributes and the containers among them. A function: its modules."""
        if issubclass(type(place.value), (FunctionType, MethodType, functools.partial)):
            self._search(self._parts(place.value), place.where)
        else:
            self._read_object(place)

    def _read_object(self, place: ReplaceableEntry) -> None:
        value = place.value
        attributes = _attributes(value)
        if attributes is not None:
            self.containers.append((DICT, attributes, place.where))
            wrapped = issubclass(type(value), (UserDict, UserList))
            for key, content in attributes.items():
                if wrapped and key == "data":
                    self._value(ReplaceableEntry(DICT.put, attributes, key, content, place.where))
                else:
                    self._inside(content, place.where)
        for member in self._members(type(value)):
            content = read_slot(value, member)
            self.slots.append((value, member, place.where))
            self._inside(content, place.where)

    def _inside(self, held: Any, where: tuple[str, Any]) -> None:
        """List a container in an object, and the containers in it; no copies are lent for their entries."""
        base = base_of(type(held))
        if base is not None and base.size(held) <= MOST and id(held) not in self._seen:
            self._seen.add(id(held))
            self.containers.append((base, held, where))
            for key, value in _entries(base, held):
                self._inside(key, where)
                self._inside(value, where)
        elif issubclass(type(held), Tensor):
            self.guarded.append((called(where), held))
        else:
            self._search([held], where)

    def _search(self, waiting: list[Any], where: tuple[str, Any]) -> None:
        """Find modules in what belongs to the program around the model; all else in it is left as it is."""
        while waiting and len(self._searched) < _MOST_OBJECTS:
            content = waiting.pop(0)
            kind = type(content)
            if kind in _INERT or content is _NOTHING or id(content) in self._searched:
                continue
            self._searched.add(id(content))
            handler, base = self._handlers.get(kind) or self._handler(kind), base_of(kind)
            if handler in (Contents.module, Contents.reference):
                handler(self, ReplaceableEntry(SET.put, None, None, content, where))
            elif base is not None:
                if base.size(content) <= MOST:
                    waiting += [part for entry in _entries(base, content) for part in entry]
            elif handler is Contents.in_a_tuple:
                waiting += (tuple if issubclass(kind, tuple) else frozenset).__iter__(content)
            elif handler is Contents.outside:
                waiting += self._parts(content)

    def _parts(self, value: Any) -> list[Any]:
        """The contents of an object or a function, as far as it is read without running its code."""
        if type(value) is MethodType:
            return [value.__self__, value.__func__]
        if type(value) is FunctionType:
            cells = [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY_CELL]
            return [*cells, value.__defaults__, value.__kwdefaults__]
        if issubclass(type(value), functools.partial):
            return [value.func, value.args, value.keywords]
        return [_attributes(value), *(read_slot(value, member) for member in self._members(type(value)))]


def _attributes(value: Any) -> dict[str, Any] | None:
    """The `__dict__` of an object, past a property of that name in its class."""
    for cls in type(value).__mro__:
        descriptor: Any = vars(cls).get("__dict__")
        if type(descriptor) in (GetSetDescriptorType, MemberDescriptorType):
            attributes = descriptor.__get__(value)
            return attributes if type(attributes) is dict else None
    return None


def base_of(kind: type) -> Base | None:
    """The base for a class of containers; None for other classes."""
    return next((base for base in BASES if base.kind in kind.__mro__), None)


def called(where: tuple[str, Any]) -> str:
    """The name of an attribute in an error message, such as "features.0.cache"."""
    return f"{where[0] or 'The model'}.{where[1]}"


def put_slot(module: Any, member: Any, value: Any) -> None:
    """Write a slot without calling `__setattr__`; delete its value if it had none."""
    if value is _NOTHING:
        try:
            member.__delete__(module)
        except AttributeError:
            return
    else:
        member.__set__(module, value)


def read_slot(module: Any, member: Any) -> Any:
    try:
        return member.__get__(module)
    except AttributeError:
        return _NOTHING


def lent_iterator(place: ReplaceableEntry) -> Any:
    return copy.copy(place.value)


def _nothing_to_do(contents: Contents, place: ReplaceableEntry) -> None:
    """Ignore a value that a forward cannot change."""


def _handler_of(kind: type) -> Callable[[Contents, ReplaceableEntry], None]:
    """The method of `Contents` for values of a class.

    Only the class is asked: `isinstance` would read the object's `__class__`, which an object may override.
    """
    base = base_of(kind)
    if base is not None:
        return lambda contents, place: contents.container(place, base)
    if kind is object or issubclass(kind, type):
        return _nothing_to_do
    for kinds, handler in _HANDLERS:
        if issubclass(kind, kinds):
            return handler
    if any("__next__" in vars(cls) for cls in kind.__mro__) and not issubclass(kind, io.IOBase):
        return Contents.iterator
    package = str(kind.__module__).partition(".")[0]
    library = package in sys.stdlib_module_names or package in _LIBRARIES
    return _nothing_to_do if library and not issubclass(kind, _FACTORIES) else Contents.outside


_HANDLERS: tuple[tuple[Any, Callable[[Contents, ReplaceableEntry], None]], ...] = (
    (Tensor, Contents.tensor),
    (nn.Module, Contents.module),
    ((tuple, frozenset), Contents.in_a_tuple),
    (np.ndarray, Contents.array),
    (_GENERATORS, Contents.generator),
    (weakref.ref, Contents.reference),
    ((weakref.ProxyType, weakref.CallableProxyType), _nothing_to_do),
    ((FunctionType, MethodType, functools.partial), Contents.outside),
    ((torch.optim.Optimizer, threading.Thread), _nothing_to_do),
)


def _entries(base: Base, container: Any) -> Iterator[tuple[Any, Any]]:
    *keys, values = (of_container for of_container, _ in base.parts)
    return zip(keys[0](container) if keys else itertools.count(), values(container), strict=False)


def _check_key(place: ReplaceableEntry) -> None:
    """Refuse a key that cannot be hashed, before anything moves: lending a copy in a dict hashes the key."""
    if type(place.key) in (str, int):
        return
    try:
        hash(place.key)
    except Exception as error:
        raise NotLent(
            f"{called(place.where)} holds a tensor under a key that cannot be hashed ({error!r}), so no copy can be "
            "lent there. Use a plain key, such as a string."
        ) from error
