"""Read and set the learning rate of an optimizer; parameter groups keep their ratios, a scheduler follows."""

from typing import Any

import torch
from torch import Tensor

from normscope.scheduler_factors import BASE_RATE_KEYS, base_rate

# The keys of a parameter group that hold learning rates.
_RATES = (*BASE_RATE_KEYS, "min_lr")


def largest_rate(optimizer: torch.optim.Optimizer) -> float:
    """The largest base rate of the groups: the one number that stands for all of them.

    Raises:
        ValueError: a group has no learning rate.
    """
    if any(group.get("lr") is None for group in optimizer.param_groups):
        raise ValueError(
            f"{type(optimizer).__name__} has no learning rate in its param_groups, so there is none to tune. Hand in "
            "an optimizer with one, such as torch.optim.SGD or torch.optim.AdamW."
        )
    return max(base_rate(group) for group in optimizer.param_groups)


def set_rate(optimizer: torch.optim.Optimizer, rate: float, scheduler: Any = None) -> None:
    """Multiply all learning rates of the optimizer, and those its scheduler keeps, so that the largest becomes `rate`.

    Groups that all have the rate 0 get `rate` each.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> sgd = torch.optim.SGD([{"params": [layer.weight], "lr": 0.1}, {"params": [layer.bias], "lr": 0.2}])
        >>> set_rate(sgd, 1.0)
        >>> [group["lr"] for group in sgd.param_groups]
        [0.5, 1.0]
    """
    largest = largest_rate(optimizer)
    for group in optimizer.param_groups:
        for key in _RATES:
            if group.get(key) is not None:
                _assign(group, key, rate * _share(group[key], largest))
    _follow(scheduler, rate, largest)


def _share(value: Any, largest: float) -> float:
    return float(value) / largest if largest else 1.0


def _assign(group: dict[str, Any], key: str, value: float) -> None:
    """Set a number; a rate that is a tensor (capturable optimizers) is written in place."""
    if isinstance(group[key], Tensor):
        with torch.no_grad():
            group[key].fill_(value)
    else:
        group[key] = value


def _follow(scheduler: Any, rate: float, largest: float) -> None:
    """Scale the rates that a scheduler of torch keeps: its own, and those of the schedulers inside it."""
    if scheduler is None:
        return
    for name in ("base_lrs", "max_lrs", "min_lrs", "_last_lr"):
        kept = getattr(scheduler, name, None)
        if isinstance(kept, list):
            setattr(scheduler, name, [rate * _share(each, largest) for each in kept])
    for inner in getattr(scheduler, "_schedulers", ()):
        _follow(inner, rate, largest)


class Factors:
    """A scheduler that multiplies the present rates by one factor for each step.

    Args:
        optimizer: the base rates of its groups are the ones multiplied.
        factors: the factor of each step; the last one stays after their end.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, factors: tuple[float, ...]) -> None:
        self._optimizer, self._factors, self._done = optimizer, factors, 0
        self._rates = [base_rate(group) for group in optimizer.param_groups]
        self._set()

    def step(self) -> None:
        """Go on to the factor of the next step."""
        self._done += 1
        self._set()

    def _set(self) -> None:
        factor = self._factors[min(self._done, len(self._factors) - 1)]
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            _assign(group, "lr", rate * factor)
