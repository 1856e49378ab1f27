"""Lightning: the Monitor as a callback of its Trainer. Needs `pip install normscope[lightning]`."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.extras import need
from normscope.monitor.monitor import Monitor

need("lightning.pytorch", "lightning")
from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402


class LightningMonitor(Callback):
    """Looks on once gradients are accumulated, unscaled and clipped, right before the optimizer's step.

        watch = LightningMonitor(every=100, sinks=[JSONL("monitor.jsonl")])
        Trainer(callbacks=[watch]).fit(module, loader)
        watch.monitor.frame()

    The loss is that of `training_step` on the batch at hand (the last one, where gradients are accumulated over
    several), in the Trainer's precision; its calls of `log` are silent while the Monitor makes them. With manual
    optimization `training_step` would train, so hand in `forward(module, batch) -> loss`.

    Args:
        forward: the loss of a batch, in place of `training_step`.
        options: those of `Monitor`: every, measure, budget, sinks, on_error.
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
        # Lightning clips after its last hook; what it calls to clip is the last thing before the step.
        clip = pl_module.configure_gradient_clipping

        def clip_and_look(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            clip(optimizer, *args, **kwargs)
            self._look(optimizer)

        vars(pl_module)["configure_gradient_clipping"] = clip_and_look

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._batch = (batch, batch_idx)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if not pl_module.automatic_optimization:
            self._look(optimizer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end(pl_module)

    def _look(self, optimizer: Any) -> None:
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
                # On the copy that the look works with, which ends with it.
                vars(module)["log"] = vars(module)["log_dict"] = _silent
                takes = len(inspect.signature(module.training_step).parameters)
                found = module.training_step(*batch[:takes])
                return found["loss"] if isinstance(found, Mapping) else found

        return forward


def _silent(*args: Any, **kwargs: Any) -> None:
    pass


def _autocast(trainer: Trainer, device: torch.device) -> torch.dtype | None:
    """The dtype of the Trainer's mixed precision."""
    with trainer.precision_plugin.forward_context():
        return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
