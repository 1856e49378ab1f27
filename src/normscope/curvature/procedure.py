"""The steps of a measurement, from its batch to the result; `measure` says what they mean."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from normscope.curvature.autograd.differentiable_kernels import working_dtype
from normscope.curvature.eigensolvers.start_vectors import KEPT
from normscope.curvature.float64_check import Found, cast, looked_at_in_float64
from normscope.curvature.further_batches import further
from normscope.curvature.loss_fit import on_the_kind, refuse_flat, refuse_impossible
from normscope.curvature.measurement_notes import on_statistics, on_the_limit, on_the_pass
from normscope.curvature.operators.loss_of_outputs import NoOutputs, own_loss_of
from normscope.curvature.parameter_choice import blocks, check_parameters, chosen_parameters, listed
from normscope.curvature.result import Measurement
from normscope.curvature.second_moments import gathered_moments
from normscope.curvature.session import Look, Solver
from normscope.environment import environment
from normscope.isolation.batch_loss import check_devices
from normscope.isolation.batches import read_batches, samples
from normscope.isolation.coming_update import check_optimizer, rates_by_id
from normscope.isolation.lending import Lent, untouched
from normscope.isolation.processes import Processes
from normscope.objective import Objective
from normscope.stability.critical_rate import critical_step
from normscope.stability.first_guess import kind_of_descent, start
from normscope.stability.optimizer_limits import momentum_limit, optimizer_limit

# The searches that every reader knows, as notes call them.
_TOP, _HESSIAN = "lambda_max", "the Hessian"


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
    n_batches: int | None
    matrix_by_default: bool
    dtype: torch.dtype | None
    solver: Solver
    start: Measurement | None


def carry_out(
    asked: Asked, model: nn.Module, objective: Objective, given: Any, processes: Processes, convention: str
) -> Measurement:
    stats, matrix = asked.stats, asked.matrix
    check_parameters(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    read = read_batches(given, device=device, micro_batch=asked.micro_batch, most=asked.n_batches)
    check_devices(read.batches, device)
    batches = [objective.parts(batch) for batch in read.batches]
    loss_fn = objective.loss_fn or own_loss_of
    notes = [note for note in (convention, read.note) if note]
    if torch.is_autocast_enabled(device.type):
        notes.append(f"Autocast ({torch.get_autocast_dtype(device.type)}) was switched off for the products.")
    dtype = working_dtype(model, asked.dtype)
    if dtype is not None:
        batches = cast(batches, dtype)
        notes.append(f"Products in {dtype}, to which parameters and inputs were converted.")
    notes += on_statistics(model, (stats, *asked.compare))
    with untouched(model, dtype=dtype) as lent:
        chosen, left_out = _chosen(asked, lent)
        notes += left_out
        limit, moments = momentum_limit(asked.momentum, nesterov=asked.nesterov), None
        if asked.optimizer is not None:
            at: dict[str, Any] = {"processes": processes, "dtype": dtype, "call": objective.outputs}
            moments = gathered_moments(asked.optimizer, lent, model, loss_fn, batches, chosen, **at)
            limit = optimizer_limit(asked.optimizer, lent.originals, chosen, moments)
            notes += on_the_limit(moments, [lent.names[i] for i in chosen if i in limit.idle])
        over = "data" if asked.micro_batch is not None else asked.over
        searched, others_of = (batches[:1], batches[1:]) if over == "first" else (batches, [])
        options: dict[str, Any] = {"limit": limit, "solver": asked.solver, "processes": processes}
        options |= {"over": "batches" if over == "first" else over, "draws": asked.draws, "dtype": dtype}
        options["call"] = objective.outputs
        look = Look(lent, model, loss_fn, searched, **options)
        if asked.start is not None and asked.start.vector.numel() != sum(lent.leaves[i].numel() for i in chosen):
            what = "has let go of its memory" if asked.start.memory is None else "was measured with other parameters"
            raise ValueError(f"start= {what}. Hand in a whole result of this network.")
        loss, gradient, unused = look.first(stats, chosen, matrix)
        if len(unused) == len(chosen):
            raise ValueError("The loss does not depend on any trainable parameter, so it has no curvature by them.")
        kind = look.kind(stats, chosen)
        if not gradient.any():
            refuse_flat(kind, matrix)
        warm = None if asked.start is None else asked.start.memory
        begin: dict[str, Any] = {"warm": warm, "gradient": gradient, "keep": KEPT}
        both_ends = asked.hessian and matrix == "hessian"
        try:
            ritz, error = look.top(stats, matrix, chosen, smallest=both_ends, **begin)
        except NoOutputs as problem:
            if not asked.matrix_by_default:
                raise
            notes.append(f"The matrix is the Hessian. {problem}")
            matrix, both_ends = "hessian", asked.hessian
            ritz, error = look.top(stats, matrix, chosen, smallest=both_ends, **begin)
        seen = {_TOP: Found(stats, matrix, chosen, both_ends, ritz, error)}
        if asked.hessian and not both_ends:
            try:
                both, _ = look.top(stats, "hessian", chosen, smallest=True, gradient=gradient)
                seen[_HESSIAN] = Found(stats, "hessian", chosen, True, both)
            except (NotImplementedError, RuntimeError) as problem:
                notes.append(f"The Hessian was not measured: {str(problem).splitlines()[0]}")
        for name in asked.compare:
            if name != stats:
                look.compared(name, chosen)
                seen[f"statistics {name!r}"] = Found(name, matrix, chosen, False, look.top(name, matrix, chosen)[0])
        own = blocks(lent, model, chosen) if asked.layers else {}
        for name, numbers in own.items():
            seen[f"layer {name!r}"] = Found(stats, matrix, numbers, False, look.top(stats, matrix, numbers)[0])
        if ritz.vectors.dtype == torch.float32 and not asked.draws:
            sought: dict[str, Any] = {"tol": asked.solver.tol, "keep": KEPT, "options": options, "draws": look.drew}
            seen, said = looked_at_in_float64(seen, lent, model, loss_fn, searched, **sought)
            notes += said
        found = seen[_TOP].ritz
        top, critical = found.values[0], math.nan
        refuse_impossible(kind, matrix, top)
        eta_star = limit.factor / top if top > 0 else math.inf
        if stats == "batch" and dtype is None:
            # Models and losses may refuse to be where it looks.
            try:
                losses = look.losses(stats, chosen)
                critical = critical_step(lent, chosen, losses, gradient, asked.optimizer, guess=eta_star)
            except Exception as problem:
                notes.append(f"The critical rate was not measured: {(str(problem) or repr(problem)).splitlines()[0]}")
        guess = eta_star if critical in (0.0, math.inf) else critical
        rest = []
        for pair in others_of:
            one = Look(lent, model, loss_fn, [pair], **options)
            at = {"stats": stats, "matrix": matrix, "vector": found.vectors[0], "guess": guess}
            rest.append(further(one, lent, chosen, **at, optimizer=asked.optimizer))
        settings = _settings(asked, lent.originals[chosen[0]])
    notes += on_the_pass(look, unused, loss_fn, matrix, searched, over)
    notes += [
        f"Not converged in {one.ritz.products} products: {what}. Its relative residual is {_largest(one):.1e}; with "
        "most= a search goes on for longer."
        for what, one in seen.items()
        if not one.ritz.converged
    ]
    ends = _TOP if both_ends else _HESSIAN
    bent = seen[ends].ritz if ends in seen else None
    others = {name: seen[f"statistics {name!r}"].ritz for name in asked.compare if name != stats}
    parts = {name: seen[f"layer {name!r}"].ritz for name in own}
    rates = (critical, *(one.critical for one in rest))
    descent = kind_of_descent(asked.optimizer, settings)
    named = start(
        critical,
        rates,
        eta_star,
        kind,
        descent,
        optimizer=type(asked.optimizer).__name__,
        unmeasured=_unmeasured(stats, dtype),
    )
    notes += [*on_the_kind(kind), *named.notes]
    return Measurement(
        lambda_max=top,
        residual=found.residuals[0],
        converged=found.converged,
        stderr=seen[_TOP].error,
        eta_star=eta_star,
        factor=limit.factor,
        rule=limit.rule,
        optimizer=_optimizer_name(asked, settings),
        loss=loss,
        loss_kind=kind.name,
        loss_name=objective.name,
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
            "over": "one batch" if read.one and len(batches) == 1 else over,
            "micro_batch": asked.micro_batch,
            "compare": list(asked.compare),
            "parameters": "all" if len(chosen) == len(lent.names) else [lent.names[i] for i in chosen],
            "moments_of_batches": 0 if moments is None else moments.batches,
            "dtype": str(found.vectors.dtype).removeprefix("torch."),
            "started_from": "an earlier result" if asked.start is not None else "gradient and random",
        },
        environment=environment(device),
        preconditioned=limit.inverse is not None,
        critical=critical,
        critical_by_batch=rates,
        lambda_by_batch=(top, *(one.lambda_least for one in rest)),
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


def _largest(found: Found) -> float:
    """The residual of the end that is asked for, or the larger one of two."""
    return max(found.ritz.residuals[0], found.ritz.residuals[-1] if found.smallest else 0.0)


def _chosen(asked: Asked, lent: Lent) -> tuple[list[int], list[str]]:
    """Numbers of the parameters to take curvature by, and a note on those that the optimizer does not hold."""
    chosen = chosen_parameters(lent, asked.parameters)
    if asked.optimizer is None:
        return chosen, []
    rates = rates_by_id(asked.optimizer)
    mine = [i for i in chosen if id(lent.originals[i]) in rates]
    if not mine:
        check_optimizer(rates, lent.originals)
        raise ValueError("The optimizer holds none of the parameters that parameters= chose. Choose some of its own.")
    if len(mine) == len(chosen):
        return mine, []
    others = [lent.names[i] for i in chosen if i not in mine]
    return mine, [f"Curvature by the optimizer's parameters alone; it does not hold {listed(others)}."]


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
