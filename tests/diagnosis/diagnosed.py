"""Small trainings for the tests of `diagnose`, and their state to compare bit for bit."""

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


def network(**options) -> nn.Sequential:
    """An MLP with one BatchNorm and dropout behind it."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16, **options)
    return nn.Sequential(nn.Linear(6, 16), norm, nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))


def setup(model=None, *, kind=torch.optim.SGD, lr: float = 0.1, batch_size: int = 32, **fields) -> ns.Setup:
    """A training of `model` on shuffled batches."""
    model = network() if model is None else model
    loader = DataLoader(TensorDataset(*data()), batch_size, shuffle=True, generator=torch.Generator().manual_seed(3))
    optimizer = kind(model.parameters(), lr=lr)
    held = [data(96)]
    given = {"loss_fn": nn.CrossEntropyLoss(), "batches": loader, "optimizer": optimizer, "eval_batches": held}
    return ns.Setup(model, **given | {"steps": 200} | fields)


def state(setup: ns.Setup) -> dict:
    """Everything that a diagnosis must leave as it was."""
    loader = setup.batches
    averaged = setup.averaged_model
    return copy.deepcopy(
        {
            "weights": setup.model.state_dict(),
            "averaged": None if averaged is None else averaged.state_dict(),
            "grads": [p.grad for p in setup.model.parameters()],
            "modes": [m.training for m in setup.model.modules()],
            "momenta": [getattr(m, "momentum", None) for m in setup.model.modules()],
            "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in setup.model.modules()],
            "requires": [p.requires_grad for p in setup.model.parameters()],
            "optimizer": setup.optimizer.state_dict(),
            "step_hooks": len(setup.optimizer._optimizer_step_pre_hooks),
            "scheduler": None if setup.scheduler is None else setup.scheduler.state_dict(),
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
