"""The Monitor as a callback of Lightning's Trainer. Needs the extra `lightning`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.importing.extras import need
from normscope.monitor.monitor import Monitor

need("lightning.pytorch", "lightning")
from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402


class LightningMonitor(Callback):
    """A Lightning callback that calls `Monitor.step` right before each optimizer step, after clipping.

        watch = LightningMonitor(every=100, sinks=[JSONL("monitor.jsonl")])
        Trainer(callbacks=[watch]).fit(module, loader)
        watch.monitor.frame()

    At that moment gradients are accumulated, unscaled and clipped. The loss is the one `training_step` returns for the
    present batch (the last one, if gradients are accumulated over several), in the Trainer's precision. While the
    Monitor calls `training_step`, its calls of `log` do nothing. With manual optimization `training_step` would train,
    so hand in `forward(module, batch) -> loss`.

    Args:
        forward: forward(module, batch) returns the loss, instead of `training_step`.
        options: keyword arguments of `Monitor`: every, measure, budget, sinks, on_error.

    Raises:
        ValueError: when training starts with manual optimization and without `forward`.
    """

    def __init__(self, *, forward: Callable[[nn.Module, Any], Tensor] | None = None, **options: Any) -> None:
        self.monitor: Monitor | None = None
        self._forward = forward
        self._options = options
        self._batch: tuple[Any, int] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._forward is None and not pl_module.automatic_optimization:
            raise ValueError(
                "With manual optimization training_step trains, so it cannot be measured. Hand in "
                "LightningMonitor(forward=lambda module, batch: ...) that gives the loss."
            )
        self.monitor = Monitor(
            trainer.strategy.model,
            forward=self._loss(trainer),
            autocast=_autocast(trainer, pl_module.device),
            first_step=trainer.global_step,
            **self._options,
        )
        # Lightning clips after its last hook, so the method that clips is the last call before the optimizer's step.
        clip = pl_module.configure_gradient_clipping

        def clip_and_measure(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            clip(optimizer, *args, **kwargs)
            self._step(optimizer)

        vars(pl_module)["configure_gradient_clipping"] = clip_and_measure

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._batch = (batch, batch_idx)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if not pl_module.automatic_optimization:
            self._step(optimizer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end(pl_module)

    def _step(self, optimizer: Any) -> None:
        if self.monitor is not None:
            self.monitor.step(self._batch, optimizer=optimizer)

    def _end(self, pl_module: LightningModule) -> None:
        vars(pl_module).pop("configure_gradient_clipping", None)
        self._batch = None
        if self.monitor is not None:
            self.monitor.close()

    def _loss(self, trainer: Trainer) -> Callable[[nn.Module, Any], Tensor]:
        def forward(module: Any, batch: tuple[Any, int]) -> Tensor:
            with trainer.precision_plugin.train_step_context():
                if self._forward is not None:
                    return self._forward(module, batch[0])
                # `module` is the snapshot's copy, so `log` needs no restoring.
                vars(module)["log"] = vars(module)["log_dict"] = _silent
                takes = len(inspect.signature(module.training_step).parameters)
                output = module.training_step(*batch[:takes])
                return output["loss"] if isinstance(output, Mapping) else output

        return forward


def _silent(*args: Any, **kwargs: Any) -> None:
    pass


def _autocast(trainer: Trainer, device: torch.device) -> torch.dtype | None:
    """The dtype of the Trainer's mixed precision; None without it."""
    with trainer.precision_plugin.forward_context():
        return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
