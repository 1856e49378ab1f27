"""Perceptrons on digits, with nothing wrong."""

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from faults.case import Case
from faults.data import digits
from faults.held_out.networks import decayed_apart, mlp, no_norm
from faults.held_out.tasks import classification
from normscope import Setup


def batch_norm(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = mlp([64, 64, 64, 10])
    return classification(model, digits(), SGD(model.parameters(), 0.05, 0.9), seed=seed, size=64, steps=200)


def batch_of_512(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = mlp([64, 128, 64, 10])
    return classification(model, digits(), SGD(model.parameters(), 0.1, 0.9), seed=seed, size=512, steps=120)


def layer_norm_batch_of_2(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = mlp([64, 64, 64, 10], nn.LayerNorm)
    return classification(model, digits(), SGD(model.parameters(), 0.003, 0.9), seed=seed, size=2, steps=600)


def layer_norm_adamw(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = mlp([64, 64, 64, 64, 10], nn.LayerNorm, nn.GELU)
    optimizer = AdamW(decayed_apart(model, 0.05), lr=2e-3)
    return classification(model, digits(), optimizer, seed=seed, size=16, steps=300)


def no_normalizer(seed: int) -> Setup:
    torch.manual_seed(seed)
    model = mlp([64, 64, 10], no_norm)
    return classification(model, digits(), Adam(model.parameters(), 2e-3), seed=seed, size=64, steps=200)


def batch_norm_then_dropout(seed: int) -> Setup:
    """Dropout after the last BatchNorm."""
    torch.manual_seed(seed)
    body = mlp([64, 64, 64, 10])
    model = nn.Sequential(*body[:-1], nn.Dropout(0.3), body[-1])
    return classification(model, digits(), SGD(model.parameters(), 0.05, 0.9), seed=seed, size=64, steps=250)


def small_momentum_many_steps(seed: int) -> Setup:
    """Momentum 0.01 settles within 600 steps."""
    torch.manual_seed(seed)
    model = mlp([64, 64, 64, 10], lambda width: nn.BatchNorm1d(width, momentum=0.01))
    return classification(model, digits(), SGD(model.parameters(), 0.02, 0.9), seed=seed, size=32, steps=600)


def port_from_tensorflow(seed: int) -> Setup:
    """Keras defaults, rightly carried over: eps 1e-3, momentum 1 - 0.99."""
    torch.manual_seed(seed)
    model = mlp([64, 64, 64, 10], lambda width: nn.BatchNorm1d(width, eps=1e-3, momentum=0.01))
    return classification(model, digits(), Adam(model.parameters(), 1e-3), seed=seed, size=32, steps=600)


def biases_before_batch_norm(seed: int) -> Setup:
    """Biases that BatchNorm cancels do no harm."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(2):
        layers += [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    return classification(model, digits(), RMSprop(model.parameters(), 1e-3), seed=seed, size=32, steps=200)


def double_precision(seed: int) -> Setup:
    torch.manual_seed(seed)
    data, model = digits(), mlp([64, 64, 64, 10]).double()
    whole = type(data)(data.x.double(), data.y, data.x_eval.double(), data.y_eval)
    return classification(model, whole, SGD(model.parameters(), 0.05, 0.9), seed=seed, size=64, steps=150)


CASES = (
    Case("mlp-batchnorm", "held-out", batch_norm),
    Case("mlp-batchnorm-batch-512", "held-out", batch_of_512),
    Case("mlp-layernorm-batch-2", "held-out", layer_norm_batch_of_2),
    Case("mlp-layernorm-adamw", "held-out", layer_norm_adamw),
    Case("mlp-without-norm", "held-out", no_normalizer),
    Case("mlp-batchnorm-before-dropout", "held-out", batch_norm_then_dropout),
    Case("mlp-momentum-001-many-steps", "held-out", small_momentum_many_steps),
    Case("mlp-tensorflow-port", "held-out", port_from_tensorflow),
    Case("mlp-bias-before-batchnorm", "held-out", biases_before_batch_norm),
    Case("mlp-float64", "held-out", double_precision),
)
