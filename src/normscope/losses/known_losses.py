"""The losses that are known by their function: one entry of `KNOWN_LOSSES` each, with all facts on it.

To add a loss, enter it here. If its gradient belongs to no kind yet, add the new kind in four more places:

    losses/kind_names.py                   its name
    loss_kinds/kinds.py                    its gradient, by which a user's own function is recognized
    loss_kinds/meaning.py                  its words, and what a learning rate beyond eta* means for it
    stability/first_guess_evidence.py      its share of the critical rate, once measured; without it no first guess is
                                           named

These are separate files since `kind_names.py` and `meaning.py` are read by report pages, which import no torch.

A new distribution is drawn in `curvature/operators/fisher.py`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn
from torch.nn import functional as F

from normscope.losses import functions
from normscope.losses.kind_names import CROSS_ENTROPY, OTHER, SQUARED

NORMAL, LABELS, BINARY, LOG_LABELS = "normal", "labels", "binary", "log_labels"
LOGITS, NUMBERS = "logits", "numbers"


class LossFacts(NamedTuple):
    """The facts on one loss.

    Attributes:
        computed_by: its functions and its module classes.
        kind: a key of `KINDS`, or "other".
        distribution: the distribution p of y if the loss is -log p(y | outputs), for the Fisher matrix; None for none.
        name: its name for `predict` and `--loss`; "" if `predict` does not know it.
        over_half_mse: (samples, outputs) gives its second derivative by the outputs as a multiple of that of half_mse.
            None where the second derivative depends on the outputs.
        takes: LOGITS or NUMBERS where torch would take other outputs or targets for something else; "" where the loss
            refuses them itself.
    """

    computed_by: tuple[Callable[..., Any], ...]
    kind: str
    distribution: str | None
    name: str = ""
    over_half_mse: Callable[[int, int], float] | None = None
    takes: str = ""


KNOWN_LOSSES = (
    LossFacts((functions.half_mse,), SQUARED, NORMAL, "half_mse", lambda samples, outputs: 1.0),
    LossFacts((functions.half_sse,), SQUARED, NORMAL, "half_sse", lambda samples, outputs: float(samples)),
    LossFacts((functions.mse,), SQUARED, None, "mse", lambda samples, outputs: 2.0 / outputs),
    LossFacts((F.mse_loss, nn.MSELoss), SQUARED, NORMAL, "mse", lambda samples, outputs: 2.0 / outputs, NUMBERS),
    LossFacts((F.cross_entropy, nn.CrossEntropyLoss), CROSS_ENTROPY, LABELS, "cross_entropy", takes=LOGITS),
    LossFacts((F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss), CROSS_ENTROPY, BINARY),
    LossFacts((F.nll_loss, nn.NLLLoss), OTHER, LOG_LABELS),
)


def known_loss(loss_fn: Callable[..., Any] | None) -> LossFacts | None:
    """The facts on a loss function or module of torch or normscope; None for any other.

    Example:
        >>> known_loss(nn.MSELoss()).name, known_loss(F.nll_loss).distribution, known_loss(lambda outputs, y: 0)
        ('mse', 'log_labels', None)
    """
    function = type(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn
    return next((facts for facts in KNOWN_LOSSES if any(function is known for known in facts.computed_by)), None)


def loss_named(name: str) -> LossFacts:
    """The facts on the loss that `predict` knows by this name."""
    return next(facts for facts in KNOWN_LOSSES if facts.name == name)


PREDICTED_LOSSES = tuple(dict.fromkeys(facts.name for facts in KNOWN_LOSSES if facts.name))
