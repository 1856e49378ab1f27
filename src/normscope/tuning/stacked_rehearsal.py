"""Rehearse several learning rates at once, as a stack of copies: on a GPU, where one copy leaves it idle.

In the first step all copies are alike. The first of them makes it alone, and the others, stacked, are compared with it.
So a network that a stack would train in another way is found at no cost. A copy that diverges leaves the stack.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from normscope.isolation.generators import Generators
from normscope.messages.out_of_memory import out_of_memory
from normscope.setup import Setup
from normscope.stackable import NotStackable, check_runs
from normscope.training import grouped, modes_kept
from normscope.training_step import add_gradient, clip_gradient, diverged, take_step
from normscope.tuning.rehearsal import EXPLODES, Rehearsal, copy_at, drawing_from, judged, pace_of
from normscope.tuning.stack import Stack, check_same
from normscope.tuning.stage import Stage


class NotStacked(Exception):
    """The copies cannot be trained as a stack.

    Args:
        reason: why, as part of a sentence.
        passes: gradient passes that were spent before this was known.
    """

    def __init__(self, reason: str, passes: int) -> None:
        super().__init__(reason)
        self.passes = passes


@dataclass
class _Course:
    """The training of one copy so far."""

    lr: float
    copy: Setup
    losses: list[float] = field(default_factory=list)
    diverged_at: int | None = None


def rehearse_stacked(stage: Stage, rates: Sequence[float], steps: int) -> list[Rehearsal]:
    """The rehearsals at two or more rates, in their order; the same as `rehearse` of each but for rounding.

    Raises:
        NotStacked: the network cannot be stacked, or the stack does not fit in memory. Rehearse the rates one by one:
            errors of the user's code show there.
    """
    if stage.setup.training_step is not None:
        raise NotStacked("a training_step trains one copy", 0)
    if stage.setup.autocast is not None:
        # https://github.com/pytorch/pytorch/issues/192617
        raise NotStacked("with autocast torch computes parts of a stack in float32", 0)
    courses: list[_Course] = []
    started = time.perf_counter()
    try:
        with drawing_from(stage), warnings.catch_warnings():
            # of an operation that vmap runs for one copy after the other
            warnings.filterwarnings("ignore", "There is a performance drop")
            courses += [_Course(lr, copy_at(stage, lr)) for lr in rates]
            pace = _train(stage, courses, steps)
            made = _judged(stage, courses, steps, pace)
    except Exception as error:
        cause = error.__cause__ or error
        reason = "a stack of the copies does not fit in memory" if out_of_memory(cause) else _described(error)
        raise NotStacked(reason, sum(len(course.losses) for course in courses)) from error
    return [replace(each, seconds=(time.perf_counter() - started) / len(made)) for each in made]


def _described(error: Exception) -> str:
    lines = str(error).splitlines()
    return str(error) if isinstance(error, NotStackable) else ": ".join([type(error).__name__, *lines[:1]])


def _train(stage: Stage, courses: Sequence[_Course], steps: int) -> float:
    """Train the copies for some steps; returns the seconds of one copy's step."""
    stack, ticks = Stack(courses[0].copy), list[float]()
    for number, parts in enumerate(grouped(stage.training_batches(steps), stage.setup.accumulate)):
        alive = [course for course in courses if course.diverged_at is None]
        if not alive:
            break
        copies = [course.copy for course in alive]
        for copy in copies:
            copy.optimizer.zero_grad()  # type: ignore[union-attr]
        losses = stack.add_gradient(copies, parts, stage.device) if number else _first(stage, stack, copies, parts)
        for course, loss in zip(alive, losses.tolist(), strict=True):
            course.losses.append(loss)
            course.diverged_at = number if diverged(loss, course.losses[0], EXPLODES) else None
        if not number:
            check_same(*copies[:2])
        for course in alive:
            if course.diverged_at is None:
                _update(course.copy)
        ticks.append(time.perf_counter())
    return pace_of(ticks) / len(courses)


def _first(stage: Stage, stack: Stack, copies: Sequence[Setup], parts: Sequence[Any]) -> Tensor:
    """The losses of the first step, which the first copy makes alone and the others as a stack."""
    alone, found = copies[0], list[Tensor]()
    again = stage.training_batches(1)  # a forward may write into its batch
    generators = Generators()
    generators.save()
    check_runs(stack.model, lambda: found.append(stack.add_gradient(copies[1:], parts, stage.device)))
    generators.restore()
    with modes_kept(alone.model):
        alone.model.train()
        own = add_gradient(alone.objective, alone.model, again, stage.device, scaler=alone.scaler)
    return torch.cat([own.reshape(1), *found])


def _update(copy: Setup) -> None:
    assert copy.optimizer is not None
    clip_gradient(copy.model, copy.optimizer, copy.clip, copy.scaler)
    take_step(copy.optimizer, copy.scaler)
    if copy.scheduler is not None:
        copy.scheduler.step()
    if copy.averaged_model is not None:
        copy.averaged_model.update_parameters(copy.model)


def _judged(stage: Stage, courses: Sequence[_Course], steps: int, pace: float) -> list[Rehearsal]:
    """The rehearsals, each judged alone with the same random draws."""
    generators = Generators()
    generators.save()
    made = []
    for course in courses:
        generators.restore()
        count = len(course.losses)
        each = Rehearsal(course.lr, steps, tuple(course.losses), course.diverged_at, passes=count, pace=pace)
        made.append(judged(stage, course.copy, each))
    return made
