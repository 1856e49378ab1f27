"""Tabular regression, a perceptron without a normalizer, squared error, momentum."""

import torch
from batches import chunks, shuffled
from networks import mlp
from task import Parts, Task
from tasks._tables import COLUMNS, tables
from torch import nn


def make(seed: int) -> Parts:
    data = tables("regression")
    torch.manual_seed(seed)
    return Parts(
        model=mlp([COLUMNS, 96, 96, 1]),
        loss_fn=nn.MSELoss(),
        batches=shuffled(*data.train, batch_size=256, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
    )


TASK = Task("mlp", make, optimizer="momentum", steps=1500, schedule="cosine", batch_size=256, normalizer="none")
