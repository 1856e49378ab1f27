"""Small trainings for the tests of `tune`, and their state to compare bit for bit."""

import copy
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns


def data(count: int = 320):
    """Points in a plane with noise, in three classes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, generator=generator)
    return x, (x[:, 0] > 0.3).long() + (x[:, 1] > 0.0).long()


def setup(*, norm: bool = True, lr: float = 0.1, kind=torch.optim.SGD, **fields) -> ns.Setup:
    """An MLP on 320 points in shuffled batches of 16, with momentum if it is SGD."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.BatchNorm1d(16) if norm else nn.Identity(), nn.ReLU(), nn.Dropout(0.1)]
    model = nn.Sequential(*layers, nn.Linear(16, 3))
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    loader = DataLoader(TensorDataset(*data()), 16, shuffle=True, generator=torch.Generator().manual_seed(3))
    optimizer = kind(model.parameters(), lr=lr, **options)
    return ns.Setup(model, **{"loss_fn": nn.CrossEntropyLoss(), "batches": loader, "optimizer": optimizer} | fields)


def state(setup: ns.Setup) -> dict:
    """Everything that a tuning must leave as it was."""
    loader = setup.batches
    return copy.deepcopy(
        {
            "weights": setup.model.state_dict(),
            "grads": [p.grad for p in setup.model.parameters()],
            "modes": [m.training for m in setup.model.modules()],
            "requires": [p.requires_grad for p in setup.model.parameters()],
            "optimizer": setup.optimizer.state_dict(),
            "hooks": len(setup.optimizer._optimizer_step_pre_hooks),
            "scheduler": None if setup.scheduler is None else setup.scheduler.state_dict(),
            "scaler": None if setup.scaler is None else setup.scaler.state_dict(),
            "order": loader.generator.get_state() if getattr(loader, "generator", None) is not None else None,
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
        }
    )


def same(a, b) -> bool:
    """Whether two states are equal bit for bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or a is b
