"""Join tensors into one vector, and split a vector into tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor


def flat(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """All tensors as one vector; zeros of the shape in `like` for a tensor that is None."""
    parts = [
        torch.zeros_like(b).reshape(-1) if a is None else a.reshape(-1) for a, b in zip(tensors, like, strict=True)
    ]
    return torch.cat(parts)


def split(v: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of the parts of a vector, with the shapes of the tensors in `like`."""
    parts = v.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
