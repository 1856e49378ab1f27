"""MNIST, convolutions without a normalizer, Nesterov momentum."""

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
        model=convolutions([1, 16, 32, 64], 10),
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=32, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task("cnn", make, optimizer="nesterov", steps=1500, schedule="constant", batch_size=32, normalizer="none")
