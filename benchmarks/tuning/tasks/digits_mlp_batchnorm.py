"""Digits, a three-layer perceptron with BatchNorm."""

import torch
from batches import chunks, shuffled
from networks import mlp
from task import Parts, Task, accuracy
from torch import nn

from data import digits


def make(seed: int) -> Parts:
    data = digits()
    torch.manual_seed(seed)
    return Parts(
        model=mlp([64, 128, 128, 10], "batch"),
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=64, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task("mlp", make, optimizer="momentum", steps=1500, schedule="constant", batch_size=64, normalizer="batch")
