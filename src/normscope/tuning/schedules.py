r"""The schedule of a training: the factor on the learning rate at each step t of T.

    constant    1
    linear      1 - t / T
    cosine      (1 + cos(pi t / T)) / 2

A callable is one as `torch.optim.lr_scheduler.LambdaLR` takes it: schedule(t) returns the factor.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from normscope.messages.choices import check_choice

Schedule = str | Callable[[int], float]
_NAMED: dict[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1.0 + math.cos(math.pi * share)),
}

# Factors that differ by less than this are those of one schedule.
_SAME = 1e-6


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


def without_warm_up(factors: tuple[float, ...], steps: int) -> tuple[float, ...] | None:
    """The largest factor at every step, if the first `steps` factors all lie below half of it; else None.

    A rehearsal that lasts for less than the warm-up would try every rate far below its size.

    Example:
        >>> without_warm_up(tuple(min(1.0, step / 100) for step in range(1000)), 8), without_warm_up((1.0, 0.5), 2)
        ((1.0,), None)
    """
    most = max(factors)
    return (most,) if max(factors[:steps], default=most) < 0.5 * most else None


def schedule_in_words(factors: Sequence[float], steps: int) -> str:
    """The name of the schedule that has these factors; "your scheduler" where there is none.

    Example:
        >>> schedule_in_words((1.0, 0.75, 0.5, 0.25), 4), schedule_in_words((0.1, 1.0, 0.5, 0.1), 4)
        ('linear', 'your scheduler')
    """
    for name in _NAMED:
        pairs = zip(factors, factors_of(name, steps), strict=False)
        if len(factors) == steps and all(abs(factor - known) < _SAME for factor, known in pairs):
            return name
    return "your scheduler"


def peak_in_words(factors: Sequence[float]) -> str:
    """A sentence on the largest factor of a schedule: the rate that is named is multiplied by it.

    Example:
        >>> peak_in_words((0.0, 0.5, 1.0, 0.5))
        'The named rate is the peak of the schedule, at step 2 of 4; its factors lie between 0 and 1.'
    """
    least, most = min(factors), max(factors)
    peak = "the peak" if math.isclose(most, 1.0) else f"multiplied by {most:.3g} at the peak"
    return (
        f"The named rate is {peak} of the schedule, at step {factors.index(most)} of {len(factors):,}; its factors "
        f"lie between {least:.3g} and {most:.3g}."
    )
