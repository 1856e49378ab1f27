"""Train a copy of a setup for some steps, with the batch statistics of its BatchNorm layers on the way."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from normscope.diagnosis.batch_statistics import Record, recording, tracking_layers
from normscope.isolation.batch_copies import Copies
from normscope.isolation.lending import untouched
from normscope.setup import Setup
from normscope.training import train


def advance(copy: Setup, batches: Sequence[Any], steps: int, seed: int) -> Record:
    """Train a copy of a setup for `steps` steps; returns the batch statistics of all calls in these steps.

    Args:
        copy: a setup with an optimizer; its model and optimizer move.
        batches: on the model's device; they come again where they end.
        seed: of the random numbers that the copy draws.
    """
    assert copy.optimizer is not None
    _keep_frozen_layers(copy.model)
    taken = (Copies(batches[number % len(batches)]).take() for number in range(steps * copy.accumulate))
    with recording(tracking_layers(copy.model)) as record:
        train(
            copy.model,
            copy.loss_fn,
            taken,
            copy.optimizer,
            forward=copy.forward,
            scheduler=copy.scheduler,
            accumulate=copy.accumulate,
            clip=copy.clip,
            scaler=copy.scaler,
            averaged_model=copy.averaged_model,
            training_step=copy.training_step,
            autocast=copy.autocast,
            steps=steps,
            seed=seed,
        )
    return record


@contextmanager
def protected(setup: Setup) -> Iterator[None]:
    """While this context lasts, the user's model works on lent copies, and a step of the user's optimizer is refused.

    A loss or a training_step that uses the model or the optimizer it was written beside would reach the user's.
    """

    def refuse(*_: Any) -> None:
        raise ValueError(
            "training_step steps the optimizer it was written beside, and not the one it is handed; a copy is trained "
            "here. Use its argument: training_step(model, batch, optimizer)."
        )

    with untouched(setup.model):
        hook = None if setup.optimizer is None else setup.optimizer.register_step_pre_hook(refuse)
        try:
            yield
        finally:
            if hook is not None:
                hook.remove()


def _keep_frozen_layers(model: nn.Module) -> None:
    """Layers of a training model that were put in eval mode stay there: `train` would switch them on."""
    if model.training:
        for module in model.modules():
            if not module.training:
                vars(module)["train"] = _Constant(module)


class _Constant:
    """In place of a module's `train`: the mode stays."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self, mode: bool = True) -> nn.Module:
        return self._module
