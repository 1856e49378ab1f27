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

# Ratio of the highest to the lowest eta* of the batches from which a note names their range.
_WIDE = 1.5


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


def on_the_batches(factor: float, lambda_by_batch: Sequence[float], over: str, *, over_the_batch: bool) -> list[str]:
    """A note on how eta* varies over batches, as far as the batches that were handed in show it.

    Args:
        factor: eta* times lambda_max.
        lambda_by_batch: lambda_max of the searched batch, and a lower bound, or nan, of each further one.
        over: how several batches are put together.
        over_the_batch: whether layers take their statistics over the batch. eta* then varies more from batch to batch,
            and the bounds miss most of that.

    Example:
        >>> on_the_batches(2.0, (4.0, 10.0), "first", over_the_batch=False)
        ['eta* = 0.5 is of the first of 2 batches, and varies over them: of the others it is at most 0.2.']
        >>> on_the_batches(2.0, (4.0, 4.2), "first", over_the_batch=False)
        []
    """
    if over != "first":
        return []
    if len(lambda_by_batch) == 1:
        one = "eta* is of one batch, and with statistics over the batch it varies from batch to batch: hand in several "
        return [one + "batches, with over='batches' for the eta* of their mean loss."] if over_the_batch else []
    searched, *bounds = lambda_by_batch
    limits = sorted(factor / bound for bound in bounds if bound > 0)
    if not limits or not searched > 0:
        return []
    eta_star = factor / searched
    if not over_the_batch and max(limits[-1], eta_star) < _WIDE * min(limits[0], eta_star):
        return []
    low, high = (f"{limit:.2g}" for limit in (limits[0], limits[-1]))
    others = low if low == high else f"{low} to {high}"
    note = f"eta* = {eta_star:.3g} is of the first of {len(lambda_by_batch)} batches, and varies over them: of the "
    note += f"others it is at most {others}."
    if over_the_batch:
        note += (
            " With statistics over the batch it may be far less than these bounds: over='batches' gives the eta* of "
            "the batches' mean loss."
        )
    return [note]


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
