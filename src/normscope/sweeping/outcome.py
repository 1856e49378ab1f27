"""The outcome of one training: a row of the journal."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import numpy as np

from normscope.results.decoding import Count, Misfit, Positive, Range, decode
from normscope.sweeping.plan import Cell, Plan

CURVES = ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
# Steps between two checks for divergence while a group trains: each check makes the device wait.
CHECK_EVERY = 8


@dataclass(frozen=True)
class Outcome:
    """The result of training one cell. All four curves are nan from the epoch of divergence on.

    Attributes:
        cell: the cell that was trained.
        initial_loss: the loss of the first batch.
        diverged_at: the first step whose batch loss was not finite or above `explode` times the first; None if the
            training survived.
        rose_at: the first step, after those in which momentum settles, whose batch loss was above the first; or None.
        train_loss: mean over each epoch's batches, as trained, before each step.
        train_accuracy: mean over each epoch's batches, from 0 to 1, before each step; nan if targets are not labels.
        test_loss: after each epoch, in eval mode with the member's own running statistics.
        test_accuracy: after each epoch, from 0 to 1, in eval mode; nan if targets are not labels.
        mode: "stacked" (trained with others) or "looped" (trained alone).
        note: the reason if that is not the mode asked for.
        environment: versions and device.
    """

    cell: Cell
    initial_loss: float
    diverged_at: int | None
    rose_at: int | None
    train_loss: tuple[float, ...]
    train_accuracy: tuple[float, ...]
    test_loss: tuple[float, ...]
    test_accuracy: tuple[float, ...]
    mode: str
    note: str
    environment: dict[str, Any]

    @property
    def survived(self) -> bool:
        return self.diverged_at is None


class StoredOutcome(TypedDict):
    """The stored form of an outcome, in a journal or a phase JSON."""

    lr: Positive
    value: Annotated[float, Range(-1e100, 1e100)]
    seed: Count
    initial_loss: float
    diverged_at: Count | None
    rose_at: Count | None
    train_loss: tuple[float, ...]
    train_accuracy: tuple[float, ...]
    test_loss: tuple[float, ...]
    test_accuracy: tuple[float, ...]
    mode: str
    note: str
    environment: dict[str, Any]


def read_outcome(plan: Plan, stored: Mapping[str, Any], where: str) -> Outcome:
    """An outcome of this plan, decoded from its stored form.

    Raises:
        Misfit: a value of the wrong type, range or length; `where` names it in the message.
    """
    row = decode(StoredOutcome, stored, where)
    cell = Cell(row.pop("lr"), row.pop("value"), row.pop("seed"))
    for name in CURVES:
        if not 1 <= len(row[name]) <= plan.epochs:
            raise Misfit(f"{where}.{name} must hold 1 to {plan.epochs} numbers, one an epoch; got {len(row[name])}")
    return Outcome(cell, **{name: row[name] for name in StoredOutcome.__annotations__ if name in row})


def settling(momentum: float) -> int:
    """The number of first steps in which a rise of the loss does not count: max(3, 1/(1 - mu)).

    1/(1 - mu) is the memory of momentum. With momentum even a stable run rises at first: its velocity starts from 0,
    so the first step is a plain gradient step.

    Example:
        >>> settling(0.0), settling(0.9)
        (3, 10)
    """
    return max(3, math.ceil(1 / (1 - momentum) - 1e-9))


def divergence(losses: np.ndarray, explode: float) -> int | None:
    """The first step whose loss is not finite or above `explode` times a positive first loss; None if there is none."""
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(losses) | ((losses > explode * losses[0]) & (explode * losses[0] > 0))
    return int(bad.argmax()) if bad.any() else None


def outcome(
    plan: Plan,
    cell: Cell,
    losses: np.ndarray,
    right: np.ndarray,
    tests: Sequence[tuple[float, float]],
    *,
    batch: int,
    mode: str,
    note: str,
    environment: dict[str, Any],
) -> Outcome:
    """The outcome from the losses and right answers of every step, and the test results of every epoch.

    Args:
        plan, cell: the plan, and the cell that was trained.
        losses, right: batch loss and number of right answers of every step; nan after divergence.
        tests: (loss, accuracy) on the test set after every epoch.
        batch: samples in a batch.
        mode, note, environment: stored with the outcome.
    """
    stopped = divergence(losses, plan.explode)
    steps = len(losses) // plan.epochs
    whole = plan.epochs if stopped is None else stopped // steps
    first = settling(plan.optimizer(cell)[1])
    with np.errstate(invalid="ignore"):
        rose = np.flatnonzero(~(losses[first:] <= losses[0]))
    rose_at = int(rose[0]) + first if len(rose) else None
    if stopped is not None:
        rose_at = min(stopped, stopped if rose_at is None else rose_at)

    def by_epoch(values: np.ndarray) -> tuple[float, ...]:
        means = values.reshape(plan.epochs, steps).mean(axis=1)
        return tuple(float(mean) if epoch < whole else math.nan for epoch, mean in enumerate(means))

    tested = [tests[epoch] if epoch < min(whole, len(tests)) else (math.nan, math.nan) for epoch in range(plan.epochs)]
    return Outcome(
        cell=cell,
        initial_loss=float(losses[0]),
        diverged_at=stopped,
        rose_at=rose_at,
        train_loss=by_epoch(losses),
        train_accuracy=by_epoch(right / batch),
        test_loss=tuple(loss for loss, _ in tested),
        test_accuracy=tuple(accuracy for _, accuracy in tested),
        mode=mode,
        note=note,
        environment=environment,
    )
