r"""The loss as a function of the outputs f, and of the parameters that it reads itself, as a penalty does: l(f, theta).

    G = (J, 1)^T (d^2 l / d(f, theta)^2) (J, 1)             J = df/dtheta

is the generalized Gauss-Newton matrix of both: where l reads no parameter it is J^T (d^2 l / df^2) J, and a penalty
adds its Hessian. Targets, and what a loss holds, are lent as copies.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.curvature.derivatives import derivable
from normscope.curvature.fisher import LOG_LABELS, distribution
from normscope.curvature.fitting import check_outputs, explaining
from normscope.curvature.vectors import flat, split
from normscope.isolation.copies import Copies, lending

Bent = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]


class LossOfOutputs:
    """loss_fn(outputs, targets) of one batch.

    Args:
        originals: the parameters that the model has outside, in whose places it is lent others.
        dtype: that of the tensors the loss holds, None for their own.

    direct: whether the loss reads parameters itself; linear: whether it has no curvature at all. Known after `bent`.
    """

    def __init__(
        self,
        loss_fn: Callable[[Any, Any], Tensor],
        targets: Any,
        originals: Sequence[nn.Parameter],
        device: str,
        dtype: torch.dtype | None,
    ) -> None:
        self.loss_fn, self._originals, self._device = loss_fn, originals, device
        self._lending, self._copies = lending(loss_fn, dtype), Copies(targets)
        self.direct = self.linear = False

    @property
    def targets(self) -> Any:
        return self._copies.take()

    def __call__(self, output: Any, targets: Any = None) -> Tensor:
        """The loss, at other targets if they are given."""
        targets = self.targets if targets is None else targets
        check_outputs(self.loss_fn, output, targets)
        with derivable(self._device), explaining(targets):
            loss = self._lending(output, targets)
        if not isinstance(loss, Tensor) or loss.ndim:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"loss_fn must return a scalar; got {got}. Take its mean or its sum.")
        self._refuse_held(loss)
        return loss

    def _refuse_held(self, loss: Tensor) -> None:
        """A loss that holds the model's parameters in a list of its own has others than the model has here."""
        if not loss.requires_grad or distribution(self.loss_fn) is not None:
            return
        found = torch.autograd.grad(loss, self._originals, retain_graph=True, allow_unused=True)
        if any(slope is not None for slope in found):
            raise ValueError(
                "loss_fn holds parameters of the model itself; while it is measured the model has copies of them, so "
                "what it adds would have no curvature. Have it read them at each call: model.parameters()."
            )

    def bent(self, output: Tensor, leaves: Sequence[Tensor]) -> Bent:
        """(J v, v) -> the second derivative along them, by the outputs and by the leaves (None without any)."""
        z = output.detach().requires_grad_()
        inputs = [z, *leaves]
        slopes = torch.autograd.grad(self(z), inputs, create_graph=True, allow_unused=True)
        self.direct = any(slope is not None for slope in slopes[1:])
        curved = [i for i, slope in enumerate(slopes) if slope is not None and slope.requires_grad]
        grads = [slope for slope in slopes if slope is not None and slope.requires_grad]

        def product(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
            if not grads:
                return torch.zeros_like(u), None
            along = [u, *split(v, leaves)] if self.direct else [u]
            taken = [along[i] for i in curved]
            found = torch.autograd.grad(grads, inputs, taken, retain_graph=True, allow_unused=True)
            by_outputs = torch.zeros_like(u) if found[0] is None else found[0]
            return by_outputs, flat(found[1:], leaves) if self.direct else None

        generator = torch.Generator(z.device).manual_seed(0)
        probe = torch.empty_like(z).normal_(generator=generator)
        kind = distribution(self.loss_fn)
        known = self.direct or kind not in (None, LOG_LABELS)
        self.linear = not known and not product(probe, probe)[0].any()
        return product


def one_tensor(output: Any) -> Tensor:
    """The outputs, refused where they are several."""
    if not isinstance(output, Tensor):
        raise TypeError(
            f"The outputs must be one tensor to take curvature by them; the model returns "
            f"{type(output).__name__}. Have it return the tensor, or ask for matrix='hessian'."
        )
    return output
