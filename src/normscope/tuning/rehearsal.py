"""A rehearsal trains a copy of the network for a few steps at one learning rate; divergence is one of its results."""

import contextlib
import itertools
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from normscope.isolation.generators import Generators
from normscope.messages.out_of_memory import out_of_memory
from normscope.setup import Setup
from normscope.training import seeded_on, train
from normscope.tuning.judging import FORWARD_SHARE, judge
from normscope.tuning.learning_rates import Factors, set_rate
from normscope.tuning.stage import Stage

# A loss above this multiple of a positive first loss ends a rehearsal.
EXPLODES = 1e3
# The steps from which the duration of the whole search is predicted.
_TIMED = 5


@dataclass(frozen=True)
class Rehearsal:
    """One rehearsal: a short training of a copy of the network at one learning rate.

    Attributes:
        lr: the largest learning rate of the optimizer's groups.
        steps: the planned number of steps.
        losses: the loss of each step's batch, before the step.
        diverged_at: the step at which the loss was not finite or exploded; None if it did not.
        held_out: the loss of each held-out batch after the last step.
        metric: the mean metric of the held-out batches, nan without one.
        passes: the cost in gradient passes of a whole step, a forward counted as a third.
        seconds: the duration of the rehearsal in seconds.
        pace: seconds of one step, the first one left out. Of rehearsals that ran as a stack, seconds and pace are equal
            shares.
    """

    lr: float
    steps: int
    losses: tuple[float, ...]
    diverged_at: int | None = None
    held_out: tuple[float, ...] = ()
    metric: float = math.nan
    passes: float = 0.0
    seconds: float = 0.0
    pace: float = math.nan

    @property
    def first_loss(self) -> float:
        """The loss before the first step."""
        return self.losses[0] if self.losses else math.nan


def rehearse(stage: Stage, lr: float, steps: int) -> Rehearsal:
    """Train a copy for `steps` steps at `lr`, then judge it on the held-out batches.

    Raises:
        MemoryError: out of memory; the message names the rate and a way out.
        ValueError: the loss depends on no parameter of the copy.
    """
    started, ticks = time.perf_counter(), list[float]()
    with drawing_from(stage), _explained_memory(lr):
        copy = copy_at(stage, lr)
        assert copy.optimizer is not None
        trained = train(
            copy.model,
            copy.loss_fn,
            stage.training_batches(steps),
            copy.optimizer,
            forward=copy.forward,
            scheduler=copy.scheduler,
            accumulate=copy.accumulate,
            clip=copy.clip,
            scaler=copy.scaler,
            averaged_model=copy.averaged_model,
            training_step=copy.training_step,
            autocast=copy.autocast,
            steps=steps,
            seed=stage.seed,
            explode=EXPLODES,
            on_step=lambda _: ticks.append(time.perf_counter()),
        )
        made = Rehearsal(lr, steps, trained.losses, trained.diverged_at, passes=trained.steps, pace=pace_of(ticks))
        made = judged(stage, copy, made)
    return replace(made, seconds=time.perf_counter() - started)


def copy_at(stage: Stage, lr: float) -> Setup:
    """A copy of the setup at a learning rate, with the scheduler of the stage; frozen layers stay in eval mode."""
    copy = stage.setup.copied()
    _keep_frozen_layers(copy.model)
    assert copy.optimizer is not None
    set_rate(copy.optimizer, lr, copy.scheduler)
    return copy if stage.factors is None else replace(copy, scheduler=Factors(copy.optimizer, stage.factors))


def pace_of(ticks: list[float]) -> float:
    """The median time between two steps among the first few."""
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(ticks[:_TIMED]))
    return gaps[len(gaps) // 2] if gaps else math.nan


def judged(stage: Stage, copy: Setup, made: Rehearsal) -> Rehearsal:
    """The rehearsal with what held-out batches say of its copy, if there are any and it has not diverged."""
    if not stage.held_out or made.diverged_at is not None:
        return made
    found = judge(stage, copy)
    return replace(
        made,
        held_out=found.losses,
        metric=found.metric,
        diverged_at=None if all(map(math.isfinite, found.losses)) else made.steps,
        passes=made.passes + FORWARD_SHARE * found.forwards / stage.setup.accumulate,
    )


@contextlib.contextmanager
def drawing_from(stage: Stage) -> Iterator[None]:
    """While this context lasts, all generators start from the stage's seed; they are put back after."""
    generators = Generators()
    generators.save()
    try:
        with seeded_on(stage.seed, stage.device):
            random.seed(stage.seed)
            np.random.seed(stage.seed)  # noqa: NPY002
            yield
    finally:
        generators.restore()


@contextlib.contextmanager
def _explained_memory(lr: float) -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise MemoryError(
            f"Out of memory while rehearsing the learning rate {lr:.3g}: beside your model and optimizer, two copies "
            "of them are needed. Yours are as they were. Use a smaller batch with accumulate=, or tune on a larger "
            "device."
        ) from error


def _keep_frozen_layers(model: nn.Module) -> None:
    """Layers of a training model that were put in eval mode stay there: `train` would switch them on."""
    if not model.training:
        return
    for module in model.modules():
        if not module.training:
            vars(module)["train"] = _Constant(module)


class _Constant:
    """In place of a module's `train`: the mode stays."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self, mode: bool = True) -> Any:
        return self._module
