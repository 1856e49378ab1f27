"""Containers read and written through the methods of their base classes: no override in a subclass is ever called.

A frozen dict whose `update` raises, a list that counts its calls, a set without `copy` are a dict, a list and a set all
the same. Entries are compared by identity, since tensors have no plain equality and other values may raise in theirs.
"""

import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple


class Base(NamedTuple):
    """The methods of one kind of container.

    read: a plain copy. parts: iterators over the entries of a container, each with the one over those of its copy.
    fill: gives a container the entries of a copy. put: replaces one entry.
    """

    kind: type
    size: Callable[[Any], int]
    read: Callable[[Any], Any]
    parts: tuple[tuple[Callable[[Any], Iterable[Any]], Callable[[Any], Iterable[Any]]], ...]
    fill: Callable[[Any, Any], None]
    put: Callable[[Any, Any, Any], None]


def _fill_dict(container: dict[Any, Any], held: dict[Any, Any]) -> None:
    # The attributes of a module share their keys with others of its class for as long as none is taken out.
    if dict.__len__(container) != len(held) or not all(map(operator.is_, dict.__iter__(container), held)):
        dict.clear(container)
    # Both go by the hashes stored with the keys.
    dict.update(container, held)


def _read_dict(container: dict[Any, Any]) -> dict[Any, Any]:
    # Of a class with an `__iter__` of its own, `dict.copy` would ask for its keys.
    return dict.copy(container) if type(container) is dict else dict(dict.items(container))


def _read_ordered(container: OrderedDict[Any, Any]) -> dict[Any, Any]:
    return dict(zip(OrderedDict.__iter__(container), OrderedDict.values(container), strict=True))


def _fill_ordered(container: OrderedDict[Any, Any], held: dict[Any, Any]) -> None:
    # The methods of dict would leave the list of the order behind.
    OrderedDict.clear(container)
    for key, value in held.items():
        OrderedDict.__setitem__(container, key, value)


def _fill_deque(container: deque[Any], held: list[Any]) -> None:
    deque.clear(container)
    deque.extend(container, held)


def _fill_set(container: set[Any], held: set[Any]) -> None:
    set.clear(container)
    set.update(container, held)


def _fill_list(container: list[Any], held: list[Any]) -> None:
    list.__setitem__(container, slice(None), held)


def _by_id(container: set[Any]) -> list[Any]:
    return sorted(set.__iter__(container), key=id)


def _no_place(container: Any, key: Any, value: Any) -> None:
    raise TypeError("A set has no places.")


def _deque_as_list(container: deque[Any]) -> list[Any]:
    return [*deque.__iter__(container)]


_put: Any = operator.attrgetter("__setitem__")
DICT = Base(
    dict,
    dict.__len__,
    _read_dict,
    ((dict.__iter__, dict.__iter__), (dict.values, dict.values)),
    _fill_dict,
    _put(dict),
)
ORDERED = Base(
    OrderedDict,
    dict.__len__,
    _read_ordered,
    ((OrderedDict.__iter__, dict.__iter__), (OrderedDict.values, dict.values)),
    _fill_ordered,
    _put(OrderedDict),
)
LIST = Base(list, list.__len__, list.copy, ((list.__iter__, list.__iter__),), _fill_list, _put(list))
DEQUE = Base(deque, deque.__len__, _deque_as_list, ((deque.__iter__, list.__iter__),), _fill_deque, _put(deque))
SET = Base(set, set.__len__, set, ((_by_id, _by_id),), _fill_set, _no_place)
# A class is taken for the first of these that it derives from.
BASES = (ORDERED, DICT, LIST, DEQUE, SET)


class Kept:
    """What containers hold now, to be put back later.

    Args:
        containers: each with its base and a name to call it by if it cannot be put back.
    """

    def __init__(self, containers: Iterable[tuple[Base, Any, Any]]) -> None:
        self._groups: list[tuple[Base, list[Any], list[Any], list[Any]]] = []
        by_base: dict[int, tuple[Base, list[Any], list[Any]]] = {}
        for base, container, name in containers:
            _, found, names = by_base.setdefault(id(base), (base, [], []))
            found.append(container)
            names.append(name)
        for base, found, names in by_base.values():
            self._groups.append((base, found, [*map(base.read, found)], names))

    def same(self) -> bool:
        """Whether all of them hold the very same objects; a few comparisons for all, made before each pass."""
        return all(_same(base, found, held) for base, found, held, _ in self._groups)

    def put_back(self) -> list[tuple[Any, BaseException]]:
        """Fill again each container that has changed, and once more those that failed.

        Returns: the names of the containers that could not be filled, with what was raised; and interrupts, which are
        the caller's to raise.
        """
        failed = self._fill_changed()
        interrupts = [(name, error) for name, error in failed if not isinstance(error, Exception)]
        return interrupts + self._fill_changed() if failed else []

    def _fill_changed(self) -> list[tuple[Any, BaseException]]:
        failed = []
        for base, found, held, names in self._groups:
            if _same(base, found, held):
                continue
            for container, copy, name in zip(found, held, names, strict=True):
                try:
                    if not _same(base, (container,), (copy,)):
                        base.fill(container, copy)
                        if not _same(base, (container,), (copy,)):
                            raise RuntimeError("it does not hold what it held")
                except BaseException as error:
                    failed.append((name, error))
        return failed


def _same(base: Base, some: Sequence[Any], others: Sequence[Any]) -> bool:
    if [*map(base.size, some)] != [*map(len, others)]:
        return False
    return all(all(map(operator.is_, _joined(there, some), _joined(here, others))) for there, here in base.parts)


def _joined(entries: Callable[[Any], Iterable[Any]], containers: Sequence[Any]) -> Iterator[Any]:
    return chain.from_iterable(map(entries, containers))
