r"""Curvature of cross-entropy by the outputs of a random network, against that of 1/2 squared error, which is 1.

    B = E_x[diag(p) - p p^T],   p = softmax(f(x)),   f_k(x) = c_k + n_k(x),   c_k ~ N(0, q_xy), n_k ~ N(0, q - q_xy)

and its largest eigenvalue, in the mean over c. For outputs near zero p is 1/C and the answer 1/C; outputs of the size
that random weights give make it larger (measured with C = 10 and q = 1.3: 0.22), very large ones smaller. Averages are
taken over Sobol points, without random numbers.
"""

from functools import lru_cache

import torch
from torch import Tensor

# Beyond so many outputs equal probabilities are taken: the average would take longer than the whole prediction.
MOST = 100
_SHARED, _OWN = 127, 128


@lru_cache(maxsize=4)
def _points(outputs: int) -> Tensor:
    """The first 255 Sobol points after zero, as standard Gaussian values."""
    # scipy.stats takes a second to import, and only this loss needs it.
    from scipy.stats import qmc

    points = torch.from_numpy(qmc.Sobol(outputs, scramble=False).random(_SHARED + _OWN + 1)[1:]).double()
    return torch.special.ndtri(points)


def curvature(outputs: int, q: float, q_xy: float) -> float:
    """The largest eigenvalue of B, in the mean over c; 1/C beyond 100 outputs.

    Example: outputs of zero.
        >>> round(curvature(4, 0.0, 0.0), 12)
        0.25
    """
    if outputs == 1:
        return 0.0
    if outputs > MOST or q <= 0:
        return 1 / outputs
    shared = min(max(q_xy, 0.0), q)
    points = _points(outputs)
    logits = shared**0.5 * points[:_SHARED, None] + (q - shared) ** 0.5 * points[None, _SHARED:]
    p = logits.softmax(-1)
    matrices = torch.diag_embed(p.mean(1)) - p.transpose(1, 2) @ p / p.shape[1]
    return float(torch.linalg.eigvalsh(matrices)[:, -1].mean())
