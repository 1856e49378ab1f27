"""Numbers of the main journeys, for changes that must not move any: measure, predict, a monitored run, a sweep.

    python benchmarks/journeys.py --store before.json          on the code before the change
    python benchmarks/journeys.py --against before.json        on the code after it, on the same machine

Floats are stored as hexadecimal text, and compared bit for bit. Another processor rounds otherwise.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import normscope as ns

LOSS = nn.CrossEntropyLoss()


def measurements() -> Iterator[tuple[str, Any]]:
    for name, model, shape in (
        ("MLP", ns.models.MLP(64, 10, width=50, norm="batch"), (64,)),
        ("CNN", ns.models.CNN(norm="batch"), (3, 32, 32)),
        ("VGG-11", ns.models.VGG(11, norm="group"), (3, 32, 32)),
    ):
        torch.manual_seed(1)
        x, y = torch.randn(16, *shape), torch.randint(10, (16,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        yield f"measure {name}", ns.measure(model, LOSS, (x, y), optimizer=optimizer, hessian=name != "VGG-11")


def predictions() -> Iterator[tuple[str, Any]]:
    torch.manual_seed(2)
    models = ns.models
    pooled = (nn.Conv2d(3, 30, 3), nn.ReLU(), nn.AvgPool2d(6), nn.Flatten(1), nn.Linear(30, 4))
    for name, model, shape in (
        ("MLP batch", models.MLP(64, 10, width=50, norm="batch"), (64,)),
        ("MLP layer", models.MLP(64, 10, width=50, norm="layer"), (64,)),
        ("MLP none", models.MLP(64, 10, width=50, norm="none"), (64,)),
        ("CNN batch", models.CNN(norm="batch"), (3, 32, 32)),
        ("CNN group", models.CNN(norm="group"), (3, 32, 32)),
        ("VGG-11", models.VGG(11, norm="batch"), (3, 32, 32)),
        ("VGG-16", models.VGG(16, norm="batch"), (3, 32, 32)),
        ("PreActResNet18", models.PreActResNet18(norm="batch"), (3, 32, 32)),
        ("tanh", nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 5)), (20,)),
        ("pooled", nn.Sequential(*pooled), (3, 8, 8)),
    ):
        yield f"predict {name}", ns.predict(model, shape, batch_size=32)


def monitored() -> Iterator[tuple[str, Any]]:
    data = ns.data.digits(seed=0)
    model = ns.models.MLP(64, 10, width=30, norm="batch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = ns.Monitor(model, LOSS, every=2, measure="full", budget=None)
    x, y = data.x_train.flatten(1), data.y_train
    for i in range(6):
        loss = LOSS(model(x[64 * i : 64 * i + 64]), y[64 * i : 64 * i + 64])
        optimizer.zero_grad()
        loss.backward()
        monitor.step(x[64 * i : 64 * i + 64], y[64 * i : 64 * i + 64], optimizer)
        optimizer.step()
    table = monitor.frame()
    timing = [name for name in table.columns if "second" in name or "time" in name]
    yield "monitor", table.drop(columns=timing).select_dtypes("number").to_numpy().tolist()
    yield "monitor, weights after", torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def swept() -> Iterator[tuple[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        plan = {
            "model": "MLP",
            "arguments": {"d_in": 64, "width": 20, "depth": 3, "norm": "batch"},
            "data": "digits",
            "data_options": {"seed": 0},
            "learning_rates": [0.1, 1.0, 10.0, 100.0],
            "values": [0.5, 2.0],
            "seeds": [0, 1],
            "epochs": 1,
            "compile": "never",
        }
        diagram = ns.sweep(plan, folder, device="cpu", quiet=True)
        table = diagram.frame()
        timing = [name for name in table.columns if "second" in name or "time" in name]
        yield "sweep", table.drop(columns=timing).select_dtypes("number").to_numpy().tolist()


def numbers(value: Any) -> Iterator[str]:
    """All floats inside, in order."""
    if isinstance(value, float):
        yield value.hex()
    elif isinstance(value, dict):
        for part in value.values():
            yield from numbers(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from numbers(part)
    elif hasattr(value, "plain"):
        yield from sorted(numbers(value.plain()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {
        name: list(numbers(value))
        for journey in (measurements, predictions, monitored, swept)
        for name, value in journey()
    }
    for name, values in found.items():
        print(f"{name}: {len(values)} numbers", file=sys.stderr)
    if options.store:
        options.store.write_text(json.dumps(found))
    if options.against:
        before = json.loads(options.against.read_text())
        moved = [name for name in before if sorted(before[name]) != sorted(found.get(name, []))]
        print(f"{sum(map(len, before.values()))} numbers before; journeys that moved: {moved or 'none'}")
        sys.exit(bool(moved))


if __name__ == "__main__":
    main()
