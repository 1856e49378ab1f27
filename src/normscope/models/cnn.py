"""The convolutional network of Wei et al. 2019, Section 4."""

import itertools

from torch import nn

from normscope.models.initialization import initialize, seeded
from normscope.norms import make_norm


class CNN(nn.Sequential):
    r"""3x3 convolutions of stride 2 with normalizer and ReLU, then one linear map.

    Paper's setting (the defaults): channels 30/60/90, no padding (its example maps 32 to 15), so 32x32 images
    become 15, 7, 3 and the linear map has 810 inputs; 28x28 images become 13, 6, 2 and 360.

    Args:
        in_channels: channels of the input images.
        size: width and height of the input images, in pixels.
        d_out: number of outputs.
        channels: channels of the convolutions.
        padding: 0 as in the paper's example; 1 keeps ceil(size / 2).
        norm: the normalizer of the hidden layers, a name of `normscope.norms.NORM_NAMES`.
        gamma: initial scale of the normalizers.
        init: the initial distribution of the weights, by name; see `initialize`.
        sigma_w2: variance of the weights times fan-in, for init="mean_field".
        sigma_b2: variance of the biases, for init="mean_field".
        seed: seed of the initial weights.

    Raises:
        ValueError: the images are too small for so many convolutions.
    """

    def __init__(
        self,
        in_channels: int = 3,
        size: int = 32,
        d_out: int = 10,
        *,
        channels: tuple[int, ...] = (30, 60, 90),
        padding: int = 0,
        norm: str = "none",
        gamma: float = 1.0,
        init: str = "mean_field",
        sigma_w2: float = 2.0,
        sigma_b2: float = 0.5,
        seed: int = 0,
    ) -> None:
        for _ in channels:
            size = (size + 2 * padding - 3) // 2 + 1
            if size < 1:
                raise ValueError(
                    f"{len(channels)} convolutions of stride 2 with padding {padding} leave no pixel of such small "
                    "images. Use larger images, fewer channels=, or padding=1."
                )
        with seeded(seed):
            layers: list[nn.Module] = []
            for c_in, c in itertools.pairwise((in_channels, *channels)):
                conv = nn.Conv2d(c_in, c, 3, stride=2, padding=padding)
                layers += [conv, make_norm(norm, c, dim=2, gamma=gamma), nn.ReLU()]
            layers += [nn.Flatten(), nn.Linear((in_channels, *channels)[-1] * size * size, d_out)]
        super().__init__(*layers)
        initialize(self, init, seed=seed, sigma_w2=sigma_w2, sigma_b2=sigma_b2)
