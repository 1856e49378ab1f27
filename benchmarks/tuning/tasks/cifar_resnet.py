"""CIFAR-10, a small residual network with BatchNorm and weight decay."""

import torch
from batches import chunks, shuffled
from networks import ResidualBlock
from task import Parts, Task, accuracy
from torch import nn

from data import cifar10


def make(seed: int) -> Parts:
    data = cifar10()
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        ResidualBlock(8, 8, 1, "batch"),
        ResidualBlock(8, 16, 2, "batch"),
        ResidualBlock(16, 32, 2, "batch"),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return Parts(
        model=model,
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=64, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task(
    "resnet",
    make,
    optimizer="momentum",
    steps=600,
    schedule="cosine",
    batch_size=64,
    normalizer="batch",
    settings={"weight_decay": 5e-4},
)
