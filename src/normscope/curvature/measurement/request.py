"""The arguments of one call of `measure`, checked and with defaults filled in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from normscope.curvature.eigensolvers.solver import Solver

if TYPE_CHECKING:
    from normscope.curvature.result import Measurement


@dataclass(frozen=True)
class Request:
    """The arguments of `measure`, whose docstring explains them.

    matrix_by_default: whether no matrix was asked for, so that the Hessian may take the place of "ggn".
    """

    momentum: float
    nesterov: bool
    optimizer: torch.optim.Optimizer | None
    matrix: str
    stats: str
    compare: tuple[str, ...]
    hessian: bool
    layers: bool
    parameters: Callable[[str, nn.Parameter], bool] | None
    label_draws: int
    over: str
    micro_batch: int | None
    n_batches: int | None
    matrix_by_default: bool
    dtype: torch.dtype | None
    solver: Solver
    seed: int
    start: "Measurement | None"
    max_memory: float | None = None

    @property
    def compared(self) -> list[str]:
        """Statistics modes to give beside `stats`."""
        return [name for name in self.compare if name != self.stats]

    @property
    def put_together(self) -> str:
        """How several batches are put together: "first", "batches" or "data"."""
        return "data" if self.micro_batch is not None else self.over
