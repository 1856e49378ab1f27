"""The prior: the learning rate that serves an optimizer best before anything of the network is known.

The rates are those of the common defaults; `benchmarks/tuning/calibrate.py` fits the numbers here on the development
tasks of the race and prints how well they do on tasks left out.
"""

from dataclasses import dataclass
from typing import Any

import torch

from normscope.tuning.learning_rates import largest_rate

# By class name: the rate to start the search from. For SGD it is a rate at momentum 0.9.
_SGD, _ADAM, _ADAGRAD = 0.1, 1e-3, 1e-2
_RATES = {
    "SGD": _SGD,
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "NAdam": _ADAM,
    "RAdam": _ADAM,
    "Adamax": 2 * _ADAM,
    "RMSprop": _ADAM,
    "Adagrad": _ADAGRAD,
}
# Momentum mu multiplies the length of a step by 1 / (1 - mu) in the long run.
_MOMENTUM = 0.9


@dataclass(frozen=True)
class Prior:
    """The rate to start from, and the words that say where it comes from."""

    rate: float
    words: str


def prior_of(optimizer: torch.optim.Optimizer) -> Prior:
    """The prior of an optimizer; for one of an unknown class, the learning rate it was given.

    Example:
        >>> prior_of(torch.optim.AdamW([torch.zeros(1, requires_grad=True)])).rate
        0.001
    """
    name = type(optimizer).__name__
    if name not in _RATES:
        rate = largest_rate(optimizer)
        return Prior(rate if rate > 0 else _ADAM, f"the rate your {name} was given")
    rate = _RATES[name]
    if name == "SGD":
        rate *= _gain(optimizer.param_groups[0]) / (1 - _MOMENTUM)
        momentum = optimizer.param_groups[0]["momentum"]
        name = f"SGD with momentum {momentum:g}" if momentum else "plain SGD"
    return Prior(rate, f"the usual rate of {name}")


def _gain(group: dict[str, Any]) -> float:
    """The learning rate that makes steps of length 1 in the long run."""
    momentum = float(group["momentum"])
    return (1 - momentum) / (1 - float(group["dampening"])) if momentum else 1.0
