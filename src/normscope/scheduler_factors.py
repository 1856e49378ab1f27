"""The factors that a torch learning rate scheduler puts on the base rate, step by step."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch

# The keys of a parameter group that hold its base rate; the first key that is there counts.
BASE_RATE_KEYS = ("max_lr", "initial_lr", "lr")


def base_rate(group: Mapping[str, Any]) -> float:
    """The learning rate that a schedule multiplies: a scheduler keeps it in the group beside the present rate.

    Example:
        >>> base_rate({"lr": 0.01, "initial_lr": 0.1}), base_rate({"lr": 0.01})
        (0.1, 0.01)
    """
    return float(next(group[key] for key in BASE_RATE_KEYS if group.get(key) is not None))


def factors_of_scheduler(optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> tuple[float, ...]:
    """The factors of a scheduler on the base rate of the optimizer's largest group; both are used up by the call."""
    groups = optimizer.param_groups
    group = max(groups, key=base_rate)
    base, factors = base_rate(group), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a scheduler that is stepped without its optimizer, or beyond its end
        for _ in range(steps):
            factors.append(float(group["lr"]) / base if base else 1.0)
            try:
                scheduler.step()
            except ValueError:
                break  # OneCycleLR at its end
    return tuple(factors)
