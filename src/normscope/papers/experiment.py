"""What is run for the sources' claims: an experiment has cells, a cell is trained once a seed.

A cell with its settings at a scale is a plan; a plan is its hash. What a run leaves are curves: plain lists of numbers,
rounded to six digits, from which every statistic is computed anew.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.choices import check_choice

if TYPE_CHECKING:
    from torch import nn

SCALES = ("small", "paper")
Curves = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a run is made. root: of the data sets. tick: called with every training step; may raise to end the run."""

    device: str = "cpu"
    root: str | None = None
    tick: Callable[[int], None] = lambda step: None

    def put(self, model: "nn.Module") -> "nn.Module":
        """There; on a GPU with images channels last, in which a VGG-16 step takes 2.8 ms of an H200 instead of 4.1."""
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


@dataclass(frozen=True, eq=False)
class Experiment:
    """Cells that share a function and most settings.

    settings: by scale. cells: what each changes in them. run(settings, seed, place) gives the curves.
    seconds: of one run, as measured, by (scale, device type), for estimates. data: the set it reads, if it has files.
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
        """All that the curves depend on beside the seed."""
        check_choice("cell", cell, self.cells)
        check_choice("scale", scale, SCALES)
        return {"experiment": self.name, "scale": scale, "cell": cell, **self.settings[scale], **self.cells[cell]}

    def hash(self, cell: str, scale: str) -> str:
        text = json.dumps(self.plan(cell, scale), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def cost(self, scale: str, device: str) -> float:
        """Seconds that a run took on such a device; a GPU's twentyfold where a CPU was never tried."""
        kind = device.partition(":")[0]
        known = self.seconds.get((scale, kind))
        return self.seconds.get((scale, "cuda"), 0.0) * 20 if known is None else known


def compact(value: Any) -> Any:
    """Numbers to six digits; what JSON has no word for as strings; arrays and tensors as lists."""
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
    """`compact` undone: the strings for nan and infinities are numbers again."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return float(value) if value in ("nan", "inf", "-inf") else value
