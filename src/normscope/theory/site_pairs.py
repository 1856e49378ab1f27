r"""Kernels as tensors: which pairs of sites and samples the entries of a kernel stand for.

A tensor of many channels is described by its kernel K[a, b] = mean over channels of h(x, a) h(y, b). Here x and y are
samples, a is a site of x, and b is a site of y. Most kernels hold two classes of pairs: class 0 has both sites in one
sample (x = y), class 1 has them in two different samples (x != y). A kernel has one of three forms. Each form has a
Python class of its own:

    ExactSites     (2, S, S)    both classes; every pair of the S = H W sites
    TorusSites     (2, H, W)    both classes; one entry for each offset b - a, as if the image had no border
    SampleSites    (1, m, m)    one site; every pair of the m samples of a batch

A batch of m samples has m^2 pairs of samples: class 0 has the weight 1/m, class 1 has the weight (m - 1)/m
(`Sites.mix`). Cotangents have one more dimension in front: one entry for each direction over the samples.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from normscope.theory.gaussian import Pairs

# Largest number of pairs of sites of all layers together: beyond it the exact form takes longer than it is worth.
_PAIRS = 500_000
_ZERO = torch.zeros((), dtype=torch.float64)


def average(values: Tensor) -> float:
    """Mean of the values, equal to torch's to the bit; for few values torch's sum takes half the time of its mean."""
    return float(values.sum()) / values.numel() if values.ndim else float(values)


@dataclass(frozen=True)
class Sites(ABC):
    """The sites of an image and the samples of a batch; each subclass is one form of a kernel.

    Attributes:
        height, width: size of the image.
        batch: number of samples m.
        limit: largest number of sites with which a smaller image made of this one becomes exact.
        has_borders: whether sites have a position in the image.
        each_sample: whether a kernel holds every pair of samples.
    """

    height: int
    width: int
    batch: int
    limit: int = 256

    has_borders: ClassVar[bool] = True
    each_sample: ClassVar[bool] = False

    @property
    def count(self) -> int:
        """Number of sites."""
        return self.height * self.width

    @property
    def entry_sites(self) -> int:
        """Number of sites that one entry of a kernel stands for."""
        return 1

    def smaller(self, height: int, width: int) -> "Sites":
        """Sites of an image that a layer makes of this one; exact as soon as the image is small enough."""
        return type(self)(height, width, self.batch, self.limit)

    def mix(self, kernel: Tensor) -> Tensor:
        """The mean over the samples y of K(x, y)."""
        one, two = kernel.unbind(-3)
        return two.lerp(one, 1 / self.batch)

    def diagonal(self, kernel: Tensor) -> Tensor:
        """K(x, a; x, a), for each place: (S,), (m,) or a single number."""
        return kernel.select(-3, 0).diagonal(dim1=-2, dim2=-1)

    def ends(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """A number given for each place, at the first and at the second end of every pair."""
        return place.unsqueeze(-1), place.unsqueeze(-2)

    def different_samples(self, kernel: Tensor) -> Tensor:
        """The kernel of two different samples; a zero where a kernel holds every pair of samples."""
        return kernel[1]

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """Products of a number of the first place with a number of the second, for every pair."""
        return left.unsqueeze(-1) * right.unsqueeze(-2)

    def rows(self, kernel: Tensor) -> Tensor:
        """Means over all samples and places of the second end, one for each place of the first end."""
        return self.mix(kernel).mean(dim=-1)

    def place_mean(self, values: Tensor) -> Tensor:
        """The mean of a number given for each place, such as one of `rows`."""
        return values.mean(-1)

    def image_mean(self, values: Tensor) -> Tensor:
        """A number given for each place, averaged over the places of one sample; the mean stands at each place."""
        return values.mean().expand(values.shape)

    def common(self, kernel: Tensor) -> Tensor:
        """K - P K P: the part of a kernel that P takes out, which is the mean over batch and sites at both ends."""
        rows = self.rows(kernel)
        # u[a] + u[b] - ubar, half of ubar on either side.
        half = rows - rows.mean(-1, keepdim=True) / 2
        return (half.unsqueeze(-1) + half.unsqueeze(-2)).unsqueeze(-3)

    def across_samples(self, kernel: Tensor) -> float:
        """Mean over pairs of different samples and all pairs of sites."""
        return average(kernel[1])

    def same_place(self, kernel: Tensor) -> tuple[float, float]:
        """Means over sites that are the same at both ends, of one sample and of two."""
        one, two = kernel.diagonal(dim1=-2, dim2=-1).mean(-1).tolist()
        return one, two

    def traces(self, g: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
        """tr(G K) and tr(G K G K) over sites, of one sample and of two."""
        product = g @ kernel
        return product.diagonal(dim1=-2, dim2=-1).sum(-1), (product * product.mT).sum((-2, -1))

    def transposed(self) -> "Sites":
        """Sites of the image with rows and columns exchanged, for images of one row or one column."""
        return type(self)(self.width, self.height, self.batch, self.limit)

    def transpose(self, kernel: Tensor) -> Tensor:
        """A kernel of these sites as one of `transposed`."""
        return kernel

    def same(self) -> Tensor:
        """Ones where both ends are one place of one sample, zeros elsewhere; shared between calls, read only."""
        return _same(self)[0]

    def others(self) -> Tensor:
        """Zeros where both ends are one place of one sample, ones elsewhere; shared between calls, read only."""
        return _same(self)[1]

    def same_sample(self) -> Tensor:
        """Ones where both ends are of one sample, zeros elsewhere."""
        one = torch.zeros_like(self.same())
        one[0] = 1
        return one

    def eigenvalues(self, form: Tensor) -> Tensor:
        """Eigenvalues of a bilinear form over sites: a number's derivative with respect to a kernel of two samples."""
        return torch.linalg.eigvalsh((form + form.T) / 2)

    def total(self, products: Tensor) -> Tensor:
        r"""Sum over pairs of sites and mean over pairs of samples: the part of lambda that a parameter adds.

        lambda = (1/m) sum_{x, y} v_x v_y sum_{a, b} G K with |v| = 1; cotangents here are seeded with m v_x v_y.
        """
        return products.sum((-2, -1)) @ _shares(self.batch, self.entry_sites)

    def summed(self, products: Tensor) -> float:
        """Sum over pairs of sites."""
        return float(products.sum()) * self.entry_sites

    def pairs(self, kernel: Tensor, mean: Tensor) -> Pairs:
        """Covariances, variances and means of second moments, as `gaussian` takes them."""
        covariance = kernel - self.outer(mean, mean) if bool(mean.any()) else kernel
        return Pairs(covariance, self.diagonal(covariance).clamp_min(0), mean, self.ends, not self.each_sample)

    @abstractmethod
    def _identity(self) -> Tensor:
        """Ones where both ends are one place of one sample, zeros elsewhere."""


