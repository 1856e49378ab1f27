r"""Further batches beside the searched one: how much lambda_max and the critical rate vary over batches.

    lambda_max(A_b) >= w'w / v'w,     w = A_b v         v: the top eigenvector of the first batch's matrix

For A_b positive semidefinite this is the Rayleigh quotient of A_b^1/2 v, which one product gives. It is no less than
v'A_b v, the quotient of v itself, which is the bound for a Hessian. A batch costs four gradient passes: one gradient,
one product, and at most four forwards of a search for its critical rate that begins at the first batch's.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.curvature.operators.matrices import MATRICES
from normscope.curvature.session.first_pass import FirstPass, first_pass, loss_function
from normscope.curvature.session.session import Session
from normscope.stability.critical_rate import find_critical_rate

# Forwards of the search for a further batch's critical rate.
_PASSES = 4


@dataclass(frozen=True)
class FurtherBatch:
    """The numbers of one batch beside the searched one.

    Attributes:
        lambda_lower_bound: a lower bound of this batch's lambda_max, or nan.
        critical: its critical rate, or nan.
    """

    lambda_lower_bound: float
    critical: float


def further_batch(
    session: Session,
    *,
    stats: str,
    matrix: str,
    vector: Tensor,
    guess: float,
    optimizer: torch.optim.Optimizer | None,
) -> FurtherBatch:
    """The bound and the critical rate of the one batch of `session`.

    Args:
        vector: the first batch's top eigenvector; in another precision than the model's there is no bound.
        guess: where the search for the critical rate begins; nan where no critical rate is asked for.
    """
    first, least = _first_pass_and_bound(session, stats, matrix, vector)
    if math.isnan(guess):
        return FurtherBatch(least, math.nan)
    loss = loss_function(session, stats)
    critical = find_critical_rate(
        session.lent, session.chosen, loss, first.gradient, optimizer, guess=guess, here=first.loss, most=_PASSES
    )
    return FurtherBatch(least, critical)


def _first_pass_and_bound(session: Session, stats: str, matrix: str, vector: Tensor) -> tuple[FirstPass, float]:
    """The first pass and the bound, which goes on from its graph; the graph is freed at the end."""
    first, graph = first_pass(session, stats, matrix)
    if vector.dtype != first.gradient.dtype:
        return first, math.nan
    return first, _lambda_lower_bound(vector, session.product(stats, matrix, vector, graph=graph), matrix)


def _lambda_lower_bound(v: Tensor, image: Tensor, matrix: str) -> float:
    """The bound from the product `image` = A v."""
    form = float(v @ image)
    return form if MATRICES[matrix].is_hessian or form <= 0 else float(image @ image) / form
