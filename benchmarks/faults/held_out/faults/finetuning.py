"""Fine-tuning with BatchNorm half frozen."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import accuracy, chunks, digits, shuffled
from faults.held_out.tasks import Frozen, pretrained
from normscope import Setup


def eval_mode_with_scales_that_train(seed: int, fault: bool) -> Setup:
    """Negatives of the digits with three times the contrast; BatchNorm keeps the statistics of the old task."""
    torch.manual_seed(seed)
    data = digits()
    layers = pretrained(seed, [64, 64, 64, 64, 10], torch.arange(10))
    model = Frozen(*layers).train() if fault else nn.Sequential(*layers)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(-3 * data.x + 3, data.y, size=32, steps=100, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        chunks(-3 * data.x_eval + 3, data.y_eval),
        accuracy,
        steps=100,
    )


class TwoTasks(nn.Module):
    """A frozen backbone with a frozen head for digits 0 to 4, and a new head for digits 5 to 9."""

    def __init__(self, layers: nn.Sequential, keep_statistics: bool) -> None:
        super().__init__()
        self.backbone = (Frozen if keep_statistics else nn.Sequential)(*layers[:-1])
        self.old, self.new = layers[-1], nn.Linear(64, 5)
        for part in (self.backbone, self.old):
            part.requires_grad_(False)
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        h = self.backbone(x)
        return torch.cat([self.old(h), self.new(h)], -1)


def new_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of the new head."""
    return F.cross_entropy(outputs[:, 5:], y - 5)


def old_accuracy(outputs: Tensor, y: Tensor) -> float:
    """Accuracy of the old head, which nothing was meant to change."""
    return accuracy(outputs[:, :5], y)


def frozen_backbone_that_moves(seed: int, fault: bool) -> Setup:
    """The new task's digits are dim and bright; the running statistics of the frozen backbone follow them."""
    torch.manual_seed(seed)
    data = digits()
    model = TwoTasks(pretrained(seed, [64, 64, 64, 5], torch.arange(5)), keep_statistics=not fault)
    new, old = data.y >= 5, data.y_eval < 5
    return Setup(
        model,
        new_loss,
        shuffled(0.3 * data.x[new] + 2.5, data.y[new], size=32, steps=150, seed=seed),
        torch.optim.SGD(model.new.parameters(), lr=0.1, momentum=0.9),
        chunks(data.x_eval[old], data.y_eval[old]),
        old_accuracy,
        steps=150,
    )


CASES = (
    Case(
        "eval-mode-with-scales-that-train",
        "held-out",
        eval_mode_with_scales_that_train,
        "eval-mode-in-training",
        also=("stale-running-statistics",),
        fix="train mode",
    ),
    Case(
        "frozen-backbone-that-moves",
        "held-out",
        frozen_backbone_that_moves,
        "statistics-move-in-frozen-backbone",
        "Lightning-AI/pytorch-lightning#15062",
        fix="eval mode for the backbone's normalizers",
    ),
)
