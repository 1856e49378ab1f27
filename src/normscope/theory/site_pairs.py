r"""Pairs of sites that a kernel is given for, of one sample or of two different samples.

A tensor of many channels is described by its kernel K[a, b] = mean over channels of h(x, a) h(y, b), where x and y are
samples, a and b sites of theirs. A kernel has one of three forms:

    exact      (2, S, S)    class 0: x = y, class 1: x != y; every pair of the S = H W sites
    torus      (2, H, W)    the same by the offset b - a, as if the image had no border
    samples    (1, m, m)    one site; every pair of the m samples of a batch

In a batch of m samples the two classes have the weights 1/m and (m - 1)/m (`Sites.mix`). Cotangents have one more
dimension in front, with one entry for each direction over the samples that is sent back.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from normscope.theory.gaussian import Pairs

# Largest number of pairs of sites of all layers together: beyond it the exact form takes longer than it is worth.
_PAIRS = 500_000
_ZERO = torch.zeros((), dtype=torch.float64)


def exact_sites(layers: int) -> int:
    """Largest number of sites that have the exact form, in a network of so many layers.

    Example: 16x16 images for a network of 7 layers, 7x7 for one of 54.
        >>> exact_sites(7), exact_sites(54)
        (267, 96)
    """
    return math.isqrt(_PAIRS // max(layers, 1))


def average(values: Tensor) -> float:
    """Mean of the values, equal to torch's to the bit; for few values torch's sum takes half the time of its mean."""
    return float(values.sum()) / values.numel() if values.ndim else float(values)


@dataclass(frozen=True)
class Sites:
    """The sites of an image and the samples of a batch, in one of the three forms.

    form: "exact", "torus" or "samples". height, width: size of the image. batch: number of samples m. limit: largest
    number of sites with which a smaller image made of this one becomes exact.
    """

    form: str
    height: int
    width: int
    batch: int
    limit: int = 256

    @property
    def count(self) -> int:
        """Number of sites."""
        return self.height * self.width

    def smaller(self, height: int, width: int) -> "Sites":
        """Sites of an image that a layer makes of this one; exact as soon as the image is small enough."""
        if self.form == "samples":
            return self
        form = "exact" if self.form == "exact" or height * width <= self.limit else "torus"
        return Sites(form, height, width, self.batch, self.limit)

    def mix(self, kernel: Tensor) -> Tensor:
        """The mean over the samples y of K(x, y)."""
        if self.form == "samples":
            return kernel.select(-3, 0)
        one, two = kernel.unbind(-3)
        return two.lerp(one, 1 / self.batch)

    def diagonal(self, kernel: Tensor) -> Tensor:
        """K(x, a; x, a), for each place: (S,), (m,) or a single number."""
        same = kernel.select(-3, 0)
        return same.select(-1, 0).select(-1, 0) if self.form == "torus" else same.diagonal(dim1=-2, dim2=-1)

    def ends(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """A number given for each place, at the first and at the second end of every pair."""
        if self.form == "torus":
            # By offsets one number stands for all places.
            at = place[..., None, None] if place.ndim else place
            return at, at
        return place.unsqueeze(-1), place.unsqueeze(-2)

    def two(self, kernel: Tensor) -> Tensor:
        """The kernel of two different samples; a zero in the form "samples"."""
        return _ZERO if self.form == "samples" else kernel[1]

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """Products of a number of the first place with a number of the second, for every pair."""
        if self.form == "torus":
            return self.ends(left * right)[0]
        return left.unsqueeze(-1) * right.unsqueeze(-2)

    def rows(self, kernel: Tensor) -> Tensor:
        """Means over all samples and places of the second end, one for each place of the first end."""
        if self.form == "torus":
            return kernel.sum((-2, -1)) @ _shares(self.batch, 1 / self.count)
        return self.mix(kernel).mean(dim=-1)

    def same(self) -> Tensor:
        """Ones where both ends are one place of one sample, zeros elsewhere; shared between calls, read only."""
        return _same(self)[0]

    def others(self) -> Tensor:
        """Zeros where both ends are one place of one sample, ones elsewhere; shared between calls, read only."""
        return _same(self)[1]

    def eigenvalues(self, form: Tensor) -> Tensor:
        """Eigenvalues of the bilinear form over sites that is the derivative of a number by a kernel of two samples.

        By offsets the derivative is by the kernel's sum over sites, so that transposes are those of cotangents.
        """
        if self.form == "torus":
            return torch.fft.fft2(form).real.flatten()
        return torch.linalg.eigvalsh((form + form.T) / 2)

    def total(self, products: Tensor) -> Tensor:
        r"""Sum over pairs of sites and mean over pairs of samples: the part of lambda that a parameter adds.

        lambda = (1/m) sum_{x, y} v_x v_y sum_{a, b} G K with |v| = 1; cotangents here are seeded with m v_x v_y.
        """
        if self.form == "samples":
            return self.mix(products).mean(dim=(-2, -1))
        return products.sum((-2, -1)) @ _shares(self.batch, self.count if self.form == "torus" else 1)

    def summed(self, products: Tensor) -> float:
        """Sum over pairs of sites."""
        return float(products.sum()) * (self.count if self.form == "torus" else 1)

    def pairs(self, kernel: Tensor, mean: Tensor) -> Pairs:
        """Covariances, variances and means of second moments, as `gaussian` takes them."""
        covariance = kernel - self.outer(mean, mean) if bool(mean.any()) else kernel
        return Pairs(covariance, self.diagonal(covariance).clamp_min(0), mean, self.ends, self.form != "samples")


@lru_cache(maxsize=64)
def _shares(batch: int, scale: float) -> Tensor:
    """Weights of the two classes in a batch, times a scale."""
    return torch.tensor([scale / batch, scale * (1 - 1 / batch)], dtype=torch.float64)


@lru_cache(maxsize=8)
def _same(sites: Sites) -> tuple[Tensor, Tensor]:
    if sites.form == "torus":
        found = torch.zeros(2, sites.height, sites.width, dtype=torch.float64)
        found[0, 0, 0] = 1
    else:
        size = sites.batch if sites.form == "samples" else sites.count
        found = torch.zeros(1 if sites.form == "samples" else 2, size, size, dtype=torch.float64)
        found[0] = torch.eye(size, dtype=torch.float64)
    return found, 1 - found
