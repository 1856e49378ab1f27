"""CIFAR-10, a small vision transformer: 8 x 8 patches, two blocks, mean over tokens."""

import torch
from batches import chunks, shuffled
from networks import TransformerBlock
from task import Parts, Task, accuracy
from torch import Tensor, nn

from data import cifar10


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 48, depth: int = 2, heads: int = 3, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Parameter(0.02 * torch.randn((32 // patch) ** 2, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, causal=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def make(seed: int) -> Parts:
    data = cifar10()
    torch.manual_seed(seed)
    return Parts(
        model=VisionTransformer(),
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=64, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task("vit", make, optimizer="adamw", steps=500, schedule="cosine", batch_size=64, normalizer="layer")
