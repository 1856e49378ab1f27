"""1-d signals, convolutions with BatchNorm, Adam."""

import torch
from batches import chunks, shuffled
from task import Parts, Task, accuracy
from tasks._signals import CLASSES, signals
from torch import nn


def make(seed: int) -> Parts:
    data = signals()
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 32)):
        layers += [nn.Conv1d(before, after, 5, stride=2, padding=2), nn.BatchNorm1d(after), nn.ReLU()]
    return Parts(
        model=nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, CLASSES)),
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=32, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task("cnn 1-d", make, optimizer="adam", steps=1200, schedule="constant", batch_size=32, normalizer="batch")
