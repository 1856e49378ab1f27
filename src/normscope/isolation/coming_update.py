"""The coming update: the step that the optimizer is about to make, computed on copies."""

import copy
import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

from normscope.isolation.lending import Lent
from normscope.isolation.outside_tensors import shapes_of

_WRAPPERS = ("lightning.", "pytorch_lightning.", "accelerate.")


def plain_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The torch optimizer inside the wrappers of Lightning and Accelerate, or inside another object's `.optimizer`.

    An optimizer that holds another one, such as Lookahead, is returned as it is: it makes a step of its own.

    Raises:
        TypeError: there is no torch optimizer.
    """
    while not isinstance(optimizer, torch.optim.Optimizer) or type(optimizer).__module__.startswith(_WRAPPERS):
        inner = getattr(optimizer, "optimizer", None)
        if inner is None:
            raise TypeError(f"optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}.")
        optimizer = inner
    return optimizer


def rates_by_id(optimizer: torch.optim.Optimizer) -> dict[int, float]:
    """The learning rate of every parameter of the optimizer, by the parameter's id.

    Raises:
        ValueError: a group of the optimizer has no learning rate.
    """
    for group in optimizer.param_groups:
        if group.get("lr") is None:
            raise ValueError(
                f"{type(optimizer).__name__} has no learning rate in its param_groups, so the length of its steps is "
                "unknown. Leave the optimizer out, hand in lr= and ask for update='gradient'."
            )
    return {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}


def check_optimizer(rates: dict[int, float] | None, parameters: Iterable[nn.Parameter]) -> None:
    """Raise if the optimizer holds none of the model's parameters."""
    if rates is not None and rates.keys().isdisjoint(map(id, parameters)):
        raise ValueError(
            "None of the model's parameters is in the optimizer: it was made for another model, or before the "
            "parameters were replaced. Hand in the optimizer that trains this model."
        )


def others_in(optimizer: torch.optim.Optimizer, lent: Lent) -> list[Tensor]:
    """Tensors of the optimizer that are no parameters of the lent model."""
    own = {id(parameter) for _, parameter, _ in lent.contents.parameters} | set(map(id, lent.originals))
    return [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]


def note_on_others(optimizer: torch.optim.Optimizer, lent: Lent) -> list[str]:
    """A note on tensors that the optimizer trains but that are not in the model."""
    others = others_in(optimizer, lent)
    if not others:
        return []
    return [f"The optimizer also trains {shapes_of(others)}, which are not in the model: they are held constant here."]


def refuse_trained_outside(optimizer: torch.optim.Optimizer | None, lent: Lent) -> None:
    """Refuse a loss that depends on a tensor that the optimizer trains but that is not in the model."""
    if optimizer is None:
        return
    trained = lent.outside.among({id(tensor) for tensor in others_in(optimizer, lent)})
    if trained:
        raise ValueError(
            f"The optimizer trains {shapes_of(trained)}: the loss depends on it and the model lacks it, so curvature "
            "would leave it out. Register it in the model, as an nn.Parameter or a submodule, or leave out optimizer=."
        )


def learning_rates(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> list[float]:
    """The learning rate of each parameter."""
    rates = rates_by_id(optimizer)
    return [rates[id(p)] for p in parameters]


def updated(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    *,
    scale: float = 1.0,
    gradients: Sequence[Tensor | None] | None = None,
    lr: float | None = None,
) -> list[Tensor]:
    """Values of `parameters` after the optimizer's next step with their present `.grad` / scale.

    The optimizer and everything it holds are copied, with new leaves instead of the parameters. No hook runs, neither
    the optimizer's own nor those registered for all optimizers.

    Args:
        optimizer: the optimizer that trains the parameters.
        parameters: the parameters to update.
        scale: the gradients are divided by this number (the scale of a GradScaler).
        gradients: gradients to use instead of `.grad`.
        lr: largest learning rate of `parameters`; the others are scaled in proportion. By default all keep their own.

    Raises:
        ValueError: no parameter has a gradient, the optimizer needs a closure, or an attribute cannot be copied.
    """
    gradients_to_use = [p.grad for p in parameters] if gradients is None else gradients
    if all(gradient is None for gradient in gradients_to_use):
        raise ValueError(
            "The optimizer's update needs gradients, and no parameter has any. Call the monitor after loss.backward() "
            "and before optimizer.step(), or ask for update='gradient'."
        )
    leaves = [nn.Parameter(p.detach().clone()) for p in parameters]
    for leaf, p, gradient in zip(leaves, parameters, gradients_to_use, strict=True):
        leaf.grad = None if gradient is None else gradient.detach() / scale
        vars(leaf).update(vars(p))
    twin = _twin(optimizer, {id(p): leaf for p, leaf in zip(parameters, leaves, strict=True)})
    if lr is not None:
        largest = max(learning_rates(optimizer, parameters))
        for group in twin.param_groups:
            group["lr"] = lr * float(group["lr"]) / largest if largest else lr
    try:
        # An LR scheduler replaces `step` on the instance by a function bound to the user's optimizer, so the class's
        # `step` is called.
        with _without_hooks_of_all():
            type(optimizer).step(twin)
    except TypeError as error:
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is None or closure.default is not inspect.Parameter.empty:
            raise
        raise ValueError(
            f"{type(optimizer).__name__} needs a closure, so its coming step cannot be computed here. Ask for "
            "update='gradient'."
        ) from error
    return [leaf.detach() for leaf in leaves]


@contextmanager
def _without_hooks_of_all() -> Iterator[None]:
    """While this context lasts, the hooks registered for the steps of all optimizers are removed."""
    registered: list[Any] = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
    copies = [dict(hooks) for hooks in registered]
    try:
        for hooks in registered:
            hooks.clear()
        yield
    finally:
        for hooks, before in zip(registered, copies, strict=True):
            hooks.update(before)


def _twin(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """A deep copy of an optimizer; `memo` maps the ids of objects to their stand-ins, as in `copy.deepcopy`.

    All attributes are copied, since optimizers also keep parameters, buffers and other optimizers in attributes.
    """
    twin = object.__new__(type(optimizer))
    memo[id(optimizer)] = twin
    for key, value in vars(optimizer).items():
        if key == "step":
            continue
        try:
            vars(twin)[key] = type(value)() if key.endswith("_hooks") else _copied(value, memo)
        except Exception as error:
            raise ValueError(
                f"The {key} of {type(optimizer).__name__} cannot be copied ({error}), so its coming step cannot be "
                "computed here. Ask for update='gradient'."
            ) from error
    return twin


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    inner = isinstance(value, torch.optim.Optimizer) and id(value) not in memo
    return _twin(value, memo) if inner else copy.deepcopy(value, memo)
