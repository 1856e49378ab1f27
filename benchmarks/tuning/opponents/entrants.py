"""The entrants that name a rate, by name, and the training that follows from what one named."""

import importlib
import math
from typing import Any

from grid import Cell
from opponents.named import Entrant
from task import load

FILES = {
    "torch-lr-finder": "finders",
    "lightning": "finders",
    "fastai": "finders",
    "random search": "search",
    "asha": "search",
    "first guess": "limits",
    "eta*/2": "limits",
    "tune": "ours",
}


def find(name: str) -> Entrant:
    """The entrant with this name; its packages are imported now."""
    entrant: Entrant = importlib.import_module(f"opponents.{FILES[name]}").ENTRANTS[name]
    return entrant


def training_of(record: dict[str, Any]) -> Cell | None:
    """The training at a named rate, rounded to two digits, with the steps that the search left; None without a rate."""
    if record["lr"] is None:
        return None
    steps = load(record["task"]).steps - math.ceil(record["search_steps"])
    return Cell("named", record["task"], record["seed"], float(f"{record['lr']:.1e}"), max(1, steps))
