"""Outputs and targets that a loss would take for something else, refused with a way out."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from normscope.losses.known_losses import LOGITS, NUMBERS, known_loss

_WAY_TO_NUMBERS = (
    "Hand in targets.float() for numbers, one_hot(targets, classes).float() for class labels, or use cross_entropy for "
    "them."
)
# Messages of torch, and the way out of each.
_WAYS_OUT = {
    "target with class probabilities, got Long": "cross_entropy takes one row of logits for each target: outputs "
    "(N, classes), targets (N,).",
    "must match the size of tensor": "Outputs and targets are of different shapes. Reshape one of them; for a squared "
    "error on class labels hand in one_hot(targets, classes).float().",
    "is out of bounds": "A label is not below the number of outputs. One output decides between two classes with "
    "binary_cross_entropy_with_logits and targets.float().",
    "cast to the desired output type Long": f"The loss takes numbers as targets. {_WAY_TO_NUMBERS}",
    "expected scalar type": "Outputs and targets are of different types. Convert the targets to that of the outputs.",
}


def is_of_torch(loss_fn: Callable[..., Any]) -> bool:
    """Whether the loss is one of torch or normscope, which take one tensor of outputs."""
    module = (type(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn).__module__
    return module in ("torch.nn.functional", "torch.nn.modules.loss", "normscope.losses.functions")


def check_outputs(loss_fn: Callable[..., Any], outputs: Any, targets: Any) -> None:
    """Raise where a loss known by name would take these outputs for something else."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return
    got = f"got outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}, {targets.dtype}"
    facts = known_loss(loss_fn)
    takes = "" if facts is None else facts.takes
    if takes == LOGITS:
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
    if takes == NUMBERS and outputs.shape != targets.shape:
        raise ValueError(
            f"The squared error compares outputs and targets of one shape; {got}, which torch broadcasts or refuses. "
            "Reshape one of them; for class labels hand in one_hot(targets, classes).float()."
        )
    if takes == NUMBERS and not (targets.is_floating_point() or targets.is_complex()):
        raise ValueError(f"The squared error takes numbers as targets; {got}. {_WAY_TO_NUMBERS}")


def _of_the_user(error: Exception, outputs: Any, targets: Tensor) -> bool:
    """Whether the error may be one of the loss's own code, and none of outputs and targets."""
    if isinstance(error, IndexError):
        return Path(traceback.extract_tb(error.__traceback__)[-1].filename).parent.name != "nn"
    return "must match the size" in str(error) and isinstance(outputs, Tensor) and outputs.shape == targets.shape


@contextmanager
def explaining(outputs: Any, targets: Any) -> Iterator[None]:
    """Add a way out to what torch raises where outputs and targets do not fit each other."""
    try:
        yield
    except (RuntimeError, IndexError) as error:
        ways = [way for said, way in _WAYS_OUT.items() if said in str(error)]
        if not ways or not isinstance(targets, Tensor) or _of_the_user(error, outputs, targets):
            raise
        got = f"targets {tuple(targets.shape)}, {targets.dtype}"
        raise ValueError(f"The loss failed on {got}: {str(error).splitlines()[0]} {ways[0]}") from error
