r"""`measure`: the largest stable learning rate of this network on this batch, from the curvature as trained.

    eta* = factor / lambda_max,   factor = 2 (1 + mu) for gradient descent with momentum (`limits.py`)

lambda_max is that of the generalized Gauss-Newton matrix by default, through the batch statistics as they are trained
("batch"), with them held constant ("frozen") or in eval mode ("running"). The critical rate and the rate to start with
come beside it. eta* marks where the local quadratic turns unstable; with cross-entropy that is not where training
breaks.

A call that asks for no more takes at most 30 gradient passes for its first batch and 4 for each further one, a
gradient pass being one forward and one backward: a product with the Gauss-Newton matrix is 1.2 to 1.4 of them, a
forward a third. So one batch has its spectrum searched, and the others show by one product and a short search each how
much the answers vary. The mean of all batches' operators, over="batches", pays a product a batch and step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from normscope.choices import check_choice
from normscope.curvature.eigensolvers.solver import Solver
from normscope.curvature.operators.network_products import MATRICES
from normscope.curvature.operators.several_batches import OVER
from normscope.curvature.operators.statistics import STATISTICS
from normscope.curvature.procedure import Request, carry_out
from normscope.curvature.result import Measurement
from normscope.isolation.unwrapping import unwrapped
from normscope.setup import Setup, gathered

TOL, MOST = 1e-3, 100
# Products that leave the whole below 30 gradient passes: 1.4 each, one gradient, the critical rate's nine forwards and
# the look in float64.
CHEAP = 17


def measure(
    model: nn.Module | Setup,
    loss_fn: Callable[..., Any] | None = None,
    batches: Any = None,
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    n_batches: int | None = None,
    momentum: float = 0.0,
    nesterov: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    matrix: str | None = None,
    stats: str = "batch",
    compare: Sequence[str] = (),
    hessian: bool = False,
    layers: bool = False,
    parameters: Callable[[str, nn.Parameter], bool] | None = None,
    draws: int = 0,
    over: str = "first",
    micro_batch: int | None = None,
    dtype: torch.dtype | None = None,
    tol: float | None = None,
    most: int | None = None,
    block: int = 1,
    start: Measurement | None = None,
    seed: int = 0,
) -> Measurement:
    """lambda_max and eta* of this network on this batch, as it is trained; the model is left untouched.

    Args:
        model: any module, in the modes it trains in; or an `ns.Setup`, which gives all that is not handed in here.
        loss_fn: loss_fn(outputs, targets) is the scalar loss; None where the model or `forward` gives the loss.
        batches: one batch, as (x, y), (a, b, ..., y), a mapping or what `forward` takes; or an iterable of batches,
            of which over= says what is made.
        forward: forward(model, batch) gives the outputs, or without loss_fn the loss.
        n_batches: batches to read of an iterable; by default all of a list and the first 4 of any other.
        momentum, nesterov: of gradient descent, for eta*; or optimizer= to read them, weight decay, learning rates
            that differ and the preconditioner of Adam, AdamW and RMSprop off the one that trains. Curvature is then
            by its parameters alone.
        matrix: "ggn" (generalized Gauss-Newton, the default), "hessian" or "fisher". By default it is the Hessian,
            with a note, where the loss is no known function of the model's outputs.
        stats: how normalizers' batch statistics are read: "batch", "frozen" or "running"; compare= names others
            to give beside it.
        hessian: both ends of the Hessian's spectrum too, which cost several times as much as all the rest.
        layers: lambda_max of every parameterized layer's own block too.
        parameters: (name, parameter) -> whether it is one to take curvature by; all trainable ones by default.
        draws: sample the Fisher matrix with so many labels for each output; 0 is exact.
        over: several batches as "first", the spectrum of the first one, and of each further one its critical rate and
            a lower bound of its lambda_max (`further.py`); as "batches", the mean of their operators; or as "data",
            that of the loss of them all together (`several.py`), where no statistics go over the batch and the loss is
            a sum of its parts'. micro_batch: samples of each part that one batch is cut into, for "data".
        dtype: of the products, float32 or float64; the model's own by default, float32 where that is narrower.
            On one GPU a search in float32 begins with products rounded to TF32; value and residual are of exact ones.
        tol, most: relative residual to reach, in at most so many products; not reached is converged=False. By default
            1e-3, and 17 products where the measurement is to cost no more than 30 gradient passes: where neither is
            given, nor hessian=, matrix="hessian" or another over= than "first". Else 100.
        block: start vectors; as many as outputs where the top eigenvalues nearly coincide.
        start: an earlier result of the same parameters to start from, by what it remembers (`warm.py`).
        seed: of the start vector and of draws.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> from normscope.losses import half_mse
        >>> found = measure(layer, half_mse, (x, x))
        >>> round(found.lambda_max, 4), round(found.eta_star, 4)
        (5.0, 0.4)
    """
    given = {"loss_fn": loss_fn, "forward": forward, "optimizer": optimizer}
    setup = gathered(model, **given)
    batches = setup.batches if batches is None else batches
    if batches is None:
        raise ValueError("measure needs a batch: measure(model, loss_fn, (x, y)), or a Setup with batches.")
    by_default, matrix = matrix is None, matrix or "ggn"
    check_choice("matrix", matrix, MATRICES)
    compared = (compare,) if isinstance(compare, str) else tuple(compare)
    for name in (stats, *compared):
        check_choice("stats", name, STATISTICS)
    if draws and matrix != "fisher":
        raise ValueError(f"draws= samples the Fisher matrix; with matrix={matrix!r} there is nothing to sample.")
    check_choice("over", over, ("first", *OVER))
    if most is None:
        cheap = tol is None and not hessian and matrix != "hessian" and over == "first"
        most = CHEAP if cheap else MOST
    request = Request(
        momentum=momentum,
        nesterov=nesterov,
        optimizer=setup.optimizer,
        matrix=matrix,
        stats=stats,
        compare=compared,
        hessian=hessian,
        layers=layers,
        parameters=parameters,
        draws=draws,
        over=over,
        micro_batch=micro_batch,
        n_batches=n_batches,
        matrix_by_default=by_default,
        dtype=dtype,
        solver=Solver(TOL if tol is None else tol, most, block, seed),
        start=start,
    )
    inner, processes, convention = unwrapped(setup.model)
    # What fails in one process, be it in its batch alone, fails in all: none waits for it.
    return processes.together(lambda: carry_out(request, inner, setup.objective, batches, processes, convention))
