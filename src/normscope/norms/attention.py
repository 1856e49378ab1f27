"""Whether a model has attention, by the names of its classes: some rules on learning rates were not tested with it."""

import re

from torch import nn

_NAMED = re.compile(r"Attention|Attn")


def has_attention(model: nn.Module) -> bool:
    """Whether a module of the model is attention by the name of its class.

    Example:
        >>> has_attention(nn.TransformerEncoderLayer(4, 2)), has_attention(nn.Linear(2, 2))
        (True, False)
    """
    return any(_NAMED.search(type(module).__name__) for module in model.modules())
