"""Store and restore the entries of containers through the methods of their base classes.

No override in a subclass is ever called: a frozen dict whose `update` raises, a list that counts its calls and a set
without `copy` are read as a dict, a list and a set. Entries are compared by identity: `==` between tensors gives a
tensor, and `==` of other objects may raise.
"""

import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple


class Base(NamedTuple):
    """The methods of one kind of container.

    kind: the base class. size: number of entries. read: makes a plain copy. parts: pairs of functions that iterate over
    the entries of a container and of its copy (for a dict, its keys and its values). fill: replaces all entries of a
    container by those of a copy. put: replaces one entry.
    """

    kind: type
    size: Callable[[Any], int]
    read: Callable[[Any], Any]
    parts: tuple[tuple[Callable[[Any], Iterable[Any]], Callable[[Any], Iterable[Any]]], ...]
    fill: Callable[[Any, Any], None]
    put: Callable[[Any, Any, Any], None]


def _fill_dict(container: dict[Any, Any], copied: dict[Any, Any]) -> None:
    # Attribute dicts of one class share their keys in memory (PEP 412) until an entry is removed, so clear only if the
    # keys differ.
    if dict.__len__(container) != len(copied) or not all(map(operator.is_, dict.__iter__(container), copied)):
        dict.clear(container)
    # `update` reuses the hashes stored with the keys, and does not call `__hash__`.
    dict.update(container, copied)


def _read_dict(container: dict[Any, Any]) -> dict[Any, Any]:
    # For a subclass with its own `__iter__`, `dict.copy` would call that `__iter__`.
    return dict.copy(container) if type(container) is dict else dict(dict.items(container))


def _read_ordered(container: OrderedDict[Any, Any]) -> dict[Any, Any]:
    return dict(zip(OrderedDict.__iter__(container), OrderedDict.values(container), strict=True))


def _fill_ordered(container: OrderedDict[Any, Any], copied: dict[Any, Any]) -> None:
    # The methods of dict would not update the OrderedDict's own list of the order.
    OrderedDict.clear(container)
    for key, value in copied.items():
        OrderedDict.__setitem__(container, key, value)


def _fill_deque(container: deque[Any], copied: list[Any]) -> None:
    deque.clear(container)
    deque.extend(container, copied)


def _fill_set(container: set[Any], copied: set[Any]) -> None:
    set.clear(container)
    set.update(container, copied)


def _fill_list(container: list[Any], copied: list[Any]) -> None:
    list.__setitem__(container, slice(None), copied)


def _by_id(container: set[Any]) -> list[Any]:
    return sorted(set.__iter__(container), key=id)


def _no_place(container: Any, key: Any, value: Any) -> None:
    raise TypeError("The entries of a set cannot be replaced one by one.")


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
# A class counts as the first of these that it derives from.
BASES = (ORDERED, DICT, LIST, DEQUE, SET)


class Kept:
    """The present entries of containers, to be put back later.

    Args:
        containers: triples of base, container, and the name that an error message gives the container.
    """

    def __init__(self, containers: Iterable[tuple[Base, Any, Any]]) -> None:
        self._groups: list[tuple[Base, list[Any], list[Any], list[Any]]] = []
        by_base: dict[int, tuple[Base, list[Any], list[Any]]] = {}
        for base, container, name in containers:
            _, group, names = by_base.setdefault(id(base), (base, [], []))
            group.append(container)
            names.append(name)
        for base, group, names in by_base.values():
            self._groups.append((base, group, [*map(base.read, group)], names))

    def same(self) -> bool:
        """Whether all containers hold the very same objects; cheap, since it runs before each pass."""
        return all(_same(base, group, copies) for base, group, copies, _ in self._groups)

    def put_back(self) -> list[tuple[Any, BaseException]]:
        """Restore every container that has changed, and try once more those that failed.

        Returns:
            The names of the containers that could not be restored, each with the exception; and interrupts, which the
            caller raises.
        """
        failed = self._fill_changed()
        interrupts = [(name, error) for name, error in failed if not isinstance(error, Exception)]
        return interrupts + self._fill_changed() if failed else []

    def _fill_changed(self) -> list[tuple[Any, BaseException]]:
        failed = []
        for base, group, copies, names in self._groups:
            if _same(base, group, copies):
                continue
            for container, copy, name in zip(group, copies, names, strict=True):
                try:
                    if not _same(base, (container,), (copy,)):
                        base.fill(container, copy)
                        if not _same(base, (container,), (copy,)):
                            raise RuntimeError("its entries are not the former ones")
                except BaseException as error:
                    failed.append((name, error))
        return failed


def _same(base: Base, containers: Sequence[Any], copies: Sequence[Any]) -> bool:
    if [*map(base.size, containers)] != [*map(len, copies)]:
        return False
    return all(
        all(map(operator.is_, _joined(of_container, containers), _joined(of_copy, copies)))
        for of_container, of_copy in base.parts
    )


def _joined(entries: Callable[[Any], Iterable[Any]], containers: Sequence[Any]) -> Iterator[Any]:
    return chain.from_iterable(map(entries, containers))
