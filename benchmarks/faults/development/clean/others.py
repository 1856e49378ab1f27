"""Trainings that are no plain classification: images from images, a discriminator, contrast, values of actions."""

import itertools
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import accuracy, digits, images, minus_squared_error, shuffled
from faults.development.faults.mixing import TwoViews
from faults.development.networks import Norm, UNet, groups, mlp
from normscope import Setup


def denoiser(seed: int, *, norm: Norm, size: int, lr: float = 3e-3) -> Setup:
    """A U-Net that removes noise."""
    torch.manual_seed(seed)
    split, steps = images(noise=0.0), 120
    generator = torch.Generator().manual_seed(7)
    noisy, noisy_eval = (x + 0.5 * torch.randn(x.shape, generator=generator) for x in (split.x, split.x_eval))
    model = UNet(norm=norm)
    return Setup(
        model,
        nn.MSELoss(),
        shuffled(noisy, split.x, size=size, steps=steps, seed=seed),
        torch.optim.Adam(model.parameters(), lr),
        eval_batches=[(noisy_eval, split.x_eval)],
        metric=minus_squared_error,
        steps=steps,
    )


def regression(seed: int, *, norm: Norm) -> Setup:
    """Four smooth functions of an image by squared error."""
    torch.manual_seed(seed)
    split = digits()
    direction = torch.randn(64, 4, generator=torch.Generator().manual_seed(3)) / 8
    y, y_eval = (torch.tanh(part.flatten(1) @ direction) for part in (split.x, split.x_eval))
    model = mlp((64, 64, 64, 4), norm=norm)
    return Setup(
        model,
        nn.MSELoss(),
        shuffled(split.x, y, size=64, steps=200, seed=seed),
        torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        eval_batches=[(split.x_eval, y_eval)],
        metric=minus_squared_error,
        steps=200,
    )


def discriminator(seed: int, *, norm: Norm) -> Setup:
    """Real images and those of a fixed generator in the same batch."""
    torch.manual_seed(seed)
    split = digits()
    generator = torch.Generator().manual_seed(5)

    def with_fakes(x: Tensor) -> tuple[Tensor, Tensor]:
        pixels = torch.randint(len(x), x.shape, generator=generator)
        mixed = x.flatten(1).gather(0, pixels.flatten(1)).view_as(x)
        return torch.cat([x, mixed]), torch.cat([torch.ones(len(x)), torch.zeros(len(x))]).long()

    (x, y), (x_eval, y_eval) = with_fakes(split.x), with_fakes(split.x_eval)
    layers = itertools.pairwise((1, 12, 24))
    parts = [(nn.Conv2d(a, b, 3, stride=2, padding=1), norm(b), nn.LeakyReLU(0.2)) for a, b in layers]
    model = nn.Sequential(*itertools.chain.from_iterable(parts), nn.Flatten(), nn.Linear(96, 2))
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(x, y, size=64, steps=150, seed=seed),
        torch.optim.Adam(model.parameters(), 1e-3, betas=(0.5, 0.999)),
        eval_batches=[(x_eval, y_eval)],
        metric=accuracy,
        steps=150,
    )


def contrastive(seed: int) -> Setup:
    """Two views of each image, normalized by statistics of the whole batch."""
    torch.manual_seed(seed)
    split, steps = digits(), 200
    generator = torch.Generator().manual_seed(11)

    def views(x: Tensor) -> Tensor:
        return x[:, None] + 0.3 * torch.randn(len(x), 2, *x.shape[1:], generator=generator)

    pairs, eval_pairs, right = views(split.x), views(split.x_eval), torch.arange(64)
    model = TwoViews(1)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(pairs, size=64, steps=steps, seed=seed, make=lambda rows: (rows, right)),
        torch.optim.Adam(model.parameters(), 1e-3),
        eval_batches=[(part, right) for part in eval_pairs.split(64) if len(part) == 64],
        metric=accuracy,
        steps=steps,
    )


def action_values(seed: int) -> Setup:
    """Values of four actions on a line of 16 places, learned from one-step returns, with LayerNorm."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(19)
    place, action = torch.rand(4096, generator=generator), torch.randint(4, (4096,), generator=generator)
    moved = (place + (action - 1.5) / 8 + 0.02 * torch.randn(4096, generator=generator)).clamp(0, 1)
    reward = torch.exp(-((moved - 0.7) ** 2) / 0.02)
    states = torch.exp(-((place[:, None] - torch.linspace(0, 1, 16)) ** 2) / 0.01)
    targets = torch.stack([action.float(), reward], 1)
    model = mlp((16, 64, 64, 4), norm=nn.LayerNorm)
    return Setup(
        model,
        _taken,
        shuffled(states[:3600], targets[:3600], size=64, steps=250, seed=seed),
        torch.optim.Adam(model.parameters(), 3e-3),
        eval_batches=[(states[3600:], targets[3600:])],
        metric=lambda values, targets: -float(_taken(values, targets)),
        steps=250,
    )


def _taken(values: Tensor, targets: Tensor) -> Tensor:
    """The squared error of the values of the actions that were taken."""
    return F.mse_loss(values.gather(1, targets[:, :1].long())[:, 0], targets[:, 1])


_TRAININGS: dict[str, Callable[[int], Setup]] = {
    "u-net-groupnorm": partial(denoiser, norm=groups(4), size=4),
    "u-net-batchnorm": partial(denoiser, norm=nn.BatchNorm2d, size=16),
    "regression-batchnorm": partial(regression, norm=nn.BatchNorm1d),
    "discriminator-batchnorm": partial(discriminator, norm=nn.BatchNorm2d),
    "contrastive-whole-batch": contrastive,
    "action-values": action_values,
}
CASES = tuple(Case(f"other-{name}", "development", make) for name, make in _TRAININGS.items())
