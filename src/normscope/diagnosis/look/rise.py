"""A loss that rises in a short training at the rate of the setup."""

import math
from dataclasses import dataclass

from normscope.diagnosis.finding import Cost
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.passes import NotLooked

# Mean loss of the last quarter of the steps over the first losses, from which it rises.
RISES = 1.6
# And over the largest of the first losses: a small loss differs much between batches.
BEYOND = 1.1
# A single loss over the largest of the first losses is a jump, if the loss has not fallen by the end.
JUMPS, UNLEARNED = 1.7, 0.8


@dataclass(frozen=True)
class Rise:
    """A rising loss. ratio: the last losses over the first ones. price: the rise."""

    text: str
    ratio: float
    limit: float
    lr: float
    optimizer: str
    price: Cost


def rise_of(look: Look) -> Rise | None:
    """The rise of the loss; None where it falls, or is no measure of success."""
    try:
        trained = look.trained
    except NotLooked:
        return None
    optimizer, losses = look.setup.optimizer, trained.losses
    if optimizer is None or len(losses) < 2 or not losses[0] > 0:
        return None
    rate = max(float(group["lr"]) for group in optimizer.param_groups)
    first = losses[0] if look.setup.training_step else _median([*look.start.losses, losses[0]])
    quarter = losses[-max(len(losses) // 4, 1) :]
    last = sum(quarter) / len(quarter)
    ratio = last / first if math.isfinite(last) else math.inf
    name = type(optimizer).__name__
    plain, highest = look.setup.training_step is None, max(look.start.losses)
    # How much the losses of batches differ before any step, as a factor.
    between = highest / max(min(look.start.losses), 1e-12)
    if trained.diverged_at is not None:
        text = f"Training diverges at step {trained.diverged_at} with {name} at a rate of {rate:.3g}."
    elif plain and ratio > RISES and last > BEYOND * highest:
        text = (
            f"The loss rises from {first:.3g} to {last:.3g}, the mean of steps {len(losses) - len(quarter) + 1} to "
            f"{len(losses)}, with {name} at rate {rate:.3g}."
        )
    elif plain and max(losses) > JUMPS * highest * between**2 and ratio > UNLEARNED:
        text = (
            f"The loss jumps from {first:.3g} to {max(losses):.3g} in {len(losses)} steps of {name} at rate {rate:.3g}."
        )
        ratio = max(losses) / first
    else:
        return None
    rise = last - first if math.isfinite(last) else math.inf
    return Rise(text, ratio, RISES, rate, name, Cost(rise, unit="loss", how="measured", share=ratio - 1))


def _median(values: list[float]) -> float:
    finite = sorted(value for value in values if math.isfinite(value))
    return finite[len(finite) // 2] if finite else math.nan
