"""The theorems on every linear layer of a network that a BatchNorm follows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from normscope.bounds.layer import check
from normscope.bounds.normalized_layer import is_batch_norm, is_linear, normalizes
from normscope.bounds.result import Bounds
from normscope.isolation.batches import read_batches
from normscope.isolation.lending import untouched
from normscope.isolation.memory_bound import bytes_of, check_max_memory
from normscope.isolation.module_calls import Answer, answering, units
from normscope.messages.out_of_memory import out_of_memory
from normscope.objective import call_model, described
from normscope.setup import Setup, gathered

# The loss, with the outputs of some layers replaced.
_Run = Callable[[Sequence[str], Answer], Tensor]
_ELSEWHERE = (
    "The layer's output or weight is also used elsewhere; that path is held constant here, so that the left sides are "
    "derivatives through the norm alone, not those of the whole network."
)


def pairs(model: nn.Module, x: Tensor) -> list[tuple[str, str]]:
    """Names of linear layers and of the BatchNorms that take their outputs, in the order of a forward pass.

    Modules that run more than once in the pass are left out, and so are outputs that are changed in place on the way to
    the norm. The model is left as it was.

    Args:
        model: any module.
        x: one batch of inputs.

    Returns:
        Pairs (name of the linear layer, name of its BatchNorm).

    Example:
        >>> pairs(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1)), torch.eye(2))
        [('0', '1')]
    """
    with untouched(model), torch.no_grad():
        return [
            (linear, norm) for linear, norm, _ in _pairs_with_inputs(model, lambda: call_model(model, x), described(x))
        ]


def check_network(
    model: nn.Module | Setup,
    loss_fn: Callable[..., Any] | None = None,
    batches: Any = None,
    *,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    w0: Mapping[str, Tensor] | None = None,
    lam: float | None = None,
    units: int = 8,
    max_memory: float | None = None,
) -> dict[str, Bounds]:
    """`check` on each pair that `pairs` finds, the rest of the network being its downstream.

    The model runs in its present mode, on float64 copies, and is left bit for bit as it was. Where a layer's output is
    also used elsewhere (the stem of a pre-activation ResNet), that path is held constant, and a note says so.

    Args:
        model: any module, or an `ns.Setup`, which gives all that is not handed in here.
        loss_fn: loss_fn(outputs, targets) is the scalar loss; None where the model or `forward` gives the loss.
        batches: one batch, as (x, y), a mapping or what `forward` takes; or an iterable, of which the first is taken.
        forward: forward(model, batch) gives the outputs, or without loss_fn the loss.
        w0: initial weights by the name of the linear layer ("stem" or "stem.weight"), for Lemma 4.5.
        lam: bound on the spectral norm of the inputs in Theorems 4.4 and C.1; the norm of this batch unless given.
        units: how many of each layer to check, spread evenly.
        max_memory: bytes that the float64 copies of parameters, buffers and the batch may take; refused before any is
            made where they would take more.

    Returns:
        A `Bounds` by the linear layer's name.

    Raises:
        ValueError: no linear layer is followed by a BatchNorm, or an argument does not fit.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        >>> found = check_network(net, nn.CrossEntropyLoss(), (torch.randn(8, 2), torch.zeros(8, dtype=torch.long)))
        >>> list(found), found["0"].holds
        (['0'], True)
    """
    check_max_memory(max_memory)
    setup = gathered(model, loss_fn=loss_fn, forward=forward)
    model, objective = setup.model, setup.objective
    batches = setup.batches_to_read if batches is None else batches
    if batches is None:
        raise ValueError("The theorems need a batch: check_network(model, loss_fn, (x, y)), or a Setup with batches.")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch = read_batches(batches, device=device, micro_batch=None, most=1).batches[0]

    def run(names: Sequence[str], answer: Answer) -> Tensor:
        lent.reset()  # the same dropout masks at every call
        with answering({name: modules[name] for name in names}, answer):
            return objective.loss(objective.outputs(model, inputs), targets)

    beside = bytes_of(batch, torch.float64)
    with untouched(model, dtype=torch.float64, max_memory=max_memory, beside=beside) as lent:
        wide = tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, batch)
        inputs, targets = objective.parts(wide)
        with torch.no_grad():
            layers = _pairs_with_inputs(model, lambda: objective.outputs(model, inputs), described(batch))
        if not layers:
            raise ValueError(
                "No Linear or Conv2d of the model hands its output straight to a BatchNorm that runs once in a forward "
                "pass; the theorems are about such pairs."
            )
        modules = dict(model.named_modules())
        initial = _initial(w0 or {}, modules, [linear for linear, _, _ in layers])
        results = {}
        for linear, norm, inputs_of_linear in layers:
            rest = _rest(norm, run)
            bounds = check(
                modules[linear], modules[norm], inputs_of_linear, rest, w0=initial.get(linear), lam=lam, units=units
            )
            also = (_ELSEWHERE,) if _used_elsewhere(linear, norm, modules[linear], run) else ()
            results[linear] = replace(bounds, notes=(*bounds.notes, *also))
    return results


def _initial(w0: Mapping[str, Tensor], modules: Mapping[str, nn.Module], checked: list[str]) -> dict[str, Tensor]:
    """w0 by the name of the module; weights of layers that are not checked are allowed and not used."""
    initial = {name if name in modules else name.removesuffix(".weight"): weight for name, weight in w0.items()}
    unknown = [name for name in initial if name not in modules]
    if unknown:
        raise ValueError(f"w0 has {unknown}, which are no layers of the model; the layers checked are {checked}.")
    return initial


def _pairs_with_inputs(model: nn.Module, run: Callable[[], Any], source: str) -> list[tuple[str, str, Tensor]]:
    """(linear, norm, input of linear) of each pair. run: a forward pass. given: its batch, in words."""
    calls: dict[str, int] = {}
    made: dict[int, tuple[str, Tensor, Tensor, int]] = {}
    pairs: list[tuple[str, str, Tensor]] = []

    def see(name: str, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        calls[name] = calls.get(name, 0) + 1
        layer_input = args[0] if args else kwargs.get("input")
        if is_batch_norm(module) and id(layer_input) in made:
            linear, seen, output, version = made[id(layer_input)]
            # Any operation in place on the way, an activation or a sum, increases the version.
            if output._version == version and normalizes(module, output):
                pairs.append((linear, name, seen))
        kept = layer_input.detach().clone() if isinstance(layer_input, Tensor) and is_linear(module) else None
        output = forward(*args, **kwargs)
        if kept is not None and isinstance(output, Tensor) and output.ndim in (2, 4):
            # Keeping the output keeps its id unique.
            made[id(output)] = (name, kept, output, output._version)
        return output

    try:
        with answering(units(model), see):
            run()
    except (RuntimeError, TypeError, IndexError) as error:
        if out_of_memory(error) or type(error).__module__.startswith("normscope."):
            raise
        raise ValueError(
            f"The model does not take the batch, {source}: {error}. It runs in float64 here; take casts to other "
            "formats out of it."
        ) from error
    return [pair for pair in pairs if calls[pair[0]] == calls[pair[1]] == 1]


def _rest(norm: str, run: _Run) -> Callable[[Tensor], Tensor]:
    """z -> loss: the whole network, with z as the answer of its layer `norm`."""
    return lambda z: run([norm], lambda *call: z)


def _used_elsewhere(linear: str, norm: str, layer: nn.Module, run: _Run) -> bool:
    """Whether the loss depends on the layer's output or weight though the norm's answer is cut off from them."""
    added: list[Tensor] = []

    def see(name: str, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        if name == norm:
            return output.detach()
        added.append(torch.zeros_like(output, requires_grad=True))
        return output + added[-1]

    loss = run([linear, norm], see)
    starts = [*added, *(p for p in layer.parameters(False) if p.requires_grad)]
    if not loss.requires_grad:
        return False
    return any(grad is not None for grad in torch.autograd.grad(loss, starts, allow_unused=True))
