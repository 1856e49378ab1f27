"""MNIST, convolutions with BatchNorm."""

import torch
from batches import chunks, shuffled
from networks import convolutions
from task import Parts, Task, accuracy
from torch import nn

from data import mnist


def make(seed: int) -> Parts:
    data = mnist()
    torch.manual_seed(seed)
    return Parts(
        model=convolutions([1, 12, 24, 48], 10, "batch"),
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=128, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task("cnn", make, optimizer="momentum", steps=500, schedule="cosine", batch_size=128, normalizer="batch")
