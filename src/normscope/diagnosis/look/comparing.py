"""Whether the loss compares the samples of a batch with one another."""

import math
from typing import Any

import torch
from torch import Tensor

from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.passes import NotLooked, judged


def compares_samples(look: Look, apart: float) -> bool:
    """Whether, in eval mode, the loss of a batch is not the mean of the losses of its halves, by a relative `apart`.

    A loss that does not take half a batch compares samples too: its targets are numbers of samples.

    Raises:
        NotLooked: the batch is no tuple of tensors of one length, or there is nothing to evaluate by.
    """
    copy, batch = look.setup.copied(), look.batches[0]
    if not (isinstance(batch, (tuple, list)) and all(isinstance(part, Tensor) and part.ndim for part in batch)):
        raise NotLooked("the batch could not be halved")
    count = min(len(part) for part in batch) // 2 * 2
    if count < 4 or any(len(part) != len(batch[0]) for part in batch):
        raise NotLooked("the batch could not be halved")
    copy.model.eval()
    whole, _ = judged(copy, copy.model, tuple(part[:count] for part in batch))
    look.passes += 2 / 3
    try:
        halves = [judged(copy, copy.model, tuple(part[rows] for part in batch))[0] for rows in _halves(count)]
    except (ValueError, RuntimeError, IndexError):
        return True
    mean = sum(halves) / 2
    return math.isfinite(whole) and abs(whole - mean) > apart * max(abs(whole), 1e-6)


def _halves(count: int) -> list[Any]:
    return [torch.arange(count // 2), torch.arange(count // 2, count)]
