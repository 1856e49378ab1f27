"""Record loss and gradient as one CUDA graph and replay it: a small network's step waits mostly for kernel launches."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

# In the first passes torch chooses and compiles kernels and allocates workspaces, so they are not recorded. They are
# ordinary training steps.
EAGER_STEPS = 3


class ReplayedGradient:
    """A function of a batch that sets `.grad` and returns the loss: eager for a few steps, then replayed.

    The graph has fixed tensors for the batch, the loss and every `.grad`. Each call overwrites them, and sets `.grad`
    to the graph's tensor again if other code has replaced it. Python code of the model and the loss runs only while the
    graph is recorded, so it must not depend on the batch's values or count calls. Counters and random numbers on the
    device advance as in eager mode. A batch of another form, or with other things than tensors on the device, runs
    eager.

    Args:
        gradient: gradient(batch) sets `.grad` and returns the loss.
        parameters: all parameters that get a gradient or are updated, also those of the loss.
        device: the CUDA device.
    """

    def __init__(
        self, gradient: Callable[[Any], Tensor], parameters: Sequence[nn.Parameter], device: torch.device
    ) -> None:
        self._gradient, self._parameters, self._device = gradient, parameters, device
        self._beside = torch.cuda.Stream(device)
        self._eager = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Any) -> Tensor:
        if self._eager < EAGER_STEPS:
            self._eager += 1
            return self._on_another_stream(batch)
        tensors, form = tree_flatten(batch)
        if not all(map(self._can_be_copied, tensors)):
            return self._gradient(batch)
        if self._graph is None:
            self._record(tensors, form)
        if (form, _kinds(tensors)) != (self._form, _kinds(self._tensors)):
            return self._gradient(batch)
        torch._foreach_copy_(self._tensors, tensors)
        self._graph.replay()  # type: ignore[union-attr]
        for parameter, grad in zip(self._parameters, self._grads, strict=True):
            parameter.grad = grad
        return self._loss.clone()

    def _can_be_copied(self, leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and leaf.device == self._device and not leaf.requires_grad

    def _on_another_stream(self, batch: Any) -> Tensor:
        """Run eager on the recording stream; the default stream cannot be recorded, and autograd nodes keep theirs."""
        self._beside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._beside):
            loss = self._gradient(batch)
        torch.cuda.current_stream(self._device).wait_stream(self._beside)
        return loss

    def _record(self, tensors: Sequence[Tensor], form: Any) -> None:
        self._tensors, self._form = [t.clone() for t in tensors], form
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._beside):
                self._loss = self._gradient(tree_unflatten(self._tensors, form))
        except RuntimeError as error:
            raise RuntimeError(
                "Forward and backward could not be recorded as a CUDA graph; a model or loss that waits for the device "
                f"(.item(), an `if` on values, a copy to the host) cannot. Train with replay=False. Torch says: {error}"
            ) from error
        self._graph, self._grads = graph, [p.grad for p in self._parameters]


def _kinds(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(t.shape, t.dtype) for t in tensors]
