"""Every random generator a forward pass can draw from: read together, put back together."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch


class Generators:
    """torch's on the CPU and on every CUDA device, Python's, numpy's, and those that modules own.

    `save` remembers their states; `restore` puts them back, so that two forwards draw the same; `moved` says whether
    anything was drawn since.
    """

    def __init__(self, owned: Iterable[object] = ()) -> None:
        self._pairs: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
            (torch.get_rng_state, torch.set_rng_state),
            (random.getstate, random.setstate),
            (lambda: np.random.get_state(legacy=False), np.random.set_state),  # noqa: NPY002
        ]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self._pairs += [_of_cuda(index) for index in range(torch.cuda.device_count())]
        self._pairs += [pair for value in owned if (pair := _of_owned(value)) is not None]
        self._states: list[Any] = []

    def save(self) -> None:
        self._states = self.states()

    def states(self) -> list[Any]:
        return [read() for read, _ in self._pairs]

    def restore(self, states: list[Any] | None = None) -> None:
        for (_, write), state in zip(self._pairs, states or self._states, strict=True):
            write(state)

    def put_back(self) -> list[tuple[str, BaseException]]:
        """As `restore`, each whatever happens to the others; gives what could not be, with what was raised."""
        failed: list[tuple[str, BaseException]] = []
        for (_, write), state in zip(self._pairs, self._states, strict=True):
            try:
                write(state)
            except BaseException as error:
                failed.append(("a random generator", error))
        return failed

    def moved(self) -> bool:
        return any(not _same(a, b) for a, b in zip(self.states(), self._states, strict=True))


def _of_cuda(index: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: torch.cuda.get_rng_state(index), lambda state: torch.cuda.set_rng_state(state, index)


def _of_owned(value: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Through the base classes' methods: those of a subclass may do anything."""
    if isinstance(value, torch.Generator):
        return lambda: torch.Generator.get_state(value), lambda state: torch.Generator.set_state(value, state)
    if isinstance(value, np.random.Generator):
        bits: Any = np.random.Generator.bit_generator.__get__(value)
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    if isinstance(value, np.random.RandomState):
        seeded = np.random.RandomState
        return lambda: seeded.get_state(value, legacy=False), lambda state: seeded.set_state(value, state)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return lambda: random.Random.getstate(value), lambda state: random.Random.setstate(value, state)
    return None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return all(_same(a[key], b[key]) for key in a)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)
