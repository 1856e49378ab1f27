"""Gradient descent on a few batches: the smallest learning rate at which its loss exceeds a multiple of its start."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def crossing(holds: Callable[[float], bool], low: float, high: float, decades: float) -> float:
    """The smallest rate where `holds` is true, by bisection in decades; an end of the range where it never changes.

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
    """A function of lr: whether the loss exceeds `factor` times its start, or is nan, within `steps` steps.

    stream: batches, taken in turn; a single batch is used at every step. Parameters without gradient stay fixed. A
    factor of 1 marks the first rise, 10^6 divergence, as in sweeps.
    """

    def holds(lr: float) -> bool:
        import torch

        model, first_loss = network(), math.nan
        sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
        for step in range(steps):
            tick(step)
            x, y = stream[step % len(stream)]
            loss = loss_fn(model(x), y)
            now = float(loss.detach())
            first_loss = now if step == 0 else first_loss
            if not now <= factor * first_loss:
                return True
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        return False

    return holds
