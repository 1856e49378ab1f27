"""Batches too small for their statistics: whole, in micro-batches, in shares, at the end of an epoch."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from faults.case import Case
from faults.data import Drawn, accuracy, digits, images, minus_squared_error, shuffled
from faults.development.networks import UNet, cnn, groups, mlp, pooled
from faults.development.setups import adamw, digit_setup, sgd
from normscope import Setup


def denoiser(seed: int, fault: bool) -> Setup:
    """A U-Net that removes noise and the brightness of a whole image, two images a step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(7)
    clean = images(noise=0.0)
    x = torch.cat([clean.x, clean.x_eval])
    level = 2 * torch.randn(len(x), 1, 1, 1, generator=generator)
    noisy = x + 0.5 * torch.randn(x.shape, generator=generator) + level
    model = UNet(norm=nn.BatchNorm2d if fault else groups(4))
    return Setup(
        model,
        nn.MSELoss(),
        shuffled(noisy[:1600], x[:1600], size=2, steps=300, seed=seed),
        torch.optim.Adam(model.parameters(), 3e-3),
        eval_batches=[(noisy[1600:], x[1600:])],
        metric=minus_squared_error,
        steps=300,
    )


def detector(seed: int, fault: bool) -> Setup:
    """A head with a BatchNorm on averages over the image, two images a step, as detectors train."""
    torch.manual_seed(seed)
    model = pooled(norm=nn.BatchNorm1d if fault else groups(4))
    return digit_setup(model, adamw(3e-3), size=2, steps=600, seed=seed)


def micro_batches(seed: int, fault: bool) -> Setup:
    """16 micro-batches of two in the place of a batch of 32."""
    torch.manual_seed(seed)
    accumulate, size = (16, 2) if fault else (1, 32)
    return digit_setup(mlp((64, 64, 64, 10)), sgd(0.05), size=size, steps=150, seed=seed, accumulate=accumulate)


class Shares(nn.Module):
    """Data-parallel training in one process: each share of the batch goes through the network by itself."""

    def __init__(self, network: nn.Module, shares: int) -> None:
        super().__init__()
        self.network, self.shares = network, shares

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.network(x)
        return torch.cat([self.network(share) for share in x.chunk(self.shares)])


def unsynchronized(seed: int, fault: bool) -> Setup:
    torch.manual_seed(seed)
    return digit_setup(Shares(pooled(), 16 if fault else 1), sgd(0.05), size=32, steps=200, seed=seed)


def last_batch(seed: int, fault: bool) -> Setup:
    """129 images in batches of 64: every third step has one."""
    torch.manual_seed(seed)
    split = digits()
    x, y, steps = split.x[:129], split.y[:129], 200

    def draw(generator: torch.Generator) -> Sequence[Tensor]:
        parts = torch.randperm(len(x), generator=generator).split(64)
        return parts if fault else parts[:-1]

    model = cnn(norm=lambda channels: nn.BatchNorm2d(channels, momentum=0.3))
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        Drawn((x, y), steps, seed, draw),
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        eval_batches=[(split.x_eval, split.y_eval)],
        metric=accuracy,
        steps=steps,
    )


CASES = (
    Case("denoiser-of-two-images", "development", denoiser, "small-batch-noise", fix="GroupNorm"),
    Case(
        "detector-of-two-images",
        "development",
        detector,
        "small-batch-noise",
        fix="GroupNorm",
    ),
    Case(
        "sixteen-micro-batches",
        "development",
        micro_batches,
        "accumulation-normalizes-alone",
        "https://github.com/andreped/GradientAccumulator/issues/6",
        also=("small-batch-noise",),
        fix="one batch of 32",
    ),
    Case(
        "shares-of-two",
        "development",
        unsynchronized,
        "unsynchronized-statistics",
        "https://github.com/pytorch/pytorch/issues/2584",
        also=("small-batch-noise",),
        fix="statistics of the whole batch",
    ),
    Case(
        "last-image-alone",
        "development",
        last_batch,
        "last-batch-of-one",
        also=("small-batch-noise",),
        fix="the last batch dropped",
    ),
)
