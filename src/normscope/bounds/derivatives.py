"""Derivatives of the rest of the network by z, by y and by W, for the two sides of the theorems.

g and H come from a graph that starts at z; d and Hh from a graph that starts at y and goes through BatchNorm; the
weights' gradient and curvature from a graph that starts at W. So no right side uses a derivative of its left side.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from normscope.bounds.downstream import Downstream, derivative
from normscope.bounds.normalized_layer import Array, NormalizedLayer, as_array


class LayerDerivatives:
    """The derivatives on the left sides of the statements, and the g and H that make up the right sides."""

    def __init__(self, layer: NormalizedLayer, downstream: Callable[[Tensor], Tensor]) -> None:
        self.layer, self._loss = layer, Downstream(downstream)
        self.z, self.y, self.weight = (
            leaf.detach().clone().requires_grad_() for leaf in (layer.transform(layer.y), layer.y, layer.weight)
        )
        losses = [
            self._loss(self.z),
            self._loss(layer.transform(self.y)),
            self._loss(layer.transform(layer.apply(self.weight))),
        ]
        if not torch.allclose(losses[0], torch.stack(losses), rtol=1e-9, atol=0):
            raise ValueError(
                f"downstream must give the same loss for the same z; got {[loss.item() for loss in losses]}. Put "
                "dropout in eval mode, or reset its generator at every call."
            )
        self.g, self.d, self.by_weight = (
            self._loss.gradient(loss, leaf) for loss, leaf in zip(losses, (self.z, self.y, self.weight), strict=True)
        )
        self._loss.check_curvature(self.z, self.g)

    def loss_with(self, weight: Tensor) -> float:
        with torch.no_grad():
            return self._loss(self.layer.transform(self.layer.apply(weight))).item()

    def loss_terms(self, weight: Tensor, rounding: float) -> float:
        """Size of the terms of the loss with this weight: |g| |z|, or the error that rounding in y can cause."""
        y = self.layer.apply(weight)
        z = self.layer.transform(y).detach().requires_grad_()
        g = self._loss.gradient(self._loss(z), z).detach().abs()
        return max(float((g * z.detach().abs()).sum()), rounding * float((g * self.layer.relative_terms(weight)).sum()))

    def of(self, gradient: Tensor, unit: int) -> Array:
        """The values of one unit of a tensor shaped like y or z."""
        return as_array(self.layer.values(gradient)[unit])

    def product(self, gradient: Tensor, leaf: Tensor, unit: int, v: Array) -> Array:
        """The unit's own block of the Hessian behind `gradient`, times v."""
        seed = self.layer.spread(torch.from_numpy(np.ascontiguousarray(v)).to(leaf), unit)
        return self.of(derivative(gradient, leaf, seed), unit)

    def block(self, gradient: Tensor, leaf: Tensor, unit: int) -> Array:
        return np.stack([self.product(gradient, leaf, unit, column) for column in np.eye(self.layer.m)])

    def weight_curvature(self, unit: int) -> float:
        """The gradient with respect to the unit's weights, times their Hessian, times the gradient."""
        seed = torch.zeros_like(self.weight)
        seed[unit] = self.by_weight[unit].detach()
        return float((derivative(self.by_weight, self.weight, seed)[unit] * seed[unit]).sum())
