"""Parameters as one vector, and back."""

from collections.abc import Sequence

import torch
from torch import Tensor


def flat(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """One vector; zeros where there is none."""
    parts = [
        torch.zeros_like(b).reshape(-1) if a is None else a.reshape(-1) for a, b in zip(tensors, like, strict=True)
    ]
    return torch.cat(parts)


def split(v: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = v.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
