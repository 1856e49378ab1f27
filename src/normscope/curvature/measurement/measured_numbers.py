"""The numbers of one measurement, measured while the model was lent, and the first guess that follows from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from normscope.curvature.measurement.further_batches import FurtherBatch
from normscope.curvature.measurement.request import Request
from normscope.curvature.measurement.spectrum_ends import TOP_SEARCH, Searches, SpectrumEnds
from normscope.curvature.operators.statistics import mode_of
from normscope.curvature.session.first_pass import FirstPass
from normscope.isolation.batches import samples
from normscope.loss_kinds import LossKind
from normscope.stability.first_guess import FirstGuess, first_guess_of
from normscope.stability.optimizer_limits import Limit, SecondMoments
from normscope.stability.optimizer_rules import kind_of_descent


@dataclass(frozen=True)
class Inputs:
    """The batches of one measurement.

    Attributes:
        batches: pairs of inputs and targets, on `device`.
        one: whether a single batch was handed in.
        device: where the model's parameters are.
        note: a sentence on how the batches were read, "" for none.
    """

    batches: list[Any]
    one: bool
    device: torch.device
    note: str


@dataclass(frozen=True)
class Measured:
    """All that was measured while the model was lent.

    Attributes:
        limit: the optimizer's limit, which turns lambda_max into eta*.
        moments: second moments that an optimizer without a step lacked, None where it has its own.
        first: the loss and its gradient.
        kind: the kind of the loss.
        searches: the ends of each spectrum, by the name of the search.
        layers: names of the measured layers.
        critical: the critical rate, or nan.
        further: the bound and the critical rate of each further batch.
        parameters: names of the chosen parameters, or "all".
        dtype: that in which the model was lent, None for its own.
        group: settings of the optimizer's group.
        normalized: whether the model has a normalizer.
        attends: whether it has attention.
        notes: facts and failures that the steps have shown, in the order of the steps.
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
    normalized: bool
    attends: bool
    notes: list[str]

    @property
    def top(self) -> SpectrumEnds:
        return self.searches[TOP_SEARCH]

    @property
    def eta_star(self) -> float:
        return eta_star_of(self.limit, self.top)


def eta_star_of(limit: Limit, top: SpectrumEnds) -> float:
    lambda_max = top.ritz.values[0]
    return limit.factor / lambda_max if lambda_max > 0 else math.inf


def first_guess_from(request: Request, measured: Measured, inputs: Inputs) -> FirstGuess:
    sizes = [samples(batch) for batch in inputs.batches]
    return first_guess_of(
        measured.critical,
        critical_by_batch(measured),
        measured.eta_star,
        measured.kind,
        kind_of_descent(request.optimizer, measured.group),
        optimizer=type(request.optimizer).__name__,
        unmeasured=_unmeasured(request.stats, measured.dtype),
        normalized=measured.normalized,
        attends=measured.attends,
        samples=sum(sizes) if request.put_together == "data" else min(sizes),
    )


def critical_by_batch(measured: Measured) -> tuple[float, ...]:
    return (measured.critical, *(batch.critical for batch in measured.further))


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
