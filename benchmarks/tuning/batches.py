"""Batches of tensors: shuffled epochs to train on, chunks in order to evaluate on."""

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

EVAL_BATCH = 128


def shuffled(x: Tensor, y: Tensor, *, batch_size: int, seed: int) -> DataLoader:
    """A loader of shuffled epochs without the short last batch; whole batches are indexed at once."""
    data = TensorDataset(x, y)
    generator = torch.Generator().manual_seed(seed)
    order = BatchSampler(RandomSampler(data, generator=generator), batch_size, drop_last=True)
    return DataLoader(data, sampler=order, batch_size=None, generator=generator)


def chunks(x: Tensor, y: Tensor, size: int = EVAL_BATCH) -> list[tuple[Tensor, Tensor]]:
    """The data in order, in batches of equal size; a short rest is left out."""
    if len(x) < size:
        raise ValueError(f"{len(x)} samples do not fill one batch of {size}.")
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x) - size + 1, size)]
