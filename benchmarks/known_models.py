"""predict, measure and the Monitor on models people know: a ResNet-50 and a ViT-B/16 at their real shapes.

    PYTHONPATH=src:tests/prediction python benchmarks/known_models.py --device cuda \
        --out benchmarks/results/known-models-h200.json

Both are written by hand and start from torch's own initial weights; images are noise, labels are drawn. For each:

- step: seconds and peak memory of a training step (forward, backward, update) in full float32.
- predict: seconds of the first call on a CPU, and eta*; or the reason of a refusal.
- measure: seconds, products, peak memory over a training step's, lambda_max and eta* at the start, for momentum 0.9,
  and after the watched steps, for the optimizer in force, with the verdict on its learning rate.
- Monitor at budget=0.05 over `--seconds` of training: snapshots, share of the time, seconds and memory of a snapshot.

`--tiny` runs small models on a CPU. `--predict` repeats only the predictions. `performance_page.py` shows the results.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from networks import ResNet50
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns
from normscope.prediction import UnknownOperation
from normscope.results import plain
from normscope.results.environment import environment

SCHEMA = 1


class _Encoder(nn.Module):
    """LayerNorm before attention and before the two linear maps, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


class ViT(nn.Module):
    """B/16: patches of 16, width 768, 12 layers of 12 heads, a class token, 86.6 million parameters."""

    def __init__(
        self, image: int = 224, *, patch: int = 16, width: int = 768, depth: int = 12, heads: int = 12
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(*[_Encoder(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        y: Tensor = self.head(self.norm(self.layers(x))[:, 0])
        return y


def cases(tiny: bool) -> dict[str, tuple[Callable[[], nn.Module], int, int, Callable[[Any], torch.optim.Optimizer]]]:
    """name -> (model, side of an image, batch, optimizer)."""
    side, batch = (32, 4) if tiny else (224, 64)
    small: dict[str, Any] = {"width": 48, "depth": 2, "heads": 3} if tiny else {}
    return {
        "ResNet-50": (ResNet50, side, batch, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        "ViT-B/16": (lambda: ViT(side, **small), side, batch, lambda p: torch.optim.AdamW(p, lr=1e-3)),
    }


class Case:
    def __init__(self, name: str, device: str, tiny: bool) -> None:
        make, self.side, n, optimizer = cases(tiny)[name]
        torch.manual_seed(0)
        self.device, self.model = device, make().to(device)
        self.x, self.y = (
            torch.randn(n, 3, self.side, self.side, device=device),
            torch.randint(1000, (n,), device=device),
        )
        self.optimizer = optimizer(self.model.parameters())

    def gradient(self) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.x), self.y).backward()

    def step(self) -> None:
        self.gradient()
        self.optimizer.step()

    def timed(self, call: Callable[[], Any]) -> tuple[Any, float, float]:
        """The result of `call`, its seconds, and the peak of the device's memory in GiB (nan on a CPU)."""
        if self.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        result = call()
        if self.device == "cuda":
            torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.device == "cuda" else float("nan")
        return result, time.perf_counter() - started, peak


def predicted(name: str, tiny: bool) -> dict[str, Any]:
    make, side, n, _ = cases(tiny)[name]
    torch.manual_seed(0)
    model = make()
    started = time.perf_counter()
    try:
        prediction = ns.predict(model, (3, side, side), loss="cross_entropy", batch_size=n, momentum=0.9)
    except UnknownOperation as refused:
        made = {"seconds": time.perf_counter() - started, "environment": environment("cpu")}
        return {**made, "refused": str(refused)}
    made = {"seconds": time.perf_counter() - started, "environment": environment("cpu")}
    kept = {"lambda_max": prediction.lambda_max, "eta_star": prediction.eta_star, "warnings": prediction.warnings}
    return {**made, **kept, "verdict": prediction.verdict(0.1).text}


def measured(case: Case, step_gib: float, **options: Any) -> dict[str, Any]:
    """At most 60 products; a number that has not settled by then says so."""
    measurement, seconds, peak = case.timed(
        lambda: ns.measure(
            case.model,
            F.cross_entropy,
            (case.x, case.y),
            hessian=False,
            solver=ns.curvature.Solver(tol=1e-2, max_products=60),
            **options,
        )
    )
    lr = case.optimizer.param_groups[0]["lr"]
    return {
        "seconds": seconds,
        "products": measurement.products,
        "memory": peak / step_gib,
        "lambda_max": measurement.lambda_max,
        "eta_star": measurement.eta_star,
        "residual": measurement.residual,
        "converged": measurement.converged,
        "optimizer": measurement.optimizer,
        "verdict": measurement.verdict(lr).text,
    }


def watched(case: Case, seconds: float, step_gib: float) -> dict[str, Any]:
    """Trained with a Monitor for so long. What is not looking is the loop's own."""
    monitor = ns.Monitor(case.model, F.cross_entropy, every=1, budget=0.05)
    looks: list[float] = []
    peak, steps, started = 0.0, 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        case.gradient()
        looked, spent, memory = case.timed(lambda: monitor.step(case.x, case.y, case.optimizer))
        if looked is not None:
            looks.append(spent)
            peak = max(peak, memory)
        case.optimizer.step()
        steps += 1
    monitor.close()
    return {
        "steps": steps,
        "looks": len(looks),
        "share": sum(looks) / (time.perf_counter() - started),
        "seconds_a_look": statistics.median(looks),
        "memory": peak / step_gib,
        "verdicts": [verdict.text for verdict in monitor.verdicts],
        "notes": list(monitor.notes),
    }


def known(name: str, device: str, tiny: bool, seconds: float) -> dict[str, Any]:
    case = Case(name, device, tiny)
    for _ in range(3):
        case.gradient()
    steps = [case.timed(case.gradient)[1:] for _ in range(5)]
    gib = max(memory for _, memory in steps)
    row: dict[str, Any] = {
        "parameters": sum(p.numel() for p in case.model.parameters()),
        "image": case.side,
        "batch": len(case.x),
        "step": {"seconds": statistics.median(spent for spent, _ in steps), "gib": gib},
        "predict": predicted(name, tiny),
        "measure": measured(case, gib, momentum=0.9),
    }
    row["monitor"] = watched(case, seconds, gib)
    row["measure, trained"] = measured(case, gib, optimizer=case.optimizer)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="small images and few layers, for a CPU")
    parser.add_argument("--seconds", type=float, default=25.0, help="of training with the Monitor, each")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--predict", action="store_true", help="make only the predictions of --out anew")
    args = parser.parse_args()
    if args.predict:
        stored = json.loads(args.out.read_text())
        for name, row in stored["models"].items():
            row["predict"] = predicted(name, args.tiny)
        args.out.write_text(json.dumps(plain(stored), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        return

    # An eigenvector to 1e-2 is more than TensorFloat-32 products carry; the step is timed as it is measured.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    models = {}
    for name in cases(args.tiny):
        models[name] = known(name, args.device, args.tiny, args.seconds)
        print(name, json.dumps(plain(models[name]), indent=1), file=sys.stderr)
    result = {"schema": SCHEMA, "environment": environment(args.device), "load": os.getloadavg()[0], "models": models}
    text = json.dumps(plain(result), indent=1, allow_nan=False) + "\n"
    if args.out is None:
        print(text, end="")
        return
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
