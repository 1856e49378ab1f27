"""What predict cannot answer, said by name with the way out; and networks that are refused before they are read."""

import torch
from torch import nn
from torch.nn.utils import parametrize

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


def check_gradients_on(name: str) -> None:
    """Inside a forward: gradients are on outside of it, so off means that the forward turned them off."""
    if not torch.is_grad_enabled():
        raise UnknownOperation(
            f"{name!r} is called where the forward has turned gradients off (torch.no_grad), so that its weights are "
            "not trained, nor what lies before it. Freeze those with requires_grad_(False) or parameters= and take "
            "the block away, or measure this network instead (ns.measure)."
        )
