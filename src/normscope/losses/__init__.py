"""The losses of the sources, and the table of all known losses.

functions       the losses themselves
known_losses    one entry for each known loss, with all facts on it
mismatch        outputs and targets that a loss would take for something else
"""

from typing import TYPE_CHECKING

from normscope.importing.first_use import on_first_use

if TYPE_CHECKING:
    from normscope.losses.functions import LOSSES, cross_entropy, half_mse, half_sse, mse

__all__ = ["LOSSES", "cross_entropy", "half_mse", "half_sse", "mse"]

__getattr__ = on_first_use(__name__, dict.fromkeys(__all__, "functions"))


def __dir__() -> list[str]:
    return __all__
