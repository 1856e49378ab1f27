"""The objective of a training: how a batch becomes the model's outputs and a scalar loss.

    batch                        without forward=                    with forward=
    (x, y)                       loss_fn(model(x), y)                loss_fn(forward(model, batch), y)
    (a, b, ..., y)               loss_fn(model(a, b, ...), y)        the same
    a mapping                    loss_fn(model(**inputs), labels)    the same, labels by the names in LABELS
    anything else                loss_fn(model(batch), batch)        loss_fn(forward(model, batch), batch)

Without loss_fn, `forward(model, batch)` or the model itself returns the loss: a scalar, the entry or attribute `loss`
of the output (Hugging Face), or the one scalar in a tuple.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normscope.losses.mismatch import check_outputs, explaining, is_of_torch

# Values that are no tensors of a batch.
PLAIN = (bool, int, float, complex, str, bytes, type(None))
LABELS = ("labels", "label", "targets", "target", "y")
LossFn = Callable[..., Any]
Forward = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Objective:
    """The outputs and the loss of a batch.

    loss_fn: loss_fn(outputs, targets) returns the loss; None if the model or `forward` returns it.
    forward: forward(model, batch) returns the outputs; None to call the model.

    Example:
        >>> import torch
        >>> objective = Objective(nn.MSELoss())
        >>> float(objective(nn.Identity(), (torch.ones(2, 1), torch.zeros(2, 1))))
        1.0
    """

    loss_fn: LossFn | None = None
    forward: Forward | None = None

    def __post_init__(self) -> None:
        for name in ("loss_fn", "forward"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ValueError(f"{name} must be callable; got {type(value).__name__}.")

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The scalar loss of `batch`."""
        inputs, targets = self.parts(batch)
        return self.loss(self.outputs(model, inputs), targets)

    def parts(self, batch: Any) -> tuple[Any, Any]:
        """The inputs for `outputs`, and the targets for `loss`."""
        if self.loss_fn is None:
            return batch, None
        inputs, targets = _split(batch)
        if isinstance(inputs, Tensor) and inputs.ndim and not len(inputs):
            raise ValueError("The batch is empty: it has no sample to take a loss of. Hand in at least one.")
        if self.forward is not None:
            return batch, targets
        if isinstance(batch, Tensor) or (isinstance(batch, (tuple, list)) and len(batch) < 2):
            raise ValueError(
                f"With loss_fn a batch is a pair (x, y) or a mapping with labels; got {described(batch)}. If x is "
                "its own target, hand in forward=lambda model, x: loss_fn(model(x), x) instead of loss_fn."
            )
        return inputs, targets

    def outputs(self, model: nn.Module, inputs: Any) -> Any:
        """The outputs as loss_fn takes them: for a loss of torch or normscope the one tensor of predictions."""
        outputs = call_model(model, inputs) if self.forward is None else self.forward(model, inputs)
        if isinstance(outputs, Tensor) or self.loss_fn is None or not is_of_torch(self.loss_fn):
            return outputs
        main = main_output(outputs)
        return outputs if main is None else main

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """The scalar loss of outputs and targets."""
        if self.loss_fn is None:
            return own_loss(outputs)
        check_outputs(self.loss_fn, outputs, targets)
        try:
            with explaining(outputs, targets):
                loss: Tensor = self.loss_fn(outputs, targets)
        except (TypeError, AttributeError) as error:
            if isinstance(outputs, Tensor):
                raise
            raise ValueError(
                f"The model returns {described(outputs)}, which loss_fn does not take ({error}). Hand in "
                "forward=lambda model, batch: ... that returns what loss_fn takes, or without loss_fn the loss."
            ) from error
        return loss

    @property
    def name(self) -> str:
        """The name of the loss, for messages and results."""
        function = self.loss_fn or self.forward
        if function is None:
            return "the model's own loss"
        name = getattr(function, "__name__", type(function).__name__)
        return "a loss of yours" if name == "<lambda>" else name


def own_loss(outputs: Any) -> Tensor:
    """The scalar loss in the output of a model or of forward=.

    Example:
        >>> import torch
        >>> float(own_loss({"loss": torch.tensor(2.0), "logits": torch.zeros(3)}))
        2.0
    """
    if isinstance(outputs, Tensor):
        return outputs
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if loss is None and isinstance(outputs, (tuple, list)):
        scalars = [part for part in outputs if isinstance(part, Tensor) and not part.ndim and part.is_floating_point()]
        loss = scalars[0] if len(scalars) == 1 else None
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"Without loss_fn the model or forward= must give the loss: a scalar, or an output with .loss. Got "
            f"{described(outputs)}. Hand in loss_fn(outputs, targets), put labels into the batch, or give "
            "forward=lambda model, batch: ... that returns the loss."
        )
    return loss


def main_output(outputs: Any) -> Tensor | None:
    """The predictions among several outputs: `logits`, else the only other tensor beside a scalar loss, else None.

    Example:
        >>> import torch
        >>> main_output((torch.zeros(2, 3), torch.tensor(1.0))).shape
        torch.Size([2, 3])
    """
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    parts = [p for p in tree_leaves(outputs) if isinstance(p, Tensor) and p.ndim and p.is_floating_point()]
    return parts[0] if len(parts) == 1 else None


def call_model(model: nn.Module, inputs: Any) -> Any:
    """`model(inputs)`; a mapping or a tuple is spread over the arguments if the forward takes that many.

    Example:
        >>> import torch
        >>> call_model(nn.Bilinear(1, 1, 1), (torch.ones(2, 1), torch.ones(2, 1))).shape
        torch.Size([2, 1])
    """
    if isinstance(inputs, Mapping) and _binds(model, (), dict(inputs)):
        return model(**inputs)
    # A list may be one argument (several images), so it is spread only if the forward cannot take it whole.
    if isinstance(inputs, tuple) or (isinstance(inputs, list) and not _binds(model, (inputs,), {})):
        if _binds(model, tuple(inputs), {}):
            return model(*inputs)
        try:
            return model(inputs)
        except TypeError as error:
            raise ValueError(
                f"The batch gives the model {described(inputs)} besides the target, and its forward does not take that "
                f"({error}). Hand in loss_fn, which takes the last part as targets, or "
                "forward=lambda model, batch: ... for batches of another form."
            ) from error
    return model(inputs)


def _binds(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return False
    return True


def _split(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        label = next((name for name in LABELS if name in batch), None)
        if label is None:
            return batch, batch
        return {name: value for name, value in batch.items() if name != label}, batch[label]
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        *inputs, targets = batch
        return (inputs[0] if len(inputs) == 1 else tuple(inputs)), targets
    return batch, getattr(batch, "y", batch)


def described(value: Any) -> str:
    """A value in a few words for an error message: its type, and the shapes or names of its parts.

    Example:
        >>> import torch
        >>> described(torch.ones(2, 3))
        'a tensor of shape (2, 3), float32'
    """
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with {', '.join(list(map(str, value))[:6]) or 'nothing'}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:60] if isinstance(value, PLAIN) else type(value).__name__
