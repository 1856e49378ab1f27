"""A discriminator: digits of MNIST against images with the same spectrum and random phases; RMSprop."""

import torch
from batches import chunks, shuffled
from task import Parts, Task, binary_accuracy
from torch import Tensor, nn

from data import mnist


def _fakes(images: Tensor, seed: int) -> Tensor:
    """Half of each image's Fourier coefficients take the phases of another image."""
    generator = torch.Generator().manual_seed(seed)
    spectrum = torch.fft.rfft2(images)
    other = spectrum[torch.randperm(len(images), generator=generator)]
    swapped = torch.where(torch.rand(spectrum.shape, generator=generator) < 0.3, other, spectrum)
    return torch.fft.irfft2(swapped, s=images.shape[-2:])


def _real_and_fake(part: tuple[Tensor, Tensor], seed: int) -> tuple[Tensor, Tensor]:
    """Images in random order, and 1 where an image is real."""
    real = nn.functional.avg_pool2d(part[0], 2)
    x = torch.cat([real, _fakes(real, seed)])
    y = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    return x[order], y[order]


def make(seed: int) -> Parts:
    data = mnist()
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(32 * 9, 1),
    )
    return Parts(
        model=model,
        loss_fn=nn.BCEWithLogitsLoss(),
        batches=shuffled(*_real_and_fake(data.train, 1), batch_size=64, seed=seed),
        eval_batches=chunks(*_real_and_fake(data.validation, 2)),
        test_batches=chunks(*_real_and_fake(data.test, 3)),
        metric=binary_accuracy,
    )


TASK = Task(
    "discriminator", make, optimizer="rmsprop", steps=1000, schedule="constant", batch_size=64, normalizer="none"
)
