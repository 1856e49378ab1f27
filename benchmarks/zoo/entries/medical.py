"""monai: networks for volumes and slices."""

from typing import Any

import torch
from torch.nn import functional as F

from entries import WIDTH, Entry


def _monai(name: str, size: str) -> Entry:
    import monai.networks.nets as nets

    width = WIDTH[size]
    kind = getattr(nets, name)
    options: dict[str, Any] = {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}
    if name == "DenseNet":
        options |= {"init_features": width // 2, "growth_rate": 8, "block_config": (2, 2, 2)}
        return Entry(lambda: kind(**options), lambda: (torch.randn(8, 1, 32, 32), torch.randint(3, (8,))))
    if name == "LocalNet":
        # Registration: a field of displacements.
        options |= {"num_channel_initial": width // 8, "extract_levels": (0, 1, 2), "out_channels": 2}
        return Entry(
            lambda: kind(**options), lambda: (torch.randn(4, 1, 32, 32), torch.randn(4, 2, 32, 32)), F.mse_loss
        )
    if name == "AttentionUnet":
        options |= {"channels": (width // 4, width // 2, width), "strides": (2, 2)}
    if name == "BasicUNet":
        options["features"] = (width // 4, width // 4, width // 2, width, width, width // 4)
    return Entry(lambda: kind(**options), lambda: (torch.randn(4, 1, 32, 32), torch.randint(3, (4, 32, 32))))


ENTRIES = {"monai": _monai}
