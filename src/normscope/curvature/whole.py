"""More than the top eigenvalue, for one network and one batch: the whole spectrum, its trace, the mean mode."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.choices import check_choice
from normscope.curvature.density import Density, density, trace
from normscope.curvature.derivatives import derivable
from normscope.curvature.dual import MeanMode, mean_mode_of
from normscope.curvature.network import MATRICES, Network
from normscope.curvature.statistics import STATISTICS
from normscope.losses import half_mse, pair
from normscope.observe.loss import check_devices
from normscope.observe.model import unwrapped
from normscope.observe.untouched import untouched


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of `matrix` as a density, and their sum with its standard error."""

    matrix: str
    stats: str
    density: Density
    trace: float
    trace_error: float


def spectrum(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    batch: tuple[Any, Any],
    *,
    matrix: str = "ggn",
    stats: str = "batch",
    starts: int = 8,
    steps: int = 40,
    seed: int = 0,
) -> Spectrum:
    """The density of all eigenvalues by stochastic Lanczos quadrature; the model is left untouched.

    Args:
        model, loss_fn, batch, matrix, stats: as for `measure`.
        starts, steps: random vectors, and products with each; the trace takes as many as one of them.
        seed: of the vectors.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
        >>> found = spectrum(layer, half_mse, (x, torch.zeros(2, 1)), steps=6)
        >>> round(found.trace, 4), [round(node, 4) for node in found.density.nodes[0]]
        (10.0, [2.0, 8.0])
    """
    check_choice("matrix", matrix, MATRICES)
    with _opened(model, loss_fn, batch, stats) as network:
        product = network.product(matrix)
        like = torch.zeros(network.size, dtype=network.leaves[0].dtype, device=network.leaves[0].device)
        whole = density(product, like, starts=starts, steps=steps, seed=seed)
        total, error = trace(product, like, products=steps, seed=seed)
    return Spectrum(matrix, stats, whole, total, error)


def mean_mode(
    model: nn.Module, batch: tuple[Any, Any], *, stats: str = "batch", tol: float = 1e-3, seed: int = 0
) -> MeanMode:
    """How much of the top eigenvector is constant over samples, and the bounds of seed 002 on the eigenvalue.

    Of the Fisher matrix of 1/2 squared error, E_x sum_k grad f_k grad f_k^T, by its dual in output space.
    """
    with _opened(model, half_mse, batch, stats) as network:
        return mean_mode_of(network, tol=tol, seed=seed)


@contextmanager
def _opened(
    model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], batch: tuple[Any, Any], stats: str
) -> Iterator[Network]:
    check_choice("stats", stats, STATISTICS)
    x, y = pair(batch)
    inner, _, _ = unwrapped(model)
    device = next((p.device for p in inner.parameters()), torch.device("cpu"))
    check_devices(batch, device)
    with untouched(inner) as lent, derivable(device.type):
        yield Network(lent, inner, loss_fn, (x, y), stats=stats)
