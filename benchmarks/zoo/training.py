"""Plain training of an entry, written without normscope: what a measured run is compared with."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from entries import Entry
from state import seed
from torch import Tensor, nn

STEPS = 4


def inputs_of(entry: Entry, batch: Any) -> Any:
    """The model's inputs, for an entry without a forward of its own."""
    if entry.loss_fn is None:
        return batch
    return batch[:-1] if len(batch) > 2 else batch[0]


def outputs(entry: Entry, model: nn.Module, batch: Any) -> Any:
    """The outputs that the loss takes."""
    if entry.forward is not None:
        return entry.forward(model, batch)
    inputs = inputs_of(entry, batch)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def loss_of(entry: Entry, model: nn.Module, batch: Any) -> Tensor:
    """The scalar loss of a batch."""
    found = outputs(entry, model, batch)
    if entry.loss_fn is not None:
        return entry.loss_fn(found, batch[-1])
    loss: Tensor = found if isinstance(found, Tensor) else found.loss
    return loss


def made(entry: Entry) -> nn.Module:
    """A new model, always of the same weights."""
    seed(0)
    return entry.build()


def batches(entry: Entry) -> list[Any]:
    seed(1)
    return [entry.batch() for _ in range(STEPS)]


def optimizer_of(package: str, model: nn.Module) -> torch.optim.Optimizer:
    """Momentum for convolutions, AdamW for all others."""
    if package in ("timm", "pytorchcv", "segmentation_models_pytorch", "monai"):
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


Look = Callable[[Any, torch.optim.Optimizer], None]


def train(entry: Entry, model: nn.Module, optimizer: torch.optim.Optimizer, look: Look | None = None) -> list[float]:
    """STEPS steps; `look` is called between backward and step. Returns the losses."""
    losses = []
    for number, batch in enumerate(batches(entry)):
        seed(100 + number)
        loss = loss_of(entry, model, batch)
        optimizer.zero_grad()
        loss.backward()
        if look is not None:
            look(batch, optimizer)
        optimizer.step()
        losses.append(float(loss))
    return losses
