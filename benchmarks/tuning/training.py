"""One training of a task at one learning rate, with everything recorded that a tuning rule could ask for.

| field | content |
|---|---|
| losses | the loss of each of the first 200 batches, before its step; then the mean of every 20 |
| gradient_norms | the norm of the gradient at the first 60 steps |
| evals | for each step in CHECKPOINTS: the loss of each of the first four evaluation batches, in eval mode |
| evals_batch_statistics | the same with the batch's own statistics in BatchNorm; only for networks that have it |
| start, end | loss and metric on all evaluation batches ("eval") and test batches ("test") before and after training |
| seconds | time of the processor |
| finite | whether every loss was finite; training stops at the first that is not |
| last | the mean loss of the last tenth of the steps |

Evaluation changes nothing in the training: random generators and buffers are put back.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from task import Batch, Parts, Task
from torch import Tensor, nn

EVERY_STEP, BLOCK, NORMS, EVAL_BATCHES = 200, 20, 60, 4
CHECKPOINTS = (5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1200)


def factor(schedule: str, step: int, steps: int) -> float:
    """The multiple of the learning rate at a step, counted from 0."""
    return 0.5 * (1 + math.cos(math.pi * step / steps)) if schedule == "cosine" else 1.0


def endless(batches: Any) -> Iterator[Batch]:
    """Epoch after epoch."""
    while True:
        yield from batches


def rounded(x: float) -> float | None:
    """`x` with five significant digits; None if it is not finite."""
    return float(f"{x:.5g}") if math.isfinite(x) else None


class Rule:
    """An optimizer at work. Subclasses serve optimizers that need more than `step()`.

    scheduled: whether the schedule of the task multiplies the learning rate.
    """

    scheduled = True

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, loss: Tensor, batch: Batch) -> None:
        """Make one step from the gradients at hand."""
        self.optimizer.step()

    @contextmanager
    def trained(self, parts: Parts) -> Iterator[Parts]:
        """The parts with the network to evaluate, for the time of an evaluation."""
        yield parts


MakeRule = Callable[[Task, Parts], Rule]


class Trainer:
    """A network in training: `advance` makes steps, `evaluate` computes losses."""

    def __init__(
        self,
        task: Task,
        seed: int,
        lr: float,
        *,
        steps: int | None = None,
        schedule: str | None = None,
        make_rule: "MakeRule | None" = None,
        parts: Parts | None = None,
    ) -> None:
        self.parts = parts or task.make(seed)
        torch.manual_seed(1000 + seed)
        self.steps = task.steps if steps is None else steps
        self.schedule = schedule or task.schedule
        self.rule = make_rule(task, self.parts) if make_rule else Rule(task.optimizer_of(self.parts.model, lr))
        self.optimizer = self.rule.optimizer
        self.parameters = [p for p in self.parts.model.parameters() if p.requires_grad]
        self.rates = [group.get("lr", 1.0) for group in self.optimizer.param_groups]
        self.stream = endless(self.parts.batches)
        self.step = 0
        self.finite = True
        self.losses: list[float] = []
        self.norms: list[float] = []

    def advance(self, until: int) -> bool:
        """Train up to step `until`; False as soon as a loss is not finite."""
        self.parts.model.train()
        while self.step < until and self.finite:
            if self.rule.scheduled:
                scale = factor(self.schedule, self.step, self.steps)
                for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                    group["lr"] = rate * scale
            loss = self._one_step(next(self.stream))
            self.losses.append(loss)
            self.finite = math.isfinite(loss)
            self.step += 1
        return self.finite

    def _one_step(self, batch: Batch) -> float:
        self.optimizer.zero_grad()
        loss = self.parts.loss(batch)
        loss.backward()
        if self.step < NORMS:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        self.rule.step(loss.detach(), batch)
        return float(loss.detach())

    def evaluate(self, batches: list[Batch], *, batch_statistics: bool = False) -> list[tuple[float, float | None]]:
        """Loss and metric of each batch in eval mode."""
        with self.rule.trained(self.parts) as parts, evaluating(parts.model, batch_statistics=batch_statistics):
            return [evaluated(parts, batch) for batch in batches]

    def block_losses(self) -> list[float | None]:
        """The losses, thinned as the table above says."""
        late = [self.losses[i : i + BLOCK] for i in range(EVERY_STEP, len(self.losses), BLOCK)]
        return [rounded(x) for x in self.losses[:EVERY_STEP]] + [rounded(sum(x) / len(x)) for x in late]

    @property
    def last(self) -> float | None:
        """The mean loss of the last tenth of the steps."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return rounded(sum(last) / len(last))


