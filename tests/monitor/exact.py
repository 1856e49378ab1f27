"""Training runs compared to the last bit: one watched by a Monitor, one alone.

As a script, for machines without the test suite's packages:

    PYTHONPATH=src:tests python3 tests/monitor/exact.py --device cuda --out exact.json
"""

import argparse
import contextlib
import gc
import importlib.machinery
import importlib.util
import json
import os
import random
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if importlib.util.find_spec("pandas") is None:  # only Monitor.frame() needs it, which nothing here calls
        stub = sys.modules["pandas"] = types.ModuleType("pandas")
        stub.__spec__ = importlib.machinery.ModuleSpec("pandas", None)  # torch's compiler asks for it
        stub.DataFrame = object  # type: ignore[attr-defined]

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.models import VGG, PreActResNet18, initialize
from normscope.monitor import Monitor
from normscope.norms import make_norm

NETWORKS = ("vgg", "resnet")


@dataclass(frozen=True)
class Cell:
    """What is trained, and how. network: "tiny" is for what does not depend on it. tidy: as a compiler needs it."""

    network: str = "vgg"
    norm: str = "batch"
    optimizer: str = "sgd"
    autocast: torch.dtype | None = None
    accumulate: int = 1
    clip: bool = False
    steps: int = 50
    every: int = 24
    device: str = "cpu"
    tidy: bool = False

    def short(self) -> "Cell":
        """The same in as many steps as the default suite has time for."""
        return replace(self, steps=5, every=3)


class Jitter(nn.Module):
    """Draws from every generator a forward can draw from, and keeps books."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.numpys, self.pythons = torch.Generator(), np.random.default_rng(), random.Random()
        self.loose = torch.zeros(2)
        self.register_buffer("replaced", torch.zeros(2))
        self.restart()

    def restart(self) -> None:
        self.own.manual_seed(1)
        self.numpys, self.pythons = np.random.default_rng(2), random.Random(3)
        self.calls, self.log = 0, []

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        self.calls += 1
        self.log.append(self.calls)
        self.loose.add_(1)
        self.replaced = self.replaced + self.loose.to(self.replaced.device)
        draws = [float(torch.rand((), generator=self.own)), self.numpys.random(), self.pythons.random()]
        draws += [random.random(), float(np.random.rand())]  # noqa: NPY002
        return x * (1 + 0.01 * sum(draws))


class Watched(nn.Module):
    """A narrow network with a dropout layer in the middle, one in eval mode for good, and a functional one."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        middle: list[nn.Module] = [nn.Dropout(0.2)] if cell.tidy else [nn.Dropout(0.2), Jitter()]
        self.body: nn.Module
        if cell.network == "vgg":
            self.body = VGG(11, width=1 / 32, norm=cell.norm, d_out=12)
            layers = list(self.body)
            self.body = nn.Sequential(*layers[:7], *middle, *layers[7:])
        elif cell.network == "tiny":
            first = (nn.Conv2d(3, 4, 3, stride=4, padding=1), make_norm(cell.norm, 4, dim=2), nn.ReLU())
            second = (nn.Conv2d(4, 6, 3, stride=2), make_norm(cell.norm, 6, dim=2), nn.ReLU())
            self.body = nn.Sequential(*first, *middle, *second, nn.Flatten(), nn.Linear(54, 12))
            initialize(self.body, "glorot", seed=0)
        else:
            self.body = PreActResNet18(width=4, norm=cell.norm, d_out=12)
            blocks = list(self.body.blocks)
            self.body.blocks = nn.Sequential(*blocks[:3], *middle, *blocks[3:])
        self.off = nn.Dropout(0.5)
        self.head = nn.Linear(12, 10)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(5)
            self.head.reset_parameters()
        self.off.eval()

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.off(self.body(x)), 0.1, self.training)
        y: Tensor = self.head(h)
        return y


