r"""Curvature of a network's loss as products with vectors, on copies.

    H v = d/de grad L(theta + e v)                    Hessian: reverse over reverse, the graph of the gradient kept
                                                      (through layers with cheap second derivatives: `patching.py`)
    G v = J^T (d^2 l / df^2) (J v)                    generalized Gauss-Newton: J v forward, J^T u by a kept graph
                                                      (penalties: `loss_of_outputs.py`; in eval mode J v by the
                                                      graph of the gradient: `gauss_newton.py`)
    F v = J^T B (J v)                                 Fisher: B the Fisher matrix of the outputs (`fisher.py`)

f are the outputs, l(f) the loss of the batch, J = df/dtheta; derivatives go through the statistics as `stats` says
(`statistics.py`). Torch's nested forward mode is wrong for BatchNorm and not used. Where a model has no forward mode,
or another derivative there than in reverse mode, J v is the derivative of u -> J^T u, by reverse mode twice.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from normscope.curvature.autograd.convolutions import gradients_of_the_user
from normscope.curvature.autograd.forward_mode import Outputs, fused, with_tangent
from normscope.curvature.autograd.patching import differentiable_kernels, fast_second_derivatives
from normscope.curvature.autograd.user_functions import Calls, refuse_delayed, refuse_without_second_derivative
from normscope.curvature.eigensolvers.lanczos import Product
from normscope.curvature.operators.fisher import FisherOfOutputs, fisher_of_outputs
from normscope.curvature.operators.gauss_newton import (
    Gradients,
    adjoint,
    gauss_newton_product,
    goes_into_weights,
    gradients_by_slope,
)
from normscope.curvature.operators.loss_of_outputs import Bent, LossOfOutputs, joined
from normscope.curvature.operators.sample_coupling import depends_on_others
from normscope.curvature.operators.statistics import reading
from normscope.isolation.batch_copies import Copies
from normscope.isolation.flat_vectors import flat, split
from normscope.isolation.lending import Lent
from normscope.isolation.module_calls import answering
from normscope.isolation.processes import FailedElsewhere
from normscope.objective import call_model
from normscope.out_of_memory import out_of_memory

Parts = list[Tensor | None]
MATRICES = ("ggn", "hessian", "fisher")


class Network:
    """The outputs and the loss of one batch as functions of the chosen parameters; every forward draws the same.

    Args:
        call: call(model, x) gives the outputs.
        chosen: numbers of the lent parameters, all by default.
        draws, seed: labels drawn for the sampled Fisher matrix and their seed; draws=0 is the exact matrix.
        dtype: the dtype in which the model is lent, for the tensors that a loss holds; None for its own.
    """

    def __init__(
        self,
        lent: Lent,
        model: nn.Module,
        loss_fn: Callable[[Any, Any], Tensor],
        batch: tuple[Any, Any],
        *,
        stats: str,
        chosen: Sequence[int] | None = None,
        call: Callable[[nn.Module, Any], Any] = call_model,
        draws: int = 0,
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        self._lent, self._model, self._stats, self._call = lent, model, stats, call
        self._x = Copies(batch[0])
        self._draws, self._seed = draws, seed
        self._drawn: FisherOfOutputs | None = None
        self._device = next((leaf.device.type for leaf in lent.leaves), "cpu")
        self.loss = LossOfOutputs(loss_fn, batch[1], lent.originals, self._device, dtype)
        self._fresh = True
        self._begun: dict[str, Any] = {}
        self._folds = goes_into_weights(model, stats)
        self.forward_mode = True
        self.leaves = [lent.leaves[i] for i in (range(len(lent.leaves)) if chosen is None else chosen)]

    @property
    def size(self) -> int:
        return sum(leaf.numel() for leaf in self.leaves)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Inside, forwards read the statistics as asked, also those that checkpointing repeats in backward passes."""
        with fast_second_derivatives(), reading(self._model, self._stats), differentiable_kernels(self._device):
            yield

    def output(self, x: Any = None, around: AbstractContextManager[None] | None = None) -> Any:
        """The outputs on the batch, or on a copy `x` of its inputs; `around` is entered for the call of the model."""
        if self._fresh:
            self._lent.draws = True
        self._lent.reset()
        with self._reading(), gradients_of_the_user(), around or nullcontext():
            outputs = self._call(self._model, self._x.take() if x is None else x)
        if self._fresh:
            self._lent.draws = self._lent.generators.moved()
            self._fresh = False
        return outputs

    def mixes(self, *, whole: bool = False) -> bool:
        """Whether a sample's output depends on other samples; whole: look in a pass of all samples, not of a few."""
        x = self._x.take()
        if not isinstance(x, Tensor) or not x.is_floating_point() or not x.ndim:
            return False
        rows = x.detach().requires_grad_()
        return depends_on_others(self.output, rows, lambda t: self._grad([t], [rows], None, keep=False)[0], whole=whole)

    def value(self) -> Tensor:
        """The loss, without a graph."""
        with torch.no_grad():
            return self.loss(self.output())

    def value_and_gradients(self, *, matrix: str = "") -> tuple[Tensor, Parts]:
        """The loss, and its gradient by each leaf; None where the leaf has no part in the loss.

        matrix: keep the graph for the `product` of this matrix, which then makes none of its own.
        """
        if matrix == "hessian":
            loss, gradients = self._begun["hessian"] = self._derivable_gradients()
            return loss.detach(), [None if g is None else g.detach() for g in gradients]
        kept = Outputs(self._model) if matrix and not self._folds else None
        output, along = self.output(around=None if kept is None else kept.keeping()), None
        loss = self.loss(output)
        gradients = [None] * len(self.leaves)
        slopes = None
        if matrix and self._folds and loss.requires_grad and isinstance(output, Tensor) and output.requires_grad:
            with self._reading():
                slopes = gradients_by_slope(loss, output, self.leaves)
        if slopes is not None:
            gradients, u = slopes
            along = None if u is None else self._tangent(gradients, u)
        elif loss.requires_grad:
            gradients = self._grad([loss], self.leaves, None, keep=kept is not None)
        if matrix and (slopes is not None or kept is not None):
            self._begun[matrix] = kept, output, along
        return loss.detach(), [None if g is None else g.detach() for g in gradients]

    def gradient(self, matrix: str = "") -> Tensor:
        return flat(self.value_and_gradients(matrix=matrix)[1], self.leaves)

    @property
    def linear(self) -> bool:
        """Whether a Gauss-Newton product has shown a loss without curvature, by outputs and by parameters."""
        return self.loss.linear

    @property
    def direct(self) -> bool:
        return self.loss.direct

    def product(self, matrix: str) -> Product:
        """The product v -> A v for A "ggn", "hessian" or "fisher"; it keeps its graphs for as long as it exists."""
        return {"ggn": self.gauss_newton, "hessian": self.hessian, "fisher": self.fisher}[matrix]()

    def _derivable_gradients(self) -> tuple[Tensor, Gradients]:
        loss = self.loss(self.output())
        if not loss.requires_grad:
            return loss, [None] * len(self.leaves)
        self._refuse_first_order(loss)
        with self._reading():
            gradients = torch.autograd.grad(loss, self.leaves, create_graph=True, allow_unused=True)
        refuse_delayed(gradients)
        return loss, gradients

    def hessian(self) -> Product:
        _, gradients = self._begun.pop("hessian", None) or self._derivable_gradients()
        through = self._through(gradients, self.leaves)
        return lambda v: flat(through(v), self.leaves)

    def gauss_newton(self) -> Product:
        return self._around("ggn")

    def fisher(self) -> Product:
        return self._around("fisher")

    def _bent(self, matrix: str) -> Callable[[Any, tuple[int, ...]], Bent]:
        """The function that gives B, from the outputs and the numbers of those that the loss reads."""

        def by_labels(outputs: Any, read: tuple[int, ...]) -> Bent:
            sample = {"draws": self._draws, "seed": self._seed}
            output = joined(outputs, read).detach()
            drawn = fisher_of_outputs(self.loss.loss_fn, output, self.loss.targets, **sample)
            self._drawn = drawn
            return by_loss(outputs, read) if drawn is None else lambda t, _: (drawn.product(t), None)

        def by_loss(outputs: Any, read: tuple[int, ...]) -> Bent:
            return self.loss.bent(outputs, read, self.leaves)

        return by_labels if matrix == "fisher" else by_loss

    def form(self, matrix: str, v: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """v^T A v, and a call that completes A v from the same pass.

        For "ggn" and "fisher" the form is (J v)^T B (J v), which needs no backward pass; completing the product does.
        """
        if matrix == "hessian":
            image = self.hessian()(v)
            return v @ image, lambda: image
        kept, outputs, _ = self._kept_pass()
        read = self.loss.read(outputs)
        t = self.push(kept, read)(v)
        u, own = self._bent(matrix)(outputs, read)(t, v)

        def completed() -> Tensor:
            w = self.pull(joined(outputs, read))(u)
            if not adjoint(t, u, v, w):
                return self.product(matrix)(v)
            return w if own is None else w + own

        form = (t * u).sum()
        return (form if own is None else form + v @ own), completed

    def _around(self, matrix: str) -> Product:
        kept, outputs, along = self._begun.pop(matrix, None) or self._kept_pass()
        read = self.loss.read(outputs)
        bend = self._bent(matrix)(outputs, read)
        return gauss_newton_product(bend, self.pull(joined(outputs, read)), self.push(kept, read), along, self)

    def _kept_pass(self) -> tuple[Outputs, Any, None]:
        kept = Outputs(self._model)
        return kept, self.output(around=kept.keeping()), None

    def fisher_error(self, v: Tensor) -> float:
        """Standard error of v^T F v by the draws; 0 where F is exact. After `fisher`."""
        return 0.0 if self._drawn is None else self._drawn.error(self.push()(v))

    def pull(self, output: Tensor) -> Product:
        """u -> J^T u, by the kept graph of `output`."""
        if not output.requires_grad:
            return lambda u: flat([None] * len(self.leaves), self.leaves)
        return lambda u: flat(self._grad([output], self.leaves, [u]), self.leaves)

    def push(self, kept: Outputs | None = None, read: tuple[int, ...] = ()) -> Product:
        """The map v -> J v, in the outputs' shape: by forward mode, with outputs `kept`, else by reverse mode twice.

        read: numbers of the tensors among the outputs that the loss depends on.
        """
        twice: list[Product] = []

        def product(v: Tensor) -> Tensor:
            if self.forward_mode:
                try:
                    return self._forward(v, kept, read)
                except FailedElsewhere:
                    raise
                except RuntimeError as error:
                    if out_of_memory(error):
                        raise
                    # No forward mode, or one that fails (GroupNorm on inputs that are not contiguous). A forward
                    # that fails by itself raises again in reverse mode.
                    self.forward_mode = False
            if not twice:
                twice.append(self._reverse_twice(read))
            return twice[0](v)

        return product

    def _forward(self, v: Tensor, kept: Outputs | None, read: tuple[int, ...]) -> Tensor:
        parts = split(v, self.leaves)
        self._lent.reset()
        with torch.no_grad(), forward_ad.dual_level():
            duals = [forward_ad.make_dual(leaf, part) for leaf, part in zip(self.leaves, parts, strict=True)]
            layers = {} if self._stats == "frozen" else fused(self._model)
            used = nullcontext() if kept is None else kept.used()
            with self._lent.holding(self.leaves, duals), self._reading(), answering(layers, with_tangent), used:
                output, tangent = forward_ad.unpack_dual(joined(self._call(self._model, self._x.take()), read))
        return torch.zeros_like(output) if tangent is None else tangent.detach()

    def _reverse_twice(self, read: tuple[int, ...] = ()) -> Product:
        output = joined(self.output(), read)
        self._refuse_first_order(output, slope_alone=True)
        with self._reading():
            u = torch.zeros_like(output, requires_grad=True)
            gradients = torch.autograd.grad(output, self.leaves, u, create_graph=True, allow_unused=True)
        refuse_delayed(gradients)
        return self._tangent(gradients, u)

    def _refuse_first_order(self, end: Tensor, *, slope_alone: bool = False) -> None:
        def run(calls: Calls) -> None:
            self.loss(self.output(around=calls.within(self._model)))

        refuse_without_second_derivative(end.grad_fn, run, slope_alone=slope_alone)

    def _tangent(self, gradients: Gradients, u: Tensor) -> Product:
        """v -> d<J^T u, v>/du = J v, by the graph of `gradients` = J^T u."""
        through = self._through(gradients, [u])

        def product(v: Tensor) -> Tensor:
            (tangent,) = through(v)
            return torch.zeros_like(u) if tangent is None else tangent

        return product

    def _through(self, gradients: Gradients, inputs: Sequence[Tensor]) -> Callable[[Tensor], Parts]:
        """v -> d<gradients, v> by each of the inputs, by the kept graph of the gradients."""
        used = {i: g for i, g in enumerate(gradients) if g is not None and g.requires_grad}

        def product(v: Tensor) -> Parts:
            parts = split(v, self.leaves)
            return self._grad(list(used.values()), inputs, [parts[i] for i in used]) if used else [None] * len(inputs)

        return product

    def _grad(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], along: Sequence[Tensor] | None, keep: bool = True
    ) -> Parts:
        with self._reading():
            return list(torch.autograd.grad(outputs, inputs, along, retain_graph=keep, allow_unused=True))
