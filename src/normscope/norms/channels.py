"""Input checks and per-channel arithmetic for inputs of shape (N, C, *space)."""

import torch
from torch import Tensor, nn


def stat_dims(x: Tensor) -> list[int]:
    """The dimensions over which statistics are taken: batch and space, all but the channel."""
    return [0, *range(2, x.ndim)]


def per_channel(v: Tensor, x: Tensor) -> Tensor:
    """A view of a vector of C values that broadcasts against (N, C, *space)."""
    return v.view(1, -1, *[1] * (x.ndim - 2))


def wide(x: Tensor) -> Tensor:
    """`x` in float32 if it is in half precision, so that statistics are not summed in 8 or 11 bits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def standardize(x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """weight * scale * (x - mean) + bias per channel, in as few passes over x as torch's kernels allow."""
    if weight is not None:
        scale = scale * weight
    centred = wide(x) - per_channel(mean, x)
    if bias is None:
        return (centred * per_channel(scale, x)).to(x.dtype)
    return torch.addcmul(per_channel(wide(bias), x), centred, per_channel(scale, x)).to(x.dtype)


@torch.no_grad()
def track(running: Tensor, batch: Tensor, factor: float | Tensor) -> None:
    """running <- (1 - factor) running + factor batch, in place; `lerp_` has no vmap rule."""
    if isinstance(factor, Tensor):
        factor = factor.to(running.dtype)
    running.mul_(1 - factor).add_(batch.to(running.dtype) * factor)


def check_input(x: Tensor, layer: str, num_features: int | None, ndims: tuple[int, ...], *, batch_stats: bool) -> None:
    """Raise on a wrong input, before anything has been written.

    Args:
        x: the input.
        layer: name of the layer, for the message.
        num_features: expected number of channels; None for any.
        ndims: allowed numbers of dimensions.
        batch_stats: whether the layer takes statistics of the batch, and so needs more than one value per channel.
    """
    arrived = f"got {str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
    if x.ndim not in ndims:
        shapes = " or ".join("(N, C" + ", *" * (d - 2) + ")" for d in ndims)
        raise ValueError(f"{layer} takes inputs of shape {shapes}; {arrived}. {_other_layer(layer, x.ndim)}")
    if num_features is not None and x.shape[1] != num_features:
        raise ValueError(
            f"{layer} was built for {num_features} channels in dimension 1; {arrived}. "
            f"Build it with num_features={x.shape[1]}, or check what feeds it."
        )
    if not x.is_floating_point():
        raise TypeError(f"{layer} normalizes floating-point tensors; {arrived}. Convert it first: x.float().")
    if batch_stats and x.numel() == x.shape[1] > 0:
        raise ValueError(
            f"{layer} in training needs more than one value per channel to take statistics of; {arrived}. "
            "Use a larger batch (drop_last=True in the loader), or model.eval() for inference."
        )


def _other_layer(layer: str, ndim: int) -> str:
    fitting = {2: "1d", 3: "1d", 4: "2d", 5: "3d"}.get(ndim)
    if fitting is None or layer[-2:] not in ("1d", "2d", "3d"):
        return "Reshape it so that channels are dimension 1."
    return f"Use {layer[:-2]}{fitting}, or reshape it so that channels are dimension 1."


def traced(module: nn.Module, x: Tensor) -> "torch.fx.Proxy | None":
    """Under `torch.fx` tracing: a `call_module` node for `module`, as torch.nn's own layers get; else None.

    A layer outside torch.nn would be traced into, which bakes its train/eval mode and its buffers into the
    graph. As a leaf it follows `.train()` and `.eval()` of the traced module.
    """
    if not isinstance(x, torch.fx.Proxy):
        return None
    if not type(module).__module__.startswith("normscope."):
        # The node would stand for the whole subclass, and the operations its forward adds would be traced a second
        # time.
        raise TypeError(
            f"torch.fx treats normscope's layers as leaves, but {type(module).__name__} is a subclass with a forward "
            "of its own. Make it a leaf too: a torch.fx.Tracer whose is_leaf_module returns True for it."
        )
    tracer = x.tracer
    assert isinstance(tracer, torch.fx.Tracer)
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (x,), {})
