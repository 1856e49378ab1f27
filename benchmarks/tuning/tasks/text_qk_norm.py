"""Bytes of text, a transformer with RMSNorm and QK-norm whose `forward` returns the loss."""

import torch
from batches import chunks, shuffled
from networks import LanguageModel, token_cross_entropy
from task import Batch, Parts, Task
from torch import Tensor, nn

from data import text


def forward(model: nn.Module, batch: Batch) -> Tensor:
    return token_cross_entropy(model(batch[0]), batch[1])


def make(seed: int) -> Parts:
    data = text(64)
    torch.manual_seed(seed)
    return Parts(
        model=LanguageModel(norm=nn.RMSNorm, qk_norm=True),
        loss_fn=None,
        batches=shuffled(*data.train, batch_size=16, seed=seed),
        eval_batches=chunks(*data.validation, size=52),
        test_batches=chunks(*data.test, size=52),
        forward=forward,
    )


TASK = Task(
    "language model",
    make,
    optimizer="adamw",
    steps=600,
    schedule="cosine",
    batch_size=16,
    normalizer="rms, qk",
    settings={"weight_decay": 0.1, "betas": (0.9, 0.95)},
)
