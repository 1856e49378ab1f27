"""Everything a verb must leave as it was, and what it did not: object for object and bit for bit."""

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)


def seed(number: int) -> None:
    """Torch's, Python's and numpy's generators."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002


def same(some: Tensor, other: Tensor) -> bool:
    """Equal bit for bit, nan included."""
    if some.shape != other.shape or some.dtype != other.dtype or some.is_sparse != other.is_sparse:
        return False
    found: bool = torch.equal(some, other)
    return found or (some.is_floating_point() and bool(((some == other) | (some.isnan() & other.isnan())).all()))


class Kept:
    """A model's modules, their attributes and what these hold one level deep; values, versions, modes, generators."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._objects = dict(_objects(model))
        tensors = {name: one for name, one in self._objects.items() if isinstance(one, Tensor)}
        self._values = {name: (one, one.detach().clone(), one._version, one.grad) for name, one in tensors.items()}
        self._generators = _generators()

    def differences(self) -> list[str]:
        """Names of the parts that have changed, with the change."""
        found = []
        now = dict(_objects(self._model))
        found += [f"{name} is new" for name in now if name not in self._objects]
        found += [f"{name} is gone" for name in self._objects if name not in now]
        found += [
            f"{name} is another object"
            for name, one in self._objects.items()
            if name in now and now[name] is not one and not _equal(now[name], one)
        ]
        for name, (tensor, value, version, grad) in self._values.items():
            if not same(tensor.detach(), value):
                found.append(f"{name} has other values")
            elif tensor._version != version:
                found.append(f"{name} was written, with the values it had")
            if tensor.grad is not grad:
                found.append(f"{name}.grad is another object")
        names = ("torch", "python", "numpy")
        pairs = zip(names, self._generators, _generators(), strict=True)
        found += [f"the generator of {name} has moved" for name, before, after in pairs if before != after]
        return first(found)


def first(names: list[str], most: int = 5) -> list[str]:
    """A long list cut short, with the number of what is left out."""
    return names if len(names) <= most else names[:most] + [f"and {len(names) - most} more"]


def _equal(some: Any, other: Any) -> bool:
    """Numbers and words of one value are as good as the same object."""
    return type(some) is type(other) and isinstance(some, (bool, int, float, str, bytes)) and some == other


def _objects(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for place, module in model.named_modules(remove_duplicate=False):
        yield f"{place} (class)", type(module)
        for name, value in vars(module).items():
            yield f"{place}.{name}", value
            if isinstance(value, _CONTAINERS):
                inner = value.items() if isinstance(value, dict) else enumerate(value)
                for key, item in inner:
                    yield f"{place}.{name}[{key}]", item


def _generators() -> tuple[Any, Any, Any]:
    state = np.random.get_state()  # noqa: NPY002
    return torch.get_rng_state().tolist(), random.getstate(), (state[1].tobytes(), state[2])


def differing(
    models: tuple[nn.Module, nn.Module], optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer]
) -> list[str]:
    """Names of parameters, buffers and optimizer states in which two trained models are not equal bit for bit."""
    some, other = (dict([*model.named_parameters(), *model.named_buffers()]) for model in models)
    found = [name for name in some if name not in other or not same(some[name].detach(), other[name].detach())]
    found += [name for name in other if name not in some]
    states = [one.state_dict()["state"] for one in optimizers]
    for key, state in states[0].items():
        for name, value in state.items():
            if isinstance(value, Tensor) and not same(value, states[1][key][name]):
                found.append(f"optimizer state {key} {name}")
    return found


def detached(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Parameters that are not the very objects that the optimizer holds."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [name for name, p in model.named_parameters() if id(p) not in held]
