"""Networks of fixed size for images: timm, pytorchcv, segmentation_models_pytorch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entries import Entry

CLASSES = 10


def pictures(n: int, side: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Noise with labels."""
    return lambda: (torch.randn(n, 3, side, side), torch.randint(CLASSES, (n,)))


def painted(n: int, side: int, classes: int = 3) -> Callable[[], tuple[Tensor, Tensor]]:
    """Noise with a label for each pixel."""
    return lambda: (torch.randn(n, 3, side, side), torch.randint(classes, (n, side, side)))


def _timm(name: str, size: str) -> Entry:
    import timm

    fixed = timm.get_pretrained_cfg(name)
    options: dict[str, Any] = {"img_size": 64} if fixed is not None and fixed.fixed_input_size else {}
    n = 4 if size == "large" else 8
    return Entry(lambda: timm.create_model(name, num_classes=CLASSES, **options), pictures(n, 64))


def _pytorchcv(name: str, size: str) -> Entry:
    from pytorchcv.model_provider import get_model

    if "centernet" in name:
        # Detection: the heat maps, of which boxes are read; squared error on them.
        return Entry(
            lambda: get_model(name, in_size=(64, 64), return_heatmap=True),
            lambda: (torch.randn(4, 3, 64, 64), torch.randn(4, 84, 16, 16)),
            F.mse_loss,
        )
    if "cifar" in name:
        return Entry(lambda: get_model(name, num_classes=CLASSES), pictures(8, 32))

    def build() -> nn.Module:
        made: nn.Module = get_model(name, in_size=(64, 64), num_classes=CLASSES)
        if isinstance(getattr(made.features, "final_pool", None), nn.AvgPool2d):
            # The final pooling's window is made for images of 224 x 224.
            made.features.final_pool = nn.AdaptiveAvgPool2d(1)
        return made

    return Entry(build, pictures(4 if size == "large" else 8, 64))


def _segmentation(name: str, size: str) -> Entry:
    import segmentation_models_pytorch as smp

    arch, encoder = name.split("/")
    return Entry(lambda: smp.create_model(arch, encoder, encoder_weights=None, classes=3), painted(4, 64))


ENTRIES = {"timm": _timm, "pytorchcv": _pytorchcv, "segmentation_models_pytorch": _segmentation}
