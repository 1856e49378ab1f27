"""A `Setup` describes a training; every verb takes one.

    def setup():
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return ns.Setup(model, nn.CrossEntropyLoss(), loader, optimizer)

On the command line a verb takes `train.py:setup`, in Python `ns.measure(setup())`. A tuple of the first three to five
fields, or a dict of fields, serves as well.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.isolation.batches import Batches
from normscope.isolation.loaders import Stream, is_one_shot
from normscope.messages.choices import check_choice
from normscope.objective import Objective

_FEWEST, _MOST = 3, 5


@dataclass(frozen=True, eq=False)
class Setup:
    """The parts of a training script; all but model, loss_fn and batches may be left out.

    Args:
        model: any module, on the device it trains on, in the mode it trains in.
        loss_fn: loss_fn(outputs, targets) returns the scalar loss; None if the model or `forward` returns the loss.
        batches: any iterable of batches: (x, y), (a, b, ..., y), a mapping, or what `forward` takes. A one-shot
            iterable is wrapped, so that batches read by a measurement still come when training begins.
        optimizer: the optimizer that trains; its state is read and never changed.
        eval_batches: batches to evaluate on.
        metric: metric(outputs, targets) returns a number to report beside the loss; larger is better.
        forward: forward(model, batch) returns the outputs, or without loss_fn the loss.
        scheduler: learning-rate scheduler, stepped after every step of the optimizer.
        accumulate: number of batches whose gradients are averaged for one step.
        clip: largest norm of the gradient, or a function that clips a list of parameters.
        scaler: a torch.amp.GradScaler.
        averaged_model: a torch.optim.swa_utils.AveragedModel, or another object with update_parameters(model).
        training_step: training_step(model, batch, optimizer) makes a whole step and returns the loss; for trainings
            that the other fields do not describe.
        steps: planned number of optimizer steps.
        autocast: dtype of mixed precision.

    Raises:
        ValueError: a field of a wrong type or value, or an optimizer without parameters of the model.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> setup = Setup(layer, nn.MSELoss(), [(torch.ones(2, 1), torch.zeros(2, 1))])
        >>> setup.accumulate, setup.optimizer is None
        (1, True)
    """

    model: nn.Module
    loss_fn: Callable[..., Any] | None = None
    batches: Iterable[Any] | None = None
    optimizer: torch.optim.Optimizer | None = None
    eval_batches: Iterable[Any] | None = None
    metric: Callable[[Any, Any], Any] | None = None
    forward: Callable[[nn.Module, Any], Any] | None = None
    scheduler: Any = None
    accumulate: int = 1
    clip: float | Callable[[list[nn.Parameter]], Any] | None = None
    scaler: Any = None
    averaged_model: Any = None
    training_step: Callable[[nn.Module, Any, Any], Any] | None = None
    steps: int | None = None
    autocast: torch.dtype | None = None

    def __post_init__(self) -> None:
        optimizers = (torch.optim.Optimizer, type(None))
        for name, kinds, wanted in (
            ("model", nn.Module, "a torch.nn.Module"),
            ("optimizer", optimizers, "a torch.optim.Optimizer"),
            ("autocast", (torch.dtype, type(None)), "a torch.dtype"),
        ):
            if not isinstance(getattr(self, name), kinds):
                raise ValueError(f"{name} must be {wanted}; got {type(getattr(self, name)).__name__}.")
        for name in ("loss_fn", "metric", "forward", "training_step"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ValueError(f"{name} must be callable; got {type(value).__name__}.")
            if isinstance(value, type):
                way = f"Make an object of it: {value.__name__}()."
                raise ValueError(f"{name} must be a function or an object; got the class itself. {way}")
        for name, method in (("scheduler", "step"), ("scaler", "scale"), ("averaged_model", "update_parameters")):
            value = getattr(self, name)
            if value is not None and not hasattr(value, method):
                raise ValueError(f"{name} must have a method {method}(); got {type(value).__name__}.")
        for name in ("batches", "eval_batches"):
            self._check_batches(name)
        if not isinstance(self.accumulate, int) or isinstance(self.accumulate, bool) or self.accumulate < 1:
            raise ValueError(f"accumulate counts the batches of one step, at least 1; got {self.accumulate!r}.")
        if self.steps is not None and (
            not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 1
        ):
            raise ValueError(f"steps counts optimizer steps, at least 1; got {self.steps!r}.")
        number = isinstance(self.clip, (int, float)) and not isinstance(self.clip, bool)
        if not (self.clip is None or callable(self.clip) or (number and self.clip > 0)):
            raise ValueError(f"clip is the largest norm of the gradient, above 0; got {self.clip!r}.")
        if self.optimizer is not None:
            updated = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
            if updated.isdisjoint(map(id, self.model.parameters())):
                raise ValueError(
                    "None of the model's parameters is in the optimizer: it was made for another model, or before "
                    "the parameters were replaced. Build it as torch.optim.SGD(model.parameters(), ...) of this model."
                )

    def _check_batches(self, name: str) -> None:
        value = getattr(self, name)
        if value is None:
            return
        if isinstance(value, torch.utils.data.Dataset) and not isinstance(value, torch.utils.data.IterableDataset):
            raise ValueError(
                f"{name} must be an iterable of batches; got {type(value).__name__}, which gives single samples. Wrap "
                "it: DataLoader(dataset, batch_size=128)."
            )
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping, Tensor)):
            raise ValueError(f"{name} must be an iterable of batches; got {type(value).__name__}.")
        if is_one_shot(value):
            object.__setattr__(self, name, Stream(value))

    @property
    def objective(self) -> Objective:
        """The objective: how a batch becomes outputs and a loss."""
        return Objective(self.loss_fn, self.forward)

    @property
    def batches_to_read(self) -> Iterable[Any] | None:
        """The batches; a list in a setup is one of batches, be each of them a bare tensor."""
        return Batches(self.batches) if type(self.batches) is list else self.batches

    def copied(self) -> "Setup":
        """A copy to train: model, optimizer and all that refers to them are copied together; batches are shared.

        Copied one by one, the optimizer would update other parameters than the model's.
        """
        together = {name: getattr(self, name) for name in ("model", "optimizer", "scheduler", "scaler")}
        together["averaged_model"] = self.averaged_model
        if isinstance(self.loss_fn, nn.Module):
            together["loss_fn"] = self.loss_fn
        twins = copy.deepcopy(together)
        if hasattr(getattr(self.optimizer, "step", None), "_wrapped_by_lr_sched"):
            # A scheduler wraps `step` on the optimizer object, and warns if the wrapper is missing; a copy loses it.
            step: Any = functools.partial(type(twins["optimizer"]).step, twins["optimizer"])
            step._wrapped_by_lr_sched = twins["optimizer"]._opt_called = True
            twins["optimizer"].step = step
        return replace(self, **twins)


def gathered(model: "nn.Module | Setup", **given: Any) -> Setup:
    """One `Setup` from the arguments of a verb; arguments given beside a Setup replace its fields.

    Example:
        >>> gathered(nn.Linear(1, 1), loss_fn=nn.MSELoss(), forward=None).objective.name
        'MSELoss'
    """
    given = {name: value for name, value in given.items() if value is not None}
    return replace(model, **given) if isinstance(model, Setup) else Setup(model, **given)


NAMES = tuple(field.name for field in fields(Setup))


def as_setup(returned: Any, where: str) -> Setup:
    """The `Setup` from the value that a user's function returned: a Setup, a dict, or a tuple of three to five fields.

    Args:
        returned: the value.
        where: name of the function, for messages.

    Raises:
        ValueError: a value of another kind, or fields that do not fit.

    Example:
        >>> as_setup((nn.Linear(1, 1), nn.MSELoss(), []), "train.py:setup").batches
        []
    """
    if isinstance(returned, Setup):
        return returned
    expected = f"{where} must return an ns.Setup, a dict of its fields, or a tuple ({', '.join(NAMES[:_MOST])})"
    if isinstance(returned, (tuple, list)):
        if not _FEWEST <= len(returned) <= _MOST:
            raise ValueError(f"{expected} of three to five of these; got {type(returned).__name__} of {len(returned)}.")
        returned = dict(zip(NAMES, returned, strict=False))
    if not isinstance(returned, Mapping):
        raise ValueError(f"{expected}; got {type(returned).__name__}.")
    for name in returned:
        check_choice(f"a key of what {where} returns", name, NAMES)
    if "model" not in returned:
        raise ValueError(f"{expected}; it has no model.")
    try:
        return Setup(**returned)
    except ValueError as error:
        raise ValueError(f"{where} does not fit: {error}") from error
