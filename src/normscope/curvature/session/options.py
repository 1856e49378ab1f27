"""The options of a session, which a session that is opened from another one takes over."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from normscope.curvature.eigensolvers.solver import Solver
from normscope.isolation.processes import Processes
from normscope.objective import call_model
from normscope.stability.optimizer_limits import Limit, momentum_limit


@dataclass(frozen=True)
class Options:
    """Settings that a session keeps from its opening on, whatever its dtype.

    Attributes:
        call: call(model, x) gives the outputs.
        processes: the processes that train this model together; one by default.
        limit: the optimizer's limit, with its preconditioner; by default that of gradient descent.
        solver: settings of the eigenvalue search.
        over: how several batches are put together, "batches" or "data".
        label_draws: labels drawn for each term of a sampled Fisher matrix, 0 for the exact one.
        seed: seed of the start vector and of these labels.
        max_memory: bytes that copies of parameters, buffers and batches may take, None for no limit.
    """

    call: Callable[[nn.Module, Any], Any] = call_model
    processes: Processes = field(default_factory=Processes)
    limit: Limit = field(default_factory=momentum_limit)
    solver: Solver = field(default_factory=Solver)
    over: str = "batches"
    label_draws: int = 0
    seed: int = 0
    max_memory: float | None = None
