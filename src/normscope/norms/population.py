r"""Population statistics: the mean and variance by which the original method normalizes at inference.

    E = sum_B m_B mu_B / sum_B m_B            Var = sum_B m_B v_B / sum_B (m_B - 1)

m_B is the number of values per channel in batch B (samples times sites), mu_B and v_B are the batch mean and the biased
batch variance. With equal batches this is the article's E_B[mu_B] and m/(m-1) E_B[v_B]. torch keeps exponential
averages instead, which forget all but the last few dozen steps.
Source: the encyclopedia article "Batch normalization", section "Inference".
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.norms.channels import stat_dims, wide

# (mean, variance) of each layer, by its name.
Statistics = Mapping[str, tuple[Tensor, Tensor]]


def restart_as_plain_mean(layers: Iterable[Any]) -> None:
    """Restart the running statistics of BatchNorm layers as the plain mean over the batches of the coming passes.

    The layers keep this setting: their `momentum` is None afterwards.

    Example:
        >>> layer = torch.nn.BatchNorm1d(1)
        >>> restart_as_plain_mean([layer])
        >>> _ = layer(torch.tensor([[0.0], [2.0]])), layer(torch.tensor([[4.0], [6.0]]))
        >>> layer.running_mean.item()
        3.0
    """
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch's setting for the plain mean


@torch.no_grad()
def use_population_statistics(model: nn.Module, batches: Iterable[Any]) -> dict[str, tuple[Tensor, Tensor]]:
    """Set every BatchNorm's running statistics to those of `batches`, in one pass.

    All layers are in train mode during the pass, so the inputs of each BatchNorm are normalized by batch statistics, as
    in training. Nothing else changes: modes, other buffers, counters, parameters and torch's generators are put back,
    and if the pass raises, the running statistics, too. Each process of a group uses its own batches.

    Args:
        model: any module with BatchNorm layers of torch or normscope that keep running statistics.
        batches: inputs, or tuples whose first entry is the input (a DataLoader), or dicts of keyword arguments for a
            model with several inputs.

    Returns:
        (E, Var) of each BatchNorm, by the layer's name.

    Raises:
        ValueError: no such layer, no batch, or one value per channel in each batch.

    Example:
        >>> layer = torch.nn.BatchNorm1d(1)
        >>> _ = use_population_statistics(layer, [torch.tensor([[0.0], [2.0]]), torch.tensor([[4.0], [6.0]])])
        >>> layer.running_mean.item(), layer.running_var.item()
        (3.0, 2.0)
    """
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None
    }
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no BatchNorm that keeps running statistics, so there is nothing to set. "
            "Build its layers with track_running_stats=True."
        )
    sums = {name: _Sums() for name in layers}
    modes = {module: module.training for module in model.modules()}
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in modes
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    hooks = [layer.register_forward_pre_hook(sums[name].add, with_kwargs=True) for name, layer in layers.items()]
    device = buffers[0][2].device
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            model.train()
            for batch in batches:
                _forward(model, batch, device)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
        for module, name, buffer, before in buffers:
            module._buffers[name] = buffer.copy_(before)
    statistics = {name: total.mean_and_var(name) for name, total in sums.items()}
    for name, (mean, var) in statistics.items():
        layers[name].running_mean.copy_(mean)  # type: ignore[union-attr]
        layers[name].running_var.copy_(var)  # type: ignore[union-attr]
    return statistics


def _forward(model: nn.Module, batch: Any, device: torch.device) -> None:
    if isinstance(batch, dict):
        moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
        model(**moved)
    else:
        x = batch[0] if isinstance(batch, (tuple, list)) else batch
        model(x.to(device))


class _Sums:
    """Running sums of m, m - 1, m mu and m v over the calls of one layer, in float64."""

    def __init__(self) -> None:
        self.m = 0
        self.m_minus_1 = 0
        self.m_mu: Tensor | float = 0.0
        self.m_v: Tensor | float = 0.0

    def add(self, layer: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        x = args[0] if args else named["input"]
        m = x.numel() // x.shape[1]
        if not m:
            return
        var, mean = torch.var_mean(wide(x), dim=stat_dims(x), correction=0)
        self.m += m
        self.m_minus_1 += m - 1
        self.m_mu = self.m_mu + m * mean.double()
        self.m_v = self.m_v + m * var.double()

    def mean_and_var(self, name: str) -> tuple[Tensor, Tensor]:
        if not isinstance(self.m_mu, Tensor) or not isinstance(self.m_v, Tensor):
            raise ValueError(
                f"Population statistics need at least one batch through every layer; {name or 'the model'!r} saw "
                "none. Pass a loader that is not empty or used up, and call the layer in the model's forward."
            )
        if not self.m_minus_1:
            raise ValueError(
                f"A variance needs more than one value per channel in a batch; {name or 'the model'!r} saw one in "
                "each. Pass larger batches."
            )
        return self.m_mu / self.m, self.m_v / self.m_minus_1
