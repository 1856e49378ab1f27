"""A data set as four tensors, and the standardization of its images by training statistics."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from normscope.data.errors import check_choice

Standardize = Literal["channel", "pixel", "global"] | None

# Axes of (n, channel, row, column) over which a mean and a deviation are shared.
_SHARED_AXES = {"channel": (0, 2, 3), "pixel": (0,), "global": (0, 1, 2, 3)}


def check_standardize(how: object) -> None:
    """Raise a ValueError unless `how` is a kind of standardization; loaders ask before they touch files."""
    check_choice("standardize", how, [*_SHARED_AXES, None])


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A training set and a test set, whole and on one device.

    Args:
        name: name of the set.
        x_train: inputs of the training set; the first axis counts the examples.
        x_test: inputs of the test set.
        y_train: int64 labels of the training set, or floating targets (n, d_out) for regression.
        y_test: labels or targets of the test set.
        classes: number of classes; None for regression.

    Example:
        >>> from normscope.data import gaussian
        >>> gaussian(100, 3, 2, seed=0)
        Dataset('gaussian', x (3,), y (2,), 100 train + 100 test, float64 on cpu)
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int | None

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Dataset":
        """The same set on `device`, its inputs and floating targets in `dtype`; labels stay int64.

        Args:
            device: a device of torch.
            dtype: a floating-point type; labels keep theirs.

        Returns:
            The same data there.
        """

        def move(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype if t.is_floating_point() else None)

        return replace(
            self,
            x_train=move(self.x_train),
            y_train=move(self.y_train),
            x_test=move(self.x_test),
            y_test=move(self.y_test),
        )

    def __repr__(self) -> str:
        target = f"y {tuple(self.y_train.shape[1:])}" if self.classes is None else f"{self.classes} classes"
        x = self.x_train
        size = f"{len(x)} train + {len(self.x_test)} test"
        dtype = str(x.dtype).removeprefix("torch.")
        return f"Dataset({self.name!r}, x {tuple(x.shape[1:])}, {target}, {size}, {dtype} on {x.device})"


def standardized(train: np.ndarray, test: np.ndarray, how: Standardize, *, white: int = 255) -> tuple[Tensor, Tensor]:
    """The pixels of both parts as float32, centred and scaled by the statistics of the training part.

        x <- (x / white - mean) / std      mean, std (1/n, not 1/(n-1)) over the training images

    There is one mean and one deviation for each channel ("channel"), for each pixel of each channel ("pixel"), or for
    all ("global"); None leaves x / white in [0, 1]. A pixel that is constant in training is only centred.

    The sums are sums of integers and therefore exact: the result depends neither on threads nor on the machine.

    Args:
        train, test: uint8 images (n, channel, row, column).
        how: "channel", "pixel", "global" or None.
        white: the pixel value that becomes 1.

    Example:
        >>> images = np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1)
        >>> standardized(images, images, "pixel")[0].flatten()
        tensor([-1.,  1.])
    """
    parts = [torch.from_numpy(part.astype(np.float32)).div_(white) for part in (train, test)]
    if how is not None:
        axes = _SHARED_AXES[how]
        n = np.prod([train.shape[axis] for axis in axes])
        mean = train.sum(axis=axes, dtype=np.int64, keepdims=True) / n
        # 255^2 fits uint16, a quarter of the memory of int64.
        square = np.square(train, dtype=np.uint16).sum(axis=axes, dtype=np.int64, keepdims=True) / n
        constant = train.min(axis=axes, keepdims=True) == train.max(axis=axes, keepdims=True)
        std = np.sqrt(np.where(constant, white**2, square - mean**2))
        for part in parts:
            part.sub_(torch.from_numpy(mean / white).float()).div_(torch.from_numpy(std / white).float())
    return parts[0], parts[1]
