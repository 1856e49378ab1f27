"""Loss and gradient as one CUDA graph: the step of a small network waits for a host that launches its kernels."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

# Kernels are chosen and compiled, and workspaces made, in the first passes: they are training steps as any other.
EAGER_STEPS = 3


class ReplayedGradient:
    """`gradient(batch)`, which leaves `.grad` behind and returns the loss: eager for a few steps, then replayed.

    The graph has fixed places for the batch, the loss and every `.grad`: each call overwrites them, and puts the last
    back where others have set them to None or to something else. What the model and the loss do in Python happens at
    the recording alone, so neither may depend on the batch's values or count calls; counters and random numbers on the
    device move on as they do eagerly. A batch of another form, or of more than tensors on the device, runs eagerly.

    parameters: all that get a gradient or are updated, those of the loss too.
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
        if not all(map(self._has_a_place, tensors)):
            return self._gradient(batch)
        if self._graph is None:
            self._record(tensors, form)
        if (form, _kinds(tensors)) != (self._form, _kinds(self._tensors)):
            return self._gradient(batch)
        torch._foreach_copy_(self._tensors, tensors)
        self._graph.replay()  # type: ignore[union-attr]
        for parameter, place in zip(self._parameters, self._grads, strict=True):
            parameter.grad = place
        return self._loss.clone()

    def _has_a_place(self, leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and leaf.device == self._device and not leaf.requires_grad

    def _on_another_stream(self, batch: Any) -> Tensor:
        """That of the recording: the default one cannot be recorded, and autograd's nodes remember where they ran."""
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
