"""Refusal of losses that do not fit their outputs or targets, with a next step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from normscope.loss_kinds import FLAT, Kind

_NUMBERS = (
    "Hand in targets.float() for numbers, one_hot(targets, classes).float() for class labels, or use cross_entropy for "
    "them."
)
# Parts of torch's messages, each with the next step for the user.
_WAYS_OUT = {
    "target with class probabilities, got Long": "cross_entropy takes one row of logits for each target: outputs "
    "(N, classes), targets (N,).",
    "must match the size of tensor": "Outputs and targets are of different shapes. Reshape one of them; for a squared "
    "error on class labels hand in one_hot(targets, classes).float().",
    "is out of bounds": "A label is not below the number of outputs. One output decides between two classes with "
    "binary_cross_entropy_with_logits and targets.float().",
    "cast to the desired output type Long": f"The loss takes numbers as targets. {_NUMBERS}",
    "expected scalar type": "Outputs and targets are of different types. Convert the targets to that of the outputs.",
}


def check_outputs(loss_fn: Callable[..., Any], outputs: Any, targets: Any) -> None:
    """Raise where a loss known by name would take these outputs for something else."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return
    got = f"got outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}, {targets.dtype}"
    if loss_fn is F.cross_entropy or type(loss_fn) is nn.CrossEntropyLoss:
        if outputs.ndim == 1 and targets.ndim == 1:
            raise ValueError(
                f"cross_entropy takes one row of logits for each sample, (N, classes); {got}, of which it would make "
                "one sample. For numbers use a squared error, losses.half_mse; for one logit a sample "
                "binary_cross_entropy_with_logits."
            )
        if outputs.ndim > 1 and outputs.shape[1] == 1:
            raise ValueError(
                f"cross_entropy over one class is 0 whatever the output; {got}. For numbers use a squared error, "
                "losses.half_mse; for one logit a sample binary_cross_entropy_with_logits with targets.float()."
            )
    squared = loss_fn is F.mse_loss or type(loss_fn) is nn.MSELoss
    if squared and outputs.shape != targets.shape:
        raise ValueError(
            f"The squared error compares outputs and targets of one shape; {got}, which torch broadcasts or refuses. "
            "Reshape one of them; for class labels hand in one_hot(targets, classes).float()."
        )
    if squared and not (targets.is_floating_point() or targets.is_complex()):
        raise ValueError(f"The squared error takes numbers as targets; {got}. {_NUMBERS}")


@contextmanager
def explaining(targets: Any) -> Iterator[None]:
    """Add the next step to an error of torch's where outputs and targets do not fit each other."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        ways = [way for said, way in _WAYS_OUT.items() if said in str(error)]
        if not ways or not isinstance(targets, Tensor):
            raise
        got = f"targets {tuple(targets.shape)}, {targets.dtype}"
        raise ValueError(f"The loss failed on {got}: {str(error).splitlines()[0]} {ways[0]}") from error


def refuse_flat(kind: Kind, matrix: str) -> None:
    """Raise where the loss is the same whatever the outputs."""
    if kind == FLAT and matrix != "hessian":
        raise ValueError(
            "The loss does not change with the outputs: they do not fit each other, or all targets of this batch are "
            "ignored. Cross-entropy over one class is 0 always; for one logit a sample use "
            "binary_cross_entropy_with_logits, for numbers a squared error."
        )


def refuse_impossible(kind: Kind, matrix: str, lambda_max: float) -> None:
    """Raise where the largest eigenvalue is no number to take a learning rate from; a Hessian's may be negative."""
    if matrix == "hessian":
        return
    if lambda_max < 0 or (lambda_max == 0 and not kind.convex):
        raise ValueError(
            f"The largest eigenvalue found of the Gauss-Newton matrix is {lambda_max:.3g}: the loss bends down in the "
            "outputs, so its quadratic limits no learning rate. If it is to be maximized, hand in its negative; "
            "else ask for matrix='hessian'."
        )
    if lambda_max == 0:
        raise ValueError(
            "No output changes with the parameters to first order, as where all units are dead or all weights zero: "
            "lambda_max is 0 and limits no learning rate. Measure at another start, or after some steps."
        )
