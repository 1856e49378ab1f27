"""A plan that trains in a second, shared by the tests of the sweep; and a factory that cannot be stacked."""

import os
import time
from pathlib import Path

import torch
from torch import nn

from normscope.models import MLP, VGG
from normscope.sweeping import Plan, grid


def plan(**change):
    return Plan(
        **{
            "model": "MLP",
            "data": "digits",
            "learning_rates": grid(count=6, log10_from=-3, log10_to=1),
            "values": (0.5, 2.0),
            "seeds": (0, 1),
            "momentum": 0.9,
            "epochs": 2,
            "arguments": {"d_in": 64, "width": 16, "depth": 3, "norm": "batch"},
            "data_options": {"seed": 0},
        }
        | change
    )


class _Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > -1e30 else -x


def branching(seed, gamma):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), _Branching())


def with_dropout(seed, p):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(p), nn.Linear(16, 10))


def same(one, other):
    """Whether two phase diagrams hold the same numbers, bit for bit."""
    keys = (
        "cell",
        "initial_loss",
        "diverged_at",
        "rose_at",
        "train_loss",
        "train_accuracy",
        "test_loss",
        "test_accuracy",
    )
    rows = [[repr([getattr(found, key) for key in keys]) for found in diagram.outcomes] for diagram in (one, other)]
    return rows[0] == rows[1] and len(rows[0]) > 0


def marked(seed, gamma, folder, width=16):
    """An MLP; who builds it leaves a file named by its process, so that a test finds workers."""
    Path(folder, str(os.getpid())).touch()
    time.sleep(0.2)
    return MLP(64, 10, width=width, depth=3, norm="batch", gamma=gamma, seed=seed)


def vgg(seed, gamma):
    """VGG-11, narrow, on digits made large enough for it."""
    return nn.Sequential(nn.Upsample(scale_factor=4), VGG(11, 1, width=0.06, norm="batch", gamma=gamma, seed=seed))
