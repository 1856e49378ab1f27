"""The first guess of `measure` on networks without BatchNorm: which share of eta* and of the critical rate trains.

    python benchmarks/without_batchnorm.py          trains all networks and writes results/without-batchnorm-cpu.json

Small networks on the digits, without a normalizer or with LayerNorm, cross-entropy, batches of 128, 200 steps. Each is
measured at its initial weights and then trained at every rate of a grid with a ratio of 2. Rows that are stored are not
made again.
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.curvature import Measurement
from normscope.loss_kinds import CROSS_ENTROPY
from normscope.norms.find_norms import has_normalizer
from normscope.results.environment import environment
from normscope.stability.first_guess_rates import rate_from_measurement
from normscope.stability.optimizer_rules import ADAM, MOMENTUM, PLAIN

STEPS, BATCH, SEEDS, LAST = 200, 128, (0, 1), 20
RESULTS = Path(__file__).parent / "results" / "without-batchnorm-cpu.json"
GRIDS = {"sgd": range(-6, 3), "momentum": range(-8, 1), "adamw": range(-11, -2)}


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU, norm: type[nn.Module] | None = None) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip((64, *widths), widths, strict=False):
        layers += [nn.Linear(before, after), *([norm(after)] if norm else []), act()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def kaiming(model: nn.Module) -> nn.Module:
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


def cnn(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
    for before, after in zip((1, *widths), widths, strict=False):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * widths[-1], 10))


class Residual(nn.Module):
    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(nn.Sequential(nn.ReLU(), nn.Linear(width, width)) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        for block in self.blocks:
            x = x + block(x)
        out: Tensor = self.last(x)
        return out


class Transformer(nn.Module):
    """Eight rows of pixels as tokens, two blocks without normalizers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(8, width), nn.Parameter(0.02 * torch.randn(8, width))
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 2 * width, **options) for _ in range(2))
        for block in self.blocks:
            block.norm1 = block.norm2 = nn.Identity()  # type: ignore[assignment]
        self.last = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.view(-1, 8, 8)) + self.place
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.last(x.mean(1))
        return out


# Name: how the inputs are scaled, and the network.
NETWORKS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "mlp, pixels 0 to 16": ("pixels", lambda: mlp(100, 100)),
    "mlp, pixels 0 to 1": ("unit", lambda: mlp(100, 100)),
    "mlp, standardized": ("standard", lambda: mlp(100, 100)),
    "mlp, wide": ("standard", lambda: mlp(512)),
    "mlp, 6 layers": ("standard", lambda: kaiming(mlp(*6 * (64,)))),
    "mlp, 6 layers of tanh": ("standard", lambda: mlp(*6 * (64,), act=nn.Tanh)),
    "cnn": ("unit", lambda: cnn(16, 32)),
    "cnn, 5 layers": ("standard", lambda: kaiming(cnn(*5 * (16,)))),
    "residual mlp": ("standard", lambda: Residual(64, 6)),
    "transformer without norms": ("standard", Transformer),
    "mlp, layernorm": ("standard", lambda: mlp(100, 100, norm=nn.LayerNorm)),
}


def scaled(how: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from sklearn.datasets import load_digits

    pixels, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    x, y = pixels.float()[order], labels[order]
    if how == "unit":
        x = x / 16
    elif how == "standard":
        x = (x - x[:1400].mean(0)) / x[:1400].std(0).clamp_min(1e-3)
    return x[:1400], y[:1400], x[1400:], y[1400:]


def optimizer_of(kind: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    if kind == "adamw":
        return torch.optim.AdamW(model.parameters(), lr)
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9 * (kind == "momentum"))


class Case:
    """One network with its data, its initial weights and the batches of all its trainings."""

    def __init__(self, name: str, kind: str, seed: int) -> None:
        how, build = NETWORKS[name]
        self.kind = kind
        self.x, self.y, self.x_test, self.y_test = scaled(how)
        torch.manual_seed(seed)
        self.model = build()
        self.start = {key: value.clone() for key, value in self.model.state_dict().items()}
        draw = torch.Generator().manual_seed(seed)
        self.rows = [torch.randperm(len(self.x), generator=draw)[:BATCH] for _ in range(STEPS)]

    def measured(self) -> Measurement:
        self.model.load_state_dict(self.start)
        batches = [(self.x[row], self.y[row]) for row in self.rows[:4]]
        optimizer = optimizer_of(self.kind, self.model, 0.01)
        return ns.measure(self.model, nn.CrossEntropyLoss(), batches, optimizer=optimizer)

    def rate_of_the_rule(self, measured: Measurement) -> float:
        """The share of the critical rate, also where `measure` names none because of attention."""
        descent = {"sgd": PLAIN, "momentum": MOMENTUM, "adamw": ADAM}[self.kind]
        normalized = has_normalizer(self.model)
        return rate_from_measurement(
            measured.critical_rate, measured.eta_star, CROSS_ENTROPY, descent, normalized=normalized
        )

    def trained(self, lr: float) -> dict[str, float]:
        """The last losses and the test accuracy of one training."""
        self.model.load_state_dict(self.start)
        optimizer, losses = optimizer_of(self.kind, self.model, lr), []
        for row in self.rows:
            loss = F.cross_entropy(self.model(self.x[row]), self.y[row])
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = float((self.model(self.x_test).argmax(1) == self.y_test).float().mean())
        last = sum(losses[-LAST:]) / LAST if len(losses) == STEPS else math.inf
        return {"lr": lr, "loss": last, "accuracy": accuracy, "highest": max(losses)}


def one(name: str, kind: str, seed: int) -> dict[str, Any]:
    """One row: what `measure` says of a network, its trainings at the rates of the grid, and at the rate it names."""
    case = Case(name, kind, seed)
    measured = case.measured()
    print(name, kind, seed, f"eta* {measured.eta_star:.3g} s_c {measured.critical_rate:.3g}", flush=True)
    return {
        "network": name,
        "optimizer": kind,
        "seed": seed,
        "eta_star": measured.eta_star,
        "critical_rates": measured.critical_rates,
        "trained": [case.trained(2.0**power) for power in GRIDS[kind]],
        "named": case.trained(case.rate_of_the_rule(measured)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    settings = {"steps": STEPS, "batch": BATCH, "last": LAST}
    document = {"schema": 1, "settings": settings, "environment": environment("cpu"), "rows": []}
    if given.out.exists():
        document = json.loads(given.out.read_text())
    known = {(row["network"], row["optimizer"], row["seed"]) for row in document["rows"]}
    for name, kind, seed in itertools.product(NETWORKS, GRIDS, SEEDS):
        if given.only in name and (name, kind, seed) not in known:
            document["rows"].append(one(name, kind, seed))
            given.out.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
