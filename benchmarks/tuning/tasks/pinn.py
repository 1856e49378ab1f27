"""A physics-informed network: u'' + (4 pi)^2 u = f on [-1, 1] with u(-1) = u(1) = 0, a tanh perceptron, AdamW.

f belongs to u(t) = sin(pi t) + 0.3 sin(3 pi t). The residual is scaled by 1 / (4 pi)^2.
"""

import math

import torch
from batches import chunks, shuffled
from networks import mlp
from task import Batch, Parts, Task
from torch import Tensor, nn

SCALE = (4 * math.pi) ** 2


def residual_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean squared residual of the equation, and ten times the squared error at both ends."""
    with torch.enable_grad():
        t = batch[0].detach().requires_grad_()
        u = model(t)
        (slope,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), t, create_graph=True)
        residual = curvature / SCALE + u - batch[1]
        ends = model(torch.tensor([[-1.0], [1.0]]))
        return residual.square().mean() + 10 * ends.square().mean()


def _points(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points t in [-1, 1] and the right side f(t) / (4 pi)^2."""
    t = 2 * torch.rand(count, 1, generator=torch.Generator().manual_seed(seed)) - 1
    parts = ((1.0, math.pi), (0.3, 3 * math.pi))
    f = sum(a * (1 - w**2 / SCALE) * torch.sin(w * t) for a, w in parts)
    return t, torch.as_tensor(f)


def make(seed: int) -> Parts:
    torch.manual_seed(seed)
    return Parts(
        model=mlp([1, 48, 48, 48, 1], activation=nn.Tanh),
        loss_fn=None,
        batches=shuffled(*_points(4096, 1), batch_size=512, seed=seed),
        eval_batches=chunks(*_points(512, 2)),
        test_batches=chunks(*_points(512, 3)),
        forward=residual_loss,
    )


TASK = Task("pinn", make, optimizer="adamw", steps=800, schedule="cosine", batch_size=512, normalizer="none")