def batches(cell: Cell, rank: int = 0) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Micro-batches of each step."""
    generator = torch.Generator().manual_seed(100 + rank)
    size = 16 if cell.network == "resnet" else 32
    for _ in range(cell.steps):
        x = torch.randn(cell.accumulate, 4, 3, size, size, generator=generator).to(cell.device)
        y = torch.randint(10, (cell.accumulate, 4), generator=generator).to(cell.device)
        yield list(zip(x, y, strict=True))


def make_optimizer(cell: Cell, model: nn.Module) -> torch.optim.Optimizer:
    trainable = [p for p in model.parameters() if p.requires_grad]
    if cell.optimizer == "sgd":
        return torch.optim.SGD(trainable, lr=0.02, momentum=0.9, weight_decay=1e-3, nesterov=True)
    return torch.optim.AdamW(trainable, lr=2e-3)


def seed_everything(seed: int = 0) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


Make = Callable[[Any], Monitor]


def full(cell: Cell, **options: Any) -> Make:
    """A Monitor of everything."""
    chosen = {"every": cell.every, "measure": "full", "budget": None, "on_error": "raise"} | options
    return lambda model: Monitor(model, F.cross_entropy, **chosen)


class Run:
    """One run; `watch` makes its Monitor. `state` is all that it left, `disturbed` what changed around a snapshot."""

    def __init__(
        self,
        cell: Cell,
        watch: Make | None = None,
        *,
        model: nn.Module | None = None,
        trained: Any = None,
        inside: bool = False,
        rank: int = 0,
        adjust: Callable[["Run"], None] | None = None,
    ) -> None:
        self.cell, self.inside = cell, inside
        seed_everything(rank)
        self.model = Watched(cell).to(cell.device) if model is None else model
        self.trained = self.model if trained is None else trained
        self.optimizer = make_optimizer(cell, self.model)
        self.scheduler: Any = None
        self.scaler: Any = None
        self.losses: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.disturbed: list[str] = []
        if adjust is not None:
            adjust(self)
        self.monitor = None if watch is None else watch(self.trained)
        for step, parts in enumerate(batches(cell, rank)):
            self._step(parts)
            if step == cell.steps // 2:
                self._evaluate(parts[0][0])
        self._evaluate(parts[0][0])
        self.state = self._state()

    def _step(self, parts: list[tuple[Tensor, Tensor]]) -> None:
        cell, device = self.cell, torch.device(self.cell.device).type
        self.optimizer.zero_grad()
        region = torch.autocast(device, cell.autocast) if cell.autocast else contextlib.nullcontext()
        with region:
            for i, (x, y) in enumerate(parts):
                last = i == len(parts) - 1
                waits = getattr(self.trained, "no_sync", contextlib.nullcontext)
                with contextlib.nullcontext() if last else waits():
                    loss = F.cross_entropy(self.trained(x), y) / len(parts)
                    (loss if self.scaler is None else self.scaler.scale(loss)).backward()
                self.losses.append(loss.detach())
            if self.scaler is not None and cell.clip:
                self.scaler.unscale_(self.optimizer)
            if cell.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            if self.inside:
                self._look(x, y)
            if cell.autocast:  # casts of the weights are remembered until the region ends
                self._evaluate(x)
        if not self.inside:
            self._look(x, y)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.scheduler is not None:
            self.scheduler.step()

    def _look(self, x: Tensor, y: Tensor) -> None:
        if self.monitor is None:
            return
        before = moment(self.model, self.optimizer)
        scale = 1.0 if self.scaler is None or self.cell.clip else self.scaler.get_scale()
        self.monitor.step(x, y, self.optimizer, scale=scale)
        self.disturbed += differences(before, moment(self.model, self.optimizer))

    def _evaluate(self, x: Tensor) -> None:
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        self.outputs.append(self.model(x).detach())
        for module, mode in modes.items():
            module.training = mode

    def _state(self) -> dict[str, Any]:
        parts = {
            "weights": dict(self.model.named_parameters()),
            "grads": {name: p.grad for name, p in self.model.named_parameters()},
            "buffers": dict(self.model.named_buffers()),
            "modes": {name: module.training for name, module in self.model.named_modules()},
            "attributes": {f"{n}.{k}": v for n, m in self.model.named_modules() for k, v in plain_attributes(m)},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "losses": self.losses,
            "outputs": self.outputs,
            "random": generators(self.model),
            "flags": flags(),
        }
        return dict(flat("", parts))


def plain_attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if not name.startswith("_") and isinstance(value, (bool, int, float, str, list, Tensor)):
            yield name, value


def generators(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
    }
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, torch.Generator):
                found[f"{name}.{key}"] = value.get_state()
            elif isinstance(value, random.Random):
                found[f"{name}.{key}"] = value.getstate()
            elif isinstance(value, np.random.Generator):
                found[f"{name}.{key}"] = value.bit_generator.state
    return found


def flags() -> dict[str, Any]:
    """What torch keeps for a whole process or thread."""
    found = {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": [torch.is_autocast_enabled(d) for d in ("cpu", "cuda")],
        "autocast dtype": [str(torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "cudnn": [getattr(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic")],
        "precision": torch.get_float32_matmul_precision(),
        "anomaly": torch.is_anomaly_enabled(),
        "dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "collector": gc.isenabled(),
    }
    if "torch._dynamo" in sys.modules:
        found["stance"] = str(torch._dynamo.eval_frame._stance)
    return found


def moment(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Everything a snapshot could touch, with identities and version counters; values are compared at the end."""
    seen: dict[str, Any] = {"random": generators(model), "flags": flags(), "optimizer": sorted(vars(optimizer))}
    seen["warnings"] = len(warnings.filters)
    for name, p in model.named_parameters(remove_duplicate=False):
        seen[f"parameter {name}"] = (*mark(p), p.requires_grad, *mark(p.grad))
    for name, b in model.named_buffers(remove_duplicate=False):
        seen[f"buffer {name}"] = mark(b)
    for name, m in model.named_modules(remove_duplicate=False):
        seen[f"module {name}"] = (id(m), {key: _known(value) for key, value in vars(m).items()})
    for i, group in enumerate(optimizer.param_groups):
        seen[f"group {i}"] = {key: value for key, value in group.items() if key != "params"}
        for j, p in enumerate(group["params"]):
            seen[f"group {i} {j}"] = (id(p), {key: mark(value) for key, value in optimizer.state.get(p, {}).items()})
    return dict(flat("", seen))


