"""A diffusion model of small MNIST images: a U-Net with GroupNorm predicts the noise, AdamW."""

import functools
import math
from collections.abc import Iterator

import torch
from batches import chunks
from task import Parts, Task
from torch import Tensor, nn
from torch.nn import functional as F

from data import mnist

Batch = tuple[Tensor, Tensor]


@functools.cache
def images() -> tuple[Tensor, Tensor, Tensor]:
    """MNIST at 16 x 16 pixels in -1 to 1: train, validation, test."""
    data = mnist()
    low, high = data.train[0].min(), data.train[0].max()

    def small(x: Tensor) -> Tensor:
        return F.pad(2 * F.avg_pool2d((x - low) / (high - low), 2) - 1, (1, 1, 1, 1), value=-1.0)

    return small(data.train[0]), small(data.validation[0]), small(data.test[0])


def noised(image: Tensor, generator: torch.Generator) -> Batch:
    """x: the image mixed with noise, and the time as a second channel. y: the noise. The schedule is a cosine."""
    time = torch.rand(len(image), 1, 1, 1, generator=generator)
    noise = torch.randn(image.shape, generator=generator)
    angle = math.pi / 2 * (0.02 + 0.96 * time)
    mixed = torch.cos(angle) * image + torch.sin(angle) * noise
    return torch.cat([mixed, time.expand_as(mixed)], dim=1), noise


class NoisedBatches:
    """Shuffled epochs of images with fresh noise for each image."""

    def __init__(self, image: Tensor, *, batch_size: int, seed: int) -> None:
        self.image = image
        self.batch_size = batch_size
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.image) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        order = torch.randperm(len(self.image), generator=self.generator)
        for rows in order.split(self.batch_size)[: len(self)]:
            yield noised(self.image[rows], self.generator)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions behind GroupNorm and SiLU; the embedded time enters between them."""

    def __init__(self, inputs: int, outputs: int, embedding: int) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(4, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm_2, self.conv_2 = nn.GroupNorm(4, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(embedding, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, embedded: Tensor) -> Tensor:
        h = self.conv_1(F.silu(self.norm_1(x))) + self.time(embedded)[:, :, None, None]
        return self.skip(x) + self.conv_2(F.silu(self.norm_2(h)))


class UNet(nn.Module):
    """Two resolutions, 16 and 8 pixels; the output layer starts at zero."""

    frequencies: Tensor

    def __init__(self, width: int = 16, embedding: int = 32) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.exp(torch.linspace(0.0, math.log(100.0), embedding // 2)))
        self.embed = nn.Sequential(nn.Linear(embedding, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down = ResidualBlock(width, width, embedding)
        self.shrink = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = ResidualBlock(2 * width, 2 * width, embedding)
        self.grow = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up = ResidualBlock(2 * width, width, embedding)
        last = nn.Conv2d(width, 1, 3, padding=1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.last = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), last)

    def forward(self, x: Tensor) -> Tensor:
        image, time = x[:, :1], x[:, 1, :1, 0]
        waves = time * self.frequencies
        embedded = self.embed(torch.cat([waves.sin(), waves.cos()], dim=1))
        fine = self.down(self.first(image), embedded)
        coarse = self.middle(self.shrink(fine), embedded)
        grown = self.grow(F.interpolate(coarse, scale_factor=2, mode="nearest"))
        return self.last(self.up(torch.cat([fine, grown], dim=1), embedded))


def make(seed: int) -> Parts:
    train, validation, test = images()
    fixed = torch.Generator().manual_seed(0)
    torch.manual_seed(seed)
    return Parts(
        model=UNet(),
        loss_fn=nn.MSELoss(),
        batches=NoisedBatches(train, batch_size=16, seed=seed),
        eval_batches=chunks(*noised(validation, fixed)),
        test_batches=chunks(*noised(test, fixed)),
    )


TASK = Task("diffusion", make, optimizer="adamw", steps=500, schedule="constant", batch_size=16, normalizer="GroupNorm")
