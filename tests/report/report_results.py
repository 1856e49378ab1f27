"""Small real results of every kind that a report reads."""

import json

import torch
from torch import nn

import normscope as ns
from normscope.demo import run_demo
from normscope.environment import environment
from normscope.monitor import JSONL
from normscope.report.demo_folder import write_demo
from normscope.sweeping import Plan, sweep

ALERT = "<script>alert(1)</script>"


def snapshots(path, *, steps=6, first=0):
    """A Monitor's file with `steps` snapshots, continued where it exists."""
    torch.manual_seed(first)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"every": 1, "measure": "full", "budget": None, "on_error": "raise", "first_step": first}
    with ns.Monitor(model, loss_fn, sinks=[JSONL(path)], **options) as monitor:
        for _ in range(steps):
            x, y = torch.randn(8, 4), torch.randint(3, (8,))
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            monitor.step(x, y, optimizer)
            optimizer.step()
    return monitor


def demo(folder):
    return write_demo(run_demo(seed=0, steps=12), folder)


def swept(folder):
    """A journal of a few cells, some of which explode."""
    plan = Plan.from_dict(
        {
            "model": "MLP", "data": "digits", "loss": "half_mse", "epochs": 1, "batch_size": 512,
            "learning_rates": [0.01, 0.1, 1e4], "values": [0.5, 1.0], "seeds": [0], "compile": "never",
            "arguments": {"d_in": 64, "width": 8, "depth": 2, "norm": "batch"}, "data_options": {"seed": 0},
        }
    )  # fmt: skip
    return sweep(plan, folder, quiet=True)


def saved(folder):
    """A prediction, a measurement, a spectrum and a comparison of solvers, as their files."""
    model = ns.models.MLP(6, 3, width=8, depth=3, norm="batch", seed=0)
    torch.manual_seed(0)
    batch = torch.randn(16, 6), torch.randn(16, 3)
    ns.predict(model, (6,), loss="half_mse", batch_size=16).save(folder / "prediction.json")
    found = ns.measure(model, ns.losses.half_mse, batch, layers=True, compare=("batch", "frozen"))
    found.save(folder / "measurement.json")
    ns.curvature.spectrum(model, ns.losses.half_mse, batch, starts=2, steps=8).save(folder / "spectrum.json")
    gap = [1.0, 0.1, 1e-7]
    run = {"iterations": 2, "to_target": 2, "seconds": 0.1, "reason": "gradient", "gap": gap}
    promise = {"of": "f(w)", "measured": gap, "bound": [1.0, 0.5, 0.25]}
    solve = {"title": "y", "best": 0.5, "target": 1e-6, "notes": [], "promise": promise, "methods": {"gdnp": run}}
    solve |= {"kind": "comparison", "schema": 1, "environment": environment(), "command": "normscope solve y.csv"}
    (folder / "solve.json").write_text(json.dumps(solve))
    return [folder / f"{name}.json" for name in ("prediction", "measurement", "spectrum", "solve")]


def more(folder):
    """The theorems on a layer, a training, a tuning and the mean mode, as their files."""
    model = ns.models.MLP(6, 3, width=8, depth=3, norm="batch", seed=0)
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
    linear, norm = nn.Linear(6, 4), nn.BatchNorm1d(4)
    ns.bounds.check(linear, norm, x, lambda z: z.relu().square().sum()).save(folder / "bounds.json")
    ns.curvature.mean_mode(model, (x, x[:, :3])).save(folder / "mean_mode.json")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches, evaluate = [(x, x[:, :3])] * 12, lambda model: {"test": float(model(x).square().mean())}
    run = ns.train(model, ns.losses.half_mse, batches, optimizer, evaluate=evaluate, every=4)
    run.save(folder / "training.json")
    ns.tune(model, ns.losses.half_mse, [(x, x[:, :3])], optimizer, steps=200).save(folder / "tuning.json")
    ns.diagnose(model, ns.losses.half_mse, batches, optimizer).save(folder / "diagnosis.json")
    return [folder / f"{name}.json" for name in ("bounds", "mean_mode", "training", "tuning", "diagnosis")]
