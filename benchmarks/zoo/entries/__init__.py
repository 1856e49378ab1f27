"""How each model of the zoo is built, fed and trained: one file for a family of packages."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

# About this wide and deep are models that are built from a configuration.
WIDTH = {"small": 32, "middle": 64, "large": 128}
DEPTH = {"small": 2, "middle": 3, "large": 4}

Loss = Callable[[Any, Any], Tensor]
_FILES = {
    "diffusers": "diffusion",
    "kornia": "others",
    "monai": "medical",
    "pytorch_tabnet": "others",
    "pytorchcv": "images",
    "rtdl_revisiting_models": "others",
    "segmentation_models_pytorch": "images",
    "speechbrain": "others",
    "timm": "images",
    "torch_geometric": "graphs",
    "transformers": "hugging",
    "vit_pytorch": "attention",
    "x_transformers": "attention",
}


@dataclass(frozen=True)
class Entry:
    """A model with what a training script has.

    build: the model, random as torch's generator stands; batch: one batch, likewise.
    loss_fn: loss_fn(outputs, targets); None where the model gives the loss.
    forward: forward(model, batch) gives the outputs, for a model whose forward takes no batch as it is.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[], Any]
    loss_fn: Loss | None = F.cross_entropy
    forward: Callable[[nn.Module, Any], Any] | None = None


class Unavailable(Exception):
    """Raised for a model that a limit of resources drops; the message names the limit."""


def entry(package: str, name: str, size: str) -> Entry:
    """The entry of a drawn model."""
    module = importlib.import_module(f"entries.{_FILES[package]}")
    made: Entry = module.ENTRIES[package](name, size)
    return made
