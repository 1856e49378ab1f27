"""The whole spectrum of one network on one batch: its density, its trace, and the mean mode."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.curvature.autograd.patching import differentiable_kernels
from normscope.curvature.eigensolvers.density import Density, density, trace
from normscope.curvature.eigensolvers.solver import Solver
from normscope.curvature.operators.fisher_by_outputs import MeanMode, mean_mode_of
from normscope.curvature.operators.matrices import MATRICES
from normscope.curvature.operators.network_products import Network
from normscope.curvature.operators.several_batches import refuse_linear
from normscope.curvature.operators.statistics import MODES
from normscope.curvature.session.first_pass import first_pass
from normscope.curvature.session.opening import check_parameters, open_session
from normscope.curvature.session.options import Options
from normscope.isolation.batch_loss import check_devices
from normscope.isolation.batches import samples
from normscope.isolation.processes import Processes
from normscope.isolation.unwrapping import unwrapped
from normscope.losses import half_mse
from normscope.losses.functions import pair
from normscope.messages.choices import check_choice
from normscope.results import plain, write_json
from normscope.results.environment import environment
from normscope.results.reporting import Reportable

SCHEMA = 1


@dataclass(frozen=True)
class Spectrum(Reportable):
    """The whole spectrum of one matrix of a network on one batch.

    Attributes:
        matrix: "ggn", "hessian" or "fisher".
        stats: how batch statistics were read, "batch", "frozen" or "running".
        density: the density of the eigenvalues.
        trace: the sum of the eigenvalues.
        trace_error: its standard error.
        loss: the value of the loss.
        settings: arguments that the numbers depend on.
        environment: versions and device.
    """

    matrix: str
    stats: str
    density: Density
    trace: float
    trace_error: float
    loss: float
    settings: dict[str, Any]
    environment: dict[str, str | int]

    def plain(self) -> dict[str, Any]:
        """The spectrum as a plain dictionary for JSON."""
        return {"kind": "spectrum", "schema": SCHEMA} | plain(asdict(self))

    def save(self, path: str | Path) -> None:
        write_json(path, self.plain())

    def _sections(self) -> Sequence[Any]:
        from normscope.report.sections.predictions_and_measurements import spectrum_section

        return [spectrum_section("Spectrum", self.plain())]


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
        model: any module, in the modes it trains in.
        loss_fn: loss_fn(outputs, targets) is the scalar loss.
        batch: one batch (x, y).
        matrix: "ggn" (generalized Gauss-Newton), "hessian" or "fisher".
        stats: how normalizers' batch statistics are read: "batch", "frozen" or "running".
        starts: number of random vectors.
        steps: products with each random vector; the trace takes as many as one of them.
        seed: seed of the random vectors.

    Returns:
        A `Spectrum`: the density of eigenvalues, and the trace with its error.

    Example:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[2.0, 0.0], [0.0, 4.0]])
        >>> found = spectrum(layer, half_mse, (x, torch.zeros(2, 1)), steps=6)
        >>> round(found.trace, 4), [round(node, 4) for node in found.density.nodes[0]]
        (10.0, [2.0, 8.0])
    """
    check_choice("matrix", matrix, MATRICES)
    for name, count in (("starts", starts), ("steps", steps)):
        if count < 1:
            raise ValueError(f"{name}= counts from 1; got {count}.")
    inner, processes, _ = unwrapped(model)

    def work() -> Spectrum:
        with _opened(inner, loss_fn, batch, stats, processes) as (network, loss):
            local_product = processes.each(lambda: network.product(matrix))
            refuse_linear(local_product)

            def product(v: Tensor) -> Tensor:
                return processes.mean(lambda: [local_product(v)])[0]

            like = torch.zeros(network.size, dtype=network.leaves[0].dtype, device=network.leaves[0].device)
            eigenvalues = density(product, like, starts=starts, steps=steps, seed=seed)
            total, error = trace(product, like, products=steps, seed=seed)
        settings = {"starts": starts, "steps": steps, "seed": seed, "samples": samples(batch), "dtype": str(like.dtype)}
        return Spectrum(matrix, stats, eigenvalues, total, error, loss, settings, environment(like.device))

    return processes.together(work)


def mean_mode(
    model: nn.Module, batch: tuple[Any, Any], *, stats: str = "batch", solver: Solver | None = None, seed: int = 0
) -> MeanMode:
    """Measure how much of the top eigenvector is constant over samples, with bounds of Wei et al. 2019 on lambda_max.

    The matrix is the Fisher matrix of 1/2 squared error, E_x sum_k grad f_k grad f_k^T, by its dual in output space.
    The batch's targets have no part in it. Refused with several processes, whose mean mode is not a mean over them.

    Args:
        model: any module, in the modes it trains in.
        batch: (x, y) with at least two samples; y is not read.
        stats: how batch statistics are read: "batch", "frozen" or "running".
        solver: tol and max_products of the eigenvalue search, `Solver()` by default; it starts from one vector.
        seed: seed of the start vector and of random signs.

    Returns:
        A `MeanMode`: lambda_max, the share of its eigenvector that is constant over samples, and the bound.
    """
    solver = solver or Solver()
    inner, processes, _ = unwrapped(model)
    if processes.size > 1:
        raise ValueError(
            "The mean mode is that of one process's samples, and several train this model. Hand in model.module, with "
            "statistics that are not synchronized."
        )
    with _opened(inner, _half_square, batch, stats, processes) as (network, _):
        mode = mean_mode_of(network, solver, seed=seed)
        device = network.leaves[0].device
    settings = {"stats": stats, "tol": solver.tol, "seed": seed, "samples": samples(batch)}
    return replace(mode, settings=settings, environment=environment(device))


def _half_square(output: Tensor, _: Any) -> Tensor:
    return half_mse(output, torch.zeros_like(output))


@contextmanager
def _opened(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    batch: tuple[Any, Any],
    stats: str,
    processes: Processes,
) -> Iterator[tuple[Network, float]]:
    """The network on its batch, and its loss; refused where the loss or its gradient is not finite."""
    check_choice("stats", stats, MODES)
    check_parameters(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batches = [pair(batch)]
    check_devices(batches, device)
    options = Options(processes=processes)
    with open_session(model, loss_fn, batches, options=options) as session, differentiable_kernels(device.type):
        loss = first_pass(session, stats)[0].loss
        network = session.network(stats)
        assert isinstance(network, Network)
        yield network, loss
