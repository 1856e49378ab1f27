"""Notes of a measurement: the conventions that were used, and facts that its reader should know."""

from collections.abc import Mapping, Sequence

import torch

from normscope.curvature.eigensolvers.lanczos import Ritz
from normscope.curvature.operators.fisher import distribution
from normscope.curvature.operators.matrices import MATRICES
from normscope.curvature.session.opening import listed
from normscope.curvature.session.session import Session
from normscope.isolation.batches import samples
from normscope.loss_kinds import LossKind
from normscope.stability.optimizer_limits import SecondMoments


def on_the_limit(moments: SecondMoments | None, idle: Sequence[str]) -> list[str]:
    """Notes on the optimizer's limit.

    Args:
        moments: second moments that the optimizer lacked, None where it has its own.
        idle: names of the parameters that the optimizer does not move.
    """
    notes = []
    if moments is not None:
        notes.append(
            "The optimizer has made no step: its second moments are the mean square of the gradients here, of "
            + ("one batch." if moments.batches == 1 else f"{moments.batches} batches.")
        )
    if idle:
        notes.append(f"The optimizer does not move {listed(idle)}, which have no part in its limit.")
    return notes


def on_precision(device: torch.device, dtype: torch.dtype | None) -> list[str]:
    """Notes on autocast and on the dtype of the products; None for the model's own."""
    notes = []
    if torch.is_autocast_enabled(device.type):
        notes.append(f"Autocast ({torch.get_autocast_dtype(device.type)}) was switched off for the products.")
    if dtype is not None:
        notes.append(f"Products in {dtype}, to which parameters and inputs were converted.")
    return notes


def on_convergence(searches: Mapping[str, tuple[Ritz, bool]]) -> list[str]:
    """A note on each search that did not converge.

    searches: for each name, the Ritz pairs and whether the smallest eigenvalue was asked for too.
    """
    notes = []
    for name, (ritz, smallest) in searches.items():
        if not ritz.converged:
            residual = max(ritz.residuals[0], ritz.residuals[-1] if smallest else 0.0)
            notes.append(
                f"Not converged in {ritz.products} products: {name}. Its relative residual is {residual:.1e}; "
                "solver=Solver(max_products=...) allows more products."
            )
    return notes


def on_the_pass(session: Session, unused: Sequence[str], matrix: str, over: str) -> list[str]:
    """Notes on facts that the passes have shown."""
    observed, batches = session.observed, session.batches
    notes = []
    if observed.forward_draws:
        for_each_batch = ", for each batch too" if len(batches) > 1 else ""
        same_numbers = "The forward draws random numbers (dropout, noise); every product was made with the same ones"
        notes.append(f"{same_numbers}{for_each_batch}.")
    if observed.mixing:
        names = " and ".join(f"stats={name!r}" for name in sorted(observed.mixing))
        notes.append(
            f"With {names} outputs still depend on other samples of the batch. A part of the forward that is no known "
            "normalizer makes them so; its statistics were differentiated through."
        )
    notes += session.lent.outside.note()
    if unused:
        notes.append(f"No gradient reaches {', '.join(unused)}: their rows of the matrix are zero.")
    if MATRICES[matrix].draws_labels and distribution(session.loss_fn) is None:
        notes.append(
            "The matrix is the generalized Gauss-Newton matrix: this loss is not the -log p of a distribution known "
            "here, so its own second derivative with respect to the outputs was taken."
        )
    if over == "batches" and len({samples(batch) for batch in batches}) > 1:
        notes.append("The batches differ in size; each counts the same.")
    if observed.penalty:
        notes.append("The loss reads parameters itself (a penalty); the curvature includes that of the penalty.")
    if not observed.forward_mode:
        notes.append(
            "The model has no forward-mode derivative, or one that differs from its gradient, so reverse mode was used "
            "twice instead."
        )
    return notes


def on_the_kind(kind: LossKind) -> list[str]:
    """Notes on a loss that is neither a cross-entropy nor a squared error."""
    notes = []
    if kind.why:
        notes.append(f"The loss counts as neither cross-entropy nor squared error: {kind.why}.")
    if not kind.convex:
        notes.append(
            "The loss is not convex in the outputs, so the Gauss-Newton matrix may have negative eigenvalues; "
            "matrix='hessian' is that of the loss as it is."
        )
    return notes
