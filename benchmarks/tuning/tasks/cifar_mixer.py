"""CIFAR-10, an MlpMixer of two blocks with momentum."""

import torch
from batches import chunks, shuffled
from task import Parts, Task, accuracy
from torch import Tensor, nn

from data import cifar10


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.token_norm, self.channel_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.channel_norm(x))


class Mixer(nn.Module):
    def __init__(self, width: int = 64, depth: int = 2, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.blocks = nn.Sequential(*(MixerBlock((32 // patch) ** 2, width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.patches(x).flatten(2).transpose(1, 2))).mean(1))


def make(seed: int) -> Parts:
    data = cifar10()
    torch.manual_seed(seed)
    return Parts(
        model=Mixer(),
        loss_fn=nn.CrossEntropyLoss(),
        batches=shuffled(*data.train, batch_size=64, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=accuracy,
    )


TASK = Task("mixer", make, optimizer="momentum", steps=600, schedule="cosine", batch_size=64, normalizer="layer")
