r"""Further batches beside the one whose spectrum was searched: how much lambda_max and the critical rate vary.

    lambda_max(A_b) >= w'w / v'w,     w = A_b v         v: the top eigenvector of the first batch's matrix

For A_b positive semidefinite this is the Rayleigh quotient of A_b^1/2 v, which one product gives; it is no less than
v'A_b v, the quotient of v itself, which is what a Hessian is left with. A batch costs one gradient, one product and at
most four forwards of a search for its critical rate that begins at the first batch's: four gradient passes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.curvature.session import Look
from normscope.isolation.lending import Lent
from normscope.stability.critical_rate import critical_step

# Forwards of the search for a further batch's critical rate.
_PASSES = 4


@dataclass(frozen=True)
class Further:
    """lambda_least: a lower bound of this batch's lambda_max, or nan. critical: its critical rate, or nan."""

    lambda_least: float
    critical: float


def further(
    look: Look,
    lent: Lent,
    chosen: Sequence[int],
    *,
    stats: str,
    matrix: str,
    vector: Tensor,
    guess: float,
    optimizer: torch.optim.Optimizer | None,
) -> Further:
    """`Further` of the one batch of `look`.

    Args:
        vector: the first batch's; in another precision than the model's there is no bound.
        guess: where the search for the critical rate begins; nan where none is asked for.
    """
    loss, gradient, _ = look.first(stats, chosen, matrix)
    least = (
        _least(vector, look.image(stats, matrix, chosen, vector), matrix)
        if vector.dtype == gradient.dtype
        else math.nan
    )
    if math.isnan(guess):
        return Further(least, math.nan)
    losses = look.losses(stats, chosen)
    return Further(
        least, critical_step(lent, chosen, losses, gradient, optimizer, guess=guess, here=loss, most=_PASSES)
    )


def _least(v: Tensor, image: Tensor, matrix: str) -> float:
    along = float(v @ image)
    return along if matrix == "hessian" or along <= 0 else float(image @ image) / along
