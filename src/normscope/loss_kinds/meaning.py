"""The meaning of a learning rate beyond eta* for training with each kind of loss.

This file imports no torch, so that a page of stored results can read it. `kinds.py` has the functions of each kind.
"""

from typing import NamedTuple

from normscope.losses.kind_names import CROSS_ENTROPY, SQUARED

# The course of training at a learning rate beyond eta*: it diverges, survives, or nothing is known.
DIVERGES, SURVIVES, UNCERTAIN = "diverges", "survives", "uncertain"


class Meaning(NamedTuple):
    """The name of a kind of loss in a sentence, and DIVERGES or SURVIVES for a rate beyond eta*."""

    words: str
    beyond: str


MEANINGS = {
    # Measured, not derived: on BatchNorm networks with cross-entropy, plain gradient descent shows no rise of the loss
    # at twice eta*, a first rise between 2 and 10 times eta*, and still trains at 10 times eta*. Other networks may
    # not: a digits CNN with GroupNorm lost 48 points at half of the predicted eta*.
    CROSS_ENTROPY: Meaning("cross-entropy", SURVIVES),
    SQUARED: Meaning("squared error", DIVERGES),
}


def beyond_limit(loss_kind: str) -> str:
    """The meaning of a learning rate beyond eta*: DIVERGES, SURVIVES or UNCERTAIN.

    Args:
        loss_kind: a key of `MEANINGS`, or "other".

    Returns:
        One of the three words.

    Example:
        >>> beyond_limit(SQUARED), beyond_limit("other")
        ('diverges', 'uncertain')
    """
    return MEANINGS[loss_kind].beyond if loss_kind in MEANINGS else UNCERTAIN


def usually_survives(loss_kind: str) -> str:
    """A sentence for a kind of loss with which networks with BatchNorm survive rates beyond eta*.

    Args:
        loss_kind: a key of `MEANINGS`.

    Returns:
        The sentence, with the loss called by its name.

    Example:
        >>> usually_survives(CROSS_ENTROPY).split(",")[0]
        'With cross-entropy'
    """
    return (
        f"With {MEANINGS[loss_kind].words}, networks with BatchNorm survive far above eta*, "
        "but may learn badly from eta* on; those without may fail below it."
    )


def outlook(loss_kind: str, *, diverges: str, uncertain: str) -> str:
    """The sentence about a rate beyond eta* that fits the kind of loss.

    Args:
        loss_kind: a key of `MEANINGS`, or "other".
        diverges: the sentence for a loss with which training diverges there.
        uncertain: the sentence for a loss of which nothing is known.

    Returns:
        One of the two, or `usually_survives(loss_kind)`.

    Example:
        >>> outlook(SQUARED, diverges="Expect the loss to rise.", uncertain="The loss may rise.")
        'Expect the loss to rise.'
    """
    beyond = beyond_limit(loss_kind)
    return usually_survives(loss_kind) if beyond == SURVIVES else diverges if beyond == DIVERGES else uncertain
