r"""Gauss-Newton products v -> J^T B (J v), with J v taken in the first way that passes a check.

J is the derivative of the outputs f with respect to the parameters theta, B the second derivative of the loss L with
respect to the outputs. There are three ways to compute J v, here from the cheapest to the most reliable:

1. From the gradient. Backward passes are linear in the slope u = dL/df: dL/dtheta = J^T u. One
   gradient with a graph gives both J^T u and J v = d<J^T u, v>/du. That graph holds no output of the forward, and no
   normalizer that went into weights (`convolutions.py`). So a product takes 16 ms, where forward mode takes 29 ms (CNN
   in eval mode, batch 256, two cores).
2. Forward mode (`passes.py`).
3. Reverse mode twice (`passes.py`).

**The check.** J^T is the adjoint of J: <J v, u> = <v, J^T u> for every v and u. A product computes J v and J^T u at
u = B J v anyway, so the check costs nothing. It fails where a way differentiates another map than the gradient does.
For example, a layer that computes a scale s(x) under `torch.no_grad` and returns s(x) x has the gradient s(x), but its
forward mode also differentiates s. The first product that is not rounded to TF32 is checked; where it fails, the next
way is taken.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from normscope.curvature.autograd.precision import is_rounded
from normscope.curvature.autograd.user_functions import functions_of
from normscope.curvature.operators.loss_of_outputs import OutputCurvature
from normscope.curvature.operators.passes import Gradients
from normscope.curvature.operators.statistics import over_the_batch, uneven_vector
from normscope.linear_maps import Product


class TangentPasses(Protocol):
    """The passes that compute J v in forward mode, until they are told to use reverse mode twice."""

    @property
    def forward_mode(self) -> bool: ...

    def use_reverse_mode(self) -> None: ...


def gauss_newton_product(
    curvature: OutputCurvature, vjp: Product, jvp: Product, by_gradient: Product | None, passes: TangentPasses
) -> Product:
    """The product v -> J^T B (J v).

    Args:
        curvature: B, and the part that the loss adds by reading parameters itself.
        vjp: the map u -> J^T u.
        jvp: the map v -> J v by `passes`.
        by_gradient: the map v -> J v from the gradient, to be tried first; None where there is none.
        passes: told to use reverse mode where the check fails in forward mode.
    """
    checked = False

    def tangent(v: Tensor) -> Tensor:
        nonlocal by_gradient
        if by_gradient is not None:
            try:
                return by_gradient(v)
            except Exception:
                # A part of the model has no second derivative, and may raise any error.
                by_gradient = None
        return jvp(v)

    def product(v: Tensor) -> Tensor:
        nonlocal checked, by_gradient
        t = tangent(v)
        u, by_leaves = curvature.product(t, v)
        w = vjp(u)
        if not checked and not is_rounded() and (by_gradient is not None or passes.forward_mode):
            # Zero passes every check, so at J v = 0 the check takes other outputs.
            pair = (u, w) if t.any() else (uneven_vector(t), vjp(uneven_vector(t)))
            if not adjoint(t, pair[0], v, pair[1]):
                if by_gradient is None:
                    passes.use_reverse_mode()
                by_gradient = None
                return product(v)
            checked = bool(t.any())
        return w if by_leaves is None else w + by_leaves

    return product


def adjoint(t: Tensor, u: Tensor, v: Tensor, w: Tensor) -> bool:
    """Whether <u, J v> = <J^T u, v> for t = J v, w = J^T u, but for rounding in float32."""
    by_tangent, by_gradient = float((t * u).sum()), float(v @ w)
    return abs(by_tangent - by_gradient) <= 1e-3 * max(abs(by_tangent), abs(by_gradient)) + 1e-5 * float(
        v.norm() * w.norm()
    )


def goes_into_weights(model: nn.Module, stats: str) -> bool:
    """Whether `model` has batch normalization, each of which is a scale and a shift in this statistics mode.

    With statistics of the batch, the second derivative takes more passes than forward mode.
    """
    normed = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    return normed and not over_the_batch(model, stats)


def gradients_by_slope(
    loss: Tensor, output: Tensor, leaves: Sequence[Tensor]
) -> tuple[Gradients, Tensor | None] | None:
    """The gradient of the loss with respect to each leaf, as a function of its slope u = dL/df.

    The gradients keep their graph in u, from which `Passes.jvp_by_gradients` makes J v. The second value returned is u,
    or None where the loss reads no output.

    Returns None, without gradients, in two cases:
    - The graph holds an autograd function of the user's. Such a function may drop its second derivative for one output.
      That output then drops out of J v and of B J v alike, and the check <J v, u> = <v, J^T u> would not show it.
    - The pass fails. A hook of the user's may not take tensors with a graph, as one that calls numpy. Any other error
      will recur in the plain pass, which is made next.
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
