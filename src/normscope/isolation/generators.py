"""Read and restore the state of every random generator that a forward pass can draw from."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch


class Generators:
    """The random generators of torch (CPU and every CUDA device), Python and NumPy, and those that modules own.

    Args:
        owned: objects among which generators are looked for; others are ignored.
    """

    def __init__(self, owned: Iterable[object] = ()) -> None:
        self._pairs: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
            (torch.get_rng_state, torch.set_rng_state),
            (random.getstate, random.setstate),
            (lambda: np.random.get_state(legacy=False), np.random.set_state),  # noqa: NPY002
        ]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self._pairs += [_cuda_access(index) for index in range(torch.cuda.device_count())]
        self._pairs += [pair for value in owned if (pair := _owned_access(value)) is not None]
        self._states: list[Any] = []

    def save(self) -> None:
        """Store the present states."""
        self._states = self.states()

    def states(self) -> list[Any]:
        """The present states of all generators."""
        return [read() for read, _ in self._pairs]

    def restore(self, states: list[Any] | None = None) -> None:
        """Set the generators to `states`, or to the saved ones."""
        for (_, write), state in zip(self._pairs, states or self._states, strict=True):
            write(state)

    def put_back(self) -> list[tuple[str, BaseException]]:
        """Set all generators to the saved states, even if one of them fails.

        Returns:
            Names of the generators that could not be set, each with the exception.
        """
        failed: list[tuple[str, BaseException]] = []
        for (_, write), state in zip(self._pairs, self._states, strict=True):
            try:
                write(state)
            except BaseException as error:
                failed.append(("a random generator", error))
        return failed

    def moved(self) -> bool:
        """Whether a random number was drawn since `save`."""
        return any(not _same(a, b) for a, b in zip(self.states(), self._states, strict=True))


def _cuda_access(index: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: torch.cuda.get_rng_state(index), lambda state: torch.cuda.set_rng_state(state, index)


def _owned_access(value: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Functions that read and write the state of a generator; None for other objects.

    They call the methods of the base classes: a subclass may override them with anything.
    """
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
