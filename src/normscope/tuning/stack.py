"""The forward and backward pass of several copies of a network as one stack.

    sum_k loss_k(theta_k)        its gradient with respect to theta_k is that of copy k

`torch.func.vmap` computes the losses of all copies over their stacked parameters and buffers. The tensors are stacked
at each pass from those of the copies, and one backward pass puts each copy's gradient into its own `.grad`. So
optimizers, clipping, scalers and schedulers work on each copy as they do on a copy alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from normscope.setup import Setup
from normscope.stackable import NotStackable

# The relative difference of two gradients above which a stack computes something else than a copy alone. Rounding to
# TF32 stays below.
ALIKE = 0.05
# The norm of a difference is compared with that of its tensor, or with this share of the largest tensor's.
_SHARE = 0.1
Tensors = dict[str, Tensor]


class _Whole(nn.Module):
    """A model and its loss as one module; `forward(batch)` returns the loss."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.model, self.objective = setup.model, setup.objective
        self.loss_fn = setup.loss_fn  # a submodule, if it is a module

    def forward(self, batch: Any) -> Any:
        return self.objective(self.model, batch)

    def state(self) -> tuple[Tensors, Tensors]:
        """The parameters and the buffers by name."""
        return dict(self.named_parameters()), dict(self.named_buffers())


class Stack:
    """The passes of copies of one setup; a copy of its own, in train mode, computes the forward of all.

    Args:
        setup: one of the copies.
    """

    def __init__(self, setup: Setup) -> None:
        alone = replace(setup, optimizer=None, scheduler=None, scaler=None, averaged_model=None)
        self._whole = _Whole(alone.copied())
        self._whole.model.train()

    @property
    def model(self) -> nn.Module:
        """The model that computes the forward pass."""
        return self._whole.model

    def add_gradient(self, copies: Sequence[Setup], parts: Sequence[Any], device: torch.device) -> Tensor:
        """Add the gradient of each copy's mean loss of `parts` to its `.grad`, move its buffers; returns the losses.

        Raises:
            RuntimeError: an operation that cannot be stacked, such as dropout.
        """
        total = torch.zeros(len(copies), device=device)
        for batch in parts:
            losses = self._losses(copies, batch)
            if losses.ndim != 1:
                raise ValueError(f"loss_fn must return a scalar; got shape {tuple(losses.shape[1:])}.")
            losses = losses if len(parts) == 1 else losses / len(parts)
            each = zip(copies, losses.unbind(), strict=True)
            torch.stack([loss if one.scaler is None else one.scaler.scale(loss) for one, loss in each]).sum().backward()
            total = losses.detach() if len(parts) == 1 else total + losses.detach()
        return total

    def _losses(self, copies: Sequence[Setup], batch: Any) -> Tensor:
        states = [_Whole(one).state() for one in copies]
        parameters, buffers = (
            {name: torch.stack([s[i][name] for s in states]) for name in states[0][i]} for i in (0, 1)
        )

        def loss_of(parameters: Tensors, buffers: Tensors) -> tuple[Tensor, Tensors]:
            state = parameters | buffers
            loss = functional_call(self._whole, state, (batch,))
            return loss, {name: state[name].detach() for name in buffers}  # also buffers that were assigned

        losses, moved = vmap(loss_of, randomness="error")(parameters, buffers)
        with torch.no_grad():
            for row, (_, own) in enumerate(states):
                for name, buffer in own.items():
                    buffer.copy_(moved[name][row])
        return losses


def check_same(alone: Setup, stacked: Setup) -> None:
    """Compare gradients and buffers after one pass from the same start.

    Raises:
        NotStackable: they differ by more than rounding; the message names the worst tensor.
    """
    for pairs in _moved(alone, stacked):
        largest = max((float(one.norm()) for one, _ in pairs.values()), default=0.0)
        for name, (one, other) in pairs.items():
            allowed = ALIKE * max(float(one.norm()), _SHARE * largest)
            if not float((one - other).norm()) <= allowed and bool(one.isfinite().all()):
                raise NotStackable(f"{name} of the first step is another in a stack than in a copy alone")


def _moved(alone: Setup, stacked: Setup) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """The gradients, then the buffers of floating point, each by name and in pairs; a missing gradient is zero."""
    (own, own_buffers), (other, other_buffers) = _Whole(alone).state(), _Whole(stacked).state()
    yield {f"the gradient of {name}": (_gradient(p), _gradient(other[name])) for name, p in own.items()}
    floating = {name: buffer for name, buffer in own_buffers.items() if buffer.is_floating_point()}
    yield {name: (buffer, other_buffers[name]) for name, buffer in floating.items()}


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
