"""The statistics modes: which mean and variance normalizers use, and whether outputs depend on other samples.

    batch       as trained: the statistics of this batch, differentiated through
    frozen      the statistics of this batch, held constant, as in a theory that takes mean and variance as given
    running     eval mode: running statistics, no dropout, no noise

A mode is one entry of `MODES`. To add a mode, add an entry. `predict` has a list of its own, `prediction.STATISTICS`,
since each of its modes needs a theory. Layers whose statistics are not taken over the batch
(LayerNorm, GroupNorm, InstanceNorm, RMSNorm) behave the same in all modes.

The mode "frozen" holds the statistics of normscope's layers, and of every call of `F.batch_norm` in a forward. The loss
equals the loss in the mode "batch". A subclass, a patched forward or a normalizer without a layer keeps its other
effects. A normalizer written out in elementary operations is not recognized; `depends_on_others` detects it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.curvature.autograd.patching import batch_norm_held
from normscope.isolation.module_calls import answering
from normscope.isolation.processes import several_processes
from normscope.messages.choices import check_choice
from normscope.norms.batch import batch_norm
from normscope.norms.held_statistics import statistics_held
from normscope.norms.kinds import OVER_BATCH_LAYERS

# Samples of a pass that looks whether outputs depend on other samples.
_PROBE_SAMPLES = 8


@contextmanager
def _held(model: nn.Module) -> Iterator[None]:
    with statistics_held(), batch_norm_held(), answering(_synced(model), _over_processes):
        yield


def _synced(model: nn.Module) -> dict[str, nn.Module]:
    """Torch's SyncBatchNorm layers in train mode: their kernel runs over several processes and cannot be replaced."""
    if not several_processes():
        return {}
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.SyncBatchNorm) and m.training}


def _over_processes(name: str, layer: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
    x = args[0] if args else kwargs["input"]
    return batch_norm(x, layer.weight, layer.bias, eps=layer.eps, sync=True)


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            vars(module)["training"] = True


@dataclass(frozen=True)
class StatisticsMode:
    """One choice of the statistics that normalizers use.

    Attributes:
        entered: entered(model) is the context in which forwards of `model` use these statistics.
        of_the_batch: whether layers in train mode take their statistics from the batch.
        differentiated: whether derivatives go through the statistics.
    """

    entered: Callable[[nn.Module], AbstractContextManager[None]]
    of_the_batch: bool
    differentiated: bool

    @property
    def as_trained(self) -> bool:
        """Whether the loss and its derivatives are the ones that an optimizer sees. Critical rates need such a mode."""
        return self.of_the_batch and self.differentiated

    @property
    def holds_the_batch(self) -> bool:
        """Whether the batch's statistics are held constant, which torch's fused BatchNorm kernels cannot do."""
        return self.of_the_batch and not self.differentiated


# The mode of the loss that an optimizer sees.
AS_TRAINED = "batch"
MODES = {
    AS_TRAINED: StatisticsMode(lambda _: nullcontext(), of_the_batch=True, differentiated=True),
    "frozen": StatisticsMode(_held, of_the_batch=True, differentiated=False),
    "running": StatisticsMode(_in_eval_mode, of_the_batch=False, differentiated=False),
}
STATISTICS = tuple(MODES)


def mode_of(stats: str) -> StatisticsMode:
    """The mode of this name."""
    check_choice("stats", stats, MODES)
    return MODES[stats]


def differentiable(stats: str) -> str:
    """The mode in which to test whether one sample's output depends on other samples.

    Constant statistics would hide the dependence, so "frozen" is tested as "batch".
    """
    return AS_TRAINED if mode_of(stats).holds_the_batch else stats


def statistics_mode(model: nn.Module, stats: str) -> AbstractContextManager[None]:
    """The context in which forwards of `model` use the statistics of this mode."""
    return mode_of(stats).entered(model)


@contextmanager
def enough_values() -> Iterator[None]:
    """Add advice to the error with which BatchNorm refuses a batch of one value."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            f"BatchNorm in training needs more than one value per channel ({error}). Pass a larger batch, or "
            "stats='running'."
        ) from error


def over_the_batch(model: nn.Module, stats: str = AS_TRAINED) -> dict[str, nn.Module]:
    """Layers that take their statistics over the batch in this mode; in eval mode those without running statistics.

    Example:
        >>> keeps_none = nn.BatchNorm1d(2, track_running_stats=False)
        >>> list(over_the_batch(nn.Sequential(nn.BatchNorm1d(2), keeps_none), "running"))
        ['1']
    """
    of_the_batch = mode_of(stats).of_the_batch
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, OVER_BATCH_LAYERS)
        and ((layer.training and of_the_batch) or getattr(layer, "running_mean", None) is None)
    }


def notes_on_statistics(model: nn.Module, stats: str, compare: Sequence[str]) -> list[str]:
    """Notes on the statistics that the layers use, in the mode `stats` and in the modes compared with it."""
    notes = []
    normed = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    stored = [name for name in (stats, *compare) if not mode_of(name).of_the_batch]
    if stored:
        if any(m.num_batches_tracked is not None and not int(m.num_batches_tracked) for m in normed):
            notes.append("The running statistics are those of initialization: no batch has been seen in train mode.")
        if keep_none := over_the_batch(model, stored[0]):
            notes.append(f"No running statistics in {', '.join(keep_none)}: with {stored[0]!r} they take the batch's.")
    if mode_of(stats).of_the_batch and normed and not over_the_batch(model):
        notes.append("The model's BatchNorm layers are in eval mode: their running statistics were used.")
    return notes


def depends_on_others(
    forward: Callable[[Tensor], Any], rows: Tensor, slope_of: Callable[[Tensor], Tensor | None], *, whole: bool = False
) -> bool:
    """Whether the outputs of the first sample depend on any other sample: d(output[0])/d(rows) outside row 0.

    Args:
        forward: forward(x) gives the outputs for the samples x.
        rows: the samples of the batch, one in each row.
        slope_of: the derivative of a scalar with respect to `rows`.
        whole: True tests with all samples, for a forward that mixes samples only in larger batches. False (default)
            tests with eight samples, or with all samples if the forward refuses eight or runs on several processes.
    """
    few = rows if whole or several_processes() else rows[:_PROBE_SAMPLES]
    try:
        output = forward(few.clone())
    except Exception:
        if len(few) == len(rows):
            raise
        few = rows
        output = forward(rows.clone())
    if not isinstance(output, Tensor) or not output.requires_grad or output.shape[:1] != few.shape[:1]:
        return False
    first = output[0].reshape(-1)
    slope = slope_of(first @ uneven_vector(first))
    return slope is not None and bool(slope[1:].any())


def uneven_vector(like: Tensor) -> Tensor:
    """Weights for a sum of outputs. A normalizer over the outputs may make their plain sum constant, not this one."""
    return torch.arange(like.numel(), device=like.device).cos().to(like).view_as(like)
