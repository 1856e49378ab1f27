"""`tune`: try a few learning rates on copies of the network, and name the one to train with."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch
from torch import nn

from normscope.isolation.lending import Lent, untouched
from normscope.results.environment import environment
from normscope.setup import Setup, gathered
from normscope.tuning.after_warm_up import NOTE as LOWERED
from normscope.tuning.after_warm_up import bounded_after_warm_up
from normscope.tuning.choice import choose
from normscope.tuning.engines import Engine, engine_named
from normscope.tuning.judging import FORWARD_SHARE
from normscope.tuning.prior import prior_of
from normscope.tuning.rehearsal import Rehearsal
from normscope.tuning.request import Request, checked
from normscope.tuning.result import Cost, Tuning
from normscope.tuning.schedules import Schedule, peak_in_words, schedule_in_words
from normscope.tuning.search import Plan, next_wave, planned
from normscope.tuning.stage import Stage, staged, trains_on
from normscope.tuning.store import Store

# Held-out batches on which each rehearsal is judged.
HELD_OUT = 2
# Samples of a step below which a note warns of noise.
SMALL_BATCH = 32
Progress = Callable[[float, float], None]


def tune(
    model: nn.Module | Setup,
    loss_fn: Callable[..., Any] | None = None,
    batches: Iterable[Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    steps: int | None = None,
    schedule: Schedule | None = None,
    eval_batches: Iterable[Any] | None = None,
    metric: Callable[[Any, Any], Any] | None = None,
    budget: float | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    engine: str = "local",
    address: str | None = None,
    store: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tuning:
    """Name the learning rate for a training of `steps` steps, after trying a few on copies of the network.

    Model, optimizer, loaders and random generators are as they were afterwards, also after an error or Ctrl-C.

    Args:
        model: any module, or one `normscope.Setup`, whose scheduler, clipping, accumulation, scaler and autocast are
            respected.
        loss_fn: loss_fn(outputs, targets) returns the scalar loss; None if the model or `forward` returns the loss.
        batches: any iterable of batches.
        optimizer: the optimizer that trains; its parameter groups keep the ratios of their rates.
        steps: planned number of optimizer steps; by default the setup's.
        schedule: "constant", "cosine" or "linear" over all steps, or a function of the step that returns the factor on
            the rate; by default the setup's scheduler, or else "constant".
        eval_batches: held-out batches; the loss of each rehearsal on them is shown beside its training losses.
        metric: metric(outputs, targets) returns a number to show beside the held-out loss; larger is better.
        budget: largest share of the training that the search may cost, in gradient passes; by default 0.05, and 0.10
            below 1,000 steps.
        forward: forward(model, batch) returns the outputs, or without loss_fn the loss.
        engine: "local", or "ray" to rehearse side by side on a Ray cluster, the one at `address` if given.
        store: JSONL file of finished rehearsals; a tuning that was stopped goes on from there.
        seed: of the random numbers that the copies draw (dropout), the same for every rate.
        progress: progress(passes used, passes planned) is called after each rehearsal.

    Returns:
        The rate, a range, the reason, the cost and all rehearsals.

    Raises:
        ValueError: a missing part, fewer than 20 steps, an optimizer that cannot be rehearsed (LBFGS), a loss computed
            from the model itself instead of the outputs.
        MemoryError: a copy did not fit beside the model.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> layer = nn.Linear(8, 1)
        >>> x = torch.randn(256, 8)
        >>> batches = list(zip(x.split(16), x.sum(1, keepdim=True).split(16)))
        >>> tuning = tune(layer, nn.MSELoss(), batches, torch.optim.SGD(layer.parameters(), 0.1), steps=500)
        >>> 0.01 < tuning.lr < 1, tuning.cost.share <= 0.1
        (True, True)
    """
    given = {"loss_fn": loss_fn, "batches": batches, "optimizer": optimizer, "eval_batches": eval_batches}
    setup = gathered(model, **given, metric=metric, forward=forward)
    request = checked(setup, steps=steps, schedule=schedule, budget=budget, engine=engine, address=address)
    prior = prior_of(request.optimizer, request.steps)
    started = time.perf_counter()
    judged = HELD_OUT if request.setup.eval_batches is not None else 0
    plan = planned(prior.rate, request.passes, judged and FORWARD_SHARE * (judged + 2) / request.setup.accumulate)
    stage = staged(
        request.setup,
        steps=max(plan.steps, 1),
        held_out=judged,
        factors=request.factors,
        horizon=request.steps,
        seed=seed,
    )
    known: list[Rehearsal] = []
    stored, trained_how = 0, ""
    if plan.steps:
        kept = Store(store, "" if store is None else stage.key())
        with _protected(request) as lent, closing(engine_named(engine, address)) as running:
            stored = _search(plan, stage, running, kept, known, lent, progress)
            trained_how = running.note
    choice = searched = choose(plan, prior, known)
    if stage.warm_up:
        choice = bounded_after_warm_up(searched, request.setup.model, request.optimizer)
    lowered = "" if choice is searched else LOWERED
    used = sum(each.passes for each in known)
    pace = known[0].pace if known else 0.0
    return Tuning(
        lr=choice.lr,
        lr_range=choice.lr_range,
        reason=choice.reason,
        cost=Cost(
            plan.passes,
            used,
            used / request.steps,
            (pace * plan.passes[0], pace * plan.passes[1]),
            time.perf_counter() - started,
            stored,
        ),
        rehearsals=tuple(sorted(known, key=lambda each: each.lr)),
        notes=(*request.notes, *filter(None, (prior.note, trained_how, lowered)), *_notes(request, plan, stage)),
        steps=request.steps,
        optimizer=type(request.optimizer).__name__,
        schedule=schedule_in_words(stage.course, request.steps),
        settings=_settings(request, stage, plan, engine),
        environment=environment(stage.device),
    )


def _search(
    plan: Plan,
    stage: Stage,
    engine: Engine,
    store: Store,
    known: list[Rehearsal],
    lent: Lent,
    progress: Progress | None,
) -> int:
    """Rehearse wave after wave; returns the number of rehearsals that were read from the store."""
    stored = 0
    while wave := next_wave(plan, known):
        finished = {rate: made for rate in wave if (made := store.get(rate, plan.steps)) is not None}
        stored += len(finished)
        missing = engine.run(stage, [rate for rate in wave if rate not in finished], plan.steps)
        for rate in wave:
            made = finished.get(rate)
            if made is None:
                made = next(missing)
                _check_gradients_went_to_the_copy(lent)
                store.add(made)
            known.append(made)
            if progress is not None:
                progress(sum(each.passes for each in known), plan.passes[1])
    return stored


@contextmanager
def _protected(request: Request) -> Iterator[Lent]:
    """While this context lasts, the model works on lent copies, and a step of the user's optimizer is refused.

    The rehearsals train copies of their own. A loss or a training_step that uses the model or the optimizer it was
    written beside would reach the user's.
    """

    def refuse(*_: Any) -> None:
        raise ValueError(
            "training_step steps the optimizer it was written beside, and not the one it is handed; tune trains "
            "copies. Use its argument: training_step(model, batch, optimizer)."
        )

    with untouched(request.setup.model) as lent:
        hook = request.optimizer.register_step_pre_hook(refuse)
        try:
            yield lent
        finally:
            hook.remove()


def _check_gradients_went_to_the_copy(lent: Lent) -> None:
    if any(leaf.grad is not None for leaf in lent.leaves):
        raise ValueError(
            "The loss is computed with the model it was written beside, and not with the one it is handed; tune "
            "trains copies. Hand in forward=lambda model, batch: ... that returns the loss of its argument `model`."
        )


def _notes(request: Request, plan: Plan, stage: Stage) -> Iterator[str]:
    setup, read = request.setup, len(stage.batches)
    if plan.steps * setup.accumulate > read:
        yield (
            f"The loader gives {read} batch{'es' * (read != 1)}, fewer than a rehearsal takes, so they came again: its "
            "later losses are on batches it was trained on."
        )
    if stage.held_out:
        same = trains_on(stage.batches, stage.held_out)
        if same or setup.eval_batches is setup.batches or _one_dataset(setup):
            yield "The evaluation batches are training batches: the held-out losses tell nothing about new data."
    if len(set(stage.course)) > 1:
        yield peak_in_words(stage.course)
    seen = stage.batch_size * setup.accumulate
    if plan.steps and seen < SMALL_BATCH:
        yield (
            f"Each step sees {seen} samples, and a rehearsal has {plan.steps} steps: its losses are noisy, and rates "
            "that diverge later look good. If the loss does not settle, try a quarter of the rate."
        )
    if stage.warm_up:
        yield "The schedule warms up for longer than a rehearsal lasts, so each rate was tried at its full size."


def _one_dataset(setup: Setup) -> bool:
    data = getattr(setup.batches, "dataset", None)
    return data is not None and data is getattr(setup.eval_batches, "dataset", None)


def _settings(request: Request, stage: Stage, plan: Plan, engine: str) -> dict[str, Any]:
    return {
        "loss": request.setup.objective.name,
        "batch_size": stage.batch_size,
        "accumulate": request.setup.accumulate,
        "steps_of_a_rehearsal": plan.steps,
        "budget_passes": request.passes,
        "seed": stage.seed,
        "engine": engine,
    }
