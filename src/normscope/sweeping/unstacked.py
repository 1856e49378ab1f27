"""Train one cell by itself with ordinary eager PyTorch: for networks that cannot be stacked, and to check stacks."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normscope.data import batches
from normscope.sweeping.lowering import draw_alike
from normscope.sweeping.outcome import CHECK_EVERY, Outcome, divergence, outcome
from normscope.sweeping.plan import Cell
from normscope.sweeping.stacked_step import right_answers, seed_of_step
from normscope.training import seeded_on

if TYPE_CHECKING:
    from normscope.sweeping.trainer import Trainer


def train_alone(trainer: "Trainer", cell: Cell, note: str, advance: Callable[[float], None]) -> Outcome:
    """The outcome of one cell, with the same batches and the same random draws as in a stack."""
    plan, device, data = trainer.plan, trainer.device, trainer.data
    model = trainer.networks.build(cell.value, cell.seed).to(device)
    draw_alike(model)
    lr, momentum, decay = plan.optimizer(cell)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=decay)
    modes = {module: module.training for module in model.modules()}
    losses = torch.full((trainer.steps,), torch.nan, device=device, dtype=getattr(torch, plan.dtype))
    right = torch.full((trainer.steps,), torch.nan, device=device)
    per_epoch = trainer.steps // plan.epochs
    tests: list[tuple[float, float]] = []

    @torch.no_grad()
    def evaluate(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        output = model(x)
        return trainer.loss_fn(output, y), right_answers(output, y)

    stream = batches(data.x_train, data.y_train, batch_size=plan.batch_size, seed=plan.stream_seed, epochs=plan.epochs)
    for step, (x, y) in enumerate(stream):
        optimizer.zero_grad()
        with seeded_on(seed_of_step(plan.stream_seed, step), device) if trainer.draws else nullcontext():
            output = model(x)
            loss = trainer.loss_fn(output, y)
            loss.backward()
        optimizer.step()
        losses[step], right[step] = loss.detach(), right_answers(output.detach(), y)
        ends = (step + 1) % per_epoch == 0
        if (ends or (step + 1) % CHECK_EVERY == 0) and divergence(
            losses[: step + 1].double().cpu().numpy(), plan.explode
        ) is not None:
            break
        if ends and not trainer.tests_after(step):
            tests.append((math.nan, math.nan))
        elif ends:
            model.eval()
            test_loss, test_accuracy = trainer.tested(evaluate)
            tests.append((float(test_loss), float(test_accuracy)))
            for module, mode in modes.items():
                module.training = mode
    advance(1.0)
    return outcome(
        plan,
        cell,
        losses.double().cpu().numpy(),
        right.double().cpu().numpy(),
        tests,
        batch=trainer.batch,
        mode="looped",
        note=note,
        environment=trainer.environment(group=1, compiled=False),
    )
