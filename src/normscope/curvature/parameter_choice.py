"""The parameters to take curvature by: the choice among the lent ones, and the layers that own them."""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from normscope.isolation.coming_update import check_optimizer, held
from normscope.isolation.lending import Lent


def every_parameter(lent: Lent) -> list[int]:
    """Numbers of all lent parameters."""
    return parameters_of(lent, None)


def parameters_of(lent: Lent, wanted: Callable[[str, nn.Parameter], bool] | None) -> list[int]:
    """Numbers of the lent parameters that `wanted` chooses; None chooses all."""
    named = zip(lent.names, lent.originals, strict=True)
    chosen = [i for i, (name, p) in enumerate(named) if wanted is None or wanted(name, p)]
    if not chosen:
        left = "parameters= chose none of them" if lent.names else "none of the model's requires a gradient"
        raise ValueError(f"There is no parameter to take curvature by: {left}.")
    return chosen


def held_by(optimizer: torch.optim.Optimizer, lent: Lent, chosen: list[int]) -> tuple[list[int], list[str]]:
    """Those of the chosen parameters that the optimizer holds, and a note on the others."""
    rates = held(optimizer)
    numbers = [i for i in chosen if id(lent.originals[i]) in rates]
    if not numbers:
        check_optimizer(rates, lent.originals)
        raise ValueError("The optimizer holds none of the parameters that parameters= chose. Choose some of its own.")
    if len(numbers) == len(chosen):
        return numbers, []
    others = [lent.names[i] for i in chosen if i not in numbers]
    return numbers, [f"Curvature by the optimizer's parameters alone; it does not hold {listed(others)}."]


def blocks(lent: Lent, model: nn.Module, chosen: Sequence[int]) -> dict[str, list[int]]:
    """For each module that owns chosen parameters, their numbers; the model's own under its class in brackets."""
    index = {id(lent.leaves[i]): i for i in chosen}
    owned = {
        name: [index[id(p)] for p in module.parameters(recurse=False) if id(p) in index]
        for name, module in model.named_modules()
    }
    return {name or f"({type(model).__name__})": block for name, block in owned.items() if block}


def check_parameters(model: nn.Module) -> None:
    """Refuse parameters without products: complex, quantized or spread ones, and those with sparse gradients."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_complex():
            raise ValueError(
                f"Curvature is by real parameters; {name} is {parameter.dtype}. Hold it as a real tensor with "
                "torch.view_as_real, or freeze it."
            )
        if parameter.requires_grad and is_traceable_wrapper_subclass(parameter):
            raise ValueError(
                f"Curvature is by plain tensors; {name} is a {type(parameter).__name__}, which holds its values in "
                "another form (quantized or spread over processes). Freeze it, as adapters on a quantized network have "
                "it, or hold it as a plain tensor."
            )
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse and module.weight.requires_grad:
            raise ValueError(f"Products need dense gradients; {name} gives sparse ones. Build it with sparse=False.")


def listed(names: Sequence[str]) -> str:
    """The first four names, and the number of the others."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
