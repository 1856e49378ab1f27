"""Gradients of a loss with respect to the outputs, at points chosen to distinguish kinds of loss."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Largest number of outputs compared: of a language model's hundreds of millions, a sample of rows is enough.
_ENTRIES = 2**21
# Random numbers drawn before they repeat: a prime, so that no two rows of the outputs get the same numbers.
_DRAWN = 1_000_003


class Undecided(Exception):
    """The loss cannot be probed; the message says why."""


@dataclass(frozen=True)
class Probed:
    """The loss as a function of t, where the outputs are `link(t)`.

    Attributes:
        real: the t of the batch's own outputs.
        place: maps normally distributed numbers to the range of t.
    """

    loss: Callable[[Tensor], Any]
    real: Tensor
    link: Callable[[Tensor], Tensor] = torch.clone
    place: Callable[[Tensor], Tensor] = torch.clone

    @property
    def anywhere(self) -> bool:
        """Whether t may be any number."""
        return self.place is torch.clone

    def normal(self, seed: int) -> Tensor:
        """Standard normal numbers in the shape of t, from a generator of their own; they repeat after `_DRAWN`."""
        generator = torch.Generator(self.real.device).manual_seed(seed)
        drawn, *others = (numbers := torch.empty_like(self.real).view(-1)).split(_DRAWN)
        drawn.normal_(generator=generator)
        for part in others:
            part.copy_(drawn[: len(part)])
        return numbers.view(self.real.shape)

    def gradient(self, t: Tensor) -> Tensor:
        """The gradient at t; zeros if the loss does not depend on t.

        Raises:
            Undecided: the loss is not one number, or its gradient is not finite.
        """
        with torch.enable_grad():
            t = t.detach().requires_grad_()
            value = self.loss(self.link(t))
            if not isinstance(value, Tensor) or value.numel() != 1:
                raise Undecided("it does not return one number")
            if not value.requires_grad:
                return torch.zeros_like(t)
            (slope,) = torch.autograd.grad(value.sum(), t, allow_unused=True)
        if slope is None:
            return torch.zeros_like(t)
        if not slope.isfinite().all():
            raise Undecided("its gradient is not finite at outputs of moderate size")
        return slope.detach().contiguous()


@dataclass(frozen=True)
class Layout:
    """A view of the outputs as (rows, classes, columns); the loss couples outputs that differ in the class only."""

    rows: int
    classes: int
    columns: int

    def of(self, t: Tensor) -> Tensor:
        """`t` in the shape (rows, classes, columns)."""
        return t.reshape(self.rows, self.classes, self.columns)

    def raised(self, t: Tensor, extreme: Tensor, by: float) -> Tensor:
        """A copy of t in which the class `extreme` of each row and column is higher by `by`."""
        viewed = self.of(t)
        # Not scatter_add, which has no deterministic algorithm on a GPU.
        return viewed.scatter(1, extreme, viewed.gather(1, extreme) + by).reshape(t.shape)

    def sample(self, t: Tensor, entry: int) -> Tensor:
        """The row of output number `entry` and further rows at even distances, at most `_ENTRIES` outputs in all."""
        every = max(1, math.ceil(t.numel() / _ENTRIES))
        row = entry // (self.classes * self.columns)
        return self.of(t)[row % every :: every]


def along(shape: torch.Size, axis: int) -> Layout:
    """The layout with classes along one axis."""
    return Layout(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def layouts(shape: torch.Size, coupled: Tensor) -> list[Layout]:
    """The layouts in which the outputs number `coupled` (flat, ascending) differ in the class only.

    Classes may run along one axis, which may also have classes that the loss does not read. Or, if the loss reshapes
    the outputs, classes form blocks of as many outputs as are coupled.

    Example:
        >>> layouts(torch.Size((2, 6)), torch.tensor([3, 4, 5]))
        [Layout(rows=2, classes=6, columns=1), Layout(rows=4, classes=3, columns=1)]
    """
    numel, size, first = math.prod(shape), len(coupled), int(coupled[0])
    if size == 1:
        return [Layout(numel, 1, 1)]
    steps = coupled.diff()
    possible = []
    indices = torch.stack(torch.unravel_index(coupled, shape))
    varying = (indices != indices[:, :1]).any(1).nonzero().flatten().tolist()
    if len(varying) == 1:
        possible.append(along(shape, varying[0]))
    step = int(steps[0])
    whole = bool((steps == step).all()) and numel % (size * step) == 0 and first % (size * step) < step
    if whole and (block := Layout(numel // (size * step), size, step)) not in possible:
        possible.append(block)
    return possible