class ExactSites(Sites):
    """Every pair of sites, of one sample and of two: kernels (2, S, S)."""

    def _identity(self) -> Tensor:
        one = torch.eye(self.count, dtype=torch.float64)
        return torch.stack([one, torch.zeros_like(one)])


class TorusSites(Sites):
    """Pairs of sites by their offset, of one sample and of two, as if the image had no border: kernels (2, H, W)."""

    has_borders = False

    @property
    def entry_sites(self) -> int:
        """Number of sites that one offset stands for: all of them."""
        return self.count

    def smaller(self, height: int, width: int) -> Sites:
        """Sites of an image that a layer makes of this one; exact as soon as the image is small enough."""
        form = ExactSites if height * width <= self.limit else TorusSites
        return form(height, width, self.batch, self.limit)

    def diagonal(self, kernel: Tensor) -> Tensor:
        """K(x, a; x, a), a single number."""
        return kernel.select(-3, 0).select(-1, 0).select(-1, 0)

    def ends(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """One number, which stands for all places, at both ends of every pair."""
        at = place[..., None, None] if place.ndim else place
        return at, at

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """Products of a number of the first place with a number of the second, for every pair."""
        return self.ends(left * right)[0]

    def rows(self, kernel: Tensor) -> Tensor:
        """The mean over all samples and places of the second end, one for all places of the first end."""
        return kernel.sum((-2, -1)) @ _shares(self.batch, 1 / self.count)

    def place_mean(self, values: Tensor) -> Tensor:
        """The number itself, which stands for all places."""
        return values

    def common(self, kernel: Tensor) -> Tensor:
        """K - P K P: the mean over batch and sites."""
        rows = self.rows(kernel)
        return rows.reshape(*rows.shape, 1, 1, 1)

    def same_place(self, kernel: Tensor) -> tuple[float, float]:
        """The kernel at offset zero, of one sample and of two."""
        one, two = kernel.select(-1, 0).select(-1, 0).tolist()
        return one, two

    def traces(self, g: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
        """tr(G K) and tr(G K G K) over sites, of one sample and of two."""
        values = torch.fft.rfft2(g).real * torch.fft.rfft2(kernel).real
        # Half of the waves are the other half's mirror images.
        counted = values * _mirrored(self.width)
        return counted.sum((-2, -1)), (counted * values).sum((-2, -1))

    def transpose(self, kernel: Tensor) -> Tensor:
        """A kernel of these sites as one of `transposed`."""
        return kernel.transpose(-1, -2)

    def eigenvalues(self, form: Tensor) -> Tensor:
        """Eigenvalues of a bilinear form over sites: a number's derivative with respect to a kernel of two samples.

        Here `form` is the derivative with respect to the kernel summed over sites, as cotangents by offsets are.
        """
        return torch.fft.fft2(form).real.flatten()

    def _identity(self) -> Tensor:
        one = torch.zeros(2, self.height, self.width, dtype=torch.float64)
        one[0, 0, 0] = 1
        return one


class SampleSites(Sites):
    """One site, and every pair of the samples of a batch: kernels (1, m, m)."""

    each_sample = True

    def __init__(self, batch: int):
        super().__init__(1, 1, batch)

    def smaller(self, height: int, width: int) -> Sites:
        """The one site."""
        return self

    def mix(self, kernel: Tensor) -> Tensor:
        """The kernel itself: cotangents hold the weights of the pairs."""
        return kernel.select(-3, 0)

    def different_samples(self, kernel: Tensor) -> Tensor:
        """A zero: no pair of samples is of a class."""
        return _ZERO

    def image_mean(self, values: Tensor) -> Tensor:
        """The values themselves: each sample has one place."""
        return values

    def across_samples(self, kernel: Tensor) -> float:
        """Mean over pairs of different samples."""
        m = self.batch
        return float(kernel[0].sum() - kernel[0].trace()) / (m * (m - 1)) if m > 1 else 0.0

    def same_place(self, kernel: Tensor) -> tuple[float, float]:
        """Means over samples, and over pairs of different samples."""
        (own,) = kernel.diagonal(dim1=-2, dim2=-1).mean(-1).tolist()
        m = self.batch
        return own, (float(kernel[0].sum()) - m * own) / (m * (m - 1)) if m > 1 else float("nan")

    def transposed(self) -> Sites:
        """The one site."""
        return self

    def same_sample(self) -> Tensor:
        """Ones where both ends are one sample, zeros elsewhere."""
        return self.same()

    def total(self, products: Tensor) -> Tensor:
        """Mean over pairs of samples: the part of lambda that a parameter adds."""
        return self.mix(products).mean(dim=(-2, -1))

    def _identity(self) -> Tensor:
        return torch.eye(self.batch, dtype=torch.float64)[None]


def exact_sites(layers: int) -> int:
    """Largest number of sites that have the exact form, in a network of so many layers.

    Example: 16x16 images for a network of 7 layers, 7x7 for one of 54.
        >>> exact_sites(7), exact_sites(54)
        (267, 96)
    """
    return math.isqrt(_PAIRS // max(layers, 1))


def image_sites(height: int, width: int, batch: int, layers: int) -> Sites:
    """Sites of the images that enter a network of so many layers: `TorusSites`, or `ExactSites` for a single site."""
    form = TorusSites if height * width > 1 else ExactSites
    return form(height, width, batch, exact_sites(layers))


@lru_cache(maxsize=64)
def _shares(batch: int, scale: float) -> Tensor:
    """Weights of the two classes in a batch, times a scale."""
    return torch.tensor([scale / batch, scale * (1 - 1 / batch)], dtype=torch.float64)


@lru_cache(maxsize=16)
def _mirrored(width: int) -> Tensor:
    """Number of waves that each wave kept by rfft2 stands for."""
    counts = torch.full((width // 2 + 1,), 2.0, dtype=torch.float64)
    counts[0] = 1
    if width % 2 == 0:
        counts[-1] = 1
    return counts


@lru_cache(maxsize=8)
def _same(sites: Sites) -> tuple[Tensor, Tensor]:
    one = sites._identity()
    return one, 1 - one
