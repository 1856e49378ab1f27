"""The eigenvalue searches of a measurement, in their order, each with the notes on what could not be made."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from normscope.curvature.autograd.user_functions import NoSecondDerivative
from normscope.curvature.eigensolvers.lanczos import KEPT_PAIRS
from normscope.curvature.measurement.float64_check import checked_in_float64
from normscope.curvature.measurement.request import Request
from normscope.curvature.measurement.spectrum_ends import (
    HESSIAN_SEARCH,
    TOP_SEARCH,
    Searches,
    SpectrumEnds,
    by_layer_name,
    by_statistics_name,
)
from normscope.curvature.operators.loss_of_outputs import NoOutputs, refuse_flat
from normscope.curvature.operators.matrices import MATRICES
from normscope.curvature.operators.network_products import FirstGraph
from normscope.curvature.operators.statistics import mode_of
from normscope.curvature.session.first_pass import (
    FirstPass,
    first_pass,
    observe_mixing,
    session_loss_kind,
)
from normscope.curvature.session.session import Session
from normscope.isolation.coming_update import refuse_trained_outside
from normscope.isolation.refusals import TooMuchMemory
from normscope.loss_kinds import LossKind


def first_pass_and_top(request: Request, session: Session) -> tuple[FirstPass, LossKind, SpectrumEnds, list[str]]:
    """The first pass, the kind of the loss, the search for lambda_max from the first pass's graph, and its notes.

    The graph is freed at the end, before other searches make graphs of their own.
    """
    first, graph = first_pass(session, request.stats, request.matrix)
    if len(first.unused) == len(session.chosen):
        raise ValueError(
            "The loss does not depend on any trainable parameter, so it has no curvature with respect to them."
        )
    refuse_trained_outside(request.optimizer, session.lent)
    kind = session_loss_kind(session, request.stats)
    if not first.gradient.any():
        refuse_flat(kind, MATRICES[request.matrix].is_hessian)
    top, notes = _top_search(request, session, first.gradient, graph)
    return first, kind, top, notes


def _top_search(
    request: Request, session: Session, gradient: Tensor, graph: FirstGraph | None
) -> tuple[SpectrumEnds, list[str]]:
    """The search for lambda_max, with a note where it is of the Hessian though no matrix was asked for.

    That is so where the loss is no known function of the outputs, and has no Gauss-Newton matrix.
    """
    stats = request.stats
    memory = None if request.start is None else request.start.memory

    def search(matrix: str, graph: FirstGraph | None) -> SpectrumEnds:
        both_ends = request.hessian and MATRICES[matrix].is_hessian
        ritz, error = session.search(
            stats, matrix, smallest=both_ends, memory=memory, gradient=gradient, graph=graph, keep=KEPT_PAIRS
        )
        return SpectrumEnds(stats, matrix, None, both_ends, ritz, error)

    try:
        return search(request.matrix, graph), []
    except NoOutputs as problem:
        if not request.matrix_by_default:
            raise
        note = f"The matrix is the Hessian. {problem}"
    return search("hessian", None), [note]


def further_searches(
    request: Request,
    session: Session,
    top: SpectrumEnds,
    gradient: Tensor,
    layers: Mapping[str, Sequence[int]],
) -> tuple[Searches, list[str]]:
    """Every other search that was asked for, by its name in notes, and notes on one that could not be made."""
    stats, searches, notes = request.stats, {}, []
    if request.hessian and not top.smallest:
        try:
            ends, _ = session.search(stats, "hessian", smallest=True, gradient=gradient)
            searches[HESSIAN_SEARCH] = SpectrumEnds(stats, "hessian", None, True, ends)
        except (NoSecondDerivative, NotImplementedError, RuntimeError) as problem:
            notes.append(f"The Hessian was not measured: {str(problem).splitlines()[0]}")
    for name in request.compared:
        observe_mixing(session, name)
        if mode_of(name).holds_the_batch and name in session.observed.mixing:
            # Not all statistics can be held: the search would find lambda_max as trained, in whole or in part.
            session.observed.mixing.discard(name)
            notes.append(
                f"lambda_max with stats={name!r} is nan: a part of the forward that is no known normalizer makes "
                "outputs depend on other samples of the batch, and its statistics cannot be held constant."
            )
            continue
        ritz, _ = session.search(name, top.matrix)
        searches[by_statistics_name(name)] = SpectrumEnds(name, top.matrix, None, False, ritz)
    for name, block in layers.items():
        ritz, _ = session.search(stats, top.matrix, block)
        searches[by_layer_name(name)] = SpectrumEnds(stats, top.matrix, block, False, ritz)
    return searches, notes


def checked_searches(request: Request, session: Session, searches: Searches) -> tuple[Searches, list[str]]:
    """The searches checked in float64 where they were made in float32, and notes; a sampled matrix is not checked."""
    if searches[TOP_SEARCH].ritz.vectors.dtype != torch.float32 or request.label_draws:
        return searches, []
    try:
        return checked_in_float64(searches, session, keep=KEPT_PAIRS)
    except TooMuchMemory as problem:
        return searches, [f"Not checked in float64. {problem}"]
