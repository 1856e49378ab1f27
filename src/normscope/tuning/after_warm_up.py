"""A bound on the rate for the part of a training that no rehearsal sees: after a warm-up, with Adam and attention.

Where the warm-up lasts longer than a rehearsal, rates are tried at full size from the initial weights. That says
nothing about the weights after the warm-up. In one trial a transformer under AdamW was given 0.007 that way and
collapsed after its warm-up; it trained at 1e-4 to 1e-3. The race in `benchmarks/tuning/` has no warm-up, and small
transformers were best there at 0.002 to 0.05, so nothing is bounded without one.
"""

import torch
from torch import nn

from normscope.norms.attention import has_attention
from normscope.tuning.choice import Choice

MOST = 1e-3
# The ratio of the ends of the range where the rate was lowered: the highest rate that trained is its upper end.
_SPAN = 4.0
_LIKE_ADAM = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")
NOTE = (
    f"The rate was lowered to {MOST:g}: no rehearsal saw the training after the warm-up, and with Adam and attention a "
    "transformer collapsed there at 0.007, which rehearsals alone had named; it trained at 0.0001 to 0.001."
)


def bounded_after_warm_up(choice: Choice, model: nn.Module, optimizer: torch.optim.Optimizer) -> Choice:
    """The choice, lowered to `MOST` for a model with attention and an optimizer of the Adam family.

    Example:
        >>> attention = nn.MultiheadAttention(4, 2)
        >>> chosen = Choice(0.007, (0.0035, 0.014), "The loss was lowest at 0.006.")
        >>> bounded_after_warm_up(chosen, attention, torch.optim.AdamW(attention.parameters())).lr
        0.001
    """
    if not has_attention(model) or type(optimizer).__name__ not in _LIKE_ADAM or choice.lr <= MOST:
        return choice
    return Choice(MOST, (MOST / _SPAN, MOST), f"{choice.reason} Lowered to {MOST:g}: see the notes.")
