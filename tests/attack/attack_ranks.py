"""Two processes with synchronized statistics, one of which fails in a forward: both raise, and go on afterwards.

python tests/attack/attack_ranks.py
"""

import datetime
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from normscope import Monitor, measure, norms
from normscope.curvature import Solver

PLACES = ("first layer", "between", "after the last", "loss", "backward")


class Failing(nn.Module):
    """Two synchronized normalizers, and a place in which this process fails."""

    place = ""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 2)
        self.norms = nn.ModuleList(norms.BatchNorm1d(5, sync=True) for _ in range(2))

    def come(self, place):
        if place == self.place:
            raise ValueError(f"planted: {place}")

    def forward(self, x):
        self.come("first layer")
        x = self.norms[0](self.first(x))
        self.come("between")
        x = self.norms[1](torch.tanh(x))
        self.come("after the last")
        if x.requires_grad:
            x.register_hook(lambda g: self.come("backward"))
        return self.last(x)


def _rank(rank, folder):
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=patience)
    torch.manual_seed(0)
    model = Failing()
    ddp = DistributedDataParallel(model)
    torch.manual_seed(rank)
    x, y = torch.randn(8, 4), torch.randint(2, (8,))
    F.cross_entropy(ddp(x), y).backward()

    def loss(output, target):
        model.come("loss")
        return F.cross_entropy(output, target)

    def by_measure():
        measure(ddp, loss, (x, y), hessian=False, solver=Solver(max_products=3))

    def by_monitor():
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        Monitor(ddp, loss, every=1, budget=None, on_error="raise").step(x, y, optimizer)

    found, seconds = {}, {}
    for verb in (by_measure, by_monitor):
        for place in PLACES:
            name, started = f"{verb.__name__}, {place}", time.monotonic()
            model.place = place if rank == 1 else ""
            try:
                verb()
            except Exception as error:
                found[name] = f"{type(error).__name__}: {error}"
            model.place = ""
            seconds[name] = time.monotonic() - started
    found["afterwards"] = measure(ddp, loss, (x, y), hessian=False).lambda_max
    torch.save((found, seconds), Path(folder) / f"{rank}.pt")
    dist.barrier()
    os._exit(0)  # A usual exit may abort: a thread of gloo waits for an interpreter that is gone.


def attack():
    """Seconds that each failure took in both processes, and the cases in which they did not both say what failed."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, args=(folder,), nprocs=2)
        (other, waited), (own, took) = (torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in (0, 1))
    names = list(took)
    wrong = [
        name
        for name in names
        if own.get(name) != f"ValueError: planted: {name.partition(', ')[2]}"
        or not str(other.get(name)).startswith(
            "FailedElsewhere: The measurement failed in process 1 of 2. ValueError: p"
        )
    ]
    wrong += ["afterwards"] if own["afterwards"] != other["afterwards"] else []
    seconds = {name: max(took[name], waited[name]) for name in names}
    return {
        "failures": len(names),
        "wrong": len(wrong),
        "first": [(n, own.get(n), other.get(n)) for n in wrong[:3]],
        "seconds": seconds,
    }


if __name__ == "__main__":
    result = attack()
    longest = max(result["seconds"].values())
    print(f"ranks: {result['failures']} failures, wrong: {result['wrong']}, longest: {longest:.1f} s")
    print(result)
