"""Bytes of text, a transformer with RMSNorm, Adam at a constant rate."""

import torch
from batches import chunks, shuffled
from networks import LanguageModel, token_cross_entropy
from task import Parts, Task
from torch import nn

from data import text


def make(seed: int) -> Parts:
    data = text(64)
    torch.manual_seed(seed)
    return Parts(
        model=LanguageModel(norm=nn.RMSNorm),
        loss_fn=token_cross_entropy,
        batches=shuffled(*data.train, batch_size=32, seed=seed),
        eval_batches=chunks(*data.validation, size=52),
        test_batches=chunks(*data.test, size=52),
    )


TASK = Task("language model", make, optimizer="adam", steps=500, schedule="constant", batch_size=32, normalizer="rms")
