r"""v -> J^T B (J v), with J v taken in the first way that is the adjoint of J^T.

<J v, u> = <v, J^T u> for every v and u; a product has both sides for nothing. A model whose forward mode, or whose
second derivative by reverse mode, is of another map than its gradient (what was computed under no_grad, a hook of the
user's) shows it there, in the first product that is not rounded.
"""

from typing import Protocol

import torch
from torch import Tensor

from normscope.curvature.autograd.differentiable_kernels import is_rounded
from normscope.curvature.eigensolvers.lanczos import Product
from normscope.curvature.operators.loss_of_outputs import Bent


class ForwardMode(Protocol):
    """forward_mode: whether `push` may take it; without, it goes by reverse mode twice."""

    forward_mode: bool


def around(bend: Bent, pull: Product, push: Product, along: Product | None, mode: ForwardMode) -> Product:
    """bend: B, with what the loss adds itself; pull: J^T u; push: J v; along: J v too, cheaper, to be tried first."""
    first = True

    def tangent(v: Tensor) -> Tensor:
        nonlocal along
        if along is not None:
            try:
                return along(v)
            except Exception:
                # Something in the model has no second derivative, and says so in its own way.
                along = None
        return push(v)

    def product(v: Tensor) -> Tensor:
        nonlocal first, along
        t = tangent(v)
        u, own = bend(t, v)
        w = pull(u)
        if first and not is_rounded() and (along is not None or mode.forward_mode):
            # Zero is its own adjoint, so there other outputs are asked.
            seen = (u, w) if t.any() else (wavy(t), pull(wavy(t)))
            if not adjoint(t, seen[0], v, seen[1]):
                along, mode.forward_mode = None, along is not None and mode.forward_mode
                return product(v)
            first = not t.any()
        return w if own is None else w + own

    return product


def wavy(like: Tensor) -> Tensor:
    """A vector of outputs that no normalizer over them makes a constant, as it does their plain sum."""
    return torch.arange(like.numel(), device=like.device).cos().to(like).view_as(like)


def adjoint(t: Tensor, u: Tensor, v: Tensor, w: Tensor) -> bool:
    """Whether <u, J v> = <J^T u, v> for t = J v, w = J^T u, but for rounding in float32."""
    one, other = float((t * u).sum()), float(v @ w)
    return abs(one - other) <= 1e-3 * max(abs(one), abs(other)) + 1e-5 * float(v.norm() * w.norm())
