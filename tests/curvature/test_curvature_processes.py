"""Two gloo processes: they fail together, and with synchronized statistics find what one finds on the whole batch."""

import datetime
import os
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from normscope import losses, measure, norms
from normscope.curvature import Solver, mean_mode, spectrum
from normscope.curvature.eigensolvers import solver

PATIENCE = int(os.environ.get("PATIENCE", "60"))
X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(16, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
EXACT = {"solver": Solver(tol=1e-9), "hessian": False}


def _net(norm: str) -> nn.Module:
    torch.manual_seed(0)
    layer = {
        "torch": lambda: nn.BatchNorm1d(5),
        "synced torch": lambda: nn.SyncBatchNorm(5),
        "synced batch": lambda: norms.BatchNorm1d(5, sync=True),
        "synced l2": lambda: norms.LpNorm1d(5, p=2, sync=True),
        "batch": lambda: norms.BatchNorm1d(5),
        "l2": lambda: norms.LpNorm1d(5, p=2),
    }[norm]()
    return nn.Sequential(nn.Linear(4, 5), layer, nn.Tanh(), nn.Linear(5, 2)).double()


def _error(work) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _jobs(rank: int) -> dict[str, object]:
    x, y = X.chunk(2)[rank], Y.chunk(2)[rank]
    found: dict[str, object] = {}
    model = DistributedDataParallel(_net("torch"))
    bad = x.clone()
    if rank == 1:
        bad[0, 0] = torch.nan
    found["nan"] = _error(lambda: measure(model, losses.half_mse, (bad, y)))
    unlike = (x, y) if rank == 0 else (x, y, y)
    found["unlike"] = _error(lambda: measure(model, losses.half_mse, unlike))
    found["mean mode"] = _error(lambda: mean_mode(model, (x, y)))

    def breaks(f, target):
        if rank == 1 and f.requires_grad and f.grad_fn is None:
            raise RuntimeError("planted at the outputs")
        return losses.half_mse(f, target)

    found["product"] = _error(lambda: measure(model, breaks, (x, y)))
    found["after"] = measure(model, losses.half_mse, (x, y), **EXACT).lambda_max
    for norm in ("batch", "l2"):
        plain = _net(f"synced {norm}")
        parallel = DistributedDataParallel(_net(f"synced {norm}"))
        for stats in ("batch", "frozen"):
            found[f"{norm} {stats}"] = [
                measure(m, losses.half_mse, (x, y), stats=stats, **EXACT).lambda_max for m in (parallel, plain)
            ]
    synced = _net("synced torch")
    found["torch frozen"] = [measure(synced, losses.half_mse, (x, y), stats="frozen", **EXACT).lambda_max]
    local = DistributedDataParallel(_net("batch"))
    found["trace"] = spectrum(local, losses.half_mse, (x, y), steps=200).trace
    sampled = measure(local, losses.half_mse, (x, y), matrix="fisher", label_draws=20, hessian=False)
    found["stderr"] = sampled.stderr
    # As where one process has a GPU that rounds, and the other an older one.
    solver.tf32_pays = lambda *_: rank == 0
    found["unlike GPUs"] = measure(model, losses.half_mse, (x, y), **EXACT).lambda_max
    return found


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=patience)
    torch.save(_jobs(rank), f"{folder}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # A usual exit may abort: a thread of gloo waits for an interpreter that is gone.


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ddp")
    context = mp.spawn(_rank, args=(str(folder),), nprocs=2, join=False)
    deadline = time.monotonic() + 2 * PATIENCE
    try:
        while not context.join(timeout=5):
            assert time.monotonic() < deadline, "the processes wait for each other"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("nan", "ValueError: The loss is nan"),
        ("unlike", "ValueError: The batch gives the model a tuple of 2"),
        ("product", "planted"),
    ],
)
def test_where_one_fails_both_do_and_none_waits(found, what, says):
    assert says in found[1][what]
    assert found[0][what].startswith("FailedElsewhere")


def test_they_go_on_after_that(found):
    assert found[0]["after"] == found[1]["after"] > 0


def test_they_take_the_same_steps_on_unlike_gpus(found):
    assert found[0]["unlike GPUs"] == found[1]["unlike GPUs"] == found[0]["after"]


@pytest.mark.parametrize("stats", ["batch", "frozen"])
@pytest.mark.parametrize("norm", ["batch", "l2"])
def test_synchronized_statistics_are_those_of_the_whole_batch(found, norm, stats):
    """Under DDP, and in a model that is not wrapped while its layers exchange statistics."""
    whole = measure(_net(norm), losses.half_mse, (X, Y), stats=stats, **EXACT).lambda_max
    for rank in range(2):
        assert found[rank][f"{norm} {stats}"] == pytest.approx([whole, whole], rel=1e-7)


def test_so_are_those_of_torchs_layer_held_constant(found):
    whole = measure(_net("batch"), losses.half_mse, (X, Y), stats="frozen", **EXACT).lambda_max
    for rank in range(2):
        assert found[rank]["torch frozen"] == pytest.approx([whole], rel=1e-7)


def test_the_spectrum_is_that_of_the_mean_and_the_mean_mode_is_refused(found):
    halves = [
        spectrum(_net("batch"), losses.half_mse, pair, steps=200).trace
        for pair in zip(X.chunk(2), Y.chunk(2), strict=True)
    ]
    assert found[0]["trace"] == found[1]["trace"] == pytest.approx(sum(halves) / 2, rel=1e-6)
    assert all("of one process" in rank["mean mode"] for rank in found)


def test_the_error_of_a_sampled_matrix_is_that_of_the_mean(found):
    assert found[0]["stderr"] == found[1]["stderr"] > 0
