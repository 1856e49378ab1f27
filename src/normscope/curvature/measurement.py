r"""`measure`: the largest stable learning rate of this network on this batch, from the curvature as trained.

    eta* = factor / lambda_max,   factor = 2 (1 + mu) for gradient descent with momentum (`limits.py`)

lambda_max is that of the generalized Gauss-Newton matrix by default, with the Hessian's largest and smallest eigenvalue
beside it, through the batch statistics as they are trained ("batch"), with them held constant ("frozen") or in eval mode
("running"). eta* marks where the local quadratic turns unstable; with cross-entropy that is not where training breaks.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.choices import check_choice
from normscope.curvature.lanczos import Ritz, lanczos
from normscope.curvature.limits import Limit, momentum_limit, optimizer_limit
from normscope.curvature.network import Network
from normscope.curvature.statistics import STATISTICS, over_the_batch
from normscope.environment import environment
from normscope.observe.model import unwrapped
from normscope.observe.untouched import untouched
from normscope.observe.verdict import CROSS_ENTROPY, NOT_A_LIMIT, SQUARED, Verdict, loss_kind

MATRICES = ("ggn", "hessian")


@dataclass(frozen=True)
class Measurement:
    """lambda_max of `matrix` with its relative residual, and what follows from it.

    by_statistics: lambda_max read in each of the three ways asked for. by_layer: lambda_max of each layer's own block.
    hessian_max, hessian_min: the Hessian's ends, nan where not asked for. notes: conventions that were used.
    """

    lambda_max: float
    residual: float
    converged: bool
    eta_star: float
    rule: str
    loss: float
    loss_kind: str
    matrix: str
    stats: str
    products: int
    hessian_max: float
    hessian_min: float
    by_statistics: dict[str, float]
    by_layer: dict[str, float]
    notes: tuple[str, ...]
    settings: dict[str, Any]
    environment: dict[str, str | int]

    def verdict(self, lr: float) -> Verdict:
        """What a learning rate of `lr` means here, worded for the loss."""
        below = lr < self.eta_star
        share = f"lr = {lr:.3g} is {lr / self.eta_star:.2g} times eta* = {self.eta_star:.3g}"
        text = f"{share}: the local quadratic is {'stable' if below else 'unstable'}."
        good: bool | None = below
        if self.loss_kind == CROSS_ENTROPY:
            text += " " + NOT_A_LIMIT
            good = True if below else None
        elif not below and self.loss_kind == SQUARED:
            text += " Expect the loss to rise along the top eigenvector before the network adapts, if it does."
        if not self.converged:
            text += f" (Not converged: the residual is {self.residual:.1e}.)"
        return Verdict("learning rate", good, text, self.rule, f"curvature of this batch, {self.matrix}, {self.stats}")

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(asdict(self))
        return found


def measure(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    batch: tuple[Any, Any],
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    matrix: str = "ggn",
    stats: str = "batch",
    compare: Sequence[str] = (),
    hessian: bool = False,
    layers: bool = False,
    dtype: torch.dtype | None = None,
    tol: float = 1e-3,
    most: int = 100,
    seed: int = 0,
) -> Measurement:
    """lambda_max and eta* of this network on this batch, as it is trained; the model is left untouched.

    Args:
        model, loss_fn: loss_fn(model(x), y) is the scalar loss; the model in the modes it trains in.
        batch: (x, y), whole: with batch statistics the curvature of parts is that of another loss.
        momentum, nesterov: of gradient descent, for eta*; or optimizer= to read them, weight decay and the
            preconditioner of Adam, AdamW and RMSprop off the one that trains.
        matrix: "ggn" (generalized Gauss-Newton) or "hessian". hessian=True gives the Hessian's ends beside it.
        stats: how normalizers' batch statistics are read: "batch", "frozen" or "running"; compare= names others
            to give beside it.
        layers: lambda_max of every parameterized layer's own block too.
        dtype: of the products; the model's own by default.
        tol, most: relative residual to reach, in at most so many products; not reached is converged=False.
        seed: of the start vector.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> from normscope.losses import half_mse
        >>> found = measure(layer, half_mse, (x, x))
        >>> round(found.lambda_max, 4), round(found.eta_star, 4)
        (5.0, 0.4)
    """
    check_choice("matrix", matrix, MATRICES)
    for name in (stats, *compare):
        check_choice("stats", name, STATISTICS)
    inner, _, _ = unwrapped(model)
    if dtype is not None:
        inner, batch = _converted(inner, batch, dtype)
    solve = _Solver(loss_fn, batch, tol, most, seed)
    with untouched(inner) as lent:
        limit = optimizer_limit(optimizer, lent.originals) if optimizer else momentum_limit(momentum, nesterov=nesterov)
        ...
