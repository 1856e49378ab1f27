r"""`measure`: the largest stable learning rate of this network on this batch, from the curvature as trained.

    eta* = factor / lambda_max,   factor = 2 (1 + mu) for gradient descent with momentum (`limits.py`)

lambda_max is that of the generalized Gauss-Newton matrix by default, with the Hessian's largest and smallest eigenvalue
beside it, through the batch statistics as they are trained ("batch"), with them held constant ("frozen") or in eval
mode ("running"). eta* marks where the local quadratic turns unstable; with cross-entropy that is not where training
breaks.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from normscope.choices import check_choice
from normscope.curvature.derivatives import working_dtype
from normscope.curvature.fisher import distribution
from normscope.curvature.lanczos import Ritz
from normscope.curvature.limits import momentum_limit, optimizer_limit
from normscope.curvature.look import Look, Solver, blocks, chosen_parameters
from normscope.curvature.measurement import Measurement
from normscope.curvature.network import MATRICES
from normscope.curvature.several import as_batches, is_one_batch, samples
from normscope.curvature.statistics import STATISTICS, over_the_batch
from normscope.environment import environment
from normscope.observe.loss import check_devices
from normscope.observe.model import unwrapped
from normscope.observe.untouched import untouched
from normscope.observe.verdict import loss_kind


def measure(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    batch: tuple[Any, Any] | Iterable[tuple[Any, Any]],
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    matrix: str = "ggn",
    stats: str = "batch",
    compare: Sequence[str] = (),
    hessian: bool = True,
    layers: bool = False,
    parameters: Callable[[str, nn.Parameter], bool] | None = None,
    draws: int = 0,
    over: str = "batches",
    micro_batch: int | None = None,
    dtype: torch.dtype | None = None,
    tol: float = 1e-3,
    most: int = 100,
    block: int = 1,
    start: Measurement | None = None,
    seed: int = 0,
) -> Measurement:
    """lambda_max and eta* of this network on this batch, as it is trained; the model is left untouched.

    Args:
        model, loss_fn: loss_fn(model(x), y) is the scalar loss; the model in the modes it trains in.
        batch: (x, y), whole; or an iterable of such pairs, whose operators are averaged (`several.py`).
        momentum, nesterov: of gradient descent, for eta*; or optimizer= to read them, weight decay and the
            preconditioner of Adam, AdamW and RMSprop off the one that trains.
        matrix: "ggn" (generalized Gauss-Newton), "hessian" or "fisher".
        stats: how normalizers' batch statistics are read: "batch", "frozen" or "running"; compare= names others
            to give beside it.
        hessian: both ends of the Hessian's spectrum too; most of the cost. False for lambda_max alone.
        layers: lambda_max of every parameterized layer's own block too.
        parameters: (name, parameter) -> whether it is one to take curvature by; all trainable ones by default.
        draws: sample the Fisher matrix with so many labels for each output; 0 is exact.
        over, micro_batch: "data" for the loss of all batches together, and parts to cut one batch into, both where
            no statistics go over the batch.
        dtype: of the products, float32 or float64; the model's own by default, float32 where that is narrower.
        tol, most: relative residual to reach, in at most so many products; not reached is converged=False.
        block: start vectors; as many as outputs where the top eigenvalues nearly coincide.
        start: an earlier result of the same parameters to start from.
        seed: of the start vector and of draws.

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
    if draws and matrix != "fisher":
        raise ValueError(f"draws= samples the Fisher matrix; with matrix={matrix!r} there is nothing to sample.")
    inner, processes, convention = unwrapped(model)
    device = next((p.device for p in inner.parameters()), torch.device("cpu"))
    batches = as_batches(batch, micro_batch, device)
    check_devices(batches, device)
    notes = [convention] if convention else []
    if torch.is_autocast_enabled(device.type):
        notes.append(f"Autocast ({torch.get_autocast_dtype(device.type)}) was switched off for the products.")
    cast = working_dtype(inner, dtype)
    if cast is not None:
        batches = [tree_map_only(Tensor, lambda t: t.to(cast) if t.is_floating_point() else t, b) for b in batches]
        notes.append(f"Products in {cast}, to which parameters and inputs were converted.")
    if "running" in (stats, *compare) and _unseen(inner):
        notes.append("The running statistics are those of initialization: no batch has been seen in train mode.")
    with untouched(inner, dtype=cast) as lent:
        chosen = chosen_parameters(lent, parameters)
        limit = optimizer_limit(optimizer, lent.originals) if optimizer else momentum_limit(momentum, nesterov=nesterov)
        look = Look(
            lent,
            inner,
            loss_fn,
            batches,
            limit=limit,
            solver=Solver(tol, most, block, seed),
            processes=processes,
            over="data" if micro_batch is not None else over,
            draws=draws,
        )
        if start is not None and start.vector.numel() != sum(lent.leaves[i].numel() for i in chosen):
            raise ValueError("start= was measured with other parameters. Hand in a result of this network.")
        loss, gradient, unused = look.first(stats, chosen)
        if len(unused) == len(chosen):
            raise ValueError("The loss does not depend on any trainable parameter, so it has no curvature by them.")
        notes += _notes(inner, stats, look.drew, unused, loss_fn, matrix, batches, over)
        both_ends = hessian and matrix == "hessian"
        warm = None if start is None else start.vector[None]
        found, error = look.top(stats, matrix, chosen, smallest=both_ends, warm=warm, gradient=gradient)
        look.refuse_linear(found, matrix)
        bent = found if both_ends else None
        if hessian and bent is None:
            try:
                bent, _ = look.top(stats, "hessian", chosen, smallest=True, gradient=gradient)
            except (NotImplementedError, RuntimeError) as problem:
                notes.append(f"The Hessian was not measured: {str(problem).splitlines()[0]}")
        others = {name: look.top(name, matrix, chosen)[0] for name in compare if name != stats}
        own = blocks(lent, inner, chosen) if layers else {}
        parts = {name: look.top(stats, matrix, numbers)[0] for name, numbers in own.items()}
    if not look.forward_mode:
        notes.append("The model has no forward-mode derivative; reverse mode was used twice in its place.")
    measured = {"lambda_max": found, "the Hessian": bent} | {f"statistics {k!r}": v for k, v in others.items()}
    measured |= {f"layer {k!r}": v for k, v in parts.items()}
    notes += [
        f"Not converged in {ritz.products} products: {what}."
        for what, ritz in measured.items()
        if ritz is not None and not ritz.converged
    ]

    def value(ritz: Ritz, end: int = 0) -> float:
        return ritz.values[end] + limit.decay

    top = value(found)
    return Measurement(
        lambda_max=top,
        residual=found.residuals[0],
        converged=found.converged,
        stderr=error,
        eta_star=limit.factor / top if top > 0 else math.inf,
        factor=limit.factor,
        rule=limit.rule,
        optimizer=_optimizer_name(optimizer, momentum, nesterov),
        loss=loss,
        loss_kind=loss_kind(loss_fn),
        loss_name=getattr(loss_fn, "__name__", type(loss_fn).__name__),
        matrix=matrix,
        stats=stats,
        products=found.products,
        hessian_max=value(bent) if bent else math.nan,
        hessian_min=value(bent, -1) if bent else math.nan,
        hessian_residual=max(bent.residuals[0], bent.residuals[-1]) if bent else math.nan,
        by_statistics={stats: top} | {name: value(ritz) for name, ritz in others.items()},
        statistics_residuals={stats: found.residuals[0]} | {k: ritz.residuals[0] for k, ritz in others.items()},
        by_layer={name: value(ritz) for name, ritz in parts.items()},
        layer_residuals={name: ritz.residuals[0] for name, ritz in parts.items()},
        notes=tuple(notes),
        settings={
            "momentum": momentum,
            "nesterov": nesterov,
            "tol": tol,
            "most": most,
            "block": block,
            "draws": draws,
            "seed": seed,
            "samples": [samples(b) for b in batches],
            "over": over if not is_one_batch(batch) else "one batch",
            "dtype": str(found.vectors.dtype).removeprefix("torch."),
            "started_from": "an earlier result" if start is not None else "gradient and random",
        },
        environment=environment(device),
        vector=found.vectors[0],
    )


