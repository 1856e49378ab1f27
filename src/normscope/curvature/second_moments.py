r"""Second moments for an optimizer that has made no step: the squares of the gradients here, averaged over batches.

    v = mean_b (g_b + w theta)^2          w: weight decay that the optimizer adds to the gradient, else 0

Adam's running average, corrected for its start, is this mean over its last batches, and RMSprop's settles at it. An
Adagrad's sum grows with each step; the one after its first step is taken. Parameters stay where they are, and nothing
is written into the optimizer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.curvature.session import Look, Solver
from normscope.isolation.flat_vectors import split
from normscope.isolation.lending import Lent
from normscope.isolation.processes import Processes
from normscope.stability.optimizer_limits import Moments, adds_decay, fresh, momentum_limit

# More batches would change v by a few percent, and cost a gradient each.
MOST = 5


def gathered_moments(
    optimizer: torch.optim.Optimizer,
    lent: Lent,
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    batches: Sequence[Any],
    chosen: Sequence[int],
    *,
    processes: Processes,
    dtype: torch.dtype | None,
    call: Callable[[nn.Module, Any], Any],
) -> Moments | None:
    """The moments of the parameters number `chosen`, of at most `MOST` batches; None where it has its own."""
    if not fresh(optimizer, [lent.originals[i] for i in chosen]):
        return None
    leaves = [lent.leaves[i] for i in chosen]
    decays = [adds_decay(optimizer, lent.originals[i]) for i in chosen]
    used = batches[:MOST]
    means, squares = ([torch.zeros_like(leaf) for leaf in leaves] for _ in range(2))
    for batch in used:
        options: dict[str, Any] = {"limit": momentum_limit(), "solver": Solver(), "processes": processes}
        _, gradient, _ = Look(lent, model, loss_fn, [batch], dtype=dtype, call=call, **options).first("batch", chosen)
        for mean, square, slope, leaf, decay in zip(
            means, squares, split(gradient, leaves), leaves, decays, strict=True
        ):
            whole = slope + decay * leaf.detach()
            mean += whole / len(used)
            square += whole.square() / len(used)
    return Moments(dict(zip(chosen, means, strict=True)), dict(zip(chosen, squares, strict=True)), len(used))
