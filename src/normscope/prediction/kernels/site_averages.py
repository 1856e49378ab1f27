"""Averages of kernels over sites: order parameters of layers, and numbers of independent sites."""

from functools import lru_cache

import torch
from torch import Tensor

from normscope.theory.site_pairs import Sites

# Part of the gradients that two samples share, over their own, below which nothing is taken as shared.
_SHARED = 0.1


def independent_sites(sites: Sites, g: Tensor, kernel: Tensor) -> tuple[float, float]:
    """Numbers of sites that a layer's part of an eigenvalue averages over, tr(G K)^2 / tr(G K G K).

    For the kernels of two samples (mean mode; of one, where a batch has more of samples' own gradients than of what two
    share), and for those of one. The answer is 1 where the kernel is the same for all pairs of sites, however
    independent the gradients are.
    """
    if sites.form == "samples" or sites.count == 1:
        return 1.0, 1.0
    g = g[0]
    if sites.form == "torus":
        values = torch.fft.rfft2(g).real * torch.fft.rfft2(kernel).real
        # Half of the waves are the other half's mirror images.
        counted = values * _mirrored(sites.width)
        trace, square = counted.sum((-2, -1)), (counted * values).sum((-2, -1))
    else:
        product = g @ kernel
        trace = product.diagonal(dim1=-2, dim2=-1).sum(-1)
        square = (product * product.mT).sum((-2, -1))
    one, two = (max(t * t / s, 1.0) if s > 0 else 1.0 for t, s in zip(trace.tolist(), square.tolist(), strict=True))
    own, shared = trace.tolist()
    return (two if (sites.batch - 1) * shared > _SHARED * own else one), one


@lru_cache(maxsize=16)
def _mirrored(width: int) -> Tensor:
    """Number of waves that each wave kept by rfft2 stands for."""
    found = torch.full((width // 2 + 1,), 2.0, dtype=torch.float64)
    found[0] = 1
    if width % 2 == 0:
        found[-1] = 1
    return found


def moments(sites: Sites, kernel: Tensor, symbol: str) -> dict[str, float]:
    """A kernel's means over sites by symbol, of one sample and of two."""
    one, two = _means(sites, kernel)
    return {symbol: one, f"{symbol}_xy": two}


def gradient_moments(sites: Sites, g: Tensor) -> dict[str, float]:
    """Sums over sites and channels for the first direction, of one sample and of two."""
    one, two = _means(sites, g[0].detach())
    count = 1 if sites.form == "samples" else sites.count
    return {"qt": one * count, "qt_xy": two * count}


def _means(sites: Sites, kernel: Tensor) -> tuple[float, float]:
    """Means over sites that are the same at both ends, of one sample and of two."""
    if sites.form == "torus":
        one, two = kernel.select(-1, 0).select(-1, 0).tolist()
        return one, two
    own = kernel.diagonal(dim1=-2, dim2=-1).mean(-1).tolist()
    if sites.form == "exact":
        return own[0], own[1]
    m = sites.batch
    return own[0], (float(kernel[0].sum()) - m * own[0]) / (m * (m - 1)) if m > 1 else float("nan")
