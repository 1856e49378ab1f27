"""Fine-tuning in which a part of BatchNorm is frozen and another part is not.

The body was trained on digits. A new head learns other images, and where the case says so, the old head is still used.
"""

import copy
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import Split, accuracy, digits, shuffled
from faults.development.networks import cnn
from faults.development.setups import sgd
from normscope import Setup


class TwoHeads(nn.Module):
    """A body with the head it was trained with and a new one: task 0 and task 1."""

    def __init__(self, body: nn.Sequential) -> None:
        super().__init__()
        self.body, self.old, self.new = body[:-1], body[-1], nn.Linear(32, 10)

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        features = self.body(x)
        return torch.where(task[:, None] == 0, self.old(features), self.new(features))


@cache
def trained_body() -> nn.Sequential:
    """The body with its head, after 200 steps on digits; made once."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(23)
        model, split = cnn(), digits()
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        for step in range(200):
            rows = torch.arange(32 * step, 32 * step + 32) % len(split.x)
            optimizer.zero_grad()
            F.cross_entropy(model(split.x[rows]), split.y[rows]).backward()
            optimizer.step()
    return model


def _other() -> Split:
    """Digits from another scanner: turned on their side, dark on bright, with more contrast."""
    split = digits()
    x, x_eval = (3 - 2.5 * part.transpose(2, 3).flip(3) for part in (split.x, split.x_eval))
    return Split(x, split.y, x_eval, split.y_eval)


def _both_tasks(model: nn.Module, lr: float, seed: int) -> Setup:
    """The new head is trained; both tasks are evaluated."""
    new, old = _other(), digits()
    task, eval_task = torch.ones(len(new.x), dtype=torch.long), torch.ones(len(new.x_eval), dtype=torch.long)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(new.x, task, new.y, size=32, steps=150, seed=seed),
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr, momentum=0.9),
        eval_batches=[(new.x_eval, eval_task, new.y_eval), (old.x_eval, 0 * eval_task, old.y_eval)],
        metric=accuracy,
        steps=150,
    )


def _frozen(model: TwoHeads) -> TwoHeads:
    """The body and the old head frozen, their normalizers in eval mode."""
    model.requires_grad_(False).eval()
    model.new.requires_grad_(True)
    return model


def moving_statistics(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    model = _frozen(TwoHeads(copy.deepcopy(trained_body())))
    model.train(fault)
    return _both_tasks(model, 0.05, seed)


def training_scales(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    model = _frozen(TwoHeads(copy.deepcopy(trained_body())))
    for module in model.body:
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(fault)
    return _both_tasks(model, 0.05, seed)


def eval_mode(seed: int, fault: bool) -> Setup:
    """All parameters train on the other scanner's digits, with the running statistics of the first scanner's."""
    torch.manual_seed(seed)
    model, split = copy.deepcopy(trained_body()), _other()
    model.train(not fault)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(split.x, split.y, size=32, steps=150, seed=seed),
        sgd(0.1)(model.parameters()),
        eval_batches=[(split.x_eval, split.y_eval)],
        metric=accuracy,
        steps=150,
    )


CASES = (
    Case(
        "statistics-move-under-the-old-head",
        "development",
        moving_statistics,
        "statistics-move-in-frozen-backbone",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/15062",
        fix="the frozen body in eval mode",
    ),
    Case(
        "scales-train-under-the-old-head",
        "development",
        training_scales,
        "scales-train-in-frozen-backbone",
        "https://github.com/Lightning-AI/pytorch-lightning/issues/13902",
        also=("eval-mode-in-training",),
        fix="scales and shifts frozen too",
    ),
    Case(
        "fine-tuning-in-eval-mode",
        "development",
        eval_mode,
        "eval-mode-in-training",
        fix="train mode",
    ),
)
