r"""The losses of the sources; squared errors compare class labels (integers of shape (N,)) as one-hot targets.

    half_mse        1/2 mean_n sum_k (f_k - y_k)^2        Wei et al. 2019 (from its Fisher matrix; it names no loss)
    half_sse        1/2 sum_n  sum_k (f_k - y_k)^2        Santurkar et al. 2018, the deep linear network
    mse             mean_n mean_k (f_k - y_k)^2           torch.nn.MSELoss
    cross_entropy   torch.nn.functional.cross_entropy

`torch.nn.MSELoss` also averages over outputs and has no factor 1/2: with 10 outputs its stable learning rates are 5
times those of half_mse.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy as cross_entropy
from torch.nn.functional import one_hot


def half_mse(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared error, summed over outputs and averaged over samples.

    Args:
        output: (N, outputs) or (N,).
        target: values of the same shape, or (N,) labels, which count as one-hot rows.

    Returns:
        The scalar loss.

    Example:
        >>> import torch
        >>> half_mse(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([1, 0]))
        tensor(0.5000)
    """
    return half_sse(output, target) / len(output)


def half_sse(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared error, summed over outputs and samples.

    Args:
        output: (N, outputs) or (N,).
        target: values of the same shape, or (N,) labels, which count as one-hot rows.

    Returns:
        The scalar loss.

    Example:
        >>> import torch
        >>> half_sse(torch.tensor([[3.0]]), torch.tensor([[1.0]]))
        tensor(2.)
    """
    if not target.is_floating_point():
        labels = output.ndim == 2 and target.ndim == 1
        target = (one_hot(target.long(), output.shape[1]) if labels else target).to(output.dtype)
    if target.shape != output.shape:
        raise ValueError(
            f"The squared error compares tensors of one shape; got outputs {tuple(output.shape)} and targets "
            f"{tuple(target.shape)}, which would broadcast. Reshape one of them."
        )
    return 0.5 * (output - target).square().sum()


def mse(output: Tensor, target: Tensor) -> Tensor:
    """The squared error averaged over samples and outputs, as torch.nn.MSELoss; refuses shapes that would broadcast.

    Args:
        output: (N, outputs) or (N,).
        target: values of the same shape, or (N,) labels, which count as one-hot rows.

    Returns:
        The scalar loss.

    Raises:
        ValueError: shapes that would broadcast.

    Example:
        >>> import torch
        >>> mse(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), torch.tensor([1, 0]))
        tensor(0.5000)
    """
    return 2 * half_sse(output, target) / output.numel()


LOSSES: dict[str, Callable[..., Tensor]] = {"half_mse": half_mse, "half_sse": half_sse, "cross_entropy": cross_entropy}


def pair(batch: Any) -> tuple[Any, Any]:
    """The batch as a pair (x, y); a ValueError for any other batch."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        got = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")
        raise ValueError(f"With loss_fn a batch is a pair (x, y); got {got}. For other batches hand in forward=.")
    x, y = batch
    return x, y
