"""The opening of a session: lend the model, cast its tensors and the batches, choose the parameters."""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map_only

from normscope.curvature.session.options import Options
from normscope.curvature.session.session import Session, requiring_grad
from normscope.isolation.coming_update import check_optimizer, rates_by_id
from normscope.isolation.lending import Lent, untouched
from normscope.isolation.memory_bound import bytes_of


def parameters_of(lent: Lent, wanted: Callable[[str, nn.Parameter], bool] | None = None) -> list[int]:
    """Numbers of the lent parameters that `wanted` chooses; None chooses all."""
    named = zip(lent.names, lent.originals, strict=True)
    chosen = [i for i, (name, p) in enumerate(named) if wanted is None or wanted(name, p)]
    if not chosen:
        reason = "parameters= chose none of them" if lent.names else "none of the model's requires a gradient"
        raise ValueError(f"There is no parameter to take curvature with respect to: {reason}.")
    return chosen


@contextmanager
def open_session(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    batches: Sequence[tuple[Any, Any]],
    *,
    only: Container[int] | None = None,
    dtype: torch.dtype | None = None,
    choose: Callable[[Lent], Sequence[int]] = parameters_of,
    beside: int = 0,
    options: Options | None = None,
) -> Iterator[Session]:
    """A session of `model` on these batches; at the end the model is as it was.

    Args:
        only: ids of the parameters to lend, all trainable ones by default.
        dtype: of the products; by default the model's own, float32 where that is narrower. Tensors of the model and the
            batches are cast to it.
        choose: gives the numbers of the parameters to take curvature with respect to.
        beside: bytes of copies that are lent already.
        options: settings that the session keeps; those of another session for one like it in another dtype.
    """
    check_parameters(model)
    options = options or Options()
    lent_dtype = working_dtype(model, dtype)
    # A cast batch is a copy, and every network works on another one.
    beside += bytes_of(batches, lent_dtype) * (1 if lent_dtype is None else 2)
    with untouched(model, only=only, dtype=lent_dtype, max_memory=options.max_memory, beside=beside) as lent:
        if lent_dtype is not None:
            batches = cast(batches, lent_dtype)
        chosen = choose(lent)
        with requiring_grad(lent, chosen):
            yield Session(lent, model, loss_fn, batches, chosen, lent_dtype, options)


def working_dtype(model: nn.Module, asked: torch.dtype | None) -> torch.dtype | None:
    """The dtype to lend the model's tensors in, None where they are of the right one: float32 at least.

    Example:
        >>> working_dtype(nn.Linear(1, 1), None), working_dtype(nn.Linear(1, 1).bfloat16(), None)
        (None, torch.float32)
    """
    if asked not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype is torch.float32 or torch.float64, for products of enough digits; got {asked}.")
    present = {p.dtype for p in model.parameters() if p.is_floating_point()}
    wanted = asked
    if wanted is None and any(dtype.itemsize < 4 for dtype in present):
        wanted = torch.float64 if torch.float64 in present else torch.float32
    return None if wanted is None or present == {wanted} else wanted


def cast(batches: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    """The batches with floating-point tensors of this dtype."""
    return [tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, b) for b in batches]


def held_by(optimizer: torch.optim.Optimizer, lent: Lent, chosen: list[int]) -> tuple[list[int], list[str]]:
    """The chosen parameters that the optimizer holds, and a note on the others."""
    rates = rates_by_id(optimizer)
    numbers = [i for i in chosen if id(lent.originals[i]) in rates]
    if not numbers:
        check_optimizer(rates, lent.originals)
        raise ValueError("The optimizer holds none of the parameters that parameters= chose. Choose some of its own.")
    if len(numbers) == len(chosen):
        return numbers, []
    others = [lent.names[i] for i in chosen if i not in numbers]
    return numbers, [
        f"The curvature is with respect to the optimizer's parameters alone; it does not hold {listed(others)}."
    ]


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
                f"Derivatives are taken with respect to real parameters; {name} is {parameter.dtype}. "
                "Hold it as a real tensor with torch.view_as_real, or freeze it."
            )
        if parameter.requires_grad and is_traceable_wrapper_subclass(parameter):
            raise ValueError(
                f"Derivatives are taken with respect to plain tensors; {name} is a {type(parameter).__name__}, "
                "which holds its values in another form (quantized or spread over processes). Freeze it, as adapters "
                "on a quantized network have it, or hold it as a plain tensor."
            )
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse and module.weight.requires_grad:
            raise ValueError(f"Products need dense gradients; {name} gives sparse ones. Build it with sparse=False.")


def listed(names: Sequence[str]) -> str:
    """The first four names, and the number of the others."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
