"""`tune` as a callback of Lightning's Trainer. Needs the extra `lightning`."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from normscope.importing.extras import need
from normscope.setup import Setup
from normscope.tuning.result import Tuning
from normscope.tuning.tune_network import tune

need("lightning.pytorch", "lightning")
from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402


class LightningTuner(Callback):
    """A Lightning callback that tunes the learning rate before the first step, in the place of LearningRateFinder.

        tuner = LightningTuner()
        Trainer(max_epochs=10, callbacks=[tuner]).fit(module, loader)
        print(tuner.tuning)

    The rehearsals call `training_step` on copies of the module; their calls of `log` do nothing. Clipping by norm,
    accumulation, mixed precision and a scheduler stepped after every step are taken from the Trainer. A training that
    is resumed is not tuned.

    Args:
        steps: number of optimizer steps; by default the Trainer's estimate.
        options: further arguments of `normscope.tune`: schedule, budget, store, seed.

    Raises:
        ValueError: when training starts with manual optimization, with several optimizers or processes, with a
            scheduler stepped after every epoch and no schedule=, or with an unknown number of steps.
    """

    def __init__(self, *, steps: int | None = None, **options: Any) -> None:
        self.tuning: Tuning | None = None
        self._steps, self._options = steps, options

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step:
            return
        if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
            raise ValueError(
                "LightningTuner tunes one optimizer that Lightning steps. With manual optimization or several "
                "optimizers call normscope.tune with a training_step of your own."
            )
        (optimizer,) = trainer.optimizers
        scheduler = self._scheduler(trainer)
        setup = Setup(
            pl_module,
            None,
            trainer.train_dataloader,
            optimizer,
            forward=_loss(trainer),
            scheduler=scheduler,
            accumulate=trainer.accumulate_grad_batches,
            clip=_clip(trainer),
            scaler=getattr(trainer.precision_plugin, "scaler", None),
        )
        self.tuning = tune(setup, steps=self._steps or _steps(trainer), **self._options)
        kept = scheduler or (trainer.lr_scheduler_configs[0].scheduler if trainer.lr_scheduler_configs else None)
        self.tuning.apply(optimizer, kept)

    def _scheduler(self, trainer: Trainer) -> Any:
        configs = trainer.lr_scheduler_configs
        if not configs or "schedule" in self._options:
            return None
        if configs[0].interval != "step":
            raise ValueError(
                "The scheduler is stepped after every epoch, and rehearsals last a few steps. Hand in "
                "LightningTuner(schedule=...): 'constant', 'cosine', 'linear' or a function of the step."
            )
        return configs[0].scheduler


def _steps(trainer: Trainer) -> int:
    steps = trainer.estimated_stepping_batches
    if not math.isfinite(steps):
        raise ValueError("The Trainer does not know its number of steps. Hand in LightningTuner(steps=...).")
    return int(steps)


def _clip(trainer: Trainer) -> float | None:
    value = trainer.gradient_clip_val
    if value and getattr(trainer.gradient_clip_algorithm, "value", None) == "value":
        raise ValueError("LightningTuner knows clipping by norm; this Trainer clips by value.")
    return float(value) if value else None


def _loss(trainer: Trainer) -> Any:
    """A function (module, batch) -> loss that calls `training_step` in the Trainer's precision, without logging."""
    precision = trainer.precision_plugin

    def forward(module: Any, batch: Any) -> Tensor:
        vars(module)["log"] = vars(module)["log_dict"] = _silent
        with precision.train_step_context():
            takes = len(inspect.signature(module.training_step).parameters)
            output = module.training_step(*(batch, 0)[:takes])
        loss: Tensor = output["loss"] if isinstance(output, Mapping) else output
        return loss

    return forward


def _silent(*args: Any, **kwargs: Any) -> None:
    pass
