"""The name, among the losses of `predict`, of a loss that is handed in as a function: found by what it computes."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from normscope import losses
from normscope.losses.known_losses import PREDICTED_LOSSES

_KNOWN: dict[str, Callable[..., Tensor]] = losses.LOSSES | {"mse": losses.mse}
# Samples and outputs of the probes: two pairs tell a mean over samples from one over outputs.
_PROBES = ((5, 3), (4, 2))


def name_of_loss(loss_fn: Callable[..., Any]) -> str:
    """The name of the loss with the same Hessian with respect to the outputs; "" where there is none.

    The theory needs no more than that Hessian, so label smoothing changes nothing. Targets are labels or values.

    Example:
        >>> name_of_loss(nn.CrossEntropyLoss(label_smoothing=0.1)), name_of_loss(lambda z, y: (z - y).square().mean())
        ('cross_entropy', 'mse')
        >>> name_of_loss(nn.L1Loss())
        ''
    """
    if isinstance(loss_fn, nn.Module):
        loss_fn = copy.deepcopy(loss_fn)
    names = set(PREDICTED_LOSSES)
    with torch.random.fork_rng(devices=[]):
        for samples, outputs in _PROBES:
            names &= set(_alike(loss_fn, samples, outputs))
    return next(iter(sorted(names)), "")


def _alike(loss_fn: Callable[..., Any], samples: int, outputs: int) -> Iterator[str]:
    """The names of the losses with the same Hessian at one probe."""
    draw = torch.Generator().manual_seed(0)
    z, v, values = (torch.randn(samples, outputs, generator=draw) for _ in range(3))
    for targets in (torch.arange(samples) % outputs, values):
        image = _curved(loss_fn, z, v, targets)
        for name, known in _KNOWN.items():
            expected = _curved(known, z, v, targets)
            if image is not None and expected is not None and torch.allclose(image, expected, rtol=1e-3, atol=1e-6):
                yield name


def _curved(loss_fn: Callable[..., Any], z: Tensor, v: Tensor, targets: Tensor) -> Tensor | None:
    """The product of the Hessian at z with v; None where the loss does not take these targets or has no Hessian."""
    if loss_fn is losses.cross_entropy and targets.is_floating_point():
        return None  # Values are no distributions over classes.
    z = z.clone().requires_grad_()
    try:
        (slope,) = torch.autograd.grad(loss_fn(z, targets), z, create_graph=True)
        (image,) = torch.autograd.grad(slope, z, v)
    except Exception:
        return None
    return image if image.any() else None
