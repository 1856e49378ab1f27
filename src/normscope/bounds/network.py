"""The theorems on every linear layer of a network that a BatchNorm follows."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.bounds.layer import check
from normscope.bounds.result import Bounds
from normscope.bounds.units import is_batch_norm, is_linear
from normscope.observe.calls import answering, units
from normscope.observe.untouched import untouched


def pairs(model: nn.Module, x: Tensor) -> list[tuple[str, str]]:
    """Names of linear layers and of the BatchNorms that take their outputs, in the order of a forward pass.

    Modules that run more than once in it are left out. Leaves no trace on the model.

    Example:
        >>> pairs(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1)), torch.eye(2))
        [('0', '1')]
    """
    with untouched(model), torch.no_grad():
        return [(linear, norm) for linear, norm, _ in _found(model, x)]


def check_network(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    batch: tuple[Tensor, Tensor],
    *,
    w0: Mapping[str, Tensor] | None = None,
    lam: float | None = None,
    units: int = 8,
) -> dict[str, Bounds]:
    """`check` on each pair that `pairs` finds, the rest of the network being its downstream.

    The model runs in the mode it is in, on float64 copies, and is left bit for bit as it was.

    Args:
        batch: inputs and targets.
        w0: initial weights by the name of the linear layer, for Lemma 4.5.
        units: how many of each layer to look at, spread evenly.

    Returns:
        A `Bounds` by the linear layer's name.
    """
    x, y = (part.double() if part.is_floating_point() else part for part in batch)
    with untouched(model, dtype=torch.float64) as lent:
        with torch.no_grad():
            found = _found(model, x)
        if not found:
            raise ValueError(
                "No Linear or Conv2d of the model hands its output straight to a BatchNorm that runs once in a forward "
                "pass; the theorems are about such pairs."
            )
        modules = dict(model.named_modules())
        results = {}
        for linear, norm, seen in found:
            results[linear] = check(
                modules[linear],
                modules[norm],
                seen,
                _rest(model, norm, x, lambda output: loss(output, y), lent.reset),
                w0=None if w0 is None else w0.get(linear),
                lam=lam,
                units=units,
            )
    return results


def _found(model: nn.Module, x: Tensor) -> list[tuple[str, str, Tensor]]:
    """(linear, norm, input of linear)"""
    calls: dict[str, int] = {}
    made: dict[int, tuple[str, Tensor, Tensor]] = {}
    found: list[tuple[str, str, Tensor]] = []

    def see(name: str, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        calls[name] = calls.get(name, 0) + 1
        if is_batch_norm(module) and args and id(args[0]) in made:
            linear, seen, _ = made[id(args[0])]
            found.append((linear, name, seen))
        output = forward(*args, **kwargs)
        if is_linear(module) and args and isinstance(output, Tensor) and output.ndim in (2, 4):
            # The output is kept, so that its id stays its own.
            made[id(output)] = (name, args[0].detach().clone(), output)
        return output

    with answering(units(model), see):
        model(x)
    return [pair for pair in found if calls[pair[0]] == calls[pair[1]] == 1]


def _rest(
    model: nn.Module, norm: str, x: Tensor, loss: Callable[[Any], Tensor], reset: Callable[[], None]
) -> Callable[[Tensor], Tensor]:
    """z -> loss: the whole network, with z as the answer of its layer `norm`."""

    def downstream(z: Tensor) -> Tensor:
        reset()  # the same dropout masks at every call
        with answering({norm: dict(model.named_modules())[norm]}, lambda *call: z):
            return loss(model(x))

    return downstream
