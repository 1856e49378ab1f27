"""Bytes of text, a transformer with LayerNorm."""

import torch
from batches import chunks, shuffled
from networks import LanguageModel, token_cross_entropy
from task import Parts, Task

from data import text


def make(seed: int) -> Parts:
    data = text(64)
    torch.manual_seed(seed)
    return Parts(
        model=LanguageModel(),
        loss_fn=token_cross_entropy,
        batches=shuffled(*data.train, batch_size=16, seed=seed),
        eval_batches=chunks(*data.validation, size=52),
        test_batches=chunks(*data.test, size=52),
    )


TASK = Task("language model", make, optimizer="adamw", steps=800, schedule="cosine", batch_size=16, normalizer="layer")
