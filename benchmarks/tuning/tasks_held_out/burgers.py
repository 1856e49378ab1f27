"""A physics-informed network solves the viscous Burgers equation; collocation points, tanh, Adam."""

import functools
import itertools

import numpy as np
import torch
from batches import chunks, shuffled
from task import Parts, Task
from torch import Tensor, nn

from data import Split, split

VISCOSITY = 0.05
NODES = 80


def exact(t: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The solution from u(0, x) = -sin(pi x) by the formula of Cole and Hopf, with Gauss-Hermite nodes."""
    node, weight = np.polynomial.hermite.hermgauss(NODES)
    shifted = x[:, None] - np.sqrt(4 * VISCOSITY * t)[:, None] * node
    kernel = weight * np.exp(-np.cos(np.pi * shifted) / (2 * np.pi * VISCOSITY))
    return -(np.sin(np.pi * shifted) * kernel).sum(1) / kernel.sum(1)


@functools.cache
def points() -> Split:
    """Points (t, x), t in 0 to 1 and x in -1 to 1, with the solution there; training does not use the solution."""
    random = np.random.default_rng(41)
    t, x = random.random(10_000), random.uniform(-1, 1, 10_000)
    place = torch.tensor(np.stack([t, x], axis=1), dtype=torch.float32)
    return split(place, torch.tensor(exact(t, x), dtype=torch.float32), 8192, 896, 896)


class Solution(nn.Module):
    """u(t, x) that meets the initial and the boundary values by construction."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = [2, width, width, width]
        layers = [nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh()) for inputs, outputs in itertools.pairwise(sizes)]
        self.network = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, place: Tensor) -> Tensor:
        t, x = place.unbind(1)
        return -torch.sin(torch.pi * x) + t * (1 - x**2) * self.network(place)[:, 0]


def residual(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """u, and the residual u_t + u u_x - viscosity u_xx of the equation, at the points of the batch."""
    with torch.enable_grad():
        place = batch[0].detach().clone().requires_grad_()
        u = model(place)
        first = torch.autograd.grad(u.sum(), place, create_graph=True)[0]
        u_t, u_x = first.unbind(1)
        u_xx = torch.autograd.grad(u_x.sum(), place, create_graph=True)[0][:, 1]
        return u, u_t + u * u_x - VISCOSITY * u_xx


def mean_squared_residual(outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """The mean square of the residual; `y` is not used."""
    return (outputs[1] ** 2).mean()


def explained(outputs: tuple[Tensor, Tensor], y: Tensor) -> float:
    """One minus the relative L2 error against the exact solution, at least zero."""
    error = (outputs[0].detach() - y).norm() / y.norm()
    return max(0.0, 1.0 - float(error))


def make(seed: int) -> Parts:
    data = points()
    torch.manual_seed(seed)
    return Parts(
        model=Solution(),
        loss_fn=mean_squared_residual,
        batches=shuffled(*data.train, batch_size=256, seed=seed),
        eval_batches=chunks(*data.validation),
        test_batches=chunks(*data.test),
        metric=explained,
        forward=residual,
    )


TASK = Task(
    "physics-informed network",
    make,
    optimizer="adam",
    steps=1500,
    schedule="constant",
    batch_size=256,
    normalizer="none",
)
