"""The steps of a measurement, from its batches to the result; the docstring of `measure` explains the arguments."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from normscope.curvature.measurement.eigenvalue_searches import checked_searches, first_pass_and_top, further_searches
from normscope.curvature.measurement.further_batches import FurtherBatch, further_batch
from normscope.curvature.measurement.measured_numbers import Inputs, Measured, eta_star_of, first_guess_from, group_of
from normscope.curvature.measurement.notes import (
    on_convergence,
    on_precision,
    on_the_batches,
    on_the_kind,
    on_the_limit,
    on_the_pass,
)
from normscope.curvature.measurement.request import Request
from normscope.curvature.measurement.result_of_numbers import result_of
from normscope.curvature.measurement.spectrum_ends import TOP_SEARCH, SpectrumEnds
from normscope.curvature.operators.loss_of_outputs import own_loss_of, refuse_impossible
from normscope.curvature.operators.matrices import MATRICES
from normscope.curvature.operators.statistics import mode_of, notes_on_statistics, over_the_batch
from normscope.curvature.result import Measurement
from normscope.curvature.session.first_pass import (
    FirstPass,
    gathered_moments,
    loss_function,
)
from normscope.curvature.session.opening import blocks, check_parameters, held_by, open_session, parameters_of
from normscope.curvature.session.options import Options
from normscope.curvature.session.own_normalizers import Normalizers, observe_normalizers
from normscope.curvature.session.session import Session
from normscope.isolation.batch_loss import check_devices
from normscope.isolation.batches import read_batches
from normscope.isolation.coming_update import note_on_others
from normscope.isolation.lending import Lent
from normscope.isolation.processes import Processes
from normscope.norms.attention import has_attention
from normscope.objective import Objective
from normscope.stability.critical_rate import find_critical_rate
from normscope.stability.optimizer_limits import Limit, SecondMoments, momentum_limit, optimizer_limit


def carry_out(
    request: Request, model: nn.Module, objective: Objective, given: Any, processes: Processes, convention: str
) -> Measurement:
    """Read the batches, measure while the model is lent, and put the result together."""
    check_parameters(model)
    inputs = _read(request, model, objective, given)
    notes = [note for note in (convention, inputs.note) if note]
    loss_fn = objective.loss_fn or own_loss_of
    on_choice: list[str] = []

    def choose(lent: Lent) -> list[int]:
        numbers, left_out = _chosen(request, lent)
        on_choice.extend(left_out)
        return numbers

    with open_session(
        model,
        loss_fn,
        inputs.batches,
        dtype=request.dtype,
        choose=choose,
        options=Options(
            call=objective.outputs,
            processes=processes,
            solver=request.solver,
            label_draws=request.label_draws,
            seed=request.seed,
            max_memory=request.max_memory,
        ),
    ) as session:
        notes += on_precision(inputs.device, session.dtype)
        notes += notes_on_statistics(model, request.stats, request.compare)
        notes += on_choice
        measured = _measure(request, session)
    named = first_guess_from(request, measured, inputs)
    notes += [*measured.notes, *on_the_kind(measured.kind), *named.notes]
    return result_of(request, measured, named, inputs, objective.name, notes)


def _read(request: Request, model: nn.Module, objective: Objective, given: Any) -> Inputs:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    read = read_batches(given, device=device, micro_batch=request.micro_batch, most=request.n_batches)
    check_devices(read.batches, device)
    return Inputs([objective.parts(batch) for batch in read.batches], read.one, device, read.note)


def _chosen(request: Request, lent: Lent) -> tuple[list[int], list[str]]:
    """Numbers of the parameters that curvature is with respect to, and a note on those that no optimizer holds."""
    chosen = parameters_of(lent, request.parameters)
    if request.optimizer is None:
        return chosen, []
    numbers, left_out = held_by(request.optimizer, lent, chosen)
    return numbers, left_out + note_on_others(request.optimizer, lent)


def _measure(request: Request, opened: Session) -> Measured:
    """Everything that needs the lent model."""
    limit, moments = _limit(request, opened)
    notes = on_the_limit(moments, [opened.lent.names[i] for i in opened.chosen if i in limit.idle])
    over, batches = request.put_together, opened.batches
    searched, others = (batches[:1], batches[1:]) if over == "first" else (batches, [])
    session = opened.with_batches(searched, limit=limit, over="batches" if over == "first" else over)
    _check_earlier_result(request, session)
    first, kind, top, top_notes = first_pass_and_top(request, session)
    layers = blocks(session.lent, session.model, session.chosen) if request.layers else {}
    others_found, search_notes = further_searches(request, session, top, first.gradient, layers)
    searches, corrections = checked_searches(request, session, {TOP_SEARCH: top} | others_found)
    notes += [*top_notes, *search_notes, *corrections]
    top = searches[TOP_SEARCH]
    refuse_impossible(kind, MATRICES[top.matrix].is_hessian, top.ritz.values[0])
    critical, critical_notes = _critical_rate(request, session, first, eta_star_of(limit, top))
    further = _further_batches(request, session, others, top, critical, eta_star_of(limit, top))
    normalizers = _normalizers(request, session)
    notes += [*critical_notes, *normalizers.notes, *on_the_pass(session, first.unused, top.matrix, over)]
    notes += on_the_batches(
        limit.factor,
        (top.ritz.values[0], *(batch.lambda_lower_bound for batch in further)),
        over,
        over_the_batch=bool(over_the_batch(session.model, request.stats)) or normalizers.of_own_over_batch,
    )
    notes += on_convergence({name: (ends.ritz, ends.smallest) for name, ends in searches.items()})
    names = [session.lent.names[i] for i in session.chosen]
    return Measured(
        limit=limit,
        moments=moments,
        first=first,
        kind=kind,
        searches=searches,
        layers=tuple(layers),
        critical=critical,
        further=further,
        parameters="all" if len(names) == len(session.lent.names) else names,
        dtype=session.dtype,
        group=group_of(request, session.lent.originals[session.chosen[0]]),
        normalized=normalizers.present,
        attends=has_attention(session.model),
        notes=notes,
    )


def _normalizers(request: Request, session: Session) -> Normalizers:
    """The normalizers, which the learning rate to start with depends on; no forward where there is no such rate."""
    if not mode_of(request.stats).as_trained or session.dtype is not None:
        return Normalizers(present=False)
    return observe_normalizers(session, request.stats)


def _limit(request: Request, session: Session) -> tuple[Limit, SecondMoments | None]:
    """The limit of the optimizer, and the second moments that it lacked."""
    if request.optimizer is None:
        return momentum_limit(request.momentum, nesterov=request.nesterov), None
    moments = gathered_moments(request.optimizer, session)
    return optimizer_limit(request.optimizer, session.lent.originals, session.chosen, moments), moments


def _check_earlier_result(request: Request, session: Session) -> None:
    """Refuse a start= that is not of these parameters."""
    earlier = request.start
    size = sum(session.lent.leaves[i].numel() for i in session.chosen)
    if earlier is not None and earlier.vector.numel() != size:
        raise ValueError(
            "start= has no remembered eigenvectors: a saved result, and one with memory=None, has none. Hand in the "
            "result as `measure` returned it."
            if earlier.memory is None
            else "start= is a result of other parameters. Hand in a result of this network with the same parameters."
        )


def _critical_rate(request: Request, session: Session, first: FirstPass, eta_star: float) -> tuple[float, list[str]]:
    """The critical rate, nan where it is not measured; and a note where its search failed."""
    if not mode_of(request.stats).as_trained or session.dtype is not None:
        return math.nan, []
    # Models and losses may refuse to be evaluated at the places where the search moves the parameters.
    try:
        loss = loss_function(session, request.stats)
        return find_critical_rate(
            session.lent, session.chosen, loss, first.gradient, request.optimizer, guess=eta_star
        ), []
    except Exception as problem:
        reason = (str(problem) or repr(problem)).splitlines()[0]
        return math.nan, [f"The critical rate was not measured: {reason}"]


def _further_batches(
    request: Request, session: Session, batches: Sequence[Any], top: SpectrumEnds, critical: float, eta_star: float
) -> list[FurtherBatch]:
    guess = eta_star if critical in (0.0, math.inf) else critical
    return [
        further_batch(
            session.with_batches([batch]),
            stats=request.stats,
            matrix=top.matrix,
            vector=top.ritz.vectors[0],
            guess=guess,
            optimizer=request.optimizer,
        )
        for batch in batches
    ]
