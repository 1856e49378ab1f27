r"""The schedule of a training: the factor on the learning rate at each step t of T.

    constant    1
    linear      1 - t / T
    cosine      (1 + cos(pi t / T)) / 2

A callable is one as `torch.optim.lr_scheduler.LambdaLR` takes it: schedule(t) returns the factor.
"""

import math
from collections.abc import Callable
from typing import Any

from normscope.choices import check_choice

Schedule = str | Callable[[int], float]
_NAMED: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1.0 + math.cos(math.pi * share)),
}


def factors_of(schedule: Schedule, steps: int) -> tuple[float, ...]:
    """The factor of every step.

    Raises:
        ValueError: an unknown name, or a callable that does not return finite numbers from 0 on.

    Example:
        >>> factors_of("linear", 4), factors_of(lambda step: 0.5**step, 3)
        ((1.0, 0.75, 0.5, 0.25), (1.0, 0.5, 0.25))
    """
    if callable(schedule):
        given = [schedule(step) for step in range(steps)]
        if not all(_is_factor(value) for value in given):
            wrong = next(value for value in given if not _is_factor(value))
            raise ValueError(f"schedule(step) returns the factor on the learning rate, from 0 on; got {wrong!r}.")
        if not any(given):
            raise ValueError("schedule(step) is 0 at every step, so nothing would be trained.")
        return tuple(map(float, given))
    check_choice("schedule", schedule, _NAMED)
    return tuple(_NAMED[schedule](step / steps) for step in range(steps))


def _is_factor(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def decays(factors: tuple[float, ...]) -> bool:
    """Whether the learning rate ends below a fifth of its largest value.

    Example:
        >>> decays(factors_of("cosine", 100)), decays(factors_of("constant", 100))
        (True, False)
    """
    return factors[-1] < 0.2 * max(factors)
