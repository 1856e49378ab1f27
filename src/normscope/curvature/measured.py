"""One measurement: the request, the numbers measured while the model was lent, and the result made of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from normscope.curvature.eigensolvers.solver import Solver
from normscope.curvature.first_pass import FirstPass
from normscope.curvature.float64_check import SpectrumEnds
from normscope.curvature.further_batches import FurtherBatch
from normscope.curvature.operators.statistics import mode_of
from normscope.curvature.result import Measurement
from normscope.environment import environment
from normscope.isolation.batches import samples
from normscope.loss_kinds import LossKind
from normscope.stability.first_guess import FirstGuess, first_guess_of, kind_of_descent
from normscope.stability.optimizer_limits import Limit, SecondMoments

# Names of two searches in notes; further ones are named by their statistics or their layer.
TOP, HESSIAN = "lambda_max", "the Hessian"

Searches = dict[str, SpectrumEnds]


@dataclass(frozen=True)
class Request:
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
    seed: int
    start: Measurement | None
    max_memory: float | None = None

    @property
    def compared(self) -> list[str]:
        """Statistics modes to give beside `stats`."""
        return [name for name in self.compare if name != self.stats]

    @property
    def put_together(self) -> str:
        """How several batches are put together: "first", "batches" or "data"."""
        return "data" if self.micro_batch is not None else self.over


@dataclass(frozen=True)
class Inputs:
    """Batches as pairs of inputs and targets on `device`; one: whether a single batch was handed in."""

    batches: list[Any]
    one: bool
    device: torch.device
    note: str


@dataclass(frozen=True)
class Measured:
    """All that was measured while the model was lent.

    searches: the ends of each spectrum, by the name of the search. layers: names of the measured layers. critical: the
    critical rate, or nan. further: the bound and critical rate of each further batch. parameters: names of the chosen
    ones, or "all". dtype: that in which the model was lent, None for its own. group: settings of the optimizer's group.
    """

    limit: Limit
    moments: SecondMoments | None
    first: FirstPass
    kind: LossKind
    searches: Searches
    layers: tuple[str, ...]
    critical: float
    further: list[FurtherBatch]
    parameters: str | list[str]
    dtype: torch.dtype | None
    group: Mapping[str, Any]

    @property
    def top(self) -> SpectrumEnds:
        return self.searches[TOP]

    @property
    def eta_star(self) -> float:
        return eta_star_of(self.limit, self.top)


def by_statistics_name(name: str) -> str:
    """The name of the search in another statistics mode."""
    return f"statistics {name!r}"


def by_layer_name(name: str) -> str:
    """The name of the search in one layer's block."""
    return f"layer {name!r}"


def eta_star_of(limit: Limit, top: SpectrumEnds) -> float:
    lambda_max = top.ritz.values[0]
    return limit.factor / lambda_max if lambda_max > 0 else math.inf


def first_guess(request: Request, measured: Measured) -> FirstGuess:
    return first_guess_of(
        measured.critical,
        _critical_by_batch(measured),
        measured.eta_star,
        measured.kind,
        kind_of_descent(request.optimizer, measured.group),
        optimizer=type(request.optimizer).__name__,
        unmeasured=_unmeasured(request.stats, measured.dtype),
    )


def _critical_by_batch(measured: Measured) -> tuple[float, ...]:
    return (measured.critical, *(batch.critical for batch in measured.further))


def result_of(
    request: Request, measured: Measured, named: FirstGuess, inputs: Inputs, loss_name: str, notes: Sequence[str]
) -> Measurement:
    top, limit = measured.top, measured.limit
    lambda_max, residual = top.ritz.values[0], top.ritz.residuals[0]
    hessian_search = measured.searches.get(TOP if top.smallest else HESSIAN)
    hessian_ritz = None if hessian_search is None else hessian_search.ritz
    by_statistics = {name: measured.searches[by_statistics_name(name)].ritz for name in request.compared}
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
        by_statistics={request.stats: lambda_max} | {name: ritz.values[0] for name, ritz in by_statistics.items()},
        statistics_residuals={request.stats: residual} | {k: ritz.residuals[0] for k, ritz in by_statistics.items()},
        by_layer={name: ritz.values[0] for name, ritz in by_layer.items()},
        layer_residuals={name: ritz.residuals[0] for name, ritz in by_layer.items()},
        notes=tuple(notes),
        settings=_settings(request, measured, inputs),
        environment=environment(inputs.device),
        preconditioned=limit.inverse is not None,
        critical_rate=measured.critical,
        critical_rates=_critical_by_batch(measured),
        lambda_by_batch=(lambda_max, *(batch.lambda_least for batch in measured.further)),
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
        "most": request.solver.most,
        "block": request.solver.block,
        "draws": request.draws,
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


def _unmeasured(stats: str, dtype: torch.dtype | None) -> str:
    """Why the critical rate is not measured."""
    if not mode_of(stats).as_trained:
        return f"the critical rate is measured with stats='batch', and not with stats={stats!r}"
    return "" if dtype is None else f"the critical rate is measured in the model's own precision, and not in {dtype}"


def group_of(request: Request, parameter: nn.Parameter) -> dict[str, Any]:
    """The settings of the optimizer's group that holds the parameter."""
    if request.optimizer is None:
        return {"momentum": request.momentum}
    return next(g for g in request.optimizer.param_groups if any(p is parameter for p in g["params"]))


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
