"""Gradient passes of `measure`: the default call, and the same with the Hessian's ends.

A gradient pass is what one forward and one backward cost, in floating-point operations of matrix products and
convolutions; forwards of the model are counted beside it. The networks: those of `curvature.py`, VGG-11, the MLP on the
digits, and five of timm, config-initialized at 64 x 64 and trained for a few steps (timm is optional: a missing
installation is reported).
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
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


def costs(batch: int, keep: Callable[[str, dict[str, Any]], None]) -> None:
    """Rows for each network, at initialization and after training steps, handed to `keep` as soon as they are there.

    First all of the default call, then those with the Hessian's ends, which take ten times as long.
    """
    for row in (_default, _with_hessian):
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
                keep(f"{name}, {f'after {steps} steps' if steps else 'initialization'}", row(model, batches))


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
