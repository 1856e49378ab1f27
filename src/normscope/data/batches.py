"""Mini-batches of tensors on one device, in an order that is the same on every device."""

from collections.abc import Callable, Iterator
from itertools import count, islice

import torch
from torch import Tensor
from torch.nn.functional import pad as zero_pad

Augment = Callable[[Tensor, torch.Generator], Tensor]


def batches(
    x: Tensor,
    y: Tensor,
    *,
    batch_size: int,
    seed: int,
    steps: int | None = None,
    epochs: int | None = None,
    augment: Augment | None = None,
    drop_last: bool = True,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over (x_batch, y_batch), every epoch in a fresh random order.

    The order comes from a CPU generator of its own: it depends on the seed only, not on the device, the augmentation
    or a global seed.

    Args:
        x: inputs; the first axis counts the samples.
        y: targets, with the same first axis.
        batch_size: examples in a batch. If it is at least len(x), every batch is x and y themselves, in their own
            order and not copied: a model that writes into its input then writes into the data.
        seed: seed of the order and of the augmentation.
        steps: number of batches. Without steps and epochs, batches are endless.
        epochs: number of passes over the data; give at most one of the two.
        augment: augment(x_batch, generator) returns the augmented batch; the generator is on the CPU. See
            `crop_and_flip`.
        drop_last: whether to leave out the short batch at the end of an epoch.

    Returns:
        An iterator over pairs (x_batch, y_batch).

    Raises:
        ValueError: sizes or numbers that do not fit.

    Example:
        >>> x = torch.arange(4)
        >>> [len(xb) for xb, yb in batches(x, x, batch_size=3, seed=0, epochs=2, drop_last=False)]
        [3, 1, 3, 1]
    """
    if len(x) != len(y) or len(x) == 0:
        raise ValueError(f"x and y must hold the same number of examples, at least one; got {len(x)} and {len(y)}.")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
    if steps is not None and epochs is not None:
        raise ValueError(f"give steps or epochs, not both; got steps={steps}, epochs={epochs}.")
    for name, limit in (("steps", steps), ("epochs", epochs)):
        if limit is not None and limit < 0:
            raise ValueError(f"{name} must not be negative; got {limit}. Leave it out for endless batches.")
    return islice(_passes(x, y, batch_size, seed, epochs, augment, drop_last), steps)


def _passes(
    x: Tensor,
    y: Tensor,
    batch_size: int,
    seed: int,
    epochs: int | None,
    augment: Augment | None,
    drop_last: bool,
) -> Iterator[tuple[Tensor, Tensor]]:
    order = torch.Generator().manual_seed(seed)
    # A second generator, so that drawing augmentations does not change the order.
    noise = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=order)))
    n = len(x)
    stop = n - n % batch_size if drop_last else n
    for _ in count() if epochs is None else range(epochs):
        if batch_size >= n:
            yield (x if augment is None else augment(x, noise)), y
            continue
        shuffled = torch.randperm(n, generator=order)[:stop].to(x.device)
        for index in shuffled.split(batch_size):
            x_batch = x[index]
            yield (x_batch if augment is None else augment(x_batch, noise)), y[index]


def crop_and_flip(x: Tensor, generator: torch.Generator, *, pad: int = 4) -> Tensor:
    """Move each image by up to `pad` pixels up, down and sideways, and mirror half of them.

    Each image is padded with zeros on all sides, cropped to its old size at a random place, and flipped
    left to right with probability 1/2. In a standardized set, zero is the mean image.

    Source: the augmentation of He et al. 2016, "Deep Residual Learning", section 4.2 (pad = 4).

    Args:
        x: images (n, channel, row, column) on any device; not changed.
        generator: on the CPU, so that the draws do not depend on the device of x.
        pad: largest shift in pixels; 0 only flips.

    Returns:
        The moved images, of the same shape.

    Example:
        >>> x = torch.ones(2, 1, 3, 3)
        >>> torch.equal(crop_and_flip(x, torch.Generator().manual_seed(0), pad=0), x)
        True
    """
    if x.ndim != 4:
        raise ValueError(f"crop_and_flip takes images (n, channel, row, column); got shape {tuple(x.shape)}.")
    n, channels, height, width = x.shape
    top, left = torch.randint(2 * pad + 1, (2, n, 1), generator=generator)
    flip = torch.randint(2, (n, 1), generator=generator) == 1
    row = top + torch.arange(height)
    column = left + torch.where(flip, torch.arange(width).flip(0), torch.arange(width))
    image, row, column = (index.to(x.device) for index in (torch.arange(n), row, column))
    channel = torch.arange(channels, device=x.device)
    return zero_pad(x, (pad,) * 4)[
        image[:, None, None, None], channel[:, None, None], row[:, None, :, None], column[:, None, None, :]
    ]
