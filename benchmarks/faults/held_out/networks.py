"""Networks of the held-out cases, small and plain."""

import itertools
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]


def no_norm(width: int) -> nn.Module:
    """No normalizer."""
    return nn.Identity()


def group_norm(width: int) -> nn.Module:
    """GroupNorm with four channels a group."""
    return nn.GroupNorm(width // 4, width)


def mlp(sizes: list[int], norm: Norm = nn.BatchNorm1d, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Flatten, then (Linear, norm, activation) for each pair of sizes but the last, which is linear."""
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(a, b, bias=norm is no_norm), norm(b), act()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def conv_block(a: int, b: int, norm: Norm, stride: int = 2) -> nn.Sequential:
    """3x3 convolution, norm, ReLU."""
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=norm is no_norm), norm(b), nn.ReLU())


def cnn(norm: Norm = nn.BatchNorm2d, widths: tuple[int, ...] = (8, 16, 32), classes: int = 10) -> nn.Sequential:
    """Strided convolutions, global average pooling, a linear head."""
    blocks = [conv_block(a, b, norm) for a, b in zip((1, *widths[:-1]), widths, strict=True)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


class Float32RMSNorm(nn.RMSNorm):
    """RMSNorm that computes in float32 and answers in the dtype of its input, as language models do."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


class Residual(nn.Module):
    """x + branch(x), with an optional activation after the sum."""

    def __init__(self, branch: nn.Module, after: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.after = branch, nn.Identity() if after is None else after

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(x + self.branch(x))
        return out


def basic_block(width: int, norm: Norm, zero_last: bool = False) -> Residual:
    """Two convolutions with normalizers and a skip; zero_last starts the last scale at zero."""
    last = norm(width)
    if zero_last:
        nn.init.zeros_(last.weight)  # type: ignore[arg-type]
    first = nn.Conv2d(width, width, 3, 1, 1, bias=False)
    second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
    return Residual(nn.Sequential(first, norm(width), nn.ReLU(), second, last), nn.ReLU())


def resnet(norm: Norm = nn.BatchNorm2d, width: int = 12, blocks: int = 2, zero_last: bool = False) -> nn.Sequential:
    """A strided stem, residual blocks, pooling, a linear head."""
    body = [basic_block(width, norm, zero_last) for _ in range(blocks)]
    return nn.Sequential(
        conv_block(1, width, norm), *body, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 10)
    )


class Attention(nn.Module):
    """Self-attention with `heads` heads; qk_norm normalizes queries and keys of each head."""

    def __init__(self, width: int, heads: int = 2, causal: bool = False, qk_norm: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.q_norm = nn.LayerNorm(width // heads) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(width // heads) if qk_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (part.view(n, t, self.heads, c // self.heads).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        logits = self.q_norm(q) @ self.k_norm(k).transpose(-1, -2) / math.sqrt(c // self.heads)
        if self.causal:
            logits = logits.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
        out: Tensor = self.out((logits.softmax(-1) @ v).transpose(1, 2).reshape(n, t, c))
        return out


def transformer_block(width: int, norm: Norm, causal: bool, qk_norm: bool = False, heads: int = 2) -> nn.Sequential:
    """Pre-norm attention and MLP, each with a skip."""
    feed = nn.Sequential(norm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
    attend = nn.Sequential(norm(width), Attention(width, heads, causal, qk_norm))
    return nn.Sequential(Residual(attend), Residual(feed))


class ByteLM(nn.Module):
    """A pre-norm transformer over bytes 0 to 127; tied shares the embedding with the head."""

    def __init__(
        self,
        width: int = 32,
        depth: int = 2,
        length: int = 32,
        norm: Norm = nn.LayerNorm,
        qk_norm: bool = False,
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        nn.init.normal_(self.embedding.weight, std=0.02 if tied else 0.1)
        self.blocks = nn.Sequential(*(transformer_block(width, norm, True, qk_norm) for _ in range(depth)))
        self.norm = norm(width)
        self.head = nn.Linear(width, 128, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x) + self.positions[: x.shape[1]]
        out: Tensor = self.head(self.norm(self.blocks(h)))
        return out


class ViT(nn.Module):
    """A pre-norm vision transformer with mean pooling, for images of side `side` cut into squares of `patch`."""

    def __init__(
        self, side: int = 8, patch: int = 2, width: int = 32, depth: int = 2, norm: Norm = nn.LayerNorm, **options: bool
    ) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, width, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn((side // patch) ** 2, width))
        self.blocks = nn.Sequential(*(transformer_block(width, norm, False, **options) for _ in range(depth)))
        self.norm, self.head = norm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.cut(x).flatten(2).transpose(1, 2) + self.positions
        out: Tensor = self.head(self.norm(self.blocks(h)).mean(1))
        return out


def token_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of the next byte."""
    return F.cross_entropy(outputs.float().flatten(0, 1), y.flatten())


def minus_token_loss(outputs: Tensor, y: Tensor) -> float:
    """The cross-entropy of the next byte with a minus sign: larger is better."""
    return -float(token_loss(outputs, y))


def decayed_apart(model: nn.Module, decay: float) -> list[dict[str, object]]:
    """Parameter groups: weight decay for matrices and kernels, none for scales, shifts and biases."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    large, small = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
    return [{"params": large, "weight_decay": decay}, {"params": small, "weight_decay": 0.0}]
