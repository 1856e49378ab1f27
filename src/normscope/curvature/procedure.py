"""The steps of a measurement, from its batch to the result; `measure` says what they mean."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from normscope.curvature.derivatives import working_dtype
from normscope.curvature.descent import critical_step
from normscope.curvature.fitting import on_the_kind, refuse_flat, refuse_impossible
from normscope.curvature.lanczos import Ritz
from normscope.curvature.limits import Limit, momentum_limit, optimizer_limit
from normscope.curvature.look import Look, Solver
from normscope.curvature.measurement import Measurement
from normscope.curvature.notes import on_statistics, on_the_pass
from normscope.curvature.parameters import blocks, check_parameters, chosen_parameters, listed
from normscope.curvature.several import as_batches, is_one_batch, samples
from normscope.curvature.starting import kind_of_descent, start
from normscope.curvature.starts import KEPT
from normscope.environment import environment
from normscope.isolation.processes import Processes
from normscope.isolation.untouched import Lent, untouched
from normscope.observe.loss import check_devices
from normscope.observe.update import check_optimizer, held


@dataclass(frozen=True)
class Asked:
    """The arguments of `measure`."""

    momentum: float
    nesterov: bool
    optimizer: torch.optim.Optimizer | None
    matrix: str
    stats: str
    compare: tuple[str, ...]
    hessian: bool
    layers: bool
    parameters: Callable[[str, nn.Parameter], bool] | None
    draws: int
    over: str
    micro_batch: int | None
    dtype: torch.dtype | None
    solver: Solver
    start: Measurement | None


def carry_out(
    asked: Asked,
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    batch: Any,
    processes: Processes,
    convention: str,
) -> Measurement:
    stats, matrix = asked.stats, asked.matrix
    check_parameters(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batches = as_batches(batch, asked.micro_batch, device)
    check_devices(batches, device)
    notes = [convention] if convention else []
    if torch.is_autocast_enabled(device.type):
        notes.append(f"Autocast ({torch.get_autocast_dtype(device.type)}) was switched off for the products.")
    cast = working_dtype(model, asked.dtype)
    if cast is not None:
        batches = [tree_map_only(Tensor, lambda t: t.to(cast) if t.is_floating_point() else t, b) for b in batches]
        notes.append(f"Products in {cast}, to which parameters and inputs were converted.")
    notes += on_statistics(model, (stats, *asked.compare))
    with untouched(model, dtype=cast) as lent:
        chosen, limit, left_out = _chosen(asked, lent)
        notes += left_out
        over = "data" if asked.micro_batch is not None else asked.over
        options: dict[str, Any] = {"limit": limit, "solver": asked.solver, "processes": processes, "over": over}
        look = Look(lent, model, loss_fn, batches, draws=asked.draws, dtype=cast, **options)
        if asked.start is not None and asked.start.vector.numel() != sum(lent.leaves[i].numel() for i in chosen):
            what = "has let go of its memory" if asked.start.memory is None else "was measured with other parameters"
            raise ValueError(f"start= {what}. Hand in a whole result of this network.")
        loss, gradient, unused = look.first(stats, chosen, matrix)
        if len(unused) == len(chosen):
            raise ValueError("The loss does not depend on any trainable parameter, so it has no curvature by them.")
        kind = look.kind(stats, chosen)
        refuse_flat(kind, matrix)
        both_ends = asked.hessian and matrix == "hessian"
        warm = None if asked.start is None else asked.start.memory
        found, error = look.top(stats, matrix, chosen, smallest=both_ends, warm=warm, gradient=gradient, keep=KEPT)
        bent = found if both_ends else None
        if asked.hessian and bent is None:
            try:
                bent, _ = look.top(stats, "hessian", chosen, smallest=True, gradient=gradient)
            except (NotImplementedError, RuntimeError) as problem:
                notes.append(f"The Hessian was not measured: {str(problem).splitlines()[0]}")
        others: dict[str, Ritz] = {}
        for name in asked.compare:
            if name != stats:
                look.compared(name, chosen)
                others[name] = look.top(name, matrix, chosen)[0]
        own = blocks(lent, model, chosen) if asked.layers else {}
        parts = {name: look.top(stats, matrix, numbers)[0] for name, numbers in own.items()}
        top, critical = found.values[0], math.nan
        refuse_impossible(kind, matrix, top)
        eta_star = limit.factor / top if top > 0 else math.inf
        if asked.hessian and stats == "batch" and cast is None:
            # The last that is done here: it moves the leaves. Models and losses may refuse to be where it looks.
            try:
                losses = look.losses(stats, chosen)
                critical = critical_step(lent, chosen, losses, gradient, asked.optimizer, guess=eta_star)
            except Exception as problem:
                notes.append(f"The critical rate was not measured: {(str(problem) or repr(problem)).splitlines()[0]}")
        settings = _settings(asked, lent.originals[chosen[0]])
    notes += on_the_pass(look, unused, loss_fn, matrix, batches, over)
    measured = {"lambda_max": found, "the Hessian": bent} | {f"statistics {k!r}": v for k, v in others.items()}
    measured |= {f"layer {k!r}": v for k, v in parts.items()}
    notes += [
        f"Not converged in {ritz.products} products: {what}."
        for what, ritz in measured.items()
        if ritz is not None and not ritz.converged
    ]
    named = start(
        critical,
        (critical,),
        eta_star,
        kind,
        kind_of_descent(asked.optimizer, settings),
        optimizer=type(asked.optimizer).__name__,
        unmeasured=_unmeasured(stats, cast),
    )
    notes += [*on_the_kind(kind), *named.notes]
    return Measurement(
        lambda_max=top,
        residual=found.residuals[0],
        converged=found.converged,
        stderr=error,
        eta_star=eta_star,
        factor=limit.factor,
        rule=limit.rule,
        optimizer=_optimizer_name(asked, settings),
        loss=loss,
        loss_kind=kind.name,
        loss_name=getattr(loss_fn, "__name__", type(loss_fn).__name__),
        matrix=matrix,
        stats=stats,
        products=found.products,
        hessian_max=bent.values[0] if bent else math.nan,
        hessian_min=bent.values[-1] if bent else math.nan,
        hessian_residual=max(bent.residuals[0], bent.residuals[-1]) if bent else math.nan,
        by_statistics={stats: top} | {name: ritz.values[0] for name, ritz in others.items()},
        statistics_residuals={stats: found.residuals[0]} | {k: ritz.residuals[0] for k, ritz in others.items()},
        by_layer={name: ritz.values[0] for name, ritz in parts.items()},
        layer_residuals={name: ritz.residuals[0] for name, ritz in parts.items()},
        notes=tuple(notes),
        settings={
            "momentum": asked.momentum,
            "nesterov": asked.nesterov,
            "lr": None if asked.optimizer is None else [float(g["lr"]) for g in asked.optimizer.param_groups],
            "tol": asked.solver.tol,
            "most": asked.solver.most,
            "block": asked.solver.block,
            "draws": asked.draws,
            "seed": asked.solver.seed,
            "samples": [samples(b) for b in batches],
            "over": over if len(batches) > 1 or not is_one_batch(batch) else "one batch",
            "micro_batch": asked.micro_batch,
            "compare": list(asked.compare),
            "parameters": "all" if len(chosen) == len(lent.names) else [lent.names[i] for i in chosen],
            "dtype": str(found.vectors.dtype).removeprefix("torch."),
            "started_from": "an earlier result" if asked.start is not None else "gradient and random",
        },
        environment=environment(device),
        preconditioned=limit.inverse is not None,
        critical=critical,
        critical_by_batch=(critical,),
        start_rate=named.rate,
        start_range=named.over_batches,
        advice=named.advice,
        memory=found.memory,
    )


def _unmeasured(stats: str, cast: torch.dtype | None) -> str:
    """Why the critical rate is not measured."""
    if stats != "batch":
        return f"the critical rate is measured with stats='batch', and not with stats={stats!r}"
    return "" if cast is None else f"the critical rate is measured in the model's own precision, and not in {cast}"


def _chosen(asked: Asked, lent: Lent) -> tuple[list[int], Limit, list[str]]:
    """Numbers of the parameters to take curvature by, the optimizer's limit, and notes on those left out."""
    chosen = chosen_parameters(lent, asked.parameters)
    if asked.optimizer is None:
        return chosen, momentum_limit(asked.momentum, nesterov=asked.nesterov), []
    rates = held(asked.optimizer)
    mine = [i for i in chosen if id(lent.originals[i]) in rates]
    if not mine:
        check_optimizer(rates, lent.originals)
        raise ValueError("The optimizer holds none of the parameters that parameters= chose. Choose some of its own.")
    limit = optimizer_limit(asked.optimizer, lent.originals, mine)
    notes = []
    if len(mine) < len(chosen):
        others = [lent.names[i] for i in chosen if i not in mine]
        notes.append(f"Curvature by the optimizer's parameters alone; it does not hold {listed(others)}.")
    if still := [lent.names[i] for i in mine if i in limit.idle]:
        notes.append(f"The optimizer does not move {listed(still)}, which have no part in its limit.")
    return mine, limit, notes


def _settings(asked: Asked, parameter: nn.Parameter) -> dict[str, Any]:
    """Of the optimizer's group that has the parameter."""
    if asked.optimizer is None:
        return {"momentum": asked.momentum}
    return next(g for g in asked.optimizer.param_groups if any(p is parameter for p in g["params"]))


def _optimizer_name(asked: Asked, settings: dict[str, Any]) -> str:
    if asked.optimizer is None:
        mu = asked.momentum
        plain = f"gradient descent with momentum {mu:g}" if mu else "gradient descent"
        return plain + (" (Nesterov)" if asked.nesterov else "")
    keys = ("momentum", "nesterov", "betas", "weight_decay")
    groups = asked.optimizer.param_groups
    set_to = {key: settings[key] for key in keys if settings.get(key)}
    described = f" ({', '.join(f'{k}={v}' for k, v in set_to.items())})" if set_to else ""
    return type(asked.optimizer).__name__ + described + (f", {len(groups)} groups" if len(groups) > 1 else "")