def evaluated(parts: Parts, batch: Batch) -> tuple[float, float | None]:
    """The loss of a batch, and its metric if the task has one."""
    if parts.metric is None or parts.loss_fn is None:
        return float(parts.loss(batch).detach()), None
    outputs = parts.outputs(batch)
    return float(parts.loss_fn(outputs, batch[1])), parts.metric(outputs, batch[1])


@contextmanager
def evaluating(model: nn.Module, *, batch_statistics: bool = False) -> Iterator[None]:
    """The model in eval mode without gradients, and a generator of its own; with `batch_statistics` BatchNorm
    normalizes by the batch and leaves its buffers alone."""
    normalizers = batch_norms(model) if batch_statistics else []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model.eval()
        for module in normalizers:
            # In eval mode a BatchNorm without running statistics uses those of the batch.
            module.kept = (module.running_mean, module.running_var)
            module.running_mean = module.running_var = None
        try:
            yield
        finally:
            for module in normalizers:
                module.running_mean, module.running_var = module.kept
                del module.kept
            model.train()


def batch_norms(model: nn.Module) -> list[Any]:
    """The BatchNorm layers of a model."""
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def means(results: list[tuple[float, float | None]]) -> dict[str, float | None]:
    """Loss and metric over batches of equal size."""
    metrics = [metric for _, metric in results if metric is not None]
    return {
        "loss": rounded(sum(loss for loss, _ in results) / len(results)),
        "metric": rounded(sum(metrics) / len(metrics)) if metrics else None,
    }


def train(task: Task, seed: int, lr: float, *, curves: bool = True, **options: Any) -> dict[str, Any]:
    """Train a task, and return the record of it as plain JSON.

    curves: without, the losses and the evaluations in between are left out. Other options as of `Trainer`.
    """
    began = time.process_time()
    trainer = Trainer(task, seed, lr, **options)
    parts = trainer.parts
    both = {"eval": parts.eval_batches, "test": parts.test_batches}
    few = parts.eval_batches[:EVAL_BATCHES]
    has_batch_norm = bool(batch_norms(parts.model))
    start = {name: means(trainer.evaluate(batches)) for name, batches in both.items()}
    evals: dict[str, Any] = {}
    with_statistics: dict[str, Any] = {}
    checkpoints = [step for step in CHECKPOINTS if step < trainer.steps] if curves else []
    for step in (*checkpoints, trainer.steps):
        if not trainer.advance(step):
            break
        evals[str(step)] = [rounded(loss) for loss, _ in trainer.evaluate(few)]
        if has_batch_norm:
            results = trainer.evaluate(few, batch_statistics=True)
            with_statistics[str(step)] = [rounded(loss) for loss, _ in results]
    end = {name: means(trainer.evaluate(batches)) for name, batches in both.items()} if trainer.finite else start
    recorded = {
        "losses": trainer.block_losses(),
        "gradient_norms": [rounded(x) for x in trainer.norms],
        "evals": evals,
        **({"evals_batch_statistics": with_statistics} if has_batch_norm else {}),
    }
    return {
        "steps": trainer.steps,
        "schedule": trainer.schedule,
        **(recorded if curves else {}),
        "start": start,
        "end": end,
        "finite": trainer.finite,
        "last": trainer.last,
        "seconds": round(time.process_time() - began, 2),
    }
