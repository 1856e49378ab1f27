"""A case of NormFaults: one small training that has a known fault of normalization, or none.

A file in `held_out/faults/` or `held_out/clean/` ends with `CASES`, a tuple of `Case`:

    def batch_of_two(seed: int, fault: bool) -> Setup:
        ...
        return Setup(model, loss_fn, batches, optimizer, eval_batches=..., metric=accuracy, steps=200)

    CASES = (
        Case("batch-of-two", "held-out", batch_of_two, "small-batch-noise", fix="GroupNorm in the place of BatchNorm"),
    )

Rules for a case:
- `make(seed, fault)` seeds the weights and the order of the batches. It is deterministic, and needs no network access.
- `fault=False` with the same seed is the same training after the right fix. Nothing else differs.
- A clean case has `make(seed)`, and no problem.
- The model comes in the mode in which it trains. A training loop does not call `model.train()`.
- `batches` may be iterated again; each iteration gives the same `steps * accumulate` batches.
- `metric(outputs, targets)` of `eval_batches` is larger for a better model. `training.evaluate` computes it.
- One step takes at most 50 ms on one core.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from faults.problems import PROBLEMS
from normscope import Setup

HERE = Path(__file__).resolve().parent
FOLDERS = {"development": "development", "held-out": "held_out"}


@dataclass(frozen=True)
class Case:
    """One training with a known answer.

    name: unique name. half: a key of FOLDERS. make: builds the `Setup`. problem: a key of PROBLEMS, None for a clean
    case. source: the public thread from which the fault was distilled, or "none". also: other problems that are true of
    this fault as well, fixed beforehand; a finding of one of them counts like the problem itself. fix: what
    `fixed(seed)` does instead.
    """

    name: str
    half: str
    make: Callable[..., Setup]
    problem: str | None = None
    source: str = "none"
    also: tuple[str, ...] = ()
    fix: str = ""

    def __post_init__(self) -> None:
        if self.half not in FOLDERS:
            raise ValueError(f"{self.name}: half must be one of {', '.join(FOLDERS)}; got {self.half!r}.")
        unknown = [name for name in self.right if name not in PROBLEMS]
        if unknown:
            raise ValueError(f"{self.name}: {unknown[0]!r} is not in PROBLEMS.")
        if (self.problem is None) != (self.fix == ""):
            raise ValueError(f"{self.name}: a fault has a problem and a fix, a clean case has neither.")

    @property
    def right(self) -> tuple[str, ...]:
        """The problems that count as right; none for a clean case."""
        return () if self.problem is None else (self.problem, *self.also)

    def setup(self, seed: int, fault: bool = True) -> Setup:
        """The training of this seed, with the fault or with its fix; a clean case ignores `fault`."""
        return self.make(seed) if self.problem is None else self.make(seed, fault)

    def fixed(self, seed: int) -> Setup:
        """The same training after the right fix."""
        return self.setup(seed, fault=False)


def cases(half: str, kind: str) -> tuple[Case, ...]:
    """All cases of a half, sorted by name; kind is "faults" or "clean"."""
    if kind not in ("faults", "clean"):
        raise ValueError(f"kind must be faults or clean; got {kind!r}.")
    files = sorted((HERE / FOLDERS[half] / kind).glob("*.py"))
    found = [case for file in files if not file.stem.startswith("_") for case in _module(file).CASES]
    return tuple(sorted(found, key=lambda case: case.name))


def load(name: str) -> Case:
    """The case with this name, in any half."""
    everything = [case for half in FOLDERS for kind in ("faults", "clean") for case in cases(half, kind)]
    found = [case for case in everything if case.name == name]
    if len(found) != 1:
        raise ValueError(f"{name} must be the name of one case; {len(found)} have it.")
    return found[0]


def _module(file: Path) -> ModuleType:
    """The module of a file of cases, imported once."""
    parts = file.relative_to(HERE).with_suffix("").parts
    name = ".".join(("faults", *parts))
    if name not in sys.modules:
        importlib.import_module(name)
    return sys.modules[name]
