"""The environment of a result: versions, device and threads, stored with every number."""

import os
import platform

import torch

from normscope._version import __version__
from normscope.messages.choices import check_choice


def known_device(device: str | None) -> str:
    """`device` if this machine has it (else a ValueError); for None the GPU if there is one, else the CPU."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    others = ["mps"] if torch.backends.mps.is_available() else []
    check_choice("device", device, ["cpu", *(["cuda"] if gpus else []), *gpus, *others])
    return device


def environment(device: torch.device | str = "cpu") -> dict[str, str | int]:
    """The versions, device and number of threads, as plain JSON."""
    device = torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "normscope": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "device": f"{device.type} ({name})",
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count() or 0,
    }