def _known(value: Any) -> Any:
    if isinstance(value, Tensor):
        return mark(value)
    if isinstance(value, (dict, list, set)):
        return (id(value), [id(item) for item in (value.values() if isinstance(value, dict) else value)])
    return value if isinstance(value, (bool, int, float, str)) else id(value)


def mark(value: Any) -> tuple[Any, ...]:
    return (id(value), value._version, value.data_ptr()) if isinstance(value, Tensor) else (value,)


def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Leaves of nested containers, by path; tensors as they are now."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(f"{name}/{key}", item)
        yield f"{name} keys", [str(key) for key in value]
    elif isinstance(value, (list, tuple)) and any(isinstance(item, (Tensor, dict, list, tuple)) for item in value):
        for i, item in enumerate(value):
            yield from flat(f"{name}/{i}", item)
        yield f"{name} length", len(value)
    else:
        yield name, value.detach().clone() if isinstance(value, Tensor) else value


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names of what is not the same to the bit."""
    return [name for name in a.keys() | b.keys() if name not in a or name not in b or not same(a[name], b[name])]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
            return False
        return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, float) and isinstance(b, float):
        return a.hex() == b.hex()
    return type(a) is type(b) and bool(a == b)


def found_wrong(alone: Run, watched: Run) -> list[str]:
    """Sorted names of what the Monitor changed; empty is what every test asks for."""
    assert watched.monitor is not None
    if watched.monitor.records == []:
        return ["nothing was looked at"]
    return sorted(set(watched.disturbed) | set(differences(alone.state, watched.state)))


EXACT = "bit for bit"


def compared(cell: Cell) -> dict[str, Any]:
    """One cell for the script: what differs between two runs alone, and from a watched one."""
    row: dict[str, Any] = asdict(cell) | {"autocast": str(cell.autocast)}
    started = time.perf_counter()
    try:
        alone = Run(cell)
        row["two alone"] = sorted(differences(alone.state, Run(cell).state))
        row["watched outside"] = found_wrong(alone, Run(cell, full(cell, autocast=cell.autocast)))
        row["watched inside"] = found_wrong(alone, Run(cell, full(cell), inside=True))
        wrong = {key: row[key] for key in ("two alone", "watched outside", "watched inside") if row[key]}
        row["said"] = f"DIFFERS: {wrong}" if wrong else EXACT
    except Exception as error:
        row["said"] = f"FAILED: {type(error).__name__}: {error}"
    return row | {"seconds": time.perf_counter() - started}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    rows = []
    for network in NETWORKS:
        for norm in ("batch", "noisy"):
            for autocast in (None, torch.bfloat16):
                cell = Cell(network, norm, autocast=autocast, steps=asked.steps, device=asked.device)
                rows.append(compared(cell))
                said = rows[-1]["said"]
                print(f"{network:7s} {norm:6s} {autocast!s:15s} {rows[-1]['seconds']:6.1f} s  {said}", flush=True)
    device = torch.cuda.get_device_name() if torch.device(asked.device).type == "cuda" else asked.device
    made = {"schema": 1, "torch": torch.__version__, "python": sys.version.split()[0], "device": device}
    if asked.out is not None:
        asked.out.write_text(json.dumps(made | {"cells": rows}, indent=1) + "\n")
    return int(any(row["said"] != EXACT for row in rows))


if __name__ == "__main__":
    sys.exit(main())
