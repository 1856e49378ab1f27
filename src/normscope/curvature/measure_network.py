r"""`measure`: the largest stable learning rate of this network on this batch, from the curvature as trained.

    eta* = factor / lambda_max,   factor = 2 (1 + mu) for gradient descent with momentum (`optimizer_limits.py`)

By default lambda_max is that of the generalized Gauss-Newton matrix. Batch statistics are read as trained ("batch"),
held constant ("frozen") or in eval mode ("running"). The result also has the critical rate and the rate to start with.
eta* marks where the local quadratic turns unstable; with cross-entropy, networks with BatchNorm survive
far above it.

A call with default settings takes at most 30 gradient passes for its first batch and 4 for each further one. A gradient
pass is one forward and one backward: a product with the Gauss-Newton matrix costs 1.2 to 1.4 of them, a forward a
third. So the spectrum of one batch is searched, and each further batch shows by one product and a short search how much
the answers vary. The mean of all batches' operators, over="batches", costs one product for each batch at each step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from normscope.curvature.eigensolvers.solver import Solver
from normscope.curvature.measurement.all_steps import carry_out
from normscope.curvature.measurement.request import Request
from normscope.curvature.operators.matrices import MATRICES
from normscope.curvature.operators.several_batches import AVERAGES
from normscope.curvature.operators.statistics import MODES
from normscope.curvature.result import Measurement
from normscope.isolation.memory_bound import check_max_memory
from normscope.isolation.unwrapping import unwrapped
from normscope.messages.choices import check_choice
from normscope.setup import Setup, gathered

# Products that keep a measurement below 30 gradient passes: 1.4 each, beside one gradient, nine forwards for the
# critical rate and the check in float64.
CHEAP_SOLVER = Solver(max_products=17)


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
    label_draws: int = 0,
    over: str = "first",
    micro_batch: int | None = None,
    dtype: torch.dtype | None = None,
    solver: Solver | None = None,
    start: Measurement | None = None,
    seed: int = 0,
    max_memory: float | None = None,
) -> Measurement:
    """Measure lambda_max and eta* of this network on this batch, as it is trained; the model is left untouched.

    Args:
        model: any module, in the mode in which it trains (train mode, usually). Or an `ns.Setup`, which gives every
            argument that is not handed in here.
        loss_fn: loss_fn(outputs, targets) returns the scalar loss. None if the model or `forward` returns the loss.
        batches: one batch, as (x, y), (a, b, ..., y), a mapping or what `forward` takes. Or an iterable of batches,
            such as a DataLoader; `over` is how several batches are used.
        forward: forward(model, batch) returns the outputs, or without loss_fn the loss.
        n_batches: batches to read of an iterable; by default all of a list and the first 4 of any other.
        momentum: SGD momentum, for eta* without an optimizer.
        nesterov: whether that momentum is Nesterov's.
        optimizer: the optimizer that trains. Momentum, weight decay and learning rates are read from it, and the
            preconditioner of Adam, NAdam, AdamW, RMSprop and Adagrad. Curvature is with respect to its parameters.
        matrix: "ggn" (generalized Gauss-Newton, the default), "hessian" or "fisher". By default it is the Hessian,
            with a note, where the loss is no known function of the model's outputs.
        stats: how BatchNorm's statistics are read. "batch": of the batch, and differentiated through, as in training.
            "frozen": of the batch, held constant. "running": running averages, as in eval mode.
        compare: further statistics modes, whose lambda_max is given beside that of `stats`.
        hessian: also search both ends of the Hessian's spectrum, for several times the cost of all the rest. A note
            says so where the model has no second derivative.
        layers: also search lambda_max of each layer with parameters, the others held constant. The cost is one more
            search for each layer, of up to 17 products (about 30 gradient passes) through the whole network. A small
            BERT on a CPU takes minutes.
        parameters: parameters(name, parameter) returns whether the curvature is with respect to this parameter; by
            default all that are trained.
        label_draws: labels drawn for each output to sample the Fisher matrix; 0 is the exact matrix.
        over: how several batches are used. "first": the spectrum of the first batch, and for each further one its
            critical rate and a lower bound of its lambda_max. "batches": the mean of the batches' operators. "data":
            the curvature of the loss of all batches together; it needs statistics that do not go over the batch, and a
            loss that is a weighted sum over its parts.
        micro_batch: samples of each part that one batch is cut into, for "data".
        dtype: number format of the products, float32 or float64. By default the model's own, and float32 for a model
            in half precision. On one GPU a search in float32 begins with products rounded to TF32; value and residual
            come from exact products.
        solver: an `ns.curvature.Solver` with the settings of the eigenvalue search: tol, max_products, block. By
            default `Solver()`, whose relative residual to reach is 1e-3, with at most 17 products, so that the
            measurement costs at most 30 gradient passes; at most 100 with hessian=, matrix="hessian" or another over=
            than "first".
        start: an earlier result of the same parameters; the search starts from its remembered eigenvectors.
        seed: seed of the start vector and of the drawn labels.
        max_memory: bytes that copies of parameters, buffers and batches may take; refused before any is made where they
            would take more. Gradients, activations and the search's vectors are not counted.

    Returns:
        A `Measurement`: lambda_max with its residual, eta*, the critical rate, a first guess, and notes.

    Raises:
        ValueError: an argument does not fit, the loss is not a scalar, or it is not finite on the batch.

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
    batches = setup.batches_to_read if batches is None else batches
    if batches is None:
        raise ValueError("measure needs a batch: measure(model, loss_fn, (x, y)), or a Setup with batches.")
    by_default, matrix = matrix is None, matrix or "ggn"
    check_choice("matrix", matrix, MATRICES)
    compared = (compare,) if isinstance(compare, str) else tuple(compare)
    for name in (stats, *compared):
        check_choice("stats", name, MODES)
    if label_draws and not MATRICES[matrix].draws_labels:
        raise ValueError(f"label_draws= samples the Fisher matrix; with matrix={matrix!r} there is nothing to sample.")
    check_choice("over", over, ("first", *AVERAGES))
    check_max_memory(max_memory)
    if solver is None:
        solver = CHEAP_SOLVER if not hessian and not MATRICES[matrix].is_hessian and over == "first" else Solver()
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
        label_draws=label_draws,
        over=over,
        micro_batch=micro_batch,
        n_batches=n_batches,
        matrix_by_default=by_default,
        dtype=dtype,
        solver=solver,
        seed=seed,
        start=start,
        max_memory=max_memory,
    )
    inner, processes, convention = unwrapped(setup.model)
    # An error in one process, even by its batch alone, is raised in all processes, so none waits.
    return processes.together(lambda: carry_out(request, inner, setup.objective, batches, processes, convention))
