r"""The loss as a function of the outputs f, and of the parameters that it reads itself, as a penalty does: l(f, theta).

    G = (J, 1)^T (d^2 l / d(f, theta)^2) (J, 1)             J = df/dtheta

is the generalized Gauss-Newton matrix of both: where l reads no parameter it is J^T (d^2 l / df^2) J, and a penalty
adds its Hessian. Targets, and tensors that a loss holds, are lent as copies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from normscope.curvature.autograd.patching import differentiable_kernels
from normscope.curvature.autograd.user_functions import refuse_delayed, refuse_without_second_derivative
from normscope.curvature.operators.fisher import distribution
from normscope.isolation.batch_copies import Copies, lent_loss
from normscope.isolation.flat_vectors import flat, split
from normscope.loss_kinds import FLAT, LossKind
from normscope.losses.known_losses import LOG_LABELS
from normscope.losses.mismatch import check_outputs, explaining
from normscope.objective import main_output, own_loss

# Relative part of the gradient that may go past the predictions of a model with a loss of its own: rounding.
_MOST_PAST_OUTPUTS = 1e-3


@dataclass(frozen=True)
class OutputCurvature:
    """The second derivative of a loss with respect to its outputs, and to the parameters that it reads itself.

    Attributes:
        product: the map (J v, v) -> (second derivatives with respect to the outputs, and to the leaves) in this
            direction; those with respect to the leaves are None for a loss that reads no parameter.
        reads_parameters: whether the loss reads parameters itself, as a penalty does.
        is_zero: whether the loss has no curvature, with respect to outputs and to parameters.
    """

    product: Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
    reads_parameters: bool = False
    is_zero: bool = False


class LossOfOutputs:
    """loss_fn(outputs, targets) of one batch.

    Args:
        loss_fn: loss_fn(outputs, targets) is a scalar.
        targets: the targets of the batch.
        originals: the model's own parameters, in whose places it is lent copies.
        device: type of the device, "cpu" or "cuda".
        dtype: cast the tensors that the loss holds to it; None leaves them.
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
        self._lending, self._copies = lent_loss(loss_fn, dtype), Copies(targets)

    @property
    def targets(self) -> Any:
        return self._copies.take()

    def __call__(self, output: Any, targets: Any = None) -> Tensor:
        """The loss, at other targets if they are given."""
        targets = self.targets if targets is None else targets
        check_outputs(self.loss_fn, output, targets)
        with differentiable_kernels(self._device), explaining(output, targets):
            loss = self._lending(output, targets)
        if not isinstance(loss, Tensor) or loss.ndim:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(f"loss_fn must return a scalar; got {got}. Take its mean or its sum.")
        self._refuse_captured_parameters(loss)
        return loss

    def _refuse_captured_parameters(self, loss: Tensor) -> None:
        """Refuse a loss that holds the model's own parameters: the model has copies of them here."""
        if not loss.requires_grad or distribution(self.loss_fn) is not None:
            return
        slopes = torch.autograd.grad(loss, self._originals, retain_graph=True, allow_unused=True)
        if any(slope is not None for slope in slopes):
            raise ValueError(
                "loss_fn holds parameters of the model itself. A measured model has copies of its parameters, so the "
                "term that loss_fn adds would have no curvature. Let loss_fn read model.parameters() at each call."
            )

    def outputs_in_loss(self, outputs: Any) -> tuple[int, ...]:
        """The numbers of the outputs that the loss depends on.

        () if the outputs are one tensor, or if the model computes the loss itself.
        """
        if self.loss_fn is own_loss_of:
            main = main_output(outputs)
            if main is None or not main.requires_grad:
                raise NoOutputs
            return ()
        if isinstance(outputs, Tensor):
            return ()
        parts = tree_leaves(outputs)
        moving = [i for i, part in enumerate(parts) if isinstance(part, Tensor) and part.requires_grad]
        moved = [part.detach().requires_grad_() if i in moving else part for i, part in enumerate(parts)]
        loss = self(tree_unflatten(moved, tree_flatten(outputs)[1]))
        slopes = torch.autograd.grad(loss, [moved[i] for i in moving], allow_unused=True) if loss.requires_grad else []
        output_numbers = tuple(i for i, slope in zip(moving, slopes, strict=False) if slope is not None)
        if not output_numbers:
            raise NoOutputs
        return output_numbers

    def output_curvature(
        self, outputs: Any, output_numbers: tuple[int, ...], leaves: Sequence[Tensor]
    ) -> OutputCurvature:
        """The second derivative at these outputs; output_numbers: as `outputs_in_loss` gives them."""
        if self.loss_fn is own_loss_of:
            return self._inside_the_model(outputs, output_numbers, leaves)
        z = joined(outputs, output_numbers).detach().requires_grad_()
        inputs = [z, *leaves]
        loss = self(rebuilt(outputs, output_numbers, z))
        refuse_without_second_derivative(loss.grad_fn, lambda _: self(rebuilt(outputs, output_numbers, z)))
        slopes = torch.autograd.grad(loss, inputs, create_graph=True, allow_unused=True)
        reads_parameters = any(slope is not None for slope in slopes[1:])
        curved = [i for i, slope in enumerate(slopes) if slope is not None and slope.requires_grad]
        grads = [slope for slope in slopes if slope is not None and slope.requires_grad]

        def product(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
            if not grads:
                return torch.zeros_like(u), None
            directions = [u, *split(v, leaves)] if reads_parameters else [u]
            cotangents = [directions[i] for i in curved]
            curvatures = torch.autograd.grad(grads, inputs, cotangents, retain_graph=True, allow_unused=True)
            by_outputs = torch.zeros_like(u) if curvatures[0] is None else curvatures[0]
            return by_outputs, flat(curvatures[1:], leaves) if reads_parameters else None

        generator = torch.Generator(z.device).manual_seed(0)
        random_direction = torch.empty_like(z).normal_(generator=generator)
        kind = distribution(self.loss_fn)
        has_curvature = reads_parameters or kind not in (None, LOG_LABELS)
        is_zero = not has_curvature and not product(random_direction, random_direction)[0].any()
        return OutputCurvature(product, reads_parameters, is_zero)

    def _inside_the_model(
        self, outputs: Any, output_numbers: tuple[int, ...], leaves: Sequence[Tensor]
    ) -> OutputCurvature:
        """The second derivative of a loss that the model itself computes from its predictions z."""
        z, loss = joined(outputs, output_numbers), self(outputs)
        (slope,) = torch.autograd.grad(loss, z, create_graph=True, allow_unused=True)
        if slope is None:
            raise NoOutputs
        refuse_delayed([slope])
        gradient = flat(torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True), leaves)
        gradient_through_outputs = torch.autograd.grad(z, leaves, slope.detach(), retain_graph=True, allow_unused=True)
        if (gradient - flat(gradient_through_outputs, leaves)).norm() > _MOST_PAST_OUTPUTS * gradient.norm():
            raise NoOutputs

        def product(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
            if not slope.requires_grad:
                return torch.zeros_like(u), None
            (curvature,) = torch.autograd.grad(slope, z, u, retain_graph=True, allow_unused=True)
            return torch.zeros_like(u) if curvature is None else curvature, None

        return OutputCurvature(product)


def own_loss_of(outputs: Any, _: Any) -> Tensor:
    """The loss_fn of a model, or of a forward=, that computes the loss itself."""
    return own_loss(outputs)


def joined(outputs: Any, output_numbers: tuple[int, ...]) -> Tensor:
    """The outputs numbered `output_numbers` as one tensor: a single one unchanged, several flattened in a row.

    Without numbers: the outputs where they are one tensor, or the predictions among several tensors.
    """
    if isinstance(outputs, Tensor):
        return outputs
    if not output_numbers:
        main = main_output(outputs)
        if main is None:
            raise NoOutputs
        return main
    leaves = tree_leaves(outputs)
    parts = [leaves[i] for i in output_numbers]
    return parts[0] if len(parts) == 1 else torch.cat([part.reshape(-1) for part in parts])


def rebuilt(outputs: Any, output_numbers: tuple[int, ...], z: Tensor) -> Any:
    """The outputs with z in the place of the tensors that `joined` took; the others are held constant."""
    if isinstance(outputs, Tensor):
        return z
    leaves, form = tree_flatten(outputs)
    leaves = [part.detach() if isinstance(part, Tensor) else part for part in leaves]
    parts = [z] if len(output_numbers) == 1 else split(z, [leaves[i] for i in output_numbers])
    for i, part in zip(output_numbers, parts, strict=True):
        leaves[i] = part
    return tree_unflatten(leaves, form)


class NoOutputs(ValueError):
    """The loss is no known function of the model's outputs, so it has no Gauss-Newton matrix here."""

    def __init__(self) -> None:
        super().__init__(
            "The loss cannot be taken as a function of the model's outputs: forward= or the model gives the loss "
            "alone, or the loss does not go through its logits. Hand in loss_fn(outputs, targets) beside it, or ask "
            "for matrix='hessian'."
        )


def refuse_flat(kind: LossKind, is_hessian: bool) -> None:
    """Raise where the loss has the same value at all outputs."""
    if kind == FLAT and not is_hessian:
        raise ValueError(
            "The loss does not change with the outputs: it is not meant for outputs of this shape, or all targets of "
            "this batch are ignored. Cross-entropy over one class is always 0. For one logit a sample use "
            "binary_cross_entropy_with_logits, for numbers a squared error."
        )


def refuse_impossible(kind: LossKind, is_hessian: bool, lambda_max: float) -> None:
    """Raise where the largest eigenvalue is no number to take a learning rate from; a Hessian's may be negative."""
    if is_hessian:
        return
    if lambda_max < 0 or (lambda_max == 0 and not kind.convex):
        raise ValueError(
            f"The largest eigenvalue found of the Gauss-Newton matrix is {lambda_max:.3g}: the loss bends down in the "
            "outputs, so its quadratic limits no learning rate. If it is to be maximized, hand in its negative; "
            "else ask for matrix='hessian'."
        )
    if lambda_max == 0:
        raise ValueError(
            "No output changes with the parameters to first order, as where all units are dead or all weights zero: "
            "lambda_max is 0 and limits no learning rate. Measure at another start, or after some steps."
        )
