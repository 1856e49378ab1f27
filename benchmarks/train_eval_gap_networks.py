"""The networks of benchmarks/train_eval_gap.py: twelve to judge on, and others that the rules were developed on.

The images are drawn: one of ten smooth patterns at a random place, with some of another pattern over it, a random
contrast, and noise. Evaluation sets A and B are further draws, so many that their sampling error stays below the
differences that are judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.norms import make_norm

EVALUATION = 12000
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """One network and its training.

    batch: samples that are normalized together. momentum: of BatchNorm; other: the momentum to change to. average:
    decay of the averaged weights, or None for an equal average; buffers: whether the average has averaged buffers.
    shift: contrast and brightness of the evaluation data. apart: whether real and fake come in batches of their own,
    nearly. images: number of training images.
    """

    name: str
    kind: str
    batch: int
    momentum: float
    other: float
    steps: int
    lr: float = 0.05
    average: float | None = 0.98
    buffers: bool = False
    shift: tuple[float, float] = (1.0, 0.0)
    dropout: float = 0.0
    apart: bool = False
    images: int = 20000


TWELVE = (
    Case("MLP, batch 2", "mlp", 2, 0.1, 0.01, 600, 0.01),
    Case("MLP, batch 32, momentum 0.9, dropout", "mlp", 32, 0.9, 0.1, 250, dropout=0.3, buffers=True),
    Case("MLP, batch 256, momentum 0.001", "mlp", 256, 0.001, 0.1, 150),
    Case("CNN, batch 4, momentum 0.9", "cnn", 4, 0.9, 0.1, 400, 0.02),
    Case("CNN, batch 16, shifted evaluation data", "cnn", 16, 0.03, 0.3, 250, shift=(0.6, 0.3)),
    Case("CNN, batch 64, momentum 0.01, 1,000 images", "cnn", 64, 0.01, 0.1, 200, average=None, images=1000),
    Case("ResNet, batch 8, momentum 0.3", "resnet", 8, 0.3, 0.03, 250, 0.02, average=None),
    Case("ResNet, batch 32, equal average with buffers", "resnet", 32, 0.1, 0.02, 150, average=None, buffers=True),
    Case("ResNet, batch 128, momentum 0.005", "resnet", 128, 0.005, 0.1, 100),
    Case("U-Net, batch 4, momentum 0.9", "unet", 4, 0.9, 0.1, 250, 0.05),
    Case("U-Net, batch 16, shifted evaluation data", "unet", 16, 0.02, 0.2, 150, shift=(0.6, 0.3)),
    Case("Discriminator, batch 32, momentum 0.5", "discriminator", 32, 0.5, 0.05, 250, 0.02),
)
DEVELOPMENT = (
    Case("dev MLP 4", "mlp", 4, 0.5, 0.05, 400, 0.02),
    Case("dev MLP 128", "mlp", 128, 0.01, 0.2, 150),
    Case("dev CNN 2", "cnn", 2, 0.1, 0.02, 400, 0.01),
    Case("dev CNN 32", "cnn", 32, 0.02, 0.2, 200, dropout=0.2),
    Case("dev CNN 200", "cnn", 200, 0.1, 0.01, 100),
    Case("dev ResNet 4", "resnet", 4, 0.5, 0.05, 200, 0.02),
    Case("dev ResNet 64", "resnet", 64, 0.02, 0.2, 100, shift=(1.4, -0.2)),
    Case("dev U-Net 8", "unet", 8, 0.8, 0.1, 150),
    Case("dev discriminator 8", "discriminator", 8, 0.5, 0.05, 250, 0.02),
    Case("dev discriminator 64", "discriminator", 64, 0.2, 0.02, 150, 0.02, apart=True),
)


def network(case: Case, norm: str, momentum: float, seed: int) -> nn.Module:
    """The network of a case; `norm` is "batch" or "group"."""
    options: dict[str, Any] = {"momentum": momentum} if norm == "batch" else {"groups": 8}

    def made(channels: int, dim: int) -> nn.Module:
        return make_norm(norm, channels, dim=dim, **options)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _BUILDERS[case.kind](made, case.dropout)


Norm = Callable[[int, int], nn.Module]


def _mlp(norm: Norm, dropout: float) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for width in (64, 128, 128):
        layers += [nn.Linear(width, 128), norm(128, 1), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(128, 10))


def _convolved(norm: Norm, c_in: int, c: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(c_in, c, 3, stride, 1, bias=False), norm(c, 2), nn.ReLU()]


def _cnn(norm: Norm, dropout: float, outputs: int = 10) -> nn.Module:
    layers = [*_convolved(norm, 1, 16), *_convolved(norm, 16, 32, 2), nn.Dropout(dropout), *_convolved(norm, 32, 32, 2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, outputs))


class _Block(nn.Module):
    def __init__(self, norm: Norm, c_in: int, c: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_convolved(norm, c_in, c, stride), nn.Conv2d(c, c, 3, 1, 1, bias=False), norm(c, 2)
        )
        same = c_in == c
        self.shortcut = nn.Identity() if same else nn.Sequential(nn.Conv2d(c_in, c, 1, stride, bias=False), norm(c, 2))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


def _resnet(norm: Norm, dropout: float) -> nn.Module:
    blocks = [_Block(norm, 16, 16, 1), _Block(norm, 16, 32, 2), _Block(norm, 32, 32, 1)]
    return nn.Sequential(*_convolved(norm, 1, 16), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class _UNet(nn.Module):
    def __init__(self, norm: Norm) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Sequential(*_convolved(norm, a, b)) for a, b in ((1, 8), (8, 16), (16, 32)))
        self.up = nn.ModuleList(nn.Sequential(*_convolved(norm, a, b)) for a, b in ((48, 16), (24, 8)))
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        h = self.down[2](F.max_pool2d(second, 2))
        for layer, skipped in zip(self.up, (second, first), strict=True):
            h = layer(torch.cat([F.interpolate(h, scale_factor=2), skipped], 1))
        return self.last(h)


_BUILDERS: dict[str, Callable[[Norm, float], nn.Module]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "resnet": _resnet,
    "unet": lambda norm, dropout: _UNet(norm),
    "discriminator": lambda norm, dropout: _cnn(norm, dropout, outputs=1),
}


def loss_fn(case: Case) -> nn.Module:
    return nn.CrossEntropyLoss() if case.kind in ("mlp", "cnn", "resnet") else nn.BCEWithLogitsLoss()


def points(outputs: Tensor, targets: Tensor) -> Tensor:
    """Accuracy in points: of classes, of pixels that are digit or not, or of real and fake."""
    if outputs.ndim == 2 and outputs.shape[1] > 1:
        return 100 * (outputs.argmax(1) == targets).double().mean()
    return 100 * ((outputs > 0) == (targets > 0.5)).double().mean()


@cache
def data(kind: str, shift: tuple[float, float], images: int, part: str, seed: int) -> Batch:
    """All samples of the "training" set, of evaluation set "A" or of evaluation set "B"."""
    generator = torch.Generator().manual_seed(1000 * seed + ord(part[0]))
    count = images if part == "training" else EVALUATION
    labels = torch.randint(10, (count,), generator=generator)
    others = (labels + torch.randint(1, 10, (count,), generator=generator)) % 10
    size = 16 if kind == "unet" else 8
    clean, over = _placed(labels, size, generator), _placed(others, size, generator)
    weight = 0.5 * torch.rand(count, 1, 1, 1, generator=generator)
    x, y = clean + weight * over, labels
    if kind == "unet":
        y = (clean > 0.5).float()
    elif kind == "discriminator":
        y = (torch.arange(count) % 2).float().view(-1, 1)
        x = torch.where(y.view(-1, 1, 1, 1) == 1, clean, 0.7 * clean + 0.5 * over)
    contrast = 0.6 + 0.8 * torch.rand(count, 1, 1, 1, generator=generator)
    x = contrast * x + 0.3 * torch.randn(x.shape, generator=generator)
    if part != "training":
        x = shift[0] * x + shift[1]
    return x, y


@cache
def _patterns() -> Tensor:
    """Ten patterns of 8 x 8 pixels between 0 and 1."""
    coarse = torch.randn(10, 1, 4, 4, generator=torch.Generator().manual_seed(7))
    return torch.sigmoid(3 * F.interpolate(coarse, size=(8, 8), mode="bicubic", align_corners=False))


def _placed(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """The patterns of the labels, each moved by up to two pixels, or to a random place of a larger image."""
    room = size - 8 or 4
    canvas = torch.zeros(len(labels), 1, 8 + room, 8 + room)
    rows, columns = torch.randint(0, room + 1, (2, len(labels)), generator=generator)
    for row in range(room + 1):
        for column in range(room + 1):
            here = (rows == row) & (columns == column)
            canvas[here, :, row : row + 8, column : column + 8] = _patterns()[labels[here]]
    margin = (8 + room - size) // 2
    return canvas[:, :, margin : margin + size, margin : margin + size]


def batches(case: Case, part: str, seed: int, size: int, count: int, order: int) -> list[Batch]:
    """`count` batches of `size` samples in a random order."""
    x, y = data(case.kind, case.shift, case.images, part, seed)
    generator = torch.Generator().manual_seed(order)
    rounds = -(-count * size // len(x))
    flat = torch.cat([torch.randperm(len(x), generator=generator) for _ in range(rounds)])
    index = flat[: count * size]
    if case.apart:
        # The real ones first and the fake ones after them, in every two batches.
        twos = index.view(-1, 2 * size)
        index = twos.gather(1, y.flatten()[twos].argsort(dim=1, descending=True)).flatten()
    index = index.view(count, size)
    return [(x[i], y[i]) for i in index]


def trained(
    case: Case, seed: int, *, norm: str = "batch", momentum: float | None = None, joined: int = 1, apart: int = 1
) -> ns.Setup:
    """The setup of a case after its training.

    Args:
        momentum: another one than the case's.
        joined: number of the case's batches that are put together into one batch.
        apart: number of the case's batches that make one step together, each normalized alone.
    """
    model = network(case, norm, case.momentum if momentum is None else momentum, seed)
    optimizer = torch.optim.SGD(model.parameters(), case.lr, momentum=0.9)
    decay = case.average
    average = None if decay is None else torch.optim.swa_utils.get_ema_multi_avg_fn(decay)
    # The rate falls linearly to a tenth, as the rates of most trainings fall at their end.
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, case.steps)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average, use_buffers=case.buffers)
    read = batches(case, "training", seed, case.batch, case.steps * apart * joined, order=seed)
    if joined > 1:
        groups = [read[number : number + joined] for number in range(0, len(read), joined)]
        read = [(torch.cat([x for x, _ in group]), torch.cat([y for _, y in group])) for group in groups]
    setup = ns.Setup(
        model, loss_fn(case), read, optimizer, metric=points, scheduler=scheduler, averaged_model=averaged,
        accumulate=apart, steps=case.steps,
    )  # fmt: skip
    ns.train(
        model, setup.loss_fn, read, optimizer, scheduler=scheduler, averaged_model=averaged, accumulate=apart,
        steps=case.steps, seed=seed,
    )  # fmt: skip
    return setup


@torch.no_grad()
def evaluated(model: nn.Module, case: Case, part: str, seed: int) -> tuple[float, float]:
    """Loss and points in eval mode on all samples of an evaluation set."""
    x, y = data(case.kind, case.shift, case.images, part, seed)
    modes = model.training
    model.eval()
    outputs = torch.cat([model(part) for part in x.split(1000)])
    model.train(modes)
    return float(loss_fn(case)(outputs, y)), float(points(outputs, y))
