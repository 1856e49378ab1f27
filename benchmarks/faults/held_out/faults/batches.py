"""Batches that are too small, sorted, or of one kind."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from faults.case import Case
from faults.data import Drawn, accuracy, chunks, digits, images, shuffled
from faults.held_out.networks import cnn, group_norm, mlp
from normscope import Setup


def batch_of_two(seed: int, fault: bool) -> Setup:
    """Convolutions down to one pixel: the last BatchNorm has two values for each channel."""
    torch.manual_seed(seed)
    data = images()
    model = cnn(nn.BatchNorm2d if fault else group_norm, (8, 16, 16, 32, 32))
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=2, steps=400, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=400,
    )


def micro_batches_of_two(seed: int, fault: bool) -> Setup:
    """Sixteen micro-batches of two stand for a batch of 32."""
    torch.manual_seed(seed)
    data, model, parts = digits(), mlp([64, 64, 64, 10]), 16 if fault else 1
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=32 // parts, steps=80 * parts, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        accumulate=parts,
        steps=80,
    )


def sorted_by_class(seed: int, fault: bool) -> Setup:
    """The images of a folder for each class, read in order: a batch has one class or two."""
    torch.manual_seed(seed)
    data, model = digits(), mlp([64, 64, 64, 10])
    by_class = data.y.argsort(stable=True)

    def in_order(generator: torch.Generator) -> Sequence[Tensor]:
        parts = [part for part in by_class.split(32) if len(part) == 32]
        order = torch.randperm(len(parts), generator=generator)
        return [parts[i] for i in order]

    steps = 200
    mixed = shuffled(data.x, data.y, size=32, steps=steps, seed=seed)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        Drawn((data.x, data.y), steps, seed, in_order) if fault else mixed,
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=steps,
    )


def real_and_generated(data_x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Digits, and as many draws from a Gaussian with their mean and covariance; 1 is real."""
    flat = data_x.flatten(1)
    centred = flat - flat.mean(0)
    noise = torch.randn(len(flat), len(flat), generator=torch.Generator().manual_seed(seed)) / len(flat) ** 0.5
    generated = flat.mean(0) + noise @ centred
    x = torch.cat([flat, generated])
    return x, (torch.arange(len(x)) < len(flat)).long()


def real_and_generated_apart(seed: int, fault: bool) -> Setup:
    """A discriminator that sees a batch of real digits, then a batch of generated ones."""
    torch.manual_seed(seed)
    data, model = digits(), mlp([64, 128, 64, 2], act=lambda: nn.LeakyReLU(0.2))
    x, y = real_and_generated(data.x, 2)
    x_eval, y_eval = real_and_generated(data.x_eval, 3)
    count = len(data.x)

    def apart(generator: torch.Generator) -> Sequence[Tensor]:
        kinds = [torch.randperm(count, generator=generator) + start for start in (0, count)]
        pairs = zip(*(kind.split(64)[:-1] for kind in kinds), strict=True)
        return [part for pair in pairs for part in pair]

    steps = 300
    together = shuffled(x, y, size=64, steps=steps, seed=seed)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        Drawn((x, y), steps, seed, apart) if fault else together,
        torch.optim.Adam(model.parameters(), lr=1e-3),
        chunks(x_eval, y_eval),
        accuracy,
        steps=steps,
    )


CASES = (
    Case(
        "batch-of-two",
        "held-out",
        batch_of_two,
        "small-batch-noise",
        fix="GroupNorm in the place of BatchNorm",
    ),
    Case(
        "micro-batches-of-two",
        "held-out",
        micro_batches_of_two,
        "accumulation-normalizes-alone",
        "ultralytics/yolov5#1630",
        also=("small-batch-noise",),
        fix="one batch of 32",
    ),
    Case("sorted-by-class", "held-out", sorted_by_class, "batches-differ", fix="shuffled batches"),
    Case(
        "real-and-generated-apart",
        "held-out",
        real_and_generated_apart,
        "batches-differ",
        fix="batches that mix real and generated digits",
    ),
)
