r"""Passes of one network on one batch: its outputs f, and its products with J = df/dtheta and with J^T.

    u -> J^T u        backward, by the kept graph of one forward
    v -> J v          forward mode: each parameter carries its part of v as a tangent
                      else reverse mode twice, as the derivative of the linear map u -> J^T u:
                      J v = d <J^T u, v> / du

Torch's nested forward mode is wrong for BatchNorm and not used. Where a model has no forward mode, or another
derivative there than in reverse mode, reverse mode twice takes its place.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from normscope.curvature.autograd.convolutions import gradients_of_the_user
from normscope.curvature.autograd.forward_mode import KeptLayerOutputs, fused, with_tangent
from normscope.curvature.autograd.patching import differentiable_kernels, fast_second_derivatives
from normscope.curvature.autograd.user_functions import Calls, refuse_delayed, refuse_without_second_derivative
from normscope.curvature.operators.loss_of_outputs import joined
from normscope.curvature.operators.statistics import depends_on_others, mode_of, statistics_mode
from normscope.isolation.batch_copies import Copies
from normscope.isolation.flat_vectors import flat, split
from normscope.isolation.lending import Lent
from normscope.isolation.module_calls import answering
from normscope.isolation.processes import FailedElsewhere
from normscope.linear_maps import Product
from normscope.messages.out_of_memory import out_of_memory

# Gradients by several tensors, None for a tensor without a part in the result.
Gradients = Sequence[Tensor | None]


class Passes:
    """Forwards of the lent model on one batch, and products with their derivative with respect to the leaves.

    Args:
        lent: the copies that the model works with.
        model: the model that they are lent to.
        call: call(model, inputs) gives the outputs, and every forward draws the same random numbers.
        inputs: the inputs of the batch.
        stats: name of the statistics mode in which every pass is made.
        leaves: the lent parameters to differentiate by.

    Attributes:
        forward_mode: whether J v is computed in forward mode; False once forward mode has failed.
    """

    def __init__(
        self,
        lent: Lent,
        model: nn.Module,
        call: Callable[[nn.Module, Any], Any],
        inputs: Any,
        stats: str,
        leaves: Sequence[Tensor],
    ) -> None:
        self._lent, self.model, self._call, self._stats = lent, model, call, stats
        self._inputs = Copies(inputs)
        self._device = next((leaf.device.type for leaf in lent.leaves), "cpu")
        self._fresh = True
        self.leaves = leaves
        self.forward_mode = True

    @property
    def size(self) -> int:
        return sum(leaf.numel() for leaf in self.leaves)

    @contextmanager
    def pass_context(self) -> Iterator[None]:
        """The context of all passes: statistics mode, fast second derivatives, differentiable kernels.

        Backward passes need the context too, since activation checkpointing repeats forwards there.
        """
        with fast_second_derivatives(), statistics_mode(self.model, self._stats), differentiable_kernels(self._device):
            yield

    def output(self, x: Any = None, around: AbstractContextManager[None] | None = None) -> Any:
        """The outputs on the batch, or on a copy `x` of its inputs; `around` is entered for the call of the model."""
        if self._fresh:
            self._lent.restores_generators = True
        self._lent.reset()
        self._lent.forwards += 1
        with self._lent.guard.first_pass(), self.pass_context(), gradients_of_the_user(), around or nullcontext():
            outputs = self._call(self.model, self._inputs.take() if x is None else x)
        if self._fresh:
            self._lent.restores_generators = self._lent.generators.moved()
            self._fresh = False
        return outputs

    def grad(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        cotangents: Sequence[Tensor] | None,
        keep: bool = True,
    ) -> Gradients:
        """Gradients of the outputs with respect to the inputs, for these cotangents. keep: keep the graph."""
        self._lent.backwards += 1
        with self.pass_context():
            return list(torch.autograd.grad(outputs, inputs, cotangents, retain_graph=keep, allow_unused=True))

    def mixes(self, *, whole: bool = False) -> bool:
        """Whether a sample's output depends on other samples. whole: test with all samples, not with a few."""
        x = self._inputs.take()
        if not isinstance(x, Tensor) or not x.is_floating_point() or not x.ndim:
            return False
        rows = x.detach().requires_grad_()
        return depends_on_others(self.output, rows, lambda t: self.grad([t], [rows], None, keep=False)[0], whole=whole)

    def vjp(self, output: Tensor) -> Product:
        """The map u -> J^T u, computed from the kept graph of `output`."""
        if not output.requires_grad:
            return lambda u: flat([None] * len(self.leaves), self.leaves)
        return lambda u: flat(self.grad([output], self.leaves, [u]), self.leaves)

    def jvp(self, kept: KeptLayerOutputs | None = None, output_numbers: tuple[int, ...] = ()) -> Product:
        """The map v -> J v, in the outputs' shape: by forward mode, else by reverse mode twice.

        Args:
            kept: outputs of layers, for forward mode.
            output_numbers: numbers of the tensors among the outputs that the loss depends on.
        """
        twice: list[Product] = []

        def product(v: Tensor) -> Tensor:
            if self.forward_mode:
                try:
                    return self._forward(v, kept, output_numbers)
                except FailedElsewhere:
                    raise
                except RuntimeError as error:
                    if out_of_memory(error):
                        raise
                    # No forward mode, or one that fails (GroupNorm on inputs that are not contiguous). A forward
                    # that fails by itself raises again in reverse mode.
                    self.use_reverse_mode()
            if not twice:
                twice.append(self._reverse_twice(output_numbers))
            return twice[0](v)

        return product

    def use_reverse_mode(self) -> None:
        """Make J v by reverse mode twice from now on."""
        self.forward_mode = False

    def _forward(self, v: Tensor, kept: KeptLayerOutputs | None, output_numbers: tuple[int, ...]) -> Tensor:
        parts = split(v, self.leaves)
        self._lent.reset()
        self._lent.forwards += 2
        with torch.no_grad(), forward_ad.dual_level():
            duals = [forward_ad.make_dual(leaf, part) for leaf, part in zip(self.leaves, parts, strict=True)]
            layers = {} if mode_of(self._stats).holds_the_batch else fused(self.model)
            used = nullcontext() if kept is None else kept.used()
            with self._lent.holding(self.leaves, duals), self.pass_context(), answering(layers, with_tangent), used:
                output, tangent = forward_ad.unpack_dual(
                    joined(self._call(self.model, self._inputs.take()), output_numbers)
                )
        return torch.zeros_like(output) if tangent is None else tangent.detach()

    def _reverse_twice(self, output_numbers: tuple[int, ...] = ()) -> Product:
        output = joined(self.output(), output_numbers)

        def again(calls: Calls) -> None:
            self.output(around=calls.within(self.model))

        refuse_without_second_derivative(output.grad_fn, again, slope_alone=True)
        with self.pass_context():
            u = torch.zeros_like(output, requires_grad=True)
            self._lent.backwards += 1
            gradients = torch.autograd.grad(output, self.leaves, u, create_graph=True, allow_unused=True)
        refuse_delayed(gradients)
        return self.jvp_by_gradients(gradients, u)

    def jvp_by_gradients(self, gradients: Gradients, u: Tensor) -> Product:
        """The map v -> d<J^T u, v>/du = J v, by the graph of `gradients` = J^T u."""
        through = self.derivatives_of(gradients, [u])

        def product(v: Tensor) -> Tensor:
            (tangent,) = through(v)
            return torch.zeros_like(u) if tangent is None else tangent

        return product

    def derivatives_of(self, gradients: Gradients, inputs: Sequence[Tensor]) -> Callable[[Tensor], Gradients]:
        """The map v -> d<gradients, v> by each of the inputs, by the kept graph of the gradients."""
        used = {i: g for i, g in enumerate(gradients) if g is not None and g.requires_grad}

        def product(v: Tensor) -> Gradients:
            parts = split(v, self.leaves)
            return self.grad(list(used.values()), inputs, [parts[i] for i in used]) if used else [None] * len(inputs)

        return product
