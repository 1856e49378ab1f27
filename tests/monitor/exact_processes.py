"""What each of two processes does in the tests of DDP: trains twice, alone and watched, and says what differs."""

import datetime
import os
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from exact import Cell, Run, Watched, found_wrong, full
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from normscope import Monitor
from normscope.norms import make_norm, swap_norms

PATIENCE = int(os.environ.get("PATIENCE", "60"))


def two_processes(folder: Any, jobs: list[tuple[str, dict[str, Any]]]) -> list[list[Any]]:
    """What the two processes found for each of `jobs`, functions of this module by name; a deadlock is an error."""
    context = mp.spawn(_rank, args=(str(folder), jobs), nprocs=2, join=False)
    deadline = time.monotonic() + PATIENCE + 30 * len(jobs)
    try:
        while not context.join(timeout=5):
            assert time.monotonic() < deadline, "the processes wait for each other"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    found = [torch.load(os.path.join(folder, f"{rank}.pt"), weights_only=False) for rank in range(2)]
    return [list(pair) for pair in zip(*found, strict=True)]


def _rank(rank: int, folder: str, jobs: list[tuple[str, dict[str, Any]]]) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=PATIENCE)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=patience)
    found = [globals()[name](rank, **options) for name, options in jobs]
    torch.save(found, os.path.join(folder, f"{rank}.pt"))
    dist.barrier()
    os._exit(0)  # A usual exit may abort: a thread of gloo waits for an interpreter that is gone.


def wrapped(cell: Cell, model: nn.Module | None = None, **options: Any) -> dict[str, Any]:
    """A model and its DDP, the same in both processes."""
    if model is None:
        torch.manual_seed(0)
        model = Watched(cell)
    return {"model": model, "trained": DistributedDataParallel(model, **options)}


def bit_exact(rank: int, cell: Cell, unused: bool = False, options: dict[str, Any] | None = None) -> list[str]:
    def model() -> nn.Module:
        made = Watched(cell)
        if unused:
            made.spare = nn.Linear(3, 3)
        return made

    options = options or {}
    alone = Run(cell, rank=rank, **wrapped(cell, model(), **options))
    return found_wrong(alone, Run(cell, full(cell), rank=rank, **wrapped(cell, model(), **options)))


def synced(norm: str, cell: Cell) -> nn.Module:
    model = Watched(cell)
    swap_norms(model, norm, sync=True, **({"seed": 1} if norm == "noisy" else {}))
    return model


def bit_exact_with_synced_norms(rank: int, cell: Cell) -> Any:
    alone = Run(cell, rank=rank, **wrapped(cell, synced(cell.norm, cell)))
    watched = Run(cell, full(cell), rank=rank, **wrapped(cell, synced(cell.norm, cell)))
    return found_wrong(alone, watched) + [n for n in watched.monitor.notes if "own batch statistics" in n]


class BreaksInOne:
    """A measurement that fails in the second process alone, before, in or after an exchange."""

    forward_only = False

    def __init__(self, rank: int, where: str) -> None:
        self.rank, self.where, self.name = rank, where, f"breaks {where}"

    def measure(self, probe: Any) -> Any:
        self._raise("before")
        probe.at.gradient()
        self._raise("between")
        inner = probe.at.task.loss

        def failing(model: nn.Module, batch: Any) -> Any:
            self._raise("forward")
            loss = inner(model, batch)
            self._raise("loss")
            return loss

        object.__setattr__(probe.at.task, "loss", failing)
        try:
            probe.at.move_to(probe.theta, probe.descent, 2.0)
            probe.at.gradient()
        finally:
            object.__setattr__(probe.at.task, "loss", inner)
        self._raise("after")
        raise ValueError("planted in both")

    def _raise(self, where: str) -> None:
        if self.rank == 1 and self.where == where:
            raise RuntimeError(f"planted {where}")


def one_raises(rank: int, cell: Cell, sync: bool) -> Any:
    """The run with broken measurements among good ones, and what the good ones found without them."""
    places = ("before", "between", "loss", "after", "forward")
    good = ["critical", "landscape", "health", "activations", "shift"]
    broken = [m for m, where in zip(good, places, strict=True) for m in (m, BreaksInOne(rank, where))]

    def model() -> nn.Module:
        return synced(cell.norm, cell) if sync else Watched(cell)

    alone = Run(cell, rank=rank, **wrapped(cell, model()))
    undisturbed = Run(cell, full(cell, measure=good), rank=rank, **wrapped(cell, model()))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        watched = Run(cell, full(cell, measure=broken, on_error="warn"), rank=rank, **wrapped(cell, model()))
    summaries = [[r.results[m].summary() for m in good if m in r.results] for r in watched.monitor.records]
    expected = [[r.results[m].summary() for m in good if m in r.results] for r in undisturbed.monitor.records]
    return {
        "wrong": found_wrong(alone, watched),
        "errors": watched.monitor.records[0].errors,
        "said": len(said),
        "unaffected": str(summaries) == str(expected),
        "snapshots": [r.step for r in watched.monitor.records],
    }


def with_a_budget(rank: int, cell: Cell) -> Any:
    """The second process keeps no books: alone it would measure at every step."""

    def watch(model: nn.Module) -> Monitor:
        monitor = full(cell, every=1, budget=0.9, measure="standard")(model)
        if rank:
            monitor._budget.allows = lambda: True  # type: ignore[method-assign]
        return monitor

    alone = Run(cell, rank=rank, **wrapped(cell))
    watched = Run(cell, watch, rank=rank, **wrapped(cell))
    return found_wrong(alone, watched), [r.step for r in watched.monitor.records], watched.monitor._postponed


def pure_network(norm: str) -> nn.Module:
    """Float64 and no draws, for numbers that can be compared."""
    torch.manual_seed(0)
    first = (nn.Conv2d(3, 4, 3, stride=4), make_norm(norm, 4, dim=2), nn.ReLU())
    second = (nn.Conv2d(4, 6, 3), make_norm(norm, 6, dim=2), nn.ReLU())
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(216, 10)).double()


def pure_batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(6, 3, 32, 32, generator=generator, dtype=torch.float64)
    return x, torch.randint(10, (6,), generator=generator)


def measured(rank: int, norm: str) -> list[dict[str, Any]]:
    """Two snapshots, with a step of the optimizer between them."""
    ddp = DistributedDataParallel(pure_network(norm))
    return snapshots(ddp, pure_batch(rank), F.cross_entropy)


def snapshots(model: nn.Module, batch: Any, loss_fn: Any = None, forward: Any = None) -> list[dict[str, Any]]:
    sgd = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    monitor = Monitor(
        model,
        loss_fn,
        forward=forward,
        every=1,
        measure=["critical", "landscape", "shift"],
        budget=None,
        on_error="raise",
    )
    for _ in range(2):
        sgd.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1]) if forward is None else forward(model, batch)
        loss.backward()
        monitor.step(*batch, sgd) if forward is None else monitor.step(batch, optimizer=sgd)
        sgd.step()
    return [record.plain()["results"] for record in monitor.records]
