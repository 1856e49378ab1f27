"""Small networks of the development half, each with `norm`: a function of the number of channels that gives a layer."""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


def mlp(widths: tuple[int, ...], norm: Norm = nn.BatchNorm1d, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear, norm, activation for each hidden width; the last width is the number of outputs."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(widths[:-1]):
        layers += [nn.Linear(inputs, outputs), norm(outputs), act()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


def cnn(
    width: int = 8, norm: Norm = nn.BatchNorm2d, depth: int = 3, classes: int = 10, bias: bool = True
) -> nn.Sequential:
    """Convolution, norm, ReLU; every convolution but the first halves the image."""
    layers: list[nn.Module] = []
    channels = 1
    for number in range(depth):
        layers += [nn.Conv2d(channels, width, 3, stride=1 + (number > 0), padding=1, bias=bias)]
        layers += [norm(width), nn.ReLU()]
        channels, width = width, 2 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def pooled(width: int = 8, norm: Norm = nn.BatchNorm1d, hidden: int = 32) -> nn.Sequential:
    """Plain convolutions and a normalizer on the average over the image, as in heads of detectors."""
    body = list(cnn(width, nothing).children())[:-1]
    return nn.Sequential(*body, nn.Linear(4 * width, hidden), norm(hidden), nn.ReLU(), nn.Linear(hidden, 10))


class Block(nn.Module):
    """A residual block: x + norm(conv(relu(norm(conv(x)))))."""

    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(hidden)))


class ResNet(nn.Module):
    """A stem, residual blocks of one width with pooling between them, and a linear head on averages."""

    def __init__(self, width: int = 16, blocks: int = 3, norm: Norm = nn.BatchNorm2d, stride: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, stride=stride, padding=1, bias=False), norm(width), nn.ReLU())
        self.blocks = nn.Sequential(*[Block(width, norm) for _ in range(blocks)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        for block in self.blocks:
            hidden = block(F.max_pool2d(hidden, 2) if hidden.shape[-1] > 3 else hidden)
        return self.head(hidden.mean((2, 3)))


class UNet(nn.Module):
    """A U-Net of two scales, from one channel to one."""

    def __init__(self, width: int = 8, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()

        def stage(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), norm(outputs), nn.ReLU())

        self.down, self.low = stage(1, width), stage(width, 2 * width)
        self.up, self.last = stage(3 * width, width), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        low = self.low(F.max_pool2d(high, 2))
        return self.last(self.up(torch.cat([high, F.interpolate(low, scale_factor=2)], 1)))


class Attention(nn.Module):
    """Causal self-attention, with a normalizer on queries and keys if `qk_norm` is given."""

    def __init__(self, width: int, heads: int, qk_norm: Norm | None) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm = nn.Identity() if qk_norm is None else qk_norm(width // heads)
        self.k_norm = nn.Identity() if qk_norm is None else qk_norm(width // heads)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(self.q_norm(parts[0]), self.k_norm(parts[1]), parts[2], is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A pre-norm transformer layer; the branches take what `norm` gives."""

    def __init__(self, width: int, heads: int, norm: Norm, qk_norm: Norm | None) -> None:
        super().__init__()
        self.norm1, self.attention = norm(width), Attention(width, heads, qk_norm)
        self.norm2 = norm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A language model over bytes 0 to 127."""

    def __init__(
        self, width: int = 32, layers: int = 2, norm: Norm = nn.LayerNorm, qk_norm: Norm | None = None, heads: int = 2
    ) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(128, width), nn.Parameter(torch.zeros(64, width))
        self.layers = nn.Sequential(*[Layer(width, heads, norm, qk_norm) for _ in range(layers)])
        self.norm, self.head = norm(width), nn.Linear(width, 128)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embedding(x) + self.position[: x.shape[1]]
        return self.head(self.norm(self.layers(hidden)))


class Recurrent(nn.Module):
    """An LSTM over bytes with a normalizer on its outputs."""

    def __init__(self, width: int = 48, norm: Norm = nn.LayerNorm) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(128, width), nn.LSTM(width, width, batch_first=True)
        self.norm, self.head = norm(width), nn.Linear(width, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.lstm(self.embedding(x))[0]))


def groups(number: int) -> Norm:
    """GroupNorm with `number` groups, as a `norm`."""
    return lambda channels: nn.GroupNorm(number, channels)


def nothing(channels: int) -> nn.Module:
    """No normalizer, as a `norm`."""
    return nn.Identity()


def byte_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of the next byte, in float32."""
    return F.cross_entropy(outputs.float().flatten(0, 1), y.flatten())


def minus_byte_loss(outputs: Tensor, y: Tensor) -> float:
    """The cross-entropy of the next byte with a minus sign: larger is better."""
    return -float(byte_loss(outputs, y))
