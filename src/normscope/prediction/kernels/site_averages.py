"""Averages of kernels over sites: order parameters of layers, and numbers of independent sites."""

from torch import Tensor

from normscope.theory.site_pairs import Sites

# Part of the gradients that two samples share, over their own, below which nothing is taken as shared.
_LEAST_SHARED_PART = 0.1


def independent_sites(sites: Sites, g: Tensor, kernel: Tensor) -> tuple[float, float]:
    """Numbers of sites that a layer's part of an eigenvalue averages over, tr(G K)^2 / tr(G K G K).

    For the kernels of two samples (mean mode; of one, where a batch has more of samples' own gradients than of what two
    share), and for those of one. The answer is 1 where the kernel is the same for all pairs of sites, however
    independent the gradients are.
    """
    if sites.count == 1:
        return 1.0, 1.0
    trace, square = sites.traces(g[0], kernel)
    one, two = (max(t * t / s, 1.0) if s > 0 else 1.0 for t, s in zip(trace.tolist(), square.tolist(), strict=True))
    own, shared = trace.tolist()
    return (two if (sites.batch - 1) * shared > _LEAST_SHARED_PART * own else one), one


def moments(sites: Sites, kernel: Tensor, symbol: str) -> dict[str, float]:
    """A kernel's means over sites by symbol, of one sample and of two."""
    one, two = sites.same_place(kernel)
    return {symbol: one, f"{symbol}_xy": two}


def gradient_moments(sites: Sites, g: Tensor) -> dict[str, float]:
    """Sums over sites and channels for the first direction, of one sample and of two."""
    one, two = sites.same_place(g[0].detach())
    return {"qt": one * sites.count, "qt_xy": two * sites.count}
