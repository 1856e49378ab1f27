"""The learning-rate finders of three packages, called as their documentation does."""

import contextlib
import functools
import io
import tempfile
import warnings
from typing import Any

import torch
from opponents.named import Named, Whole
from task import OPTIMIZERS, Batch, Parts, Task
from torch import Tensor


def torch_lr_finder(task: Task, parts: Parts, seed: int) -> Named:
    """`range_test` of torch-lr-finder from 1e-7 to 10 in 100 iterations; the steepest descent of its plot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from torch_lr_finder import LRFinder, TrainDataLoaderIter

    class Pairs(TrainDataLoaderIter):
        def inputs_labels_from_batch(self, batch_data: Any) -> tuple[Any, Tensor]:
            return tuple(batch_data), batch_data[1]

    whole = Whole(parts)
    finder = LRFinder(whole, task.optimizer_of(whole, 1e-7), whole.criterion, device="cpu")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        finder.range_test(Pairs(parts.batches), end_lr=10, num_iter=100, step_mode="exp")
        made = len(finder.history["lr"])
        try:
            axes, lr = finder.plot(suggest_lr=True)
        except (ValueError, RuntimeError) as error:
            return Named(None, made, str(error))
        pyplot.close(axes.figure)
    return Named(float(lr), made)


def lightning(task: Task, parts: Parts, seed: int) -> Named:
    """`Tuner.lr_find` of Lightning from 1e-8 to 1 in 100 batches; its suggestion."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.tuner import Tuner

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.lr, self.made = parts.model, 1e-3, 0

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            self.made += 1
            return parts.loss(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return task.optimizer_of(self.net, self.lr)

    module = Module()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = Trainer(accelerator="cpu", default_root_dir=folder, enable_model_summary=False, **quiet)
        finder = Tuner(trainer).lr_find(module, parts.batches, update_attr=False)
        lr = finder.suggestion() if finder else None
    return Named(lr, module.made)


def fastai(task: Task, parts: Parts, seed: int) -> Named:
    """`lr_find` of fastai from 1e-7 to 10 in 100 iterations; its default suggestion, the valley."""
    import fastai.callback.schedule  # noqa: F401  adds lr_find to Learner
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    from fastai.optimizer import OptimWrapper

    class Batches:
        """Batches as fastai takes them: inputs, targets."""

        device = torch.device("cpu")
        batch_size = task.batch_size

        def __init__(self) -> None:
            self.dataset, self.n_inp = parts.batches, 1

        def __iter__(self) -> Any:
            return (((x, y), y) for x, y in parts.batches)

        def __len__(self) -> int:
            return len(parts.batches)

        def to(self, device: Any) -> "Batches":
            return self

    class Counting(Whole):
        made = 0

        def forward(self, batch: Batch) -> Any:
            self.made += 1
            return super().forward(batch)

    whole = Counting(parts)
    kind, defaults = OPTIMIZERS[task.optimizer]
    optimizer = functools.partial(OptimWrapper, opt=functools.partial(kind, **(defaults | dict(task.settings))))
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        loaders = DataLoaders(Batches(), Batches())
        learner = Learner(loaders, whole, loss_func=whole.criterion, opt_func=optimizer, path=folder)
        try:
            with learner.no_bar():
                found = learner.lr_find(show_plot=False)
        except (ValueError, IndexError, RuntimeError, TypeError) as error:
            return Named(None, whole.made, f"{type(error).__name__}: {error}")
    return Named(float(found.valley), whole.made)


ENTRANTS: dict[str, Any] = {"torch-lr-finder": torch_lr_finder, "lightning": lightning, "fastai": fastai}
