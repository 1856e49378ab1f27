"""CIFAR-10, convolutions with GroupNorm, Nesterov momentum."""

import torch
from batches import chunks, shuffled
from networks import convolutions
from task import Parts, Task, accuracy
from torch import nn

from data import cifar10


def make(seed: int) -> Parts:
    data = cifar10()
    torch.manual_seed(seed)
    return Parts(
        model=convolutions([3, 12, 24, 48], 10, "group"),
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=50, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task("cnn", make, optimizer="nesterov", steps=800, schedule="cosine", batch_size=50, normalizer="group")
