r"""The critical step of the coming update: the learning rate at which the loss along it is back at its value here.

    s_c = min { s > 0 : L(theta + s d) > L(theta) }        d: what the optimizer is about to do at a learning rate of 1

On a quadratic and along the gradient s_c = 2 g'g / g'Hg >= 2 / lambda_max (`observe/critical.py`, whose search this
is). At most `most` forward passes on the copies that the curvature was measured on, and one more where the loss here is
not known.
Source: arXiv 2601.16979, critical sharpness 2 / s_c.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normscope.curvature.vectors import split
from normscope.isolation.untouched import Lent
from normscope.observe.critical import PASSES, Search
from normscope.observe.update import updated


def critical_step(
    lent: Lent,
    chosen: Sequence[int],
    loss: Callable[[], float],
    gradient: Tensor,
    optimizer: torch.optim.Optimizer | None,
    guess: float,
    here: float | None = None,
    most: int = PASSES,
) -> float:
    """inf where no rise was found, 0 where the loss is higher at every step tried.

    Args:
        chosen: numbers of the parameters that move. loss: L where the leaves stand. gradient: of L, by those.
        optimizer: whose coming update is looked along; None for gradient descent. guess: where the search begins.
        here: L at the start, where it is known. most: passes.
    """
    leaves: list[Tensor] = [lent.leaves[i] for i in chosen]
    origin, slopes = [leaf.detach().clone() for leaf in leaves], split(gradient, leaves)
    start = guess if 0 < guess < math.inf else 1.0
    if optimizer is None:
        way = [-slope for slope in slopes]
    else:
        # At the rate where the search begins: with one near 0 the update would be lost in rounding.
        after = updated(optimizer, [lent.originals[i] for i in chosen], gradients=slopes, lr=start)
        way = [(new - old) / start for new, old in zip(after, origin, strict=True)]

    def at(s: float) -> float:
        with torch.no_grad():
            for leaf, old, direction in zip(leaves, origin, way, strict=True):
                torch.add(old, direction, alpha=s, out=leaf)
        return loss()

    at_start = loss() if here is None else here
    try:
        return Search(lambda s: at(s) - at_start, start, most).run()
    finally:
        with torch.no_grad():
            torch._foreach_copy_(leaves, origin)
