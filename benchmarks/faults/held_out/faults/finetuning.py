"""Fine-tuning with BatchNorm half frozen."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import accuracy, chunks, digits, shuffled
from faults.held_out.networks import mlp
from faults.training import train
from normscope import Setup


def pretrained(seed: int, sizes: list[int], classes: Tensor, steps: int = 150) -> nn.Sequential:
    """An MLP with BatchNorm trained on the digits of `classes`."""
    data, model = digits(), mlp(sizes)
    chosen = torch.isin(data.y, classes)
    batches = shuffled(data.x[chosen], data.y[chosen], size=64, steps=steps, seed=seed + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(Setup(model, nn.CrossEntropyLoss(), batches, optimizer, steps=steps))
    return model


class Frozen(nn.Sequential):
    """Layers whose BatchNorms stay in eval mode whatever mode is asked for."""

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm1d):
                layer.training = False
        return self


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


def both_tasks(outputs: Tensor, y: Tensor) -> float:
    """Accuracy where each digit is asked of the head that knows its task."""
    old = y < 5
    guesses = torch.where(old, outputs[:, :5].argmax(-1), outputs[:, 5:].argmax(-1) + 5)
    return accuracy(F.one_hot(guesses, 10), y)


def frozen_backbone_that_moves(seed: int, fault: bool) -> Setup:
    """The new task's digits are dim and bright; the running statistics of the frozen backbone follow them."""
    torch.manual_seed(seed)
    data = digits()
    model = TwoTasks(pretrained(seed, [64, 64, 64, 5], torch.arange(5)), keep_statistics=not fault)

    def seen(x: Tensor, y: Tensor) -> Tensor:
        return torch.where((y < 5)[:, None, None, None], x, 0.3 * x + 1.5)

    new = data.y >= 5
    return Setup(
        model,
        new_loss,
        shuffled(seen(data.x, data.y)[new], data.y[new], size=32, steps=150, seed=seed),
        torch.optim.SGD(model.new.parameters(), lr=0.1, momentum=0.9),
        chunks(seen(data.x_eval, data.y_eval), data.y_eval),
        both_tasks,
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
