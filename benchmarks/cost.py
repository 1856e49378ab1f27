"""Gradient passes of `measure`: the default call, and the same with the Hessian's ends.

A gradient pass is what one forward and one backward cost, in floating-point operations of matrix products and
convolutions; forwards of the model are counted beside it. The networks: those of `curvature.py`, VGG-11, the MLP on the
digits, and five of timm, config-initialized at 64 x 64 and trained for a few steps (timm is optional: what is not
installed is said).
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import normscope as ns

LOSS = nn.CrossEntropyLoss()
STEPS = 20
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
        found = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=found)
        return found


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
        import timm

        return timm.create_model(name, num_classes=10, **options)

    found = {
        "digits MLP": digits,
        "CNN": images(lambda: ns.models.CNN(norm="batch"), batch, 32),
        "VGG-11": images(lambda: ns.models.VGG(11, norm="batch"), batch, 32),
        "VGG-16": images(lambda: ns.models.VGG(16, norm="batch"), batch, 32),
        "PreActResNet-18": images(lambda: ns.models.PreActResNet18(norm="batch"), batch, 32),
    }
    for label, (name, options) in TIMM.items():
        found[label] = images(lambda name=name, options=options: of_timm(name, options), batch, 64)
    return found


def counted(model: nn.Module, run: Callable[[], Any]) -> tuple[float, int, float, Any]:
    """Operations, forwards, seconds of a run of its own, and the result."""
    started = time.perf_counter()
    run()
    spent = time.perf_counter() - started
    calls: list[None] = []
    handle = model.register_forward_pre_hook(lambda *_: calls.append(None))
    with Operations() as operations:
        result = run()
    handle.remove()
    return operations.total, len(calls), spent, result


def costs(batch: int, keep: Callable[[str, dict[str, Any]], None], *, hessian: bool = True) -> None:
    """A row for each network, at initialization and after training steps, handed to `keep` as soon as it is there."""
    for name, make in networks(batch).items():
        try:
            model, batches = make()
        except ImportError as error:
            keep(name, {"not_run": f"not installed ({error.name})"})
            continue
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for steps in (0, STEPS):
            for i in range(steps):
                optimizer.zero_grad()
                _gradient(model, batches[i % 2])
                optimizer.step()
            keep(f"{name}, {f'after {steps} steps' if steps else 'initialization'}", _row(model, batches, hessian))


def _gradient(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    LOSS(model(batch[0]), batch[1]).backward()


def _row(model: nn.Module, batches: list[tuple[Tensor, Tensor]], hessian: bool) -> dict[str, Any]:
    unit, _, seconds, _ = counted(model, lambda: _gradient(model, batches[0]))
    row: dict[str, Any] = {"gradient_ms": 1e3 * seconds}
    calls = {
        "default": lambda: ns.measure(model, LOSS, batches[0]),
        "two batches": lambda: ns.measure(model, LOSS, batches),
        "hessian=True": lambda: ns.measure(model, LOSS, batches[0], hessian=True),
    }
    for name, call in calls.items():
        if name == "hessian=True" and not hessian:
            continue
        operations, forwards, spent, found = counted(model, call)
        row[name] = {
            "passes": operations / unit,
            "forwards": forwards,
            "by_the_clock": spent / seconds,
            "products": found.products,
            "lambda_max": found.lambda_max,
            "residual": found.residual,
            "converged": found.converged,
            "critical": found.critical,
            "start_rate": found.start_rate,
        }
    row["each further batch"] = row["two batches"]["passes"] - row["default"]["passes"]
    return row
