"""When to look: at which steps, and how often a budget of time allows."""

import math
import operator
import time
from collections.abc import Callable, Iterable
from typing import Any

PER_DECADE = 8


def schedule(every: int | str | Iterable[int]) -> Callable[[int], bool]:
    """Whether a step is looked at: every n-th, "log" (eight a decade: 0, 1, 2, 3, 4, 6, 7, 10, 13, ...), or a list.

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
        # By value: the hash of a tensor's elements is their identity.
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
    """Keeps the time spent on looking at a share of the training's own.

    The training's time goes from its first step to its last, without what looking took of it. The first look is always
    allowed; it is paid back before the next. A look is allowed once the share, with a look as long as the last one,
    would stay within the budget.
    """

    def __init__(self, share: float | None, clock: Callable[[], float] = time.perf_counter) -> None:
        if share is not None and not 0 < share < 1:
            raise ValueError(f"budget is the share of time for measuring, between 0 and 1, or None; got {share}.")
        self.share = share
        self.spent = 0.0
        self._last = 0.0
        self._clock = clock
        self._first: float | None = None
        self.training = 0.0

    def step(self) -> None:
        """Count the training's time up to this step; what follows the last step is not counted."""
        now = self._clock()
        if self._first is None:
            self._first = now
        self.training = now - self._first - self.spent

    @property
    def used(self) -> float:
        """The time spent on looking, as a share of the training's."""
        return self.spent / self.training if self.training else 0.0

    def allows(self) -> bool:
        if self.share is None or not self.spent:
            return True
        return self.spent + self._last <= self.share * self.training

    def pay(self, seconds: float, *, follows: bool = False) -> None:
        """follows: the look belongs to the one before, and the next will cost both."""
        self.spent += seconds
        self._last = seconds + (self._last if follows else 0.0)
