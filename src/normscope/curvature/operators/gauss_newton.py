r"""v -> J^T B (J v), with J v taken in the first way that is the adjoint of J^T.

<J v, u> = <v, J^T u> for every v and u; a product has both sides for nothing. A model whose forward mode, or whose
second derivative by reverse mode, is of another map than its gradient (what was computed under no_grad, a hook of the
user's) shows it there, in the first product that is not rounded.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from normscope.curvature.autograd.user_functions import functions_of
from normscope.curvature.eigensolvers.lanczos import Product
from normscope.curvature.eigensolvers.tf32_refinement import is_rounded
from normscope.curvature.operators.loss_of_outputs import Bent
from normscope.curvature.operators.statistics import over_the_batch

Gradients = Sequence[Tensor | None]


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
            pair = (u, w) if t.any() else (wavy(t), pull(wavy(t)))
            if not adjoint(t, pair[0], v, pair[1]):
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
    by_tangent, by_gradient = float((t * u).sum()), float(v @ w)
    return abs(by_tangent - by_gradient) <= 1e-3 * max(abs(by_tangent), abs(by_gradient)) + 1e-5 * float(
        v.norm() * w.norm()
    )


def goes_into_weights(model: nn.Module, stats: str) -> bool:
    """Whether each batch normalization of `model`, and there is one, is a scale and a shift in this reading.

    Of those with statistics of the batch the second derivative takes more passes than forward mode.
    """
    normed = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    return normed and not over_the_batch(model, stats)


def gradients_by_slope(
    loss: Tensor, output: Tensor, leaves: Sequence[Tensor]
) -> tuple[Gradients, Tensor | None] | None:
    """The loss's gradients by the leaves with their graph in u, and u: None where the loss does not read the output.

    None at all where the user has a say in the graph: a Function whose second derivative is zero for an output takes it
    out of J v and of B J v alike, and <J v, B J v> = <v, J^T B J v> all the same. And where a hook of the user's takes
    no graph, as one in numpy; what else is wrong, the plain pass says.
    """
    if functions_of(output.grad_fn):
        return None
    slopes: list[Tensor] = []

    def cut(slope: Tensor) -> Tensor:
        slopes.append(slope.detach().requires_grad_())
        return slopes[-1]

    handle = output.register_hook(cut)
    try:
        gradients = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    except Exception:
        return None
    finally:
        handle.remove()
    return gradients, slopes[0] if slopes else None
