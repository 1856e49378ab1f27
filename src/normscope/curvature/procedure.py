"""The steps of a measurement, from its batches to the result; the docstring of `measure` explains the arguments."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.curvature.eigensolvers.lanczos import KEPT
from normscope.curvature.first_pass import (
    FirstPass,
    first_pass,
    gathered_moments,
    loss_function,
    loss_kind,
    observe_mixing,
)
from normscope.curvature.float64_check import SpectrumEnds, checked_in_float64
from normscope.curvature.further_batches import FurtherBatch, further_batch
from normscope.curvature.measured import (
    HESSIAN,
    TOP,
    Inputs,
    Measured,
    Request,
    Searches,
    by_layer_name,
    by_statistics_name,
    eta_star_of,
    first_guess,
    group_of,
    result_of,
)
from normscope.curvature.measurement_notes import (
    on_convergence,
    on_precision,
    on_the_kind,
    on_the_limit,
    on_the_pass,
)
from normscope.curvature.opening import blocks, check_parameters, held_by, open_session, parameters_of
from normscope.curvature.operators.loss_of_outputs import NoOutputs, own_loss_of, refuse_flat, refuse_impossible
from normscope.curvature.operators.network_products import FirstGraph
from normscope.curvature.operators.statistics import mode_of, notes_on_statistics
from normscope.curvature.result import Measurement
from normscope.curvature.session import Session
from normscope.isolation.batch_loss import check_devices
from normscope.isolation.batches import read_batches
from normscope.isolation.coming_update import note_on_others, refuse_trained_outside
from normscope.isolation.lending import Lent
from normscope.isolation.processes import Processes
from normscope.isolation.refusals import TooMuchMemory
from normscope.loss_kinds import LossKind
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

    settings: dict[str, Any] = {"solver": request.solver, "draws": request.draws, "seed": request.seed}
    settings |= {"processes": processes, "dtype": request.dtype, "choose": choose, "call": objective.outputs}
    settings["max_memory"] = request.max_memory
    with open_session(model, loss_fn, inputs.batches, **settings) as session:
        notes += on_precision(inputs.device, session.dtype)
        notes += notes_on_statistics(model, request.stats, request.compare)
        notes += on_choice
        measured = _measure(request, session, notes)
    named = first_guess(request, measured)
    notes += [*on_the_kind(measured.kind), *named.notes]
    return result_of(request, measured, named, inputs, objective.name, notes)


def _read(request: Request, model: nn.Module, objective: Objective, given: Any) -> Inputs:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    read = read_batches(given, device=device, micro_batch=request.micro_batch, most=request.n_batches)
    check_devices(read.batches, device)
    return Inputs([objective.parts(batch) for batch in read.batches], read.one, device, read.note)


def _chosen(request: Request, lent: Lent) -> tuple[list[int], list[str]]:
    """Numbers of the parameters to take curvature by, and a note on those that the optimizer does not hold."""
    chosen = parameters_of(lent, request.parameters)
    if request.optimizer is None:
        return chosen, []
    numbers, left_out = held_by(request.optimizer, lent, chosen)
    return numbers, left_out + note_on_others(request.optimizer, lent)


def _measure(request: Request, opened: Session, notes: list[str]) -> Measured:
    """Everything that needs the lent model; notes are added as the steps give them."""
    limit, moments = _limit(request, opened, notes)
    over, batches = request.put_together, opened.batches
    searched, others = (batches[:1], batches[1:]) if over == "first" else (batches, [])
    session = opened.on(searched, limit=limit, over="batches" if over == "first" else over)
    _check_earlier_result(request, session)
    first, kind, top = _first_pass_and_top(request, session, notes)
    layers = blocks(session.lent, session.model, session.chosen) if request.layers else {}
    searches = {TOP: top} | _further_searches(request, session, top, first.gradient, layers, notes)
    if searches[TOP].ritz.vectors.dtype == torch.float32 and not request.draws:
        try:
            searches, corrections = checked_in_float64(searches, session, keep=KEPT)
        except TooMuchMemory as problem:
            corrections = [f"Not checked in float64. {problem}"]
        notes += corrections
    top = searches[TOP]
    refuse_impossible(kind, top.matrix, top.ritz.values[0])
    critical = _critical_rate(request, session, first, eta_star_of(limit, top), notes)
    further = _further_batches(request, session, others, top, critical, eta_star_of(limit, top))
    notes += on_the_pass(session, first.unused, top.matrix, over)
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
    )


def _limit(request: Request, session: Session, notes: list[str]) -> tuple[Limit, SecondMoments | None]:
    """The limit of the optimizer, and the second moments that it lacked."""
    if request.optimizer is None:
        return momentum_limit(request.momentum, nesterov=request.nesterov), None
    lent, chosen = session.lent, session.chosen
    moments = gathered_moments(request.optimizer, session)
    limit = optimizer_limit(request.optimizer, lent.originals, chosen, moments)
    notes += on_the_limit(moments, [lent.names[i] for i in chosen if i in limit.idle])
    return limit, moments


def _check_earlier_result(request: Request, session: Session) -> None:
    """Refuse a start= that is not of these parameters."""
    earlier = request.start
    size = sum(session.lent.leaves[i].numel() for i in session.chosen)
    if earlier is not None and earlier.vector.numel() != size:
        reason = "has let go of its memory" if earlier.memory is None else "was measured with other parameters"
        raise ValueError(f"start= {reason}. Hand in a whole result of this network.")


def _first_pass_and_top(
    request: Request, session: Session, notes: list[str]
) -> tuple[FirstPass, LossKind, SpectrumEnds]:
    """The first pass, the kind of the loss, and the search for lambda_max, which goes on from the first pass's graph.

    The graph is freed at the end, before other searches make graphs of their own.
    """
    first, graph = first_pass(session, request.stats, request.matrix)
    if len(first.unused) == len(session.chosen):
        raise ValueError("The loss does not depend on any trainable parameter, so it has no curvature by them.")
    refuse_trained_outside(request.optimizer, session.lent)
    kind = loss_kind(session, request.stats)
    if not first.gradient.any():
        refuse_flat(kind, request.matrix)
    return first, kind, _top_search(request, session, first.gradient, graph, notes)


def _further_searches(
    request: Request,
    session: Session,
    top: SpectrumEnds,
    gradient: Tensor,
    layers: Mapping[str, Sequence[int]],
    notes: list[str],
) -> Searches:
    """Every other search that was asked for, by its name in notes."""
    stats, searches = request.stats, {}
    if request.hessian and not top.smallest:
        try:
            ends, _ = session.search(stats, "hessian", smallest=True, gradient=gradient)
            searches[HESSIAN] = SpectrumEnds(stats, "hessian", None, True, ends)
        except (NotImplementedError, RuntimeError) as problem:
            notes.append(f"The Hessian was not measured: {str(problem).splitlines()[0]}")
    for name in request.compared:
        observe_mixing(session, name)
        ritz, _ = session.search(name, top.matrix)
        searches[by_statistics_name(name)] = SpectrumEnds(name, top.matrix, None, False, ritz)
    for name, block in layers.items():
        ritz, _ = session.search(stats, top.matrix, block)
        searches[by_layer_name(name)] = SpectrumEnds(stats, top.matrix, block, False, ritz)
    return searches


def _top_search(
    request: Request, session: Session, gradient: Tensor, graph: FirstGraph | None, notes: list[str]
) -> SpectrumEnds:
    """The search for lambda_max; of the Hessian where no matrix was asked for and the loss has no Gauss-Newton one."""
    stats, matrix = request.stats, request.matrix
    memory = None if request.start is None else request.start.memory
    options: dict[str, Any] = {"memory": memory, "gradient": gradient, "keep": KEPT}
    both_ends = request.hessian and matrix == "hessian"
    try:
        ritz, error = session.search(stats, matrix, smallest=both_ends, first=graph, **options)
    except NoOutputs as problem:
        if not request.matrix_by_default:
            raise
        notes.append(f"The matrix is the Hessian. {problem}")
        matrix, both_ends = "hessian", request.hessian
        ritz, error = session.search(stats, matrix, smallest=both_ends, **options)
    return SpectrumEnds(stats, matrix, None, both_ends, ritz, error)


def _critical_rate(request: Request, session: Session, first: FirstPass, eta_star: float, notes: list[str]) -> float:
    """The critical rate; nan where it is not measured."""
    if not mode_of(request.stats).as_trained or session.dtype is not None:
        return math.nan
    # Models and losses may refuse to be evaluated at the places where the search moves the parameters.
    try:
        loss = loss_function(session, request.stats)
        return find_critical_rate(session.lent, session.chosen, loss, first.gradient, request.optimizer, guess=eta_star)
    except Exception as problem:
        notes.append(f"The critical rate was not measured: {(str(problem) or repr(problem)).splitlines()[0]}")
        return math.nan


def _further_batches(
    request: Request, session: Session, batches: Sequence[Any], top: SpectrumEnds, critical: float, eta_star: float
) -> list[FurtherBatch]:
    guess = eta_star if critical in (0.0, math.inf) else critical
    settings: dict[str, Any] = {"stats": request.stats, "matrix": top.matrix, "optimizer": request.optimizer}
    settings |= {"vector": top.ritz.vectors[0], "guess": guess}
    return [further_batch(session.on([batch]), **settings) for batch in batches]
