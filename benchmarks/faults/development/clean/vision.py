"""Classifiers of digits and images: networks, normalizers, optimizers and batch sizes as most people choose them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from faults.case import Case
from faults.development.networks import Norm, ResNet, cnn, groups, mlp, nothing
from faults.development.setups import Optimizer, adamw, decayed, digit_setup, image_setup, sgd
from normscope import Setup


def trained(
    seed: int,
    *,
    network: Callable[[], nn.Module],
    optimizer: Optimizer,
    size: int = 32,
    steps: int = 200,
    images: bool = False,
    falling: bool = False,
) -> Setup:
    """A classifier of digits, or of images, with a constant rate or a falling one."""
    torch.manual_seed(seed)
    setup = (image_setup if images else digit_setup)(network(), optimizer, size=size, steps=steps, seed=seed)
    return decayed(setup) if falling else setup


def batchnorm(**settings: float) -> Norm:
    """BatchNorm2d with settings, as a `norm`."""
    return partial(nn.BatchNorm2d, **settings)  # type: ignore[arg-type]


def with_dropout() -> nn.Module:
    """Dropout after the last BatchNorm."""
    body = list(cnn(width=12).children())
    return nn.Sequential(*body[:-1], nn.Dropout(0.3), body[-1])


_MLP, _WIDE = (64, 64, 64, 10), (64, 256, 256, 10)
_TRAININGS: dict[str, Callable[[int], Setup]] = {
    "mlp-batchnorm": partial(trained, network=partial(mlp, _MLP), optimizer=sgd(0.05), size=64),
    "mlp-layernorm": partial(trained, network=partial(mlp, _MLP, nn.LayerNorm), optimizer=adamw(3e-3)),
    "mlp-rmsnorm": partial(trained, network=partial(mlp, _MLP, nn.RMSNorm), optimizer=adamw(3e-3), size=64),
    "mlp-plain": partial(trained, network=partial(mlp, _MLP, nothing), optimizer=adamw(3e-3)),
    "mlp-wide-large-batch": partial(trained, network=partial(mlp, _WIDE), optimizer=sgd(0.1), size=256, steps=100),
    "cnn-batchnorm": partial(trained, network=cnn, optimizer=sgd(0.05)),
    "cnn-batchnorm-images": partial(trained, network=partial(cnn, depth=4), optimizer=sgd(0.05), images=True),
    "cnn-groupnorm": partial(trained, network=partial(cnn, norm=groups(4)), optimizer=sgd(0.05), size=16),
    "cnn-one-group": partial(trained, network=partial(cnn, 12, groups(1)), optimizer=adamw(3e-3)),
    "cnn-plain": partial(trained, network=partial(cnn, 16, nothing), optimizer=adamw(3e-3), steps=250),
    "cnn-dropout-last": partial(trained, network=with_dropout, optimizer=sgd(0.05), size=64),
    "cnn-momentum-hundredth": partial(
        trained, network=partial(cnn, norm=batchnorm(momentum=0.01)), optimizer=sgd(0.02), steps=500, falling=True
    ),
    "cnn-eps-of-keras": partial(trained, network=partial(cnn, norm=batchnorm(eps=1e-3)), optimizer=sgd(0.05)),
    "resnet-batchnorm": partial(trained, network=partial(ResNet, stride=1), optimizer=sgd(0.05), falling=True),
    "resnet-images": partial(trained, network=ResNet, optimizer=sgd(0.03), images=True, steps=250, falling=True),
    "resnet-slight-decay": partial(
        trained, network=partial(ResNet, stride=1), optimizer=sgd(0.03, weight_decay=5e-4), size=64, falling=True
    ),
}
CASES = tuple(Case(f"usual-{name}", "development", make) for name, make in _TRAININGS.items())
