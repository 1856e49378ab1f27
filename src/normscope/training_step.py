"""The parts of one training step: the gradient of some batches, clipping, and the step of the optimizer."""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from normscope.objective import Objective


def add_gradient(
    objective: Objective,
    model: nn.Module,
    parts: Sequence[Any],
    device: torch.device,
    *,
    scaler: Any = None,
    autocast: torch.dtype | None = None,
) -> Tensor:
    """Add the gradient of the mean loss of `parts` to every `.grad`; returns this loss.

    Raises:
        ValueError: a loss that is not a scalar.
    """
    total = torch.zeros((), device=device)
    for batch in parts:
        with nullcontext() if autocast is None else torch.autocast(device.type, autocast):
            loss = objective(model, batch)
        if loss.ndim:
            raise ValueError(f"loss_fn must return a scalar; got shape {tuple(loss.shape)}. Take its mean or its sum.")
        loss = loss if len(parts) == 1 else loss / len(parts)
        (loss if scaler is None else scaler.scale(loss)).backward()
        total = loss.detach() if len(parts) == 1 else total + loss.detach()
    return total


def clip_gradient(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    clip: float | Callable[[list[nn.Parameter]], Any] | None,
    scaler: Any = None,
) -> None:
    """Undo the scale of the gradient, then clip it."""
    if scaler is not None:
        scaler.unscale_(optimizer)
    if clip is not None:
        moving = [p for p in model.parameters() if p.grad is not None]
        _ = clip(moving) if callable(clip) else nn.utils.clip_grad_norm_(moving, clip)


def take_step(optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
    """Step the optimizer; a scaler skips the step where the gradient is not finite."""
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def diverged(loss: float, first: float, explode: float) -> bool:
    """Whether a loss is not finite, or above `explode` times a positive first loss.

    Example:
        >>> diverged(11.0, 1.0, 10.0), diverged(float("nan"), 1.0, 10.0), diverged(11.0, -1.0, 10.0)
        (True, True, False)
    """
    return not math.isfinite(loss) or loss > explode * first > 0
