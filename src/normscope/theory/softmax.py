r"""Curvature of cross-entropy by the outputs of a random network; that of 1/2 squared error is 1.

    B = E_x[diag(p) - p p^T],   p = softmax(f(x)),   f_k(x) = c_k + n_k(x),   c_k ~ N(0, q_xy), n_k ~ N(0, q - q_xy)

and its largest eigenvalue, in the mean over c. For outputs near zero p is 1/C and the answer 1/C; outputs of the size
that random weights give make it larger (measured with C = 10 and q = 1.3: 0.22; with C = 1000 about 17/C), very large
ones smaller. Averages are taken over a fixed set of points from a generator with a seed of its own, so that every call
has the same points. (Points of low discrepancy do worse: the few largest outputs decide the eigenvalue, and in hundreds
of dimensions the first points of such a sequence have no large entries.) The top eigenvector of a diagonal less a
positive matrix lives where the diagonal is large, and the principal block of the likeliest classes has its eigenvalue.
"""

from functools import lru_cache

import torch
from torch import Tensor

_SHARED, _OWN = 128, 64
# Largest count of numbers in all points together, and number of classes whose block is diagonalized.
_BUDGET, _BLOCK = 2_000_000, 48
# Exponents below this size, of both signs, keep products within double precision.
_LARGEST_EXPONENT = 150.0


@lru_cache(maxsize=4)
def _points(outputs: int) -> tuple[Tensor, Tensor]:
    """Standard Gaussian points for c and for n; half as many of each for every fourfold number of outputs."""
    fewer = max(1.0, (_SHARED * _OWN * outputs / _BUDGET) ** 0.5)
    generator = torch.Generator().manual_seed(0)
    shared, own = (max(int(n / fewer), 8) for n in (_SHARED, _OWN))
    points = torch.randn(shared + own, outputs, generator=generator, dtype=torch.float64)
    # Each point for n is there with both signs, so that their mean is zero.
    return points[:shared], torch.cat([points[shared:], -points[shared:]])


def curvature(outputs: int, q: float, q_xy: float) -> float:
    """The largest eigenvalue of B, in the mean over c.

    Example: outputs of zero.
        >>> round(curvature(4, 0.0, 0.0), 12)
        0.25
    """
    return float(curvatures(outputs, q, q_xy)[0])


def curvatures(outputs: int, q: float, q_xy: float) -> Tensor:
    """All eigenvalues of B, from the largest on, each in the mean over c; for unlikely classes their probabilities."""
    if outputs == 1 or q <= 0:
        block = torch.full((outputs,), 1 / outputs, dtype=torch.float64)
        block[-1] = 0
        return block
    common = min(max(q_xy, 0.0), q)
    shared, own = _points(outputs)
    mean, top, p = _likeliest(common**0.5 * shared, (q - common) ** 0.5 * own)
    block = mean.gather(1, top).diag_embed() - p.mT @ p / len(own)
    # The block's classes leave zeros behind, which the sort puts last.
    every = torch.cat([torch.linalg.eigvalsh(block), mean.scatter(1, top, 0.0)], 1)
    return every.clamp_min(0).sort(descending=True).values[:, :outputs].mean(0)


def _likeliest(c: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each row of c: the mean of softmax(c + n) over the rows of n; its largest classes; p there, row by row of n.

    exp(c + n) is a product, so that sums over classes and over n are products of matrices. Exponents too
    large for that are taken one by one.
    """
    block, rows = min(_BLOCK, c.shape[1]), len(n)
    if max(float(c.max()), float(n.max())) > _LARGEST_EXPONENT:
        all_p = (c[:, None] + n).softmax(-1)
        mean = all_p.mean(1)
        top = mean.topk(block).indices
        return mean, top, all_p.gather(2, top[:, None].expand(-1, rows, -1))
    c, n = c.exp(), n.exp()
    over = 1 / (c @ n.T)
    mean = c * (over @ n) / rows
    top = mean.topk(block).indices
    return mean, top, (c.gather(1, top)[..., None] * n.T[top]).mT * over[..., None]
