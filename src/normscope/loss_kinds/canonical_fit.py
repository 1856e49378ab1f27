r"""Test whether gradients with respect to the outputs z are those of a canonical loss.

    g(z) = w (phi(z) - q)          phi: softmax or sigmoid (cross-entropy), z itself (squared error)

w >= 0 and q do not depend on z. w holds class weights, the reduction and ignored targets (w = 0); q holds the target,
label smoothing and soft targets. w is one number for each softmax, or for each output of another loss. With one class,
softmax means sigmoid. The Hessians are w (diag p - p p^T), w p (1 - p) and w.

Differences g(z_k) - g(z_0) = w (phi(z_k) - phi(z_0)) give w, then g(z_0) gives q, and the other points are the test.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.loss_kinds.kinds import softmax

# Allowed rounding error of a gradient, in units of the last place of its largest entry: log-sum-exp of 50,000 classes
# has 40.
_ROUNDING = 64
# Changes of the gradient below this many rounding errors are too small to decide.
_RESOLVED = 30
_PROBABILITY = 1e-2


@dataclass(frozen=True)
class Points:
    """Points z with gradients g, each of shape (rows, classes, columns); the last point is the batch's own outputs.

    Attributes:
        tolerance: allowed error of a change of the gradient, relative to the largest change in its row and column.
    """

    z: Sequence[Tensor]
    g: Sequence[Tensor]
    tolerance: float

    def monotone(self) -> bool:
        """Whether <g(z) - g(z_0), z - z_0> >= 0 at every chosen point, as for a convex loss."""
        turns = [(g - self.g[0]) * (z - self.z[0]) for z, g in zip(self.z[1:-1], self.g[1:-1], strict=True)]
        return all(bool((t.sum(1) >= -self.tolerance * t.abs().sum(1).amax()).all()) for t in turns)


@dataclass(frozen=True)
class Fit:
    """The result of a fit.

    Attributes:
        chosen, real: whether the gradients at the chosen points, and at the batch's own outputs, have this form.
        resolved: whether the changes of the gradient are larger than rounding errors, so that the answer is reliable.
    """

    chosen: bool
    real: bool
    resolved: bool = True


def fit(points: Points, phi: Callable[[Tensor, Tensor], Tensor]) -> Fit:
    """Compare the gradients with w (phi(z) - q)."""
    z, g = points.z, points.g
    live = torch.stack([slope != 0 for slope in g]).any(0)
    read = live.any(1, keepdim=True)  # rows and columns that the loss reads
    values = [phi(point, live) for point in z]
    changes = [slope - g[0] for slope in g[1:]]
    moves = [value - values[0] for value in values[1:]]
    chosen = list(zip(changes, moves, strict=True))[:-1]
    squares = _sum([move.square() for _, move in chosen])
    w = _sum([change * move for change, move in chosen]) / torch.where(squares > 0, squares, 1)
    eps = _ROUNDING * torch.finfo(w.dtype).eps
    size = _top([*g[:-1]])
    errors = [eps * (torch.maximum(size, _top([slope])) + w.abs() * _top([o])) for slope, o in zip(g, z, strict=True)]
    right = []
    for change, move, error in zip(changes, moves, errors[1:], strict=True):
        allowed = points.tolerance * _top([change]) + error + errors[0]
        right.append(bool(((change - w * move).abs() <= allowed).all()))
    resolved = bool((_top([change for change, _ in chosen]) > _RESOLVED * torch.finfo(w.dtype).eps * size)[read].all())
    if not (w > 0)[read].all():
        return Fit(False, False, resolved)
    if phi is softmax:
        q = (values[0] - g[0] / torch.where(read, w, 1))[read.expand_as(g[0])]
        sums = _sum([g[0]]).abs() <= points.tolerance * size + errors[0]
        right[0] = right[0] and bool((q >= -_PROBABILITY).all() and (q <= 1 + _PROBABILITY).all())
        right[0] = right[0] and (g[0].shape[1] == 1 or bool(sums.all()))
    return Fit(all(right[:-1]), right[-1], resolved)


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack([term.sum(1, keepdim=True) for term in terms]).sum(0)


def _top(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack([term.abs().amax(1, keepdim=True) for term in terms]).amax(0)
