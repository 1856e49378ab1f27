"""Small networks that several tasks share."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def norm_1d(kind: str, width: int) -> nn.Module:
    """A normalizer of (N, width): "batch", "layer" or "none"."""
    return {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "none": lambda _: nn.Identity()}[kind](width)


def norm_2d(kind: str, channels: int) -> nn.Module:
    """A normalizer of (N, channels, H, W): "batch", "group" (4 channels a group) or "none"."""
    if kind == "group":
        return nn.GroupNorm(channels // 4, channels)
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.Identity()


def mlp(sizes: Sequence[int], norm: str = "none", activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """A multilayer perceptron that flattens its input: linear, normalizer, activation; the last layer is linear."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width, following in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(width, following), norm_1d(norm, following), activation()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def convolutions(channels: Sequence[int], classes: int, norm: str = "none", stride: int = 2) -> nn.Sequential:
    """3 x 3 convolutions with this stride, each with normalizer and ReLU, then mean pooling and a linear layer."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(channels):
        convolution = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=norm == "none")
        layers += [convolution, norm_2d(norm, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes))


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a skip; the first may stride and widen."""

    def __init__(self, before: int, after: int, stride: int, norm: str) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.first_norm = norm_2d(norm, after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = norm_2d(norm, after)
        same = before == after and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.second_norm(self.second(functional.relu(self.first_norm(self.first(x)))))
        return functional.relu(inner + self.skip(x))


class Attention(nn.Module):
    """Multi-head self-attention; with `qk_norm` queries and keys are normalized to unit root mean square."""

    def __init__(self, width: int, heads: int, *, causal: bool, qk_norm: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.outputs = nn.Linear(width, width, bias=False)
        self.q_norm = nn.RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(width // heads) if qk_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.inputs(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, is_causal=self.causal)
        return self.outputs(mixed.transpose(1, 2).reshape(n, length, width))


class TransformerBlock(nn.Module):
    """Pre-norm attention and a two-layer perceptron, each with a skip."""

    def __init__(
        self, width: int, heads: int, *, causal: bool, norm: type[nn.Module] = nn.LayerNorm, qk_norm: bool = False
    ) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = norm(width), norm(width)
        self.attention = Attention(width, heads, causal=causal, qk_norm=qk_norm)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    """A decoder-only transformer over bytes; returns logits (N, length, tokens)."""

    def __init__(
        self,
        *,
        width: int = 32,
        depth: int = 2,
        heads: int = 2,
        length: int = 64,
        norm: type[nn.Module] = nn.LayerNorm,
        qk_norm: bool = False,
        tokens: int = 128,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        blocks = [TransformerBlock(width, heads, causal=True, norm=norm, qk_norm=qk_norm) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm(width)
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions[: x.shape[1]])))


def token_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy over all tokens."""
    return functional.cross_entropy(logits.flatten(0, -2), y.flatten())
