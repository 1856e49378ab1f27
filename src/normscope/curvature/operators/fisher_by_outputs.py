r"""The Fisher matrix by its dual over the outputs, and the mean mode: same nonzero spectrum, often far smaller.

    I = 1/m J^T J  (parameters)        F = 1/m J J^T  (m samples x C outputs)        J = df/dtheta

for the loss 1/2 mean_n ||f - y||^2. Bounds and the mean mode, for output k with g_s = grad f_k(x_s):

    V = 1/m^2 sum_{s,t} <g_s, g_t> = ||mean_s g_s||^2  <=  lambda_max  <=  trace F = 1/m sum_k sum_s ||g_s||^2

V is the Rayleigh quotient of F at the all-ones direction of output k; it contains the diagonal s = t, and the unbiased
U = (m V - 1/m sum_s ||g_s||^2) / (m - 1) does not: V - U is O(1/m). Under batch statistics f_k(x_s) depends on the
whole batch, and g_s is its gradient through the statistics. Source: Wei et al. 2019, Eqs. (147), (150), (152), (153).
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normscope.curvature.eigensolvers.lanczos import lanczos
from normscope.curvature.eigensolvers.solver import Solver
from normscope.curvature.operators.gauss_newton import adjoint
from normscope.curvature.operators.network_products import Network
from normscope.results import plain, write_json

SCHEMA = 1
SIGNS = 16


@dataclass(frozen=True)
class MeanMode:
    """How much of the top eigenvector is constant over samples, with bounds on lambda_max.

    Attributes:
        lambda_max: the largest eigenvalue of the Fisher matrix.
        residual: its relative residual.
        converged: whether the residual has reached the tolerance.
        v_statistic: the lower bound V, the largest over the outputs.
        u_statistic: the unbiased U, the largest over the outputs.
        upper: the trace, an upper bound.
        upper_error: its standard error; 0 where every sample's gradient was taken.
        share: squared length of the top eigenvector's part that is constant over samples.
        settings: arguments that the numbers depend on.
        environment: versions and device.
    """

    lambda_max: float
    residual: float
    converged: bool
    v_statistic: float
    u_statistic: float
    upper: float
    upper_error: float
    share: float
    settings: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str | int] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The mean mode as a plain dictionary for JSON."""
        return {"kind": "mean_mode", "schema": SCHEMA} | plain(asdict(self))

    def save(self, path: str | Path) -> None:
        write_json(path, self.plain())


def dual(network: Network) -> tuple[Callable[[Tensor], Tensor], torch.Size]:
    """The product u -> F u on flattened outputs, and the outputs' shape; one backward and one forward a product."""
    output = network.output()
    vjp, jvp = network.vjp(output), network.jvp()
    m, shape = len(output), output.shape

    def product(u: Tensor) -> Tensor:
        v = vjp(u.view(shape))
        t = jvp(v)
        if network.forward_mode and not adjoint(t, u.view(shape), v, v):
            network.use_reverse_mode()
            t = jvp(v)
        return t.reshape(-1) / m

    return product, shape


def mean_mode_of(network: Network, solver: Solver, *, seed: int = 0, dense: int = 100) -> MeanMode:
    """lambda_max by the dual, its bounds and the mean mode's share.

    Args:
        dense: up to so many samples x outputs every gradient is taken; beyond, sums over samples are estimated with
            random signs.
    """
    if solver.block != 1:
        raise ValueError(f"The mean mode is searched from one start vector; got Solver(block={solver.block}).")
    output = network.output()
    if output.ndim < 2 or len(output) < 2:
        raise ValueError(
            f"The mean mode is over at least two samples, outputs of shape (samples, outputs); got "
            f"{tuple(output.shape)}. Hand in a larger batch."
        )
    vjp, m, outputs = network.vjp(output), len(output), output[0].numel()
    generator = torch.Generator().manual_seed(seed)

    def squared_length(k: int, weights: Tensor) -> float:
        """||sum_s weights_s grad f_k(x_s)||^2."""
        u = torch.zeros_like(output).view(m, outputs)
        u[:, k] = weights
        return float(vjp(u.view(output.shape)).square().sum())

    ones = torch.ones(m).to(output)
    sums = [squared_length(k, ones) for k in range(outputs)]
    if m * outputs <= dense:
        signs, error = list(torch.eye(m).to(output)), 0.0
        squares = [sum(squared_length(k, sign) for sign in signs) for k in range(outputs)]
    else:
        sign_vectors = [(torch.randint(0, 2, (m,), generator=generator) * 2 - 1).to(output) for _ in range(SIGNS)]
        table = torch.tensor(
            [[squared_length(k, sign) for k in range(outputs)] for sign in sign_vectors], dtype=torch.float64
        )
        squares = table.mean(0).tolist()
        error = float(table.sum(1).std() / len(table) ** 0.5) / m
    product, shape = dual(network)
    start = torch.randn(shape, generator=generator, dtype=torch.float64).to(output)
    top = lanczos(product, (start + start.std()).reshape(-1), tol=solver.tol, most=solver.max_products)
    vector = top.vectors[0].view(m, outputs)
    return MeanMode(
        lambda_max=top.values[0],
        residual=top.residuals[0],
        converged=top.converged,
        v_statistic=max(sums) / m**2,
        u_statistic=max((total - square) / (m * (m - 1)) for total, square in zip(sums, squares, strict=True)),
        upper=sum(squares) / m,
        upper_error=error,
        share=float(vector.mean(0).square().sum() * m / vector.square().sum()),
    )
