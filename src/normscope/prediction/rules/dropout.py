"""The rules of dropout: of single values, and of whole channels."""

from torch import Tensor, nn

from normscope.prediction.kernels.field import Field
from normscope.prediction.rules.constants import multiplied
from normscope.prediction.rules.registry import rule
from normscope.prediction.walk import Walk


@rule("dropout", modules=[nn.Dropout], settings=("p", "training"))
def dropout(walk: Walk, name: str, x: Field, p: float = 0.5, training: bool = True, inplace: bool = False) -> Field:
    """Dropout of single values."""
    return _dropped(walk, x, p, whole_channels=False) if training else x


@rule("dropout1d", "dropout2d", modules=[nn.Dropout1d, nn.Dropout2d], settings=("p", "training"))
def channel_dropout(
    walk: Walk, name: str, x: Field, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Field:
    """Dropout of whole channels."""
    return _dropped(walk, x, p, whole_channels=not x.flat) if training else x


def _dropped(walk: Walk, x: Field, p: float, *, whole_channels: bool) -> Field:
    """A fresh mask for each value (or channel) of each sample, kept values divided by 1 - p."""
    if not 0 <= p < 1:
        raise ValueError(f"drops with probability {p}, and nothing is left")
    if p == 0:
        return x

    def factor(field: Field) -> Tensor:
        same = field.sites.same_sample() if whole_channels else field.sites.same()
        return 1 + same * (p / (1 - p))

    return multiplied(walk, x, factor, 1.0, gaussian=False)
