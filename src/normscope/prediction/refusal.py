"""What predict cannot answer, said by name with the way out; and networks that are refused before they are read."""

import torch
from torch import nn
from torch.nn.utils import parametrize

from normscope.prediction.field import INPUTS, Field

WAY_OUT = (
    "Measure this network instead (ns.measure), or replace the operation; an elementwise one of your own can be "
    "declared with normscope.prediction.elementwise_module."
)


class UnknownOperation(ValueError):
    """An operation without a moment map; the message names it."""


def check_model(model: nn.Module) -> None:
    """Refuses what a graph of the model's operations would not show."""
    for name, module in model.named_modules():
        said = f"{name!r} ({type(module).__name__})" if name else f"The model ({type(module).__name__})"
        if parametrize.is_parametrized(module):
            raise UnknownOperation(
                f"{said} computes its weights from other parameters (a parametrization, such as weight_norm), which "
                "has no map here: what those add to lambda differs from what weights add. Remove it with "
                "torch.nn.utils.parametrize.remove_parametrizations, or measure this network instead (ns.measure)."
            )
        if module._forward_hooks or module._forward_pre_hooks:
            raise UnknownOperation(
                f"{said} has forward hooks, which may change what it gives and are not in the graph (the older "
                "weight_norm and spectral_norm are hooks too). Remove them while predicting, or measure this network "
                "instead (ns.measure)."
            )
    for name, tensor in model.named_parameters():
        if tensor.device.type == "meta":
            raise ValueError(
                f"{name!r} is on the meta device and has no values to read variances off. Materialize the model with "
                "model.to_empty(device=...) and initialize it first."
            )


def misfit(x: Field, takes: int, what: str) -> ValueError:
    """A layer's own size against what comes to it, and whether input_shape can mend it."""
    said = f"takes {takes} {what} and gets {x.shape[0] if x.flat else x.channels}. "
    if x.roots != {INPUTS}:
        mend = (
            "How many depends on input_shape: pass the shape that the network was built for"
            if what == "features" or (x.flat and x.sites.count > 1)
            else "The layers before it give as many whatever input_shape is: make the two agree in the model"
        )
        return ValueError(said + mend)
    shape = (takes,) if x.flat else (takes, *x.shape[1:])
    last = not x.flat and x.shape[-1] == takes
    shape = (takes, *x.shape[:-1]) if last else shape
    given = f"input_shape={shape} (--input {','.join(map(str, shape))})"
    return ValueError(f"{said}Pass {given}, the shape of one sample{' with its channels first' * last}")


def check_gradients_on(name: str) -> None:
    """Inside a forward: gradients are on outside of it, so off means that the forward turned them off."""
    if not torch.is_grad_enabled():
        raise UnknownOperation(
            f"{name!r} is called where the forward has turned gradients off (torch.no_grad), so that its weights are "
            "not trained, nor what lies before it. Freeze those with requires_grad_(False) or parameters= and take "
            "the block away, or measure this network instead (ns.measure)."
        )
