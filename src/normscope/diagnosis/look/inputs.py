"""The distribution of the inputs of training and of evaluation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from normscope.diagnosis.look.look import Look

# Features, and places along each side of an image, are put together in at most this many blocks.
_BLOCKS = 4


@dataclass(frozen=True)
class Shift:
    """The distance between two sets of inputs, and their means and deviations over all values."""

    distance: float
    mean: float
    deviation: float
    mean_eval: float
    deviation_eval: float


def input_shift(look: Look) -> Shift | None:
    """The shift of the first floating-point tensor of a batch; None where there is none, or a training_step."""
    if look.setup.training_step is not None:
        return None
    train, judged = _values(look.batches), _values(look.all_eval_batches)
    if train is None or judged is None or train.shape[1] != judged.shape[1]:
        return None
    center, spread = train.mean(0), train.std(0).clamp(min=1e-12)
    far = ((judged.mean(0) - center).abs() / spread).mean()
    ratio = (judged.std(0).clamp(min=1e-12) / spread).log().abs().mean()
    distance = max(float(far), float(ratio), _places(look))
    if not math.isfinite(distance):
        return None
    return Shift(distance, float(train.mean()), float(train.std()), float(judged.mean()), float(judged.std()))


def _places(look: Look) -> float:
    """The mean |difference of means| / deviation over places of images of one size, beyond that of chance."""
    found = [_images(batches) for batches in (look.batches, look.all_eval_batches)]
    if any(images is None for images in found):
        return 0.0
    train, judged = (images for images in found if images is not None)
    if train.shape[1:] != judged.shape[1:] or min(len(train), len(judged)) < 2:
        return 0.0
    spread = torch.cat([train, judged]).std(0)
    live = spread > 1e-3 * float(spread.max())
    chance = math.sqrt(2 / math.pi * (1 / len(train) + 1 / len(judged)))
    far = ((judged.mean(0) - train.mean(0)).abs() / spread.clamp(min=1e-12))[live].mean()
    return max(float(far) - chance, 0.0)


def _images(batches: Sequence[Any]) -> Tensor | None:
    """One row for each image, averaged over at most 4 x 4 blocks of places."""
    parts = []
    for batch in batches:
        first = batch[0] if isinstance(batch, (tuple, list)) and len(batch) > 1 else batch
        x = next((leaf for leaf in tree_leaves(first) if isinstance(leaf, Tensor) and leaf.is_floating_point()), None)
        if x is None or x.ndim != 4:
            return None
        parts.append(functional.adaptive_avg_pool2d(x.detach().float().cpu(), _BLOCKS).flatten(1))
    return torch.cat(parts) if parts and len({part.shape[1] for part in parts}) == 1 else None


def _values(batches: Sequence[Any]) -> Tensor | None:
    """Rows of values, one column for each channel of images or block of features."""
    parts = []
    for batch in batches:
        first = batch[0] if isinstance(batch, (tuple, list)) and len(batch) > 1 else batch
        x = next((leaf for leaf in tree_leaves(first) if isinstance(leaf, Tensor) and leaf.is_floating_point()), None)
        if x is None or x.ndim < 2:
            return None
        x = x.detach().float().cpu()
        if x.ndim == 4 or x.ndim == 5:
            parts.append(x.movedim(1, -1).flatten(0, -2))
        else:
            blocks = x.flatten(1).tensor_split(min(_BLOCKS, x.flatten(1).shape[1]), dim=1)
            size = min(block.shape[1] for block in blocks)
            parts.append(torch.stack([block[:, :size].flatten() for block in blocks], 1))
    return torch.cat(parts) if parts and len({part.shape[1] for part in parts}) == 1 else None
