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


def wavy(like: Tensor) -> Tensor:
    """A vector of outputs that no normalizer over them makes a constant, as it does their plain sum."""
    return torch.arange(like.numel(), device=like.device).cos().to(like).view_as(like)


def adjoint(t: Tensor, u: Tensor, v: Tensor, w: Tensor) -> bool:
    """Whether <u, J v> = <J^T u, v> for t = J v, w = J^T u, but for rounding in float32."""
    one, other = float((t * u).sum()), float(v @ w)
    return abs(one - other) <= 1e-3 * max(abs(one), abs(other)) + 1e-5 * float(v.norm() * w.norm())
