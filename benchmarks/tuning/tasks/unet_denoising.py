"""Removing noise from digits of MNIST, a U-Net of 8 channels with BatchNorm, Adam."""

import torch
from batches import chunks, shuffled
from task import Parts, Task
from torch import Tensor, nn

from data import mnist


def _double(before: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (before, after):
        layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.down = _double(1, channels)
        self.middle = _double(channels, 2 * channels)
        self.up = nn.Upsample(scale_factor=2)
        self.join = _double(3 * channels, channels)
        self.out = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        inner = self.up(self.middle(nn.functional.max_pool2d(skip, 2)))
        return self.out(self.join(torch.cat([skip, inner], 1)))


def _noisy(part: tuple[Tensor, Tensor], seed: int) -> tuple[Tensor, Tensor]:
    """Images of half size with noise, and without."""
    clean = nn.functional.avg_pool2d(part[0], 2)
    return clean + torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed)), clean


def make(seed: int) -> Parts:
    data = mnist()
    torch.manual_seed(seed)
    return Parts(
        model=UNet(),
        loss_fn=nn.MSELoss(),
        batches=shuffled(*_noisy(data.train, 1), batch_size=16, seed=seed),
        eval_batches=chunks(*_noisy(data.validation, 2)),
        test_batches=chunks(*_noisy(data.test, 3)),
    )


TASK = Task("u-net", make, optimizer="adam", steps=700, schedule="cosine", batch_size=16, normalizer="batch")
