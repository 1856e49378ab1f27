"""Conventions that were used in a measurement, and what its reader should know of it."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from normscope.curvature.operators.fisher import distribution
from normscope.curvature.operators.statistics import over_the_batch
from normscope.curvature.parameter_choice import listed
from normscope.curvature.session import Look
from normscope.isolation.batches import samples
from normscope.stability.optimizer_limits import Moments


def on_statistics(model: nn.Module, readings: Sequence[str]) -> list[str]:
    """What the layers make of the readings asked for."""
    notes = []
    normed = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if "running" in readings:
        if any(m.num_batches_tracked is not None and not int(m.num_batches_tracked) for m in normed):
            notes.append("The running statistics are those of initialization: no batch has been seen in train mode.")
        if keep_none := over_the_batch(model, "running"):
            notes.append(f"No running statistics in {', '.join(keep_none)}: with 'running' they take the batch's.")
    if readings[0] != "running" and normed and not over_the_batch(model):
        notes.append("The model's BatchNorm layers are in eval mode: their running statistics were used.")
    return notes


def on_the_limit(moments: Moments | None, still: Sequence[str]) -> list[str]:
    """What the optimizer's limit stands on. still: parameters that the optimizer does not move."""
    notes = []
    if moments is not None:
        notes.append(
            "The optimizer has made no step: its second moments are the mean square of the gradients here, of "
            + ("one batch." if moments.batches == 1 else f"{moments.batches} batches.")
        )
    if still:
        notes.append(f"The optimizer does not move {listed(still)}, which have no part in its limit.")
    return notes


def on_the_pass(
    look: Look,
    unused: Sequence[str],
    loss_fn: Callable[..., Any],
    matrix: str,
    batches: Sequence[tuple[Any, Any]],
    over: str,
) -> list[str]:
    """What the passes have shown."""
    notes = []
    if look.drew:
        each = ", for each batch too" if len(batches) > 1 else ""
        said = "The forward draws random numbers (dropout, noise); every product was made with the same ones"
        notes.append(f"{said}{each}.")
    if look.mixing:
        names = " and ".join(f"stats={name!r}" for name in sorted(look.mixing))
        notes.append(
            f"With {names} outputs still depend on other samples of the batch, by something in the forward that is no "
            "normalizer known here: its statistics were differentiated through."
        )
    if unused:
        notes.append(f"No gradient reaches {', '.join(unused)}: their rows of the matrix are zero.")
    if matrix == "fisher" and distribution(loss_fn) is None:
        notes.append(
            "This loss is not the -log p of a distribution known here: through its own second derivative by the "
            "outputs, the matrix is the generalized Gauss-Newton one."
        )
    if over == "batches" and len({samples(batch) for batch in batches}) > 1:
        notes.append("The batches differ in size; each counts the same.")
    if look.direct:
        notes.append("The loss reads parameters itself (a penalty): what that adds to the curvature is in it.")
    if not look.forward_mode:
        notes.append(
            "The model has no forward-mode derivative, or another than the optimizer's; reverse mode was used twice in "
            "its place."
        )
    return notes
