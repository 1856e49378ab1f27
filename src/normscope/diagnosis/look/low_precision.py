"""Errors of normalizers in low precision, beside the same layers in float32."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.passes import still_pass
from normscope.norms.recognition import could_be_one

LOW = (torch.float16, torch.bfloat16)


def low_precision_errors(look: Look) -> dict[str, float]:
    """By name of a normalizer with inputs in half precision: the relative error of its output over the dtype's eps."""
    setup = look.setup.copied()
    known = {norm.name for norm in look.normalizers if norm.over_batch and isinstance(norm.layer, _BatchNorm)}
    candidates = [norm.name for norm in look.normalizers if norm.name not in known]
    candidates += [
        name
        for name, module in setup.model.named_modules()
        if name not in candidates and name not in known and (could_be_one(module) or name in look.unrecognized)
    ]
    errors: dict[str, float] = {}
    hooks = []

    def hook(name: str) -> Any:
        def compare(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            x = args[0] if args else None
            if name in errors or not isinstance(x, Tensor) or not isinstance(output, Tensor) or x.dtype not in LOW:
                return
            errors[name] = _error(module, x, output)

        return compare

    for name in candidates:
        hooks.append(setup.model.get_submodule(name).register_forward_hook(hook(name)))
    try:
        if any(look.start.trace.dtypes.get(name, torch.bfloat16) in LOW for name in candidates):
            still_pass(setup, look.batches[0])
            look.passes += 1 / 3
    finally:
        for each in hooks:
            each.remove()
    return errors


@torch.no_grad()
def _error(module: nn.Module, x: Tensor, output: Tensor) -> float:
    twin = copy.deepcopy(module)
    twin._forward_hooks.clear()
    with torch.autocast(x.device.type, enabled=False):
        exact = twin.float()(x.detach().float())
    size = float(exact.square().mean().sqrt())
    error = float((output.detach().float() - exact).square().mean().sqrt())
    return error / size / torch.finfo(x.dtype).eps if size > 0 else 0.0
