r"""Curvature of a network's loss as products with vectors, on copies.

    H v = d/de grad L(theta + e v)                    Hessian: reverse over reverse, the graph of the gradient kept
    G v = J^T (d^2 l / df^2) (J v)                    generalized Gauss-Newton: J v forward, J^T u by a kept graph

f are the outputs, l(f) the loss of the batch, J = df/dtheta; derivatives go through the statistics as `stats` says
(`statistics.py`). Torch's nested forward mode is wrong for BatchNorm and not used. For 1/2 squared error and for
cross-entropy G is the Fisher matrix of the model's own distribution.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from normscope.curvature.statistics import reading
from normscope.observe.untouched import Lent


class Network:
    """The outputs and the loss of one batch as functions of the chosen parameters; every forward draws the same."""

    def __init__(
        self,
        lent: Lent,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        batch: tuple[Any, Any],
        *,
        stats: str,
        chosen: Sequence[int] | None = None,
    ) -> None:
        self._lent, self._model, self._loss_fn, self._stats = lent, model, loss_fn, stats
        self._x, self._y = batch
        self.leaves = [lent.leaves[i] for i in (range(len(lent.leaves)) if chosen is None else chosen)]
        for leaf in lent.leaves:
            leaf.requires_grad_(False)
        for leaf in self.leaves:
            leaf.requires_grad_(True)

    @property
    def size(self) -> int:
        return sum(leaf.numel() for leaf in self.leaves)

    def output(self) -> Tensor:
        self._lent.reset()
        with reading(self._model, self._stats):
            found = self._model(self._x)
        if not isinstance(found, Tensor):
            raise TypeError(
                f"The outputs must be one tensor to take curvature by them; the model returns {type(found)}."
            )
        return found

    def loss(self, output: Tensor) -> Tensor:
        loss = self._loss_fn(output, self._y)
        if not isinstance(loss, Tensor) or loss.ndim:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"loss_fn must return a scalar; got {got}. Take its mean or its sum.")
        return loss

    def gradients(self, *, create_graph: bool = False) -> tuple[Tensor | None, ...]:
        """One for each leaf, None where the loss does not depend on it."""
        loss = self.loss(self.output())
        if not loss.requires_grad:
            return (None,) * len(self.leaves)
        return torch.autograd.grad(loss, self.leaves, create_graph=create_graph, allow_unused=True)

    def gradient(self) -> Tensor:
        return flat(self.gradients(), self.leaves)

    def hessian(self) -> Callable[[Tensor], Tensor]:
        found = self.gradients(create_graph=True)
        grads = [g for g in found if g is not None and g.requires_grad]

        def product(v: Tensor) -> Tensor:
            parts = split(v, self.leaves)
            along = [p for g, p in zip(found, parts, strict=True) if g is not None and g.requires_grad]
            if not grads:
                return torch.zeros_like(v)
            return flat(
                torch.autograd.grad(grads, self.leaves, along, retain_graph=True, allow_unused=True), self.leaves
            )

        return product

    def gauss_newton(self) -> Callable[[Tensor], Tensor]:
        output = self.output()
        bend, pull, push = self._output_hessian(output), self.pull(output), self.push()
        return lambda v: pull(bend(push(v)))

    def pull(self, output: Tensor) -> Callable[[Tensor], Tensor]:
        """u -> J^T u, by the kept graph of `output`."""

        def product(u: Tensor) -> Tensor:
            if not output.requires_grad:
                return flat((None,) * len(self.leaves), self.leaves)
            found = torch.autograd.grad(output, self.leaves, u, retain_graph=True, allow_unused=True)
            return flat(found, self.leaves)

        return product

    def push(self) -> Callable[[Tensor], Tensor]:
        """v -> J v, in the shape of the outputs, by forward mode."""

        def product(v: Tensor) -> Tensor:
            parts = split(v, self.leaves)
            self._lent.reset()
            with torch.no_grad(), forward_ad.dual_level():
                duals = [forward_ad.make_dual(leaf, part) for leaf, part in zip(self.leaves, parts, strict=True)]
                with self._lent.holding(self.leaves, duals), reading(self._model, self._stats):
                    output, tangent = forward_ad.unpack_dual(self._model(self._x))
            return torch.zeros_like(output) if tangent is None else tangent

        return product

    def _output_hessian(self, output: Tensor) -> Callable[[Tensor], Tensor]:
        z = output.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.loss(z), z, create_graph=True)
        if not slope.requires_grad:
            return torch.zeros_like
        return lambda u: torch.autograd.grad(slope, z, u, retain_graph=True)[0]


def flat(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """One vector; zeros where there is none."""
    parts = [
        torch.zeros_like(b).reshape(-1) if a is None else a.reshape(-1) for a, b in zip(tensors, like, strict=True)
    ]
    return torch.cat(parts)


def split(v: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = v.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
