"""Gradient passes of `measure`: the default call, and the same with the Hessian's ends.

A gradient pass is what one forward and one backward cost, in floating-point operations of matrix products and
convolutions; forwards of the model are counted beside it. The networks: those of `curvature.py`, VGG-11, the MLP on the
digits, and five of timm, config-initialized at 64 x 64 and trained for a few steps (timm is optional: a missing
installation is reported).
"""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import normscope as ns

LOSS = nn.CrossEntropyLoss()
STEPS = 20
LARGE = ("VGG-16", "PreActResNet-18", "VGG-11")
TIMM = {
    "timm resnet10t": ("resnet10t", {}),
    "timm convnext_atto": ("convnext_atto", {}),
    "timm vit_tiny, 4 blocks": ("vit_tiny_patch16_224", {"img_size": 64, "depth": 4}),
    "timm mixer_s32": ("mixer_s32_224", {"img_size": 64}),
    "timm efficientnet_lite0": ("efficientnet_lite0", {}),
}


class Operations(TorchDispatchMode):
    """Counts floating-point operations as torch's own counter does, which does not work inside of backward hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=output)
        return output


def networks(batch: int) -> dict[str, Callable[[], tuple[nn.Module, list[tuple[Tensor, Tensor]]]]]:
    def images(make: Callable[[], nn.Module], n: int, side: int) -> Callable[[], Any]:
        def built() -> Any:
            torch.manual_seed(0)
            model = make()
            generator = torch.Generator().manual_seed(0)
            x = [torch.randn(n, 3, side, side, generator=generator) for _ in range(2)]
            return model, [(part, torch.randint(10, (n,), generator=generator)) for part in x]

        return built

    def digits() -> Any:
        data = ns.data.digits(seed=0)
        x, y = data.x_train.flatten(1), data.y_train
        return ns.models.MLP(64, 10, width=100, norm="batch"), list(zip(x.split(128), y.split(128), strict=True))[:2]

    def of_timm(name: str, options: dict[str, Any]) -> nn.Module:
        sys.path.append(str(Path(__file__).parent / "zoo"))
        import stand_in

        stand_in.install()
        import timm

        return timm.create_model(name, num_classes=10, **options)

    cases = {
        "digits MLP": digits,
        "CNN": images(lambda: ns.models.CNN(norm="batch"), batch, 32),
        "VGG-11": images(lambda: ns.models.VGG(11, norm="batch"), batch, 32),
        "VGG-16": images(lambda: ns.models.VGG(16, norm="batch"), batch, 32),
        "PreActResNet-18": images(lambda: ns.models.PreActResNet18(norm="batch"), batch, 32),
    }
    for label, (name, options) in TIMM.items():
        cases[label] = images(lambda name=name, options=options: of_timm(name, options), batch, 64)
    return cases


def counted(model: nn.Module, run: Callable[[], Any]) -> tuple[float, int, Any]:
    """Operations, forwards, and the result."""
    calls: list[None] = []
    handle = model.register_forward_pre_hook(lambda *_: calls.append(None))
    with Operations() as operations:
        result = run()
    handle.remove()
    return operations.total, len(calls), result


def seconds(run: Callable[[], Any], rounds: int) -> float:
    """The least of some rounds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def costs(batch: int, keep: Callable[[str, dict[str, Any]], None], jobs: int) -> None:
    """Rows for each network, at initialization and after training steps, handed to `keep` as soon as they are there.

    Each row is made in a process of its own, pinned to one core. First all of the default call, at most a quarter of
    the cores at a time, since they share the memory and these rows are timed; then those with the Hessian's ends, which
    take ten times as long.
    """
    cores = sorted(os.sched_getaffinity(0))
    # Large networks first, so that none is left over at the end.
    asked = sorted(itertools.product(networks(batch), (STEPS, 0)), key=lambda task: task[0] not in LARGE)
    for row, most in (("default", max(1, len(cores) // 4)), ("hessian", len(cores))):
        free: SimpleQueue[int] = SimpleQueue()
        for core in cores[: min(jobs, most)]:
            free.put(core)

        def made(task: tuple[str, int], row: str = row, free: SimpleQueue[int] = free) -> dict[str, Any]:
            core = free.get()
            command = [sys.executable, __file__, *map(str, (task[0], task[1], batch, row, core))]
            try:
                ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
            finally:
                free.put(core)
            if ran.returncode:
                return {"not_run": (ran.stderr.splitlines() or [f"status {ran.returncode}"])[-1][:300]}
            found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
            return found

        with ThreadPoolExecutor(min(jobs, most)) as pool:
            started = {pool.submit(made, task): task for task in asked}
            for done in as_completed(started):
                name, steps = started[done]
                keep(f"{name}, {f'after {steps} steps' if steps else 'initialization'}", done.result())


def one(name: str, steps: int, batch: int, row: str, core: int) -> dict[str, Any]:
    """The row of one network after so many training steps, on one core."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    try:
        model, batches = networks(batch)[name]()
    except ImportError as error:
        return {"not_run": f"not installed ({error.name})"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for i in range(steps):
        optimizer.zero_grad()
        _gradient(model, batches[i % 2])
        optimizer.step()
    return (_default if row == "default" else _with_hessian)(model, batches)


def _gradient(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    LOSS(model(batch[0]), batch[1]).backward()


def _default(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    unit, _, _ = counted(model, lambda: _gradient(model, batches[0]))
    alone = seconds(lambda: _gradient(model, batches[0]), 3)
    first = _counts(model, unit, lambda: ns.measure(model, LOSS, batches[0]))
    both = _counts(model, unit, lambda: ns.measure(model, LOSS, batches))
    spent = seconds(lambda: ns.measure(model, LOSS, batches[0]), 1)
    return {
        "gradient_ms": 1e3 * alone,
        "default": first | {"by_the_clock": spent / alone},
        "each_further_batch": both["passes"] - first["passes"],
    }


def _with_hessian(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    unit, _, _ = counted(model, lambda: _gradient(model, batches[0]))
    return {"hessian=True": _counts(model, unit, lambda: ns.measure(model, LOSS, batches[0], hessian=True))}


def _counts(model: nn.Module, unit: float, call: Callable[[], Any]) -> dict[str, Any]:
    operations, forwards, measurement = counted(model, call)
    names = ("products", "lambda_max", "residual", "converged", "critical_rate", "first_guess")
    return {"passes": operations / unit, "forwards": forwards} | {name: getattr(measurement, name) for name in names}


if __name__ == "__main__":
    _name, _steps, _batch, _row, _core = sys.argv[1:]
    print(json.dumps(one(_name, int(_steps), int(_batch), _row, int(_core))))
