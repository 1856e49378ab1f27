"""PreAct-ResNet18 for 32x32 images: normalizer and ReLU before each convolution (Wei et al. 2019, Figure 4)."""

from torch import Tensor, nn
from torch.nn import functional as F

from normscope.models.initialization import initialize, seeded
from normscope.norms import make_norm


class _Block(nn.Module):
    def __init__(self, c_in: int, c: int, stride: int, norm: str, gamma: float) -> None:
        super().__init__()
        self.norm1 = make_norm(norm, c_in, dim=2, gamma=gamma)
        self.conv1 = nn.Conv2d(c_in, c, 3, stride=stride, padding=1, bias=False)
        self.norm2 = make_norm(norm, c, dim=2, gamma=gamma)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        same = stride == 1 and c_in == c
        self.shortcut = None if same else nn.Conv2d(c_in, c, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        carried = x if self.shortcut is None else self.shortcut(h)
        branch: Tensor = self.conv2(F.relu(self.norm2(self.conv1(h))))
        return branch + carried


class PreActResNet18(nn.Module):
    r"""Four stages of two pre-activation blocks, 64 to 512 channels, then normalizer, ReLU, mean, linear map.

    Setting of Wei et al. 2019, Figure 4: lr 0.1, momentum 0.9, weight decay 5e-4, CIFAR-10. The initial weights are not
    stated; sigma_w2 = 2 with zero biases is He's.

    Args:
        in_channels: channels of the input images.
        d_out: number of outputs.
        width: channels of the first stage.
        norm: the normalizer of the hidden layers, a name of `normscope.norms.NORM_NAMES`.
        gamma: initial scale of the normalizers.
        init: the initial distribution of the weights, by name; see `initialize`.
        sigma_w2: variance of the weights times fan-in, for init="mean_field".
        sigma_b2: variance of the biases, for init="mean_field".
        seed: seed of the initial weights.
    """

    def __init__(
        self,
        in_channels: int = 3,
        d_out: int = 10,
        *,
        width: int = 64,
        norm: str = "none",
        gamma: float = 1.0,
        init: str = "mean_field",
        sigma_w2: float = 2.0,
        sigma_b2: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        c_in = width
        with seeded(seed):
            self.stem = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
            for stage in range(4):
                c = width * 2**stage
                blocks += [_Block(c_in, c, 1 if stage == 0 else 2, norm, gamma), _Block(c, c, 1, norm, gamma)]
                c_in = c
            self.blocks = nn.Sequential(*blocks)
            self.norm = make_norm(norm, c_in, dim=2, gamma=gamma)
            self.linear = nn.Linear(c_in, d_out)
        initialize(self, init, seed=seed, sigma_w2=sigma_w2, sigma_b2=sigma_b2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(self.blocks(self.stem(x))))
        y: Tensor = self.linear(h.mean(dim=(2, 3)))
        return y
