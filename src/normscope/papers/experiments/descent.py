"""Gradient descent on a few batches: the learning rate from which on its loss goes above a multiple of its start."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def crossing(holds: Callable[[float], bool], low: float, high: float, decades: float) -> float:
    """The rate from which on `holds` is true, by bisection in decades between two rates; an end where it never turns.

    Example:
        >>> round(crossing(lambda rate: rate > 0.3, 0.01, 10.0, 0.01), 2)
        0.3
    """
    a, b = math.log10(low), math.log10(high)
    while b - a > decades:
        middle = (a + b) / 2
        a, b = (a, middle) if holds(10**middle) else (middle, b)
    return 10 ** ((a + b) / 2)


def goes_above(
    factor: float,
    network: "Callable[[], torch.nn.Module]",
    loss_fn: Callable[..., "torch.Tensor"],
    stream: Sequence[tuple[Any, Any]],
    *,
    steps: int,
    tick: Callable[[int], None],
    momentum: float = 0.0,
) -> Callable[[float], bool]:
    """lr -> whether the loss exceeds `factor` times its start, or is no number, within so many steps from a new start.

    stream: batches, taken in turn; one alone is the same at every step. Parameters that need no gradient stay. A factor
    of 1 is the first rise; 10^6 is divergence, as in sweeps.
    """

    def holds(lr: float) -> bool:
        import torch

        model, start = network(), math.nan
        sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        for step in range(steps):
            tick(step)
            x, y = stream[step % len(stream)]
            loss = loss_fn(model(x), y)
            now = float(loss.detach())
            start = now if step == 0 else start
            if not now <= factor * start:
                return True
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        return False

    return holds
