"""The request: the arguments of `tune`, checked before anything is read or copied."""

import inspect
import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from normscope.isolation.coming_update import plain_optimizer
from normscope.isolation.processes import several_processes
from normscope.isolation.unwrapping import unwrapped
from normscope.messages.choices import check_choice
from normscope.setup import Setup
from normscope.tuning.learning_rates import largest_rate
from normscope.tuning.schedules import Schedule, factors_of

ENGINES = ("local", "ray")
FEWEST_STEPS = 20
# The share of the training that a search may cost; short trainings need more.
BUDGET, BUDGET_OF_SHORT, SHORT = 0.05, 0.10, 1000


@dataclass(frozen=True, eq=False)
class Request:
    """The training to tune. factors: of the schedule, None where the setup's scheduler is used."""

    setup: Setup
    optimizer: torch.optim.Optimizer
    steps: int
    passes: int
    factors: tuple[float, ...] | None
    notes: tuple[str, ...]


def checked(
    setup: Setup,
    *,
    steps: int | None,
    schedule: Schedule | None,
    budget: float | None,
    engine: str = "local",
    address: str | None = None,
) -> Request:
    """The request from a setup and the arguments of `tune`.

    Raises:
        ValueError: a missing part, too few steps, a budget outside 0 to 1, an optimizer that cannot be rehearsed.
        TypeError: a model whose parameters are not all in this process.
    """
    check_choice("engine", engine, ENGINES)
    if address is not None and engine != "ray":
        raise ValueError(f"address= names a Ray cluster; got engine={engine!r}. Add engine='ray'.")
    for name in ("batches", "optimizer"):
        if getattr(setup, name) is None:
            raise ValueError(f"tune trains copies of the network, so it needs {name}=. Hand it in, or in a Setup.")
    if several_processes():
        raise ValueError("tune rehearses in one process; here several run. Tune in one, and hand the rate to all.")
    model, _, _ = unwrapped(setup.model)
    optimizer = plain_optimizer(setup.optimizer)
    _check_optimizer(optimizer, setup)
    steps = setup.steps if steps is None else steps
    _check_steps(steps)
    assert steps is not None
    notes = [] if model is setup.model else ["The rehearsals ran without torch.compile or DDP around the model."]
    setup = replace(setup, model=model, optimizer=optimizer)
    if schedule is None and setup.scheduler is not None:
        if isinstance(setup.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError("ReduceLROnPlateau waits for a metric, so its schedule is unknown. Name a schedule=.")
        factors = None
    else:
        factors = factors_of("constant" if schedule is None else schedule, steps)
        setup = replace(setup, scheduler=None)
    passes = math.floor(steps * _share(budget, steps) + 1e-9)
    return Request(setup, optimizer, steps, passes, factors, tuple(notes))


def _check_steps(steps: Any) -> None:
    if steps is None:
        raise ValueError("tune needs the planned number of steps, steps=: the best rate depends on it.")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < FEWEST_STEPS:
        raise ValueError(
            f"steps counts the optimizer steps of the training, at least {FEWEST_STEPS}; got {steps!r}. A shorter "
            "training costs less than a search: try the rates themselves."
        )


def _check_optimizer(optimizer: torch.optim.Optimizer, setup: Setup) -> None:
    name = type(optimizer).__name__
    largest_rate(optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS searches along a line in every step, so its lr is no learning rate. Leave it at 1.")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    needs = closure is not None and closure.default is inspect.Parameter.empty
    if setup.training_step is None and (needs or "SAM" in name):
        raise ValueError(
            f"{name} needs a closure that computes the gradient again. Hand in training_step(model, batch, optimizer), "
            "which makes a whole step and returns the loss."
        )


def _share(budget: float | None, steps: int) -> float:
    if budget is None:
        return BUDGET_OF_SHORT if steps < SHORT else BUDGET
    if not isinstance(budget, (int, float)) or isinstance(budget, bool) or not 0 < budget <= 1:
        raise ValueError(f"budget is the share of the training that the search may cost, above 0 to 1; got {budget!r}.")
    return float(budget)
