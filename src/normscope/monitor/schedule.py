"""The steps at which the Monitor takes snapshots, and the budget of gradient passes that may postpone them."""

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
    """Keeps the gradient passes of snapshots below a share of the training's own.

    A gradient pass is one forward and one backward; a forward alone is a third of one. The first snapshot is always
    allowed. A later one is allowed if the passes spent so far, plus those of the last snapshot, stay within the share
    of the passes that training has made. No clock is asked, so a run repeated takes its snapshots at the same steps.
    The time is kept beside it, for information.

    Args:
        share: largest share of the training's gradient passes, between 0 and 1; None for no limit.
        each_step: gradient passes of one training step.
        clock: a function that returns seconds.
    """

    def __init__(self, share: float | None, each_step: int = 1, clock: Callable[[], float] = time.perf_counter) -> None:
        if share is not None and not 0 < share < 1:
            raise ValueError(
                "budget is the share of the training's gradient passes for measuring, between 0 and 1, or None; got "
                f"{share}."
            )
        self.share = share
        self.training = 0
        self.spent = 0.0
        self._each_step = each_step
        self._last = 0.0
        self._clock = clock
        self._first: float | None = None
        self._seconds = self._seconds_spent = 0.0

    def step(self) -> None:
        """Count one training step, and the time up to it; time after the last step is not counted."""
        self.training += self._each_step
        now = self._clock()
        if self._first is None:
            self._first = now
        self._seconds = now - self._first - self._seconds_spent

    @property
    def used(self) -> float:
        """The gradient passes of snapshots, as a share of the training's own."""
        return self.spent / self.training if self.training else 0.0

    @property
    def time_used(self) -> float:
        """The time spent on snapshots, as a share of the training's own time from its first step to the present one."""
        return self._seconds_spent / self._seconds if self._seconds else 0.0

    def allows(self) -> bool:
        """Whether another snapshot, as costly as the last one, stays within the budget."""
        if self.share is None or not self.spent:
            return True
        return self.spent + self._last <= self.share * self.training

    def pay(self, passes: float, seconds: float, *, follows: bool = False) -> None:
        """Add the cost of a snapshot; `follows` if it completes the one before, so that the next will cost both."""
        self.spent += passes
        self._last = passes + (self._last if follows else 0.0)
        self._seconds_spent += seconds
