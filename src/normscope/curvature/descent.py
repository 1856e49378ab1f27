r"""The critical step of the coming update: the learning rate at which the loss along it is back at its value here.

    s_c = min { s > 0 : L(theta + s d) > L(theta) }        d: what the optimizer is about to do at a learning rate of 1

On a quadratic and along the gradient s_c = 2 g'g / g'Hg >= 2 / lambda_max (`observe/critical.py`, whose search this
is). Some eight forward passes on the copies that the curvature was measured on, which are left elsewhere.
Source: arXiv 2601.16979, critical sharpness 2 / s_c.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normscope.curvature.vectors import split
from normscope.isolation.untouched import Lent
from normscope.observe.critical import Search
from normscope.observe.update import updated


def critical_step(
    lent: Lent,
    chosen: Sequence[int],
    loss: Callable[[], float],
    gradient: Tensor,
    optimizer: torch.optim.Optimizer | None,
    guess: float,
) -> float:
    """inf where no rise was found, 0 where the loss is higher at every step tried.

    Args:
        chosen: numbers of the parameters that move. loss: L where the leaves stand. gradient: of L, by those.
        optimizer: whose coming update is looked along; None for gradient descent. guess: where the search begins.
    """
    leaves = [lent.leaves[i] for i in chosen]
    here, slopes = [leaf.detach().clone() for leaf in leaves], split(gradient, leaves)
    start = guess if 0 < guess < math.inf else 1.0
    if optimizer is None:
        way = [-slope for slope in slopes]
    else:
        # At the rate where the search begins: with one near 0 the update would be lost in rounding.
        after = updated(optimizer, [lent.originals[i] for i in chosen], gradients=slopes, lr=start)
        way = [(new - old) / start for new, old in zip(after, here, strict=True)]

    def move(s: float) -> float:
        with torch.no_grad():
            for leaf, old, direction in zip(leaves, here, way, strict=True):
                torch.add(old, direction, alpha=s, out=leaf)
        return loss()

    at_start = move(0.0)
    return Search(lambda s: move(s) - at_start, start).run()
