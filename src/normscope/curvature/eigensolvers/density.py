r"""The whole spectrum and the trace from products alone.

    phi(t) = 1/n sum_i delta(t - lambda_i)  ~  mean over random z of  sum_k tau_k^2 N(t; theta_k, width^2)

This is stochastic Lanczos quadrature: theta_k are the Ritz values of a Krylov space started at z, tau_k the first
entries of their eigenvectors. The spread over z gives the standard error. The trace is that of Hutch++: exact on a
low-rank part, sampled on the rest. Sources: Golub and Welsch 1969; arXiv 1802.03451; arXiv 2010.09649.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.curvature.eigensolvers.lanczos import krylov
from normscope.linear_maps import Product


@dataclass(frozen=True)
class Density:
    """The density of the eigenvalues, as nodes and weights of a quadrature.

    Attributes:
        n: number of eigenvalues.
        nodes: for each random start, the places where the eigenvalues are.
        weights: for each start, the share of the eigenvalues at each node; they sum to one.
    """

    n: int
    nodes: tuple[tuple[float, ...], ...]
    weights: tuple[tuple[float, ...], ...]

    def curve(self, at: Tensor, *, width: float) -> Tensor:
        """The density at the points `at`, each node widened to a Gaussian."""
        curves = []
        for nodes, weights in zip(self.nodes, self.weights, strict=True):
            theta, w = torch.tensor(nodes, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)
            bells = torch.exp(-0.5 * ((at.double()[:, None] - theta) / width) ** 2)
            curves.append((bells * w).sum(1) / (width * (2 * torch.pi) ** 0.5))
        return torch.stack(curves).mean(0)

    def moment(self, power: int) -> tuple[float, float]:
        """Mean of lambda^power over the spectrum, and its standard error over the starts."""
        values = torch.tensor(
            [
                sum(w * t**power for t, w in zip(nodes, weights, strict=True))
                for nodes, weights in zip(self.nodes, self.weights, strict=True)
            ],
            dtype=torch.float64,
        )
        error = values.std() / len(values) ** 0.5 if len(values) > 1 else torch.tensor(float("nan"))
        return float(values.mean()), float(error)


def density(product: Product, like: Tensor, *, starts: int = 8, steps: int = 40, seed: int = 0) -> Density:
    """Stochastic Lanczos quadrature with `starts` random vectors and Krylov spaces of `steps` products.

    Args:
        like: any vector of the operator's size, dtype and device.
    """
    generator = torch.Generator().manual_seed(seed)
    nodes, weights = [], []
    for _ in range(starts):
        z = torch.randn(like.numel(), generator=generator, dtype=torch.float64).to(like)
        for space in krylov(product, z, most=steps):
            last = space
        theta, s = torch.linalg.eigh(last.tridiagonal())
        nodes.append(tuple(theta.tolist()))
        weights.append(tuple(s[0].square().tolist()))
    return Density(like.numel(), tuple(nodes), tuple(weights))


def trace(product: Product, like: Tensor, *, products: int = 30, seed: int = 0) -> tuple[float, float]:
    """The trace and its standard error, by Hutch++ with about `products` products."""
    third = max(1, min(products // 3, like.numel()))
    generator = torch.Generator().manual_seed(seed)

    def signs() -> Tensor:
        drawn = torch.randint(0, 2, (third, like.numel()), generator=generator) * 2 - 1
        return drawn.to(like)

    sketch = torch.stack([product(v) for v in signs()])
    basis = torch.linalg.qr(sketch.T)[0].T
    exact = sum(float(q @ product(q)) for q in basis)
    rest = []
    for g in signs():
        g = g - basis.T @ (basis @ g)
        rest.append(float(g @ product(g)))
    sample = torch.tensor(rest, dtype=torch.float64)
    error = sample.std() / len(sample) ** 0.5 if len(sample) > 1 else torch.tensor(float("nan"))
    return exact + float(sample.mean()), float(error)
