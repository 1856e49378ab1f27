"""Data of the cases: made or read without files of our own, the same for every seed.

| name | samples | from |
|---|---|---|
| digits | 1,400 train, 397 evaluation; (N, 1, 8, 8) | scikit-learn |
| images | 1,600 train, 400 evaluation; (N, 1, 28, 28) | smooth patterns of 10 classes, moved, scaled and with noise |
| text | windows of bytes 0 to 127 | `pydoc_data.topics` of Python |
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Inputs and targets to train on, and to evaluate on."""

    x: Tensor
    y: Tensor
    x_eval: Tensor
    y_eval: Tensor


@functools.cache
def digits() -> Split:
    """Handwritten digits (N, 1, 8, 8), standardized by one mean and one deviation, in a fixed random order."""
    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(bunch.images).float()[order, None]
    y = torch.from_numpy(bunch.target).long()[order]
    x = (x - x[:1400].mean()) / x[:1400].std()
    return Split(x[:1400], y[:1400], x[1400:], y[1400:])


@functools.cache
def images(count: int = 2000, noise: float = 1.0) -> Split:
    """Synthetic images (N, 1, 28, 28) of 10 classes: a smooth pattern for each, moved, with noise."""
    generator = torch.Generator().manual_seed(1)
    patterns = F.interpolate(torch.randn(10, 1, 7, 7, generator=generator), size=34, mode="bicubic")
    y = torch.arange(count) % 10
    y = y[torch.randperm(count, generator=generator)]
    down, right = torch.randint(0, 7, (2, count), generator=generator)
    moved = [patterns[c, :, d : d + 28, r : r + 28] for c, d, r in zip(y, down, right, strict=True)]
    gain = 0.5 + torch.rand(count, 1, 1, 1, generator=generator)
    x = gain * torch.stack(moved) + noise * torch.randn(count, 1, 28, 28, generator=generator)
    x = (x - x.mean()) / x.std()
    held = count // 5
    return Split(x[held:], y[held:], x[:held], y[:held])


@functools.cache
def text(length: int = 32) -> Split:
    """Windows of `length` bytes as x, the same shifted by one byte as y; every tenth window is for evaluation."""
    from pydoc_data.topics import topics

    joined = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", errors="replace")[:200_000]
    stream = torch.frombuffer(bytearray(joined), dtype=torch.uint8).long()
    count = (len(stream) - 1) // length
    x = stream[: count * length].view(count, length)
    y = stream[1 : count * length + 1].view(count, length)
    held = torch.arange(count) % 10 == 0
    return Split(x[~held], y[~held], x[held][:128], y[held][:128])


class Drawn:
    """A training's batches: `steps` of them, each iteration the same.

    draw(generator) gives the indices of one epoch's batches; epochs follow one another until there are `steps`
    batches. make(*parts) turns the selected rows into the batch.
    """

    def __init__(
        self,
        parts: Sequence[Tensor],
        steps: int,
        seed: int,
        draw: Callable[[torch.Generator], Sequence[Tensor]],
        make: Callable[..., object] | None = None,
    ) -> None:
        self.parts, self.steps, self.seed, self.draw, self.make = tuple(parts), steps, seed, draw, make

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[object]:
        generator = torch.Generator().manual_seed(self.seed)
        left = self.steps
        while left:
            for index in self.draw(generator)[:left]:
                rows = tuple(part[index] for part in self.parts)
                yield rows if self.make is None else self.make(*rows)
                left -= 1


def shuffled(*parts: Tensor, size: int, steps: int, seed: int, make: Callable[..., object] | None = None) -> Drawn:
    """Batches of `size` in random order, without a short last batch."""
    count = len(parts[0])
    if not 0 < size <= count:
        raise ValueError(f"A batch of {size} cannot be drawn from {count} samples.")

    def draw(generator: torch.Generator) -> Sequence[Tensor]:
        order = torch.randperm(count, generator=generator)
        return [part for part in order.split(size) if len(part) == size]

    return Drawn(parts, steps, seed, draw, make)


def chunks(*parts: Tensor, size: int = 200) -> list[tuple[Tensor, ...]]:
    """Batches of at most `size`, in order."""
    return list(zip(*(part.split(size) for part in parts), strict=True))


def accuracy(outputs: Tensor, y: Tensor) -> float:
    """The share of rows of `outputs` (..., classes) whose largest entry is at `y`."""
    return float((outputs.argmax(-1) == y).float().mean())


def minus_squared_error(outputs: Tensor, y: Tensor) -> float:
    """The mean squared error, with a minus sign: larger is better."""
    return -float((outputs.float() - y).square().mean())
