"""Digits, convolutions with GroupNorm, batches of 8."""

import torch
from batches import chunks, shuffled
from networks import convolutions
from task import Parts, Task, accuracy
from torch import nn

from data import digits


def make(seed: int) -> Parts:
    data = digits()
    torch.manual_seed(seed)
    return Parts(
        model=convolutions([1, 16, 32], 10, "group"),
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=8, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task("cnn", make, optimizer="sgd", steps=2000, schedule="cosine", batch_size=8, normalizer="group")
