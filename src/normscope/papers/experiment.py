"""Experiments behind the sources' claims: an experiment has cells, and a cell is trained once for each seed.

A cell with its settings at a scale is a plan, named by its hash. A run leaves curves: plain lists of numbers, rounded
to six digits. Every statistic is computed from the curves each time.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.messages.choices import check_choice

if TYPE_CHECKING:
    from torch import nn

SCALES = ("small", "paper")
Curves = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """The place where a run is made. root: folder of data sets. tick: called at every step; may raise to stop it."""

    device: str = "cpu"
    root: str | None = None
    tick: Callable[[int], None] = lambda step: None

    def put(self, model: "nn.Module") -> "nn.Module":
        """The model on this device; on a GPU with channels last: 2.8 ms for a VGG-16 step on an H200, else 4.1."""
        import torch

        last = torch.channels_last if self.device.startswith("cuda") else torch.preserve_format
        return model.to(self.device, memory_format=last)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Run:
    """One cell trained once. made: where it was made, or which file it was read from."""

    cell: str
    seed: int
    curves: Curves
    seconds: float
    made: dict[str, Any]


# Settings and curves that had another name in stores of schema 1.
NAMES_OF_SCHEMA_1 = {"snapshot_every": "look", "measured_at": "looks"}


@dataclass(frozen=True, eq=False)
class Experiment:
    """Cells that share a function and most settings.

    Attributes:
        settings: by scale.
        cells: the settings that each cell changes. run(settings, seed, place) gives the curves.
        seconds: measured time of one run by (scale, device type), for estimates.
        data: the data set, if it has files.
        earlier: runs at the paper's scale that other commands have stored, read from the folder above the results.
    """

    name: str
    what: str
    settings: Mapping[str, Mapping[str, Any]]
    cells: Mapping[str, Mapping[str, Any]]
    run: Callable[[dict[str, Any], int, Place], Curves]
    seconds: Mapping[tuple[str, str], float]
    data: str | None = None
    earlier: Callable[[Path], list[Run]] = field(default=lambda folder: [])

    def plan(self, cell: str, scale: str) -> dict[str, Any]:
        """All settings that the curves depend on, but for the seed."""
        check_choice("cell", cell, self.cells)
        check_choice("scale", scale, SCALES)
        return {"experiment": self.name, "scale": scale, "cell": cell, **self.settings[scale], **self.cells[cell]}

    @property
    def name_of_schema_1(self) -> str:
        """The experiment's name, and its file's, in stores of schema 1."""
        return self.name.replace("eta-stars-", "rungs-")

    def hash(self, cell: str, scale: str) -> str:
        """The plan's name: a hash of its settings by the names of schema 1, so that runs of both schemas are found."""
        plan = self.plan(cell, scale) | {"experiment": self.name_of_schema_1}
        text = json.dumps({NAMES_OF_SCHEMA_1.get(name, name): value for name, value in plan.items()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def cost(self, scale: str, device: str) -> float:
        """Seconds that a run took on such a device; twenty times the GPU's where no CPU time is known."""
        device_type = device.partition(":")[0]
        known = self.seconds.get((scale, device_type))
        return self.seconds.get((scale, "cuda"), 0.0) * 20 if known is None else known


def compact(value: Any) -> Any:
    """Numbers to six digits; nan and infinities as strings; arrays and tensors as lists."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): compact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [compact(item) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() and abs(value) < 1e6 else float(f"{value:.6g}")
    return value


def numbers(value: Any) -> Any:
    """Undo `compact`: the strings for nan and infinities become numbers again."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
