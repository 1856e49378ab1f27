"""Curvature while a run goes on: right, warm, across processes, and without a trace."""

import copy
import math
import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from normscope import Monitor, losses, measure, models
from normscope.curvature import Solver
from normscope.monitor import JSONL, CurvatureProbe, read_jsonl


def _net(**options) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)).to(**options)


def _batches(steps: int):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randn(16, 6, generator=generator), torch.randint(3, (16,), generator=generator)


def _train(optimizer, watched: bool, steps: int = 8, **options):
    model = _net()
    opt = optimizer(model.parameters())
    torch.manual_seed(5)
    monitor = Monitor(
        model, F.cross_entropy, every=2, measure=["curvature", "critical"], budget=None, on_error="raise", **options
    )
    for x, y in _batches(steps):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in options):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        if watched:
            monitor.step(x, y, opt)
        opt.step()
    state = [*model.state_dict().values(), torch.get_rng_state(), *(p.grad for p in model.parameters())]
    state += [t for s in opt.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    return state, monitor


@pytest.mark.parametrize("options", [{}, {"autocast": torch.bfloat16}], ids=["float32", "autocast"])
@pytest.mark.parametrize(
    "optimizer",
    [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3), lambda p: torch.optim.Adam(p, lr=1e-2)],
    ids=["sgd", "adam"],
)
def test_the_run_is_bit_for_bit_the_same(optimizer, options):
    plain, _ = _train(optimizer, False, **options)
    watched, monitor = _train(optimizer, True, **options)
    assert len(plain) == len(watched)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    frame = monitor.frame()
    assert len(frame) == 4
    assert (frame.lambda_max.fillna(frame.lambda_preconditioned) > 0).all()
    assert (frame.lambda_residual <= 1e-3).all()


def test_it_is_what_measure_finds_and_warm_after_the_first_look():
    model = models.MLP(6, 3, width=12, norm="batch")
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=0.5)
    x, y = next(_batches(1))
    # The landscape's points lie elsewhere: curvature is to be that of where the run stands.
    chosen = ["landscape", "curvature"]
    monitor = Monitor(model, losses.half_mse, every=1, measure=chosen, budget=None, on_error="raise")
    for _ in range(3):
        opt.zero_grad()
        losses.half_mse(model(x), y).backward()
        record = monitor.step(x, y, opt)
        expected = measure(model, losses.half_mse, (x, y), optimizer=opt, hessian=False, solver=Solver(tol=1e-5))
        found = record.results["curvature"]
        assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-4)
        assert found.eta_star == pytest.approx(expected.eta_star, rel=1e-4)
        assert found.lr == 1e-3
        opt.step()
    products = [record.results["curvature"].products for record in monitor.records]
    assert max(products[1:]) < products[0]
    (verdict,) = (v for v in monitor.verdicts if v.about == "learning rate")
    assert verdict.good
    assert "times eta*" in verdict.text


def test_other_measurements_of_the_look_change_nothing():
    """They move the leaves, draw masks and switch gradients off: curvature is the same after them as alone."""
    model = _net()
    x, y = next(_batches(1))
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    F.cross_entropy(model(x), y).backward()
    found = []
    for chosen in (["curvature"], ["landscape", "critical", "shift", "curvature"]):
        torch.manual_seed(7)
        record = Monitor(model, F.cross_entropy, measure=chosen, on_error="raise").step(x, y, opt)
        found.append(record.results["curvature"])
    assert found[0] == found[1]
    # With the mask that the loss of this look had.
    torch.manual_seed(7)
    expected = measure(model, F.cross_entropy, (x, y), hessian=False, solver=Solver(tol=1e-5))
    assert found[0].lambda_max == pytest.approx(expected.lambda_max, rel=1e-4)


def test_an_optimizer_without_a_bound_is_named_and_curvature_given_all_the_same():
    model = _net()
    x, y = next(_batches(1))
    for optimizer, named in ((torch.optim.Adagrad(model.parameters()), "Adagrad"), (_adam(model), "after the first")):
        monitor = Monitor(model, F.cross_entropy, measure=["curvature"], on_error="raise")
        F.cross_entropy(model(x), y).backward()
        record = monitor.step(x, y, optimizer)
        assert record.results["curvature"].lambda_max > 0
        assert math.isnan(record.results["curvature"].eta_star)
        assert named in record.verdicts[0].text


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


def test_a_forward_of_ones_own_gives_the_hessian(tmp_path):
    model = _net().eval()
    x, y = next(_batches(1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(
        model,
        forward=lambda m, batch: F.cross_entropy(m(batch["x"]), batch["y"]),
        measure=["curvature"],
        sinks=[JSONL(tmp_path / "run.jsonl")],
        on_error="raise",
    ) as monitor:
        found = monitor.step({"x": x, "y": y}, optimizer=opt).results["curvature"]
    assert found.matrix == "hessian"
    expected = measure(model, F.cross_entropy, (x, y), matrix="hessian", solver=Solver(tol=1e-6))
    assert found.lambda_max == pytest.approx(expected.lambda_max, rel=1e-4)
    assert read_jsonl(tmp_path / "run.jsonl")[1]["results"]["curvature"]["matrix"] == "hessian"


def test_a_model_in_half_precision_is_measured_in_float32():
    model = _net(dtype=torch.bfloat16).eval()
    x, y = next(_batches(1))
    wide = copy.deepcopy(model).float()
    monitor = Monitor(model, F.cross_entropy, measure=["curvature"], on_error="raise")
    x = x.bfloat16()
    F.cross_entropy(model(x), y).backward()
    record = monitor.step(x, y, torch.optim.SGD(model.parameters(), lr=0.1))
    expected = measure(wide, F.cross_entropy, (x.float(), y), hessian=False)
    assert record.results["curvature"].lambda_max == pytest.approx(expected.lambda_max, rel=1e-4)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = models.MLP(6, 3, width=8, norm="batch")
    parallel = DistributedDataParallel(model)
    opt = torch.optim.SGD(parallel.parameters(), lr=0.01)
    x, y = list(_batches(2))[rank]
    monitor = Monitor(parallel, F.cross_entropy, every=1, measure=["curvature"], budget=None, on_error="raise")
    F.cross_entropy(parallel(x), y).backward()
    looked = monitor.step(x, y, opt).results["curvature"]
    found = measure(parallel, F.cross_entropy, (x, y), hessian=True)
    torch.save([looked.lambda_max, found.lambda_max, found.hessian_min, found.loss], f"{folder}/{rank}.pt")
    dist.barrier()
    os._exit(0)  # A usual exit may abort: a thread of gloo waits for an interpreter that is gone.


@pytest.mark.slow
def test_processes_average_their_products(tmp_path):
    """The operator of two processes is the mean over their batches, each with its own statistics."""
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first == second
    alone = measure(
        models.MLP(6, 3, width=8, norm="batch"),
        F.cross_entropy,
        list(_batches(2)),
        solver=Solver(tol=1e-5),
        over="batches",
        hessian=True,
    )
    expected = [alone.lambda_max, alone.lambda_max, alone.hessian_min, alone.loss]
    assert first == pytest.approx(expected, rel=2e-3)


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match="matrix must be one of"):
        CurvatureProbe("gnn")
