"""Build a plan's networks and data, and try them before anything trains."""

import os
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normscope.data import Dataset
from normscope.data import load as load_data
from normscope.importing.named_functions import load
from normscope.losses import LOSSES
from normscope.sweeping.checks import PlanError
from normscope.sweeping.plan import Plan

# Bytes of initial networks kept in memory: cells that differ only in the learning rate start from the same network.
_CACHE = 2 * 2**30


class Networks:
    """Builds the initial network for a value and a seed, and caches networks up to 2 GiB."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._factory = plan, plan.factory()
        self._dtype = getattr(torch, plan.dtype)
        self._kept: dict[tuple[float, int], nn.Module] = {}
        self._room = _CACHE

    def initial(self, value: float, seed: int) -> nn.Module:
        """The initial network, on the CPU, maybe from the cache: do not train it, train a copy."""
        key = (value, seed)
        if key in self._kept:
            return self._kept[key]
        model = self.build(value, seed)
        size = state_bytes(model)
        if size <= self._room:
            self._room -= size
            self._kept[key] = model
        return model

    def build(self, value: float, seed: int) -> nn.Module:
        """A new network, in the plan's dtype; torch's generators do not move."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model = self._factory(**self._plan.member_arguments(value, seed))
        if not isinstance(model, nn.Module):
            raise TypeError(f"the factory must return a torch.nn.Module; got {type(model).__name__}")
        return model.to(self._dtype)


def prepare(plan: Plan, root: str | os.PathLike[str] | None, device: torch.device) -> tuple[Networks, Dataset]:
    """The plan's networks and data; all mistakes in either are reported in one error.

    The networks at both ends of the axis and the loss are tried on the first batch.

    Raises:
        PlanError: with one sentence for each mistake.
    """
    wrong: list[str] = []
    dataset = _tried(wrong, "data", partial(_dataset, plan, root))
    networks = _tried(wrong, "model", partial(Networks, plan))
    for value in dict.fromkeys((min(plan.values), max(plan.values))) if networks else ():
        label = f"model at {plan.axis} = {value:g}"
        model = _tried(wrong, label, partial(networks.initial, value, plan.seeds[0]))
        if model is not None and dataset is not None:
            _tried(wrong, label, partial(_check_batch, plan, model, dataset))
    try:
        torch.zeros(1, device=device)
    except (AssertionError, RuntimeError) as error:
        wrong.append(f"device {device} does not work here: {str(error).splitlines()[0]}")
    if wrong or networks is None or dataset is None:
        raise PlanError(list(dict.fromkeys(wrong)))
    return networks, dataset.to(device, getattr(torch, plan.dtype))


def _tried(wrong: list[str], label: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:
        wrong.append(f"{label}: {error}")
        return None


def _dataset(plan: Plan, root: str | os.PathLike[str] | None) -> Dataset:
    try:
        if ":" not in plan.data:
            return load_data(plan.data, root, **plan.data_options)
        dataset = load(plan.data)(**plan.data_options)
    except TypeError as error:
        raise TypeError(f"{error}; arguments of the data belong into [data_options], such as seed = 0") from error
    if not isinstance(dataset, Dataset):
        raise TypeError(f"{plan.data} must return a normscope.data.Dataset; got {type(dataset).__name__}")
    return dataset


def _check_batch(plan: Plan, model: nn.Module, dataset: Dataset) -> None:
    trial = deepcopy(model)
    if not any(parameter.requires_grad for parameter in trial.parameters()):
        raise ValueError("the network has no trainable parameters")
    x, y = first_batch(plan, dataset.to(dtype=getattr(torch, plan.dtype)))
    with torch.random.fork_rng(devices=[]):
        loss = LOSSES[plan.loss](trial(x), y)
    if loss.ndim:
        raise ValueError(f"the loss must be a scalar; got shape {tuple(loss.shape)}")


def first_batch(plan: Plan, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """The first samples of the training set, as many as a batch has."""
    return dataset.x_train[: plan.batch_size], dataset.y_train[: plan.batch_size]


def state_bytes(model: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


def saved_bytes(run: Callable[[], Any]) -> int:
    """The bytes that `run` saves for its backward pass; each storage counts once."""
    bytes_of: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        bytes_of[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(bytes_of.values())
