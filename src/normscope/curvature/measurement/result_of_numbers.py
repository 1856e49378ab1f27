"""The last step of a measurement: the `Measurement` made of the request and of all that was measured."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from normscope.curvature.measurement.measured_numbers import Inputs, Measured, critical_by_batch
from normscope.curvature.measurement.request import Request
from normscope.curvature.measurement.spectrum_ends import HESSIAN_SEARCH, TOP_SEARCH, by_layer_name, by_statistics_name
from normscope.curvature.result import Measurement
from normscope.isolation.batches import samples
from normscope.results.environment import environment
from normscope.stability.first_guess import FirstGuess


def result_of(
    request: Request, measured: Measured, named: FirstGuess, inputs: Inputs, loss_name: str, notes: Sequence[str]
) -> Measurement:
    top, limit = measured.top, measured.limit
    lambda_max, residual = top.ritz.values[0], top.ritz.residuals[0]
    hessian_search = measured.searches.get(TOP_SEARCH if top.smallest else HESSIAN_SEARCH)
    hessian_ritz = None if hessian_search is None else hessian_search.ritz
    compared = {name: measured.searches.get(by_statistics_name(name)) for name in request.compared}
    by_layer = {name: measured.searches[by_layer_name(name)].ritz for name in measured.layers}
    return Measurement(
        lambda_max=lambda_max,
        residual=residual,
        converged=top.ritz.converged,
        stderr=top.error,
        eta_star=measured.eta_star,
        factor=limit.factor,
        rule=limit.rule,
        optimizer=_optimizer_name(request, measured.group),
        loss=measured.first.loss,
        loss_kind=measured.kind.name,
        loss_name=loss_name,
        matrix=top.matrix,
        stats=request.stats,
        products=top.ritz.products,
        hessian_max=hessian_ritz.values[0] if hessian_ritz else math.nan,
        hessian_min=hessian_ritz.values[-1] if hessian_ritz else math.nan,
        hessian_residual=max(hessian_ritz.residuals[0], hessian_ritz.residuals[-1]) if hessian_ritz else math.nan,
        by_statistics={request.stats: lambda_max}
        | {name: found.ritz.values[0] if found else math.nan for name, found in compared.items()},
        statistics_residuals={request.stats: residual}
        | {name: found.ritz.residuals[0] if found else math.nan for name, found in compared.items()},
        by_layer={name: ritz.values[0] for name, ritz in by_layer.items()},
        layer_residuals={name: ritz.residuals[0] for name, ritz in by_layer.items()},
        notes=tuple(notes),
        settings=_settings(request, measured, inputs),
        environment=environment(inputs.device),
        preconditioned=limit.inverse is not None,
        critical_rate=measured.critical,
        critical_rates=critical_by_batch(measured),
        lambda_by_batch=(lambda_max, *(batch.lambda_lower_bound for batch in measured.further)),
        first_guess=named.rate,
        first_guess_range=named.over_batches,
        advice=named.advice,
        memory=top.ritz.memory,
    )


def _settings(request: Request, measured: Measured, inputs: Inputs) -> dict[str, Any]:
    """The arguments that the numbers depend on, for the stored result."""
    optimizer, moments = request.optimizer, measured.moments
    return {
        "momentum": request.momentum,
        "nesterov": request.nesterov,
        "lr": None if optimizer is None else [float(group["lr"]) for group in optimizer.param_groups],
        "tol": request.solver.tol,
        "most": request.solver.max_products,
        "block": request.solver.block,
        "draws": request.label_draws,
        "seed": request.seed,
        "samples": [samples(batch) for batch in inputs.batches],
        "over": "one batch" if inputs.one and len(inputs.batches) == 1 else request.put_together,
        "micro_batch": request.micro_batch,
        "compare": list(request.compare),
        "parameters": measured.parameters,
        "moments_of_batches": 0 if moments is None else moments.batches,
        "dtype": str(measured.top.ritz.vectors.dtype).removeprefix("torch."),
        "started_from": "an earlier result" if request.start is not None else "gradient and random",
    }


def _optimizer_name(request: Request, group: Mapping[str, Any]) -> str:
    if request.optimizer is None:
        mu = request.momentum
        plain = f"gradient descent with momentum {mu:g}" if mu else "gradient descent"
        return plain + (" (Nesterov)" if request.nesterov else "")
    keys = ("momentum", "nesterov", "betas", "weight_decay")
    groups = request.optimizer.param_groups
    set_to = {key: group[key] for key in keys if group.get(key)}
    described = f" ({', '.join(f'{k}={v}' for k, v in set_to.items())})" if set_to else ""
    return type(request.optimizer).__name__ + described + (f", {len(groups)} groups" if len(groups) > 1 else "")
