"""One row of a prediction for each layer with parameters: order parameters, and the layer's share of lambda."""

from dataclasses import dataclass, field

from torch import Tensor

from normscope.prediction.kernels.cotangent import Spread
from normscope.prediction.kernels.field import ReaderFacts
from normscope.theory.gradient_overlaps import Origin
from normscope.theory.site_pairs import Sites

_NO_SPREAD = Spread()


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """The values that a linear map or convolution reads: where they live, their kernel, and how many channels."""

    sites: Sites
    kernel: Tensor
    channels: int
    readers: ReaderFacts


@dataclass(eq=False)
class LayerRow:
    """Order parameters of a layer, its share of lambda in every direction sent back, and its inputs.

    Attributes:
        layer: path in the model.
        layer_type: class of the layer.
        numbers: order parameters by symbol.
        share: what the layer's parameters add to lambda, one number for each direction over the samples.
        spread: finite width of the cotangents that met the parameters.
        inputs: of linear maps and convolutions.
        of_data: whether nothing but the data enters, so that no width is behind the inputs.
        taps: taps of the window.
        sites: sites that it gives.
        length: relative variance, from sample to sample, of the squared length of the inputs.
        overlap_variance: relative variance, from sample to sample, of the inputs' product with what all samples share.
        columns: for gammas and betas, which are few: how many directions they have, and the part of the share in those.
        handed: the draw of gradients (`theory/gradient_overlaps.py`) that the parameters see, and what they add with it
            to a row of J J^T.
    """

    layer: str
    layer_type: str
    numbers: dict[str, float] = field(default_factory=dict)
    share: Tensor | None = None
    spread: Spread = _NO_SPREAD
    length: float = 0.0
    overlap_variance: float = 0.0
    inputs: LayerInputs | None = None
    of_data: bool = False
    taps: int = 1
    sites: int = 1
    columns: tuple[tuple[float, float], ...] = ()
    handed: tuple[int, float] | None = None

    def add(self, sites: Sites, products: Tensor, spread: Spread) -> None:
        """Add what one parameter tensor gives; products: G times the kernel that the parameter is multiplied with."""
        total = sites.total(products)
        self.share = total if self.share is None else self.share + total
        self.spread = spread

    def hand_down(self, origin: Origin, size: float) -> None:
        """Let the parameters see this one draw of samples' own gradients, and add `size` with it."""
        (draw,) = origin.same
        self.handed = draw, max(size, 0.0)
