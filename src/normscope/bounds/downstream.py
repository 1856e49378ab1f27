"""The rest of the network, from the output of BatchNorm to the loss, with a check of its derivatives."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Steps of the central difference, as shares of the length of z, and its relative agreement with H v. At 1e-5 the
# truncation error (the step squared) and the rounding error (rounding over the step) are both about 1e-10.
_STEPS, _AGREE = (1e-5, 1e-6), 1e-3


class Downstream:
    """z -> loss, a scalar with two derivatives with respect to z in float64."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self._function = function

    def __call__(self, z: Tensor) -> Tensor:
        try:
            loss = self._function(z.clone())  # its first layer may work in place
        except (RuntimeError, TypeError, IndexError) as error:
            raise ValueError(
                f"downstream does not take z, float64 of shape {tuple(z.shape)}: {error}. Make a copy of it .double()."
            ) from error
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"downstream must give the loss, one number; got {shape}. Average or sum it.")
        if not torch.isfinite(loss):
            raise ValueError(f"The loss is {loss.item()}; the theorems need a finite one.")
        return loss.reshape(())

    def gradient(self, loss: Tensor, leaf: Tensor) -> Tensor:
        """d loss / d start, to be differentiated again."""
        if loss.dtype != torch.float64:
            raise ValueError(_narrow(loss.dtype))
        gradient = None
        if loss.requires_grad:
            met: list[torch.dtype] = []
            hooks = [
                node.register_prehook(lambda _, dtype=dtype: met.append(dtype)) for node, dtype in _not_double(loss)
            ]
            (gradient,) = torch.autograd.grad(loss, leaf, create_graph=True, allow_unused=True)
            for hook in hooks:
                hook.remove()
            if met:
                raise ValueError(_narrow(met[0]))
        if gradient is None:
            raise ValueError("The loss that downstream gives does not depend on z; look for a detach() or no_grad().")
        return gradient

    def check_curvature(self, z: Tensor, g: Tensor) -> None:
        """Refuses a second derivative that a difference of gradients contradicts.

        A custom function whose backward is not differentiable silently gives 0. Where the two steps disagree, there
        is a kink between them, and nothing is concluded.
        """
        v = torch.cos(torch.arange(z.numel()).to(z)).view_as(z)
        length = (z.detach().norm() / v.norm()).clamp_min(1e-3)
        near, far = (self._difference(z.detach(), step * length * v) / step for step in _STEPS)
        curved = derivative(g, z, length * v)
        size = max(float(near.norm()), float(curved.detach().norm()))
        trusted = float((near - far).norm()) <= _AGREE * size
        if trusted and float((near - curved.detach()).norm()) > max(_AGREE * size, 1e-6 * float(g.detach().norm())):
            raise ValueError(
                "downstream's second derivative is not available: automatic differentiation and differences "
                "of gradients disagree. A custom function whose backward cannot be differentiated "
                "(once_differentiable) causes this; write its backward in differentiable operations."
            )

    def _difference(self, z: Tensor, move: Tensor) -> Tensor:
        ends = [(z + sign * move).requires_grad_() for sign in (1, -1)]
        up, down = (self.gradient(self(end), end).detach() for end in ends)
        return (up - down) / 2


def derivative(gradient: Tensor, leaf: Tensor, seed: Tensor) -> Tensor:
    """The Hessian behind `gradient`, times seed."""
    if not gradient.requires_grad:
        return torch.zeros_like(leaf)
    return torch.autograd.grad(gradient, leaf, seed, retain_graph=True, allow_unused=True, materialize_grads=True)[0]


def _narrow(dtype: torch.dtype) -> str:
    return (
        f"downstream goes through {str(dtype).removeprefix('torch.')} on the way from z to the loss; the statements "
        "are checked to 1e-9, for which all of it must be float64. Take the cast out."
    )


def _not_double(loss: Tensor) -> list[tuple[Any, torch.dtype]]:
    """The nodes of the graph that compute in another floating-point format, with the format."""
    seen: set[Any] = set()
    todo, narrow = [loss.grad_fn], []
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        formats = [each.dtype for each in node._input_metadata]
        narrow += [(node, each) for each in formats if each.is_floating_point and each != torch.float64]
        todo += [parent for parent, _ in node.next_functions]
    return narrow
