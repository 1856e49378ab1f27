"""Three readings of normalizers' statistics: as trained, frozen, or running.

    batch       as trained: the statistics of this batch, differentiated through
    frozen      the statistics of this batch, held constant, as in a theory that takes mean and variance as given
    running     eval mode: running statistics, no dropout, no noise

Layers whose statistics are not over the batch (LayerNorm, GroupNorm, InstanceNorm, RMSNorm) are the same in all three.

"frozen" holds the statistics of normscope's layers and of `F.batch_norm`, wherever a forward calls it. So a subclass, a
patched forward or a normalizer without a layer keeps all its other effects, and the loss is that of "batch". A
normalizer written out in elementary operations is not recognized; `Network.mixes` reports it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from normscope.choices import check_choice
from normscope.curvature.autograd.patching import batch_norm_held
from normscope.isolation.module_calls import answering
from normscope.isolation.processes import several_processes
from normscope.norms._constant_statistics import statistics_held
from normscope.norms.batch import batch_norm
from normscope.norms.lp import _LpLayer

STATISTICS = ("batch", "frozen", "running")


@contextmanager
def enough_values() -> Iterator[None]:
    """Add the next step to BatchNorm's refusal of a batch of one."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ValueError(
            f"BatchNorm in training needs more than one value per channel to take statistics of ({error}). Hand "
            "in a larger batch, or ask for stats='running'."
        ) from error


def over_the_batch(model: nn.Module, statistics: str = "batch") -> dict[str, nn.Module]:
    """Layers that take their statistics over the batch in this reading; in eval mode those without running statistics.

    Example:
        >>> keeps_none = nn.BatchNorm1d(2, track_running_stats=False)
        >>> list(over_the_batch(nn.Sequential(nn.BatchNorm1d(2), keeps_none), "running"))
        ['1']
    """
    kinds = (nn.modules.batchnorm._BatchNorm, _LpLayer)
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, kinds)
        and ((layer.training and statistics != "running") or getattr(layer, "running_mean", None) is None)
    }


@contextmanager
def reading(model: nn.Module, statistics: str) -> Iterator[None]:
    """Inside, the forwards of `model` read their statistics in this way."""
    check_choice("stats", statistics, STATISTICS)
    if statistics == "running":
        training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            yield
        finally:
            for module in training:
                vars(module)["training"] = True
    elif statistics == "frozen":
        with statistics_held(), batch_norm_held(), answering(_synced(model), _over_processes):
            yield
    else:
        yield


def _synced(model: nn.Module) -> dict[str, nn.Module]:
    """Torch's layers whose kernel goes over several processes, without a function that could be replaced."""
    if not several_processes():
        return {}
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.SyncBatchNorm) and m.training}


def _over_processes(name: str, layer: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
    x = args[0] if args else kwargs["input"]
    return batch_norm(x, layer.weight, layer.bias, eps=layer.eps, sync=True)
