"""Synthetic tables: 20 columns of different scale and shape; the target depends on eight of them, with interactions."""

import functools

import torch
from torch import Tensor

from data import Split, split

COLUMNS = 20


@functools.cache
def tables(kind: str) -> Split:
    """Rows (N, 20): 4,000 to train on, 1,024 for validation and for the judge.

    kind: "regression" gives y (N, 1) of unit deviation; "classification" gives y in {0, 1, 2}, its terciles.
    """
    generator = torch.Generator().manual_seed(11)
    count = 4000 + 2 * 1024
    x = torch.randn(count, COLUMNS, generator=generator)
    x[:, 5:10] = x[:, 5:10].exp()
    x[:, 10:15] = (x[:, 10:15] > 0.5).float()
    signal = _signal(x) + 0.3 * torch.randn(count, generator=generator)
    signal = (signal - signal.mean()) / signal.std()
    y = signal[:, None]
    if kind == "classification":
        y = torch.bucketize(signal, torch.quantile(signal, torch.tensor([1 / 3, 2 / 3])))
    x = (x - x.mean(0)) / x.std(0)
    return split(x, y, 4000, 1024, 1024)


def _signal(x: Tensor) -> Tensor:
    return x[:, 0] * x[:, 1] + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 5].log() * x[:, 10] + x[:, 3].abs() - 0.5 * x[:, 11]
