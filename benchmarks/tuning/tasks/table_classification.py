"""Tabular classification, a perceptron with LayerNorm, RMSprop."""

import torch
from batches import chunks, shuffled
from networks import mlp
from task import Parts, Task, accuracy
from tasks._tables import COLUMNS, tables
from torch import nn


def make(seed: int) -> Parts:
    data = tables("classification")
    torch.manual_seed(seed)
    return Parts(
        model=mlp([COLUMNS, 64, 64, 3], "layer"),
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=64, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task("mlp", make, optimizer="rmsprop", steps=1500, schedule="cosine", batch_size=64, normalizer="layer")
