"""The rule of linear maps of (N, features)."""

from torch import Tensor, nn

from normscope.prediction.kernels.field import Field
from normscope.prediction.refusals import misfit
from normscope.prediction.rules.registry import rule
from normscope.prediction.rules.weighted_sums import weighted_sum
from normscope.prediction.walk import Walk
from normscope.theory.taps import Window


@rule("linear", modules=[nn.Linear], settings=("weight", "bias"))
def linear(walk: Walk, name: str, x: Field, weight: Tensor, bias: Tensor | None = None) -> Field:
    """A linear map. On a flattened image it is a convolution whose window is the whole image."""
    if not x.flat:
        raise ValueError(
            f"takes a linear map of the last dimension of {x.said()}; only (N, features) has "
            "a map here. Flatten before it, or write it as a 1x1 convolution."
        )
    if weight.shape[1] != x.shape[0]:
        raise misfit(x, weight.shape[1], "features")
    window = Window(x.sites, (x.sites.height, x.sites.width), (1, 1), (0, 0))
    return weighted_sum(walk, name, "Linear", x, weight, bias, window, (weight.shape[0],))