def _optimizer_name(optimizer: torch.optim.Optimizer | None, momentum: float, nesterov: bool) -> str:
    if optimizer is None:
        plain = f"gradient descent with momentum {momentum:g}" if momentum else "gradient descent"
        return plain + (" (Nesterov)" if nesterov else "")
    keys = ("momentum", "nesterov", "betas", "weight_decay")
    set_to = {key: optimizer.param_groups[0][key] for key in keys if optimizer.param_groups[0].get(key)}
    return type(optimizer).__name__ + (f" ({', '.join(f'{k}={v}' for k, v in set_to.items())})" if set_to else "")


def _unseen(model: nn.Module) -> bool:
    counts = [m.num_batches_tracked for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return any(count is not None and not int(count) for count in counts)


def _notes(
    model: nn.Module,
    stats: str,
    drew: bool,
    unused: Sequence[str],
    loss_fn: Callable[..., Any],
    matrix: str,
    batches: Sequence[tuple[Any, Any]],
    over: str,
) -> list[str]:
    notes = []
    if drew:
        notes.append("The forward draws random numbers (dropout, noise); every product was made with the same ones.")
    normed = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if stats != "running" and normed and not over_the_batch(model):
        notes.append("The model's BatchNorm layers are in eval mode: their running statistics were used.")
    if unused:
        notes.append(f"No gradient reaches {', '.join(unused)}: their rows of the matrix are zero.")
    if matrix == "fisher" and distribution(loss_fn) is None:
        notes.append(
            "This loss is not the -log p of a distribution known here: through its own second derivative by the "
            "outputs, the matrix is the generalized Gauss-Newton one."
        )
    if over == "batches" and len({samples(batch) for batch in batches}) > 1:
        notes.append("The batches differ in size; each counts the same.")
    return notes
