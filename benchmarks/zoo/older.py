"""Adapters for a normscope whose `measure` takes pairs alone."""

import inspect
from typing import Any

import torch
from entries import Entry
from torch import Tensor, nn
from training import loss_of, outputs

import normscope as ns

OLD = "forward" not in inspect.signature(ns.measure).parameters


class Whole(nn.Module):
    """The model as a function of a whole batch: its outputs, or its loss where that is its own."""

    def __init__(self, entry: Entry, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._entry = entry

    def forward(self, batch: Any) -> Any:
        entry = self._entry
        return outputs(entry, self.model, batch) if entry.loss_fn is not None else loss_of(entry, self.model, batch)


def pair(entry: Entry, batch: Any) -> bool:
    return entry.loss_fn is not None and entry.forward is None and len(batch) == 2 and isinstance(batch[0], Tensor)


def measure(entry: Entry, model: nn.Module, batch: Any) -> Any:
    if pair(entry, batch):
        return ns.measure(model, entry.loss_fn, batch)
    if entry.loss_fn is None:
        return ns.measure(Whole(entry, model), lambda out, y: out, (batch, torch.zeros(1)), matrix="hessian")
    return ns.measure(Whole(entry, model), lambda out, y: entry.loss_fn(out, y[0]), (batch, [batch[-1]]))


def monitor(entry: Entry, model: nn.Module, batch: Any, **options: Any) -> ns.Monitor:
    if pair(entry, batch):
        return ns.Monitor(model, entry.loss_fn, **options)
    return ns.Monitor(model, forward=lambda model, batch: loss_of(entry, model, batch), **options)
