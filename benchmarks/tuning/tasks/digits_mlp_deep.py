"""Digits, a perceptron of eight layers without a normalizer, small batches."""

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
        model=mlp([64, *[64] * 7, 10]),
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=16, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task("mlp", make, optimizer="sgd", steps=2000, schedule="constant", batch_size=16, normalizer="none")
