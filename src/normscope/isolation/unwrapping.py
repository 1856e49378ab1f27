"""The module inside `torch.compile` and DDP, and its loss as one function of model and batch."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from normscope.isolation.batch_copies import lent_objective
from normscope.isolation.batch_loss import check_devices
from normscope.isolation.processes import Processes, several_processes
from normscope.isolation.refusals import NotLent
from normscope.objective import Objective


def unwrapped(model: nn.Module) -> tuple[nn.Module, Processes, str]:
    """The module inside `torch.compile` and DDP, the processes that train it, and a note on their batch statistics.

    Raises:
        NotLent: FSDP, DataParallel, sharded parameters or TorchScript, which cannot be measured.
        ValueError: lazy layers without weights.
    """
    group = None
    while True:
        if isinstance(model, DistributedDataParallel):
            group = model.process_group
            model = model.module
        elif isinstance(inner := dict(model.named_children()).get("_orig_mod"), nn.Module):
            model = inner
        else:
            break
    modules, parameters = list(model.modules()), list(model.parameters())
    for kind in dict.fromkeys(map(type, modules)):
        if issubclass(kind, nn.DataParallel) or any("FullyShardedDataParallel" in c.__name__ for c in kind.__mro__):
            raise NotLent(
                f"{kind.__name__} is not supported: this process does not hold all parameters of the network. Use DDP."
            )
    if any("DTensor" in type(p).__name__ for p in parameters):
        raise NotLent("Parameters sharded over devices (FSDP2, DTensor) are not supported. Use DDP.")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in parameters):
        raise ValueError(
            "The model has lazy layers that have not seen data and have no weights yet. Run one forward first."
        )
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        raise NotLent("TorchScript modules cannot be measured. Hand in the module they were made from.")
    convention = ""
    layers = [m for m in modules if isinstance(m, nn.SyncBatchNorm) or vars(m).get("sync", False)]
    synced = bool(layers)
    if group is None and several_processes() and any(layer.training for layer in layers):
        # The forward of a synchronized layer exchanges values with all processes of the default group, so the
        # measurement must run in all of them, too.
        group = dist.group.WORLD
    if group is not None:
        convention = "Several processes: losses and gradients are averaged over them, with " + (
            "batch statistics synchronized." if synced else "each process's own batch statistics."
        )
    return model, Processes(group), convention


def loss_of(objective: Objective) -> Callable[[nn.Module, Any], Tensor]:
    """A function loss(model, batch) that returns the scalar loss, on a copy of the user's loss.

    Raises:
        ValueError: from the returned function, if the batch is on another device than the model.
    """
    lent = lent_objective(objective)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        try:
            return lent(model, batch)
        except RuntimeError:
            check_devices(batch, next((p.device for p in model.parameters()), torch.device("cpu")))
            raise

    return loss
