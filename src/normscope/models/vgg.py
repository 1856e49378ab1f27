"""VGG for 32x32 images, as Santurkar et al. 2018 train it on CIFAR-10."""

from torch import nn

from normscope.models.initialization import initialize, seeded
from normscope.norms import make_norm

_STACKS: dict[int, tuple[int | str, ...]] = {
    11: (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    16: (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"),
}


class VGG(nn.Sequential):
    r"""3x3 convolutions with normalizer and ReLU, five 2x2 maxima, one linear map 512-10.

    The source says "VGG" without a depth; its figures name layer 13, so 16 (13 convolutions) is the default.
    Setting: Glorot normal, zero biases, inputs standardized per channel, plain SGD at lr 0.1, batch 128, 15,000
    steps, no augmentation. Measured in this setting: results/vgg16-cifar10.json (source: 83 % test accuracy with
    BatchNorm, 80 % without).

    Args:
        depth: 11 or 16.
        in_channels: channels of the input images.
        d_out: number of outputs.
        width: factor of the channels; 0.25 trains on a laptop.
        norm: the normalizer of the hidden layers, a name of `normscope.norms.NORM_NAMES`.
        gamma: initial scale of the normalizers.
        init: the initial distribution of the weights, by name; see `initialize`.
        sigma_w2: variance of the weights times fan-in, for init="mean_field".
        sigma_b2: variance of the biases, for init="mean_field".
        seed: seed of the initial weights.

    Raises:
        ValueError: another depth.
    """

    def __init__(
        self,
        depth: int = 16,
        in_channels: int = 3,
        d_out: int = 10,
        *,
        width: float = 1.0,
        norm: str = "none",
        gamma: float = 1.0,
        init: str = "glorot",
        sigma_w2: float = 2.0,
        sigma_b2: float = 0.5,
        seed: int = 0,
    ) -> None:
        if depth not in _STACKS:
            raise ValueError(f"VGG comes with {' or '.join(map(str, _STACKS))} layers; got depth={depth}.")
        layers: list[nn.Module] = []
        c_in = in_channels
        with seeded(seed):
            for item in _STACKS[depth]:
                if isinstance(item, str):
                    layers.append(nn.MaxPool2d(2))
                    continue
                c = max(1, round(item * width))
                layers += [nn.Conv2d(c_in, c, 3, padding=1), make_norm(norm, c, dim=2, gamma=gamma), nn.ReLU()]
                c_in = c
            layers += [nn.Flatten(), nn.Linear(c_in, d_out)]
        super().__init__(*layers)
        initialize(self, init, seed=seed, sigma_w2=sigma_w2, sigma_b2=sigma_b2)
