"""Growth of gradients through a deep stack of (linear, BatchNorm, activation), beside the closed form; remedies.

    python examples/gradient_explosion.py --out results/gradient-explosion.json

Growth is the growth of the *squared* norm of gradients per layer, from the output backwards: the slope of its logarithm
over the layers, five at either end left out. Gradients are taken by the weights and by BatchNorm's inputs; at a fixed
point of the activations both grow alike. Three minutes on one core.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import normscope as ns
from normscope.results import plain
from normscope.results.environment import environment
from normscope.theory import explosion

_PHI = {"relu": nn.ReLU, "tanh": nn.Tanh, "linear": nn.Identity}


class Stack(nn.Module):
    """h -> phi(BatchNorm(W h)), `depth` times; with `skip`, h -> h + phi(BatchNorm(W h))."""

    def __init__(
        self, depth: int, width: int, phi: str, *, gamma: float, beta: float, eps: float, skip: bool, seed: int
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.linears, self.norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(depth):
            linear, norm = nn.utils.skip_init(nn.Linear, width, width, bias=False), ns.norms.BatchNorm1d(width, eps=eps)
            nn.init.normal_(linear.weight, std=width**-0.5, generator=generator)
            nn.init.constant_(norm.weight, gamma)
            nn.init.constant_(norm.bias, beta)
            self.linears.append(linear)
            self.norms.append(norm)
        self.phi, self.skip = _PHI[phi](), skip

    def forward(self, h: Tensor) -> tuple[Tensor, list[Tensor]]:
        preactivations = []
        for linear, norm in zip(self.linears, self.norms, strict=True):
            preactivations.append(linear(h))
            new = self.phi(norm(preactivations[-1]))
            h = h + new if self.skip else new
        return h, preactivations


class Growth(NamedTuple):
    weights: float
    activations: float


def growth(
    phi: str = "relu",
    batch_size: int = 64,
    *,
    depth: int = 50,
    width: int = 1000,
    gamma: float = 1.0,
    beta: float = 0.0,
    eps: float = 0.0,
    skip: bool = False,
    steps: int = 0,
    lr: float = 1.0,
    seed: int = 0,
) -> Growth:
    """Measured growth of the squared gradient norm per layer, after `steps` steps of SGD on one batch."""
    model = Stack(depth, width, phi, gamma=gamma, beta=beta, eps=eps, skip=skip, seed=seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    x, y = (torch.randn(batch_size, width, generator=generator) for _ in range(2))
    weights = [linear.weight for linear in model.linears]
    for step in range(steps + 1):
        # Linear in the output, so that what comes in from above is the same for every activation.
        output, preactivations = model(x)
        loss = (output * y).sum() / math.sqrt(batch_size * width)
        gradients = torch.autograd.grad(loss, weights + preactivations)
        if step < steps:
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients[:depth], strict=True):
                    weight -= lr * gradient
    return Growth(_slope(gradients[:depth]), _slope(gradients[depth:]))


def _slope(gradients: tuple[Tensor, ...]) -> float:
    logs = [math.log(gradient.double().square().sum().item()) for gradient in gradients][5:-5]
    return math.exp(-np.polynomial.Polynomial.fit(range(len(logs)), logs, 1).convert().coef[1])


REMEDIES = {
    "none": {},
    "tanh": {"phi": "tanh"},
    "tanh, gamma 0.5": {"phi": "tanh", "gamma": 0.5},
    "tanh, gamma 0.1": {"phi": "tanh", "gamma": 0.1},
    "relu, beta 1": {"beta": 1.0},
    "relu, beta 3": {"beta": 3.0},
    "relu, eps 0.1": {"eps": 0.1},
    "relu, eps 1": {"eps": 1.0},
    "tanh, eps 0.1": {"phi": "tanh", "eps": 0.1},
    "tanh, eps 1": {"phi": "tanh", "eps": 1.0},
    "skip connections": {"skip": True},
    "one SGD step, lr 1": {"steps": 1, "lr": 1.0},
    "one SGD step, lr 100": {"steps": 1, "lr": 100.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=50)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[6, 16, 64, 256, 1024])
    parser.add_argument("--widths", type=int, nargs="*", default=[250, 500, 2000])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    size = {"depth": args.depth, "width": args.width}
    rows = []
    for phi, batch_size in [(phi, b) for phi in ("relu", "tanh", "linear") for b in args.batch_sizes]:
        if phi != "relu" and batch_size == max(args.batch_sizes):
            continue
        rows.append(_row(f"{phi}, batch {batch_size}", args.seeds, phi=phi, batch_size=batch_size, **size))
    remedies = [_row(name, args.seeds, **{"batch_size": 256, **size, **r}) for name, r in REMEDIES.items()]
    widths = [_row(f"relu, width {w}", args.seeds, batch_size=256, depth=args.depth, width=w) for w in args.widths]
    written = {
        "schema": 1,
        "what": "growth of the squared norm of the weights' gradients per layer, backwards, at initialisation",
        "settings": {**size, "seeds": args.seeds, "dtype": "float32"},
        "environment": environment(),
        "rates": rows,
        "widths": widths,
        "remedies": remedies,
    }
    args.out.write_text(json.dumps(plain(written), indent=1, allow_nan=False) + "\n")


def _row(name: str, seeds: int, **settings: Any) -> dict[str, Any]:
    runs = [growth(**settings, seed=seed) for seed in range(seeds)]
    measured = [run.weights for run in runs]
    row: dict[str, Any] = {"name": name, "settings": settings, "measured": float(np.mean(measured))}
    row["standard_error"] = float(np.std(measured, ddof=1) / math.sqrt(seeds)) if seeds > 1 else None
    row["activations"] = float(np.mean([run.activations for run in runs]))
    if not settings.keys() & {"eps", "skip", "steps"}:
        keys = ("phi", "batch_size", "gamma", "beta")
        theory = explosion.explosion(**{key: settings[key] for key in keys if key in settings})
        row |= {
            "theory": theory.rate,
            "ratio": row["measured"] / theory.rate,
            "trainable_depth": theory.trainable_depth,
        }
    print({key: value for key, value in row.items() if key != "settings"}, flush=True)
    return row


if __name__ == "__main__":
    main()
