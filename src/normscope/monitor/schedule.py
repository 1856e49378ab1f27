"""The steps at which the Monitor takes snapshots, and the time budget that may postpone them."""

import math
import operator
import time
from collections.abc import Callable, Iterable
from typing import Any

PER_DECADE = 8


def schedule(every: int | str | Iterable[int]) -> Callable[[int], bool]:
    """A function that says whether a snapshot is due at a step.

    Args:
        every: a number n for every n-th step; "log" for eight steps a decade (0, 1, 2, 3, 4, 6, 7, 10, 13, ...); or
            the step numbers themselves.

    Raises:
        ValueError: any other text, a number below 1, or a step that is not a whole number.

    Example:
        >>> logarithmic = schedule("log")
        >>> [step for step in range(25) if logarithmic(step)]
        [0, 1, 2, 3, 4, 6, 7, 10, 13, 18, 24]
    """
    if isinstance(every, str):
        if every == "log":
            return _logarithmic
        raise ValueError(f"every is a number of steps, 'log', or the steps themselves; got {every!r}.")
    steps: Any = every
    listed = isinstance(steps, Iterable) and getattr(steps, "ndim", 1) > 0
    try:
        # Plain ints: elements of a tensor are hashed by identity, not by value.
        numbers = [operator.index(step) for step in (steps if listed else (steps,))]
    except TypeError:
        raise ValueError(
            f"every is a number of steps, 'log', or the steps themselves, whole numbers; got {every!r}."
        ) from None
    if listed:
        return frozenset(numbers).__contains__
    if numbers[0] < 1:
        raise ValueError(f"every counts steps, from 1 on; got {every}.")
    return lambda step: step % numbers[0] == 0


def _logarithmic(step: int) -> bool:
    return step == 0 or step == round(10 ** (round(PER_DECADE * math.log10(step)) / PER_DECADE))


class Budget:
    """Keeps the time spent on snapshots below a share of the training's own time.

    The training's own time runs from its first step to the present one, less the time spent on snapshots. The first
    snapshot is always allowed. A later one is allowed if the time spent so far, plus the duration of the last
    snapshot, stays within the share.

    Args:
        share: largest share of the training's time, between 0 and 1; None for no limit.
        clock: a function that returns seconds.
    """

    def __init__(self, share: float | None, clock: Callable[[], float] = time.perf_counter) -> None:
        if share is not None and not 0 < share < 1:
            raise ValueError(
                f"budget is the share of the training's time for measuring, between 0 and 1, or None; got {share}."
            )
        self.share = share
        self.spent = 0.0
        self._last = 0.0
        self._clock = clock
        self._first: float | None = None
        self.training = 0.0

    def step(self) -> None:
        """Count the training's time up to this step; time after the last step is not counted."""
        now = self._clock()
        if self._first is None:
            self._first = now
        self.training = now - self._first - self.spent

    @property
    def used(self) -> float:
        """The time spent on snapshots, as a share of the training's own time."""
        return self.spent / self.training if self.training else 0.0

    def allows(self) -> bool:
        """Whether another snapshot, as long as the last one, stays within the budget."""
        if self.share is None or not self.spent:
            return True
        return self.spent + self._last <= self.share * self.training

    def pay(self, seconds: float, *, follows: bool = False) -> None:
        """Add the duration of a snapshot; `follows` if it completes the one before, so that the next will cost both."""
        self.spent += seconds
        self._last = seconds + (self._last if follows else 0.0)
