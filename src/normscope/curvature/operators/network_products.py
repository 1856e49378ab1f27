r"""Curvature of a network's loss on one batch, as products with vectors.

    H v = d/de grad L(theta + e v)      Hessian: the gradient is made with its graph, and each product is the gradient
                                        of <grad L, v> by that graph (reverse over reverse)
    G v = J^T (d^2 l / df^2) (J v)      generalized Gauss-Newton: J v (`passes.py`), the second derivative of the loss
                                        by the outputs (`loss_of_outputs.py`), then J^T u by the graph of one forward
    F v = J^T B (J v)                   Fisher: B the Fisher matrix of the outputs (`fisher.py`)

f are the outputs, l(f) the loss of the batch, J = df/dtheta. Derivatives go through batch statistics as the mode says
(`statistics.py`). `gauss_newton.py` joins the factors of G and F and checks that J and J^T belong together. Layers
whose second derivative torch makes slow are replaced while passes run (`autograd/patching.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.curvature.autograd.forward_mode import KeptLayerOutputs
from normscope.curvature.autograd.user_functions import Calls, refuse_delayed, refuse_without_second_derivative
from normscope.curvature.operators.fisher import FisherOfOutputs, fisher_of_outputs
from normscope.curvature.operators.gauss_newton import (
    adjoint,
    gauss_newton_product,
    goes_into_weights,
    gradients_by_slope,
)
from normscope.curvature.operators.loss_of_outputs import LossOfOutputs, OutputCurvature, joined
from normscope.curvature.operators.matrices import MATRICES
from normscope.curvature.operators.passes import Gradients, Passes
from normscope.isolation.flat_vectors import flat
from normscope.isolation.lending import Lent
from normscope.linear_maps import Product
from normscope.objective import call_model


@dataclass(frozen=True)
class ForwardGraph:
    """One forward with its graph, from which products with J and J^T go on.

    Attributes:
        outputs: the outputs of the model.
        kept: the outputs of its layers, for forward mode; None where they are not kept.
        tangent_by_gradient: the map v -> J v from the graph of the gradient, None where there is none.
    """

    outputs: Any
    kept: KeptLayerOutputs | None
    tangent_by_gradient: Product | None = None


@dataclass(frozen=True)
class FirstGraph:
    """The graph of the pass that made a network's gradient.

    Attributes:
        network: the network whose gradient it is.
        matrix: the matrix whose product can go on from the graph.
        graph: the forward, or the gradients with their graph for the Hessian.
    """

    network: "Network"
    matrix: str
    graph: ForwardGraph | Gradients


@dataclass(frozen=True)
class MatrixProduct:
    """The product v -> A v with one matrix of a network, and facts on its loss.

    Attributes:
        product: the map v -> A v.
        reads_parameters: whether the loss reads parameters itself, as a penalty does.
        is_zero: whether A is zero because the loss has no curvature, with respect to outputs and to parameters.
    """

    product: Product
    reads_parameters: bool = False
    is_zero: bool = False

    def __call__(self, v: Tensor) -> Tensor:
        return self.product(v)


class Network(Passes):
    """The outputs and the loss of one batch as functions of the chosen parameters, and products with its matrices.

    Args:
        stats: name of the statistics mode.
        chosen: numbers of the lent parameters, all by default.
        call: call(model, x) gives the outputs.
        label_draws: labels drawn for each term of the sampled Fisher matrix; 0 is the exact matrix.
        seed: seed of these labels.
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
        label_draws: int = 0,
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        leaves = [lent.leaves[i] for i in (range(len(lent.leaves)) if chosen is None else chosen)]
        super().__init__(lent, model, call, batch[0], stats, leaves)
        self._label_draws, self._seed = label_draws, seed
        self._folds = goes_into_weights(model, stats)
        self.loss = LossOfOutputs(loss_fn, batch[1], lent.originals, self._device, dtype)

    def value(self) -> Tensor:
        """The loss, without a graph."""
        with torch.no_grad():
            return self.loss(self.output())

    def gradient(self) -> Tensor:
        return self.gradient_and_graph("")[0]

    def gradient_and_graph(self, matrix: str) -> tuple[Tensor, FirstGraph | None]:
        """The gradient, and the graph of the pass that made it, for products with `matrix`."""
        _, gradients, first = self.value_and_gradients(matrix)
        return flat(gradients, self.leaves), first

    def value_and_gradients(self, matrix: str = "") -> tuple[Tensor, Gradients, FirstGraph | None]:
        """The loss, its gradient with respect to each leaf, and the graph for products with `matrix`.

        A gradient is None where the leaf has no part in the loss. The graph is None without a matrix, and where none
        can be kept.
        """
        if matrix and MATRICES[matrix].is_hessian:
            loss, derivable = self._derivable_gradients()
            gradients = [None if g is None else g.detach() for g in derivable]
            return loss.detach(), gradients, FirstGraph(self, matrix, derivable)
        kept = KeptLayerOutputs(self.model) if matrix and not self._folds else None
        output = self.output(around=None if kept is None else kept.keeping())
        loss = self.loss(output)
        self._look_outside(loss)
        by_slope = None
        if matrix and self._folds and loss.requires_grad and isinstance(output, Tensor) and output.requires_grad:
            self._lent.backwards += 1
            with self.pass_context():
                by_slope = gradients_by_slope(loss, output, self.leaves)
        tangent_by_gradient: Product | None = None
        taken: Gradients = [None] * len(self.leaves)
        if by_slope is not None:
            taken, u = by_slope
            tangent_by_gradient = None if u is None else self.jvp_by_gradients(taken, u)
        elif loss.requires_grad:
            taken = self.grad([loss], self.leaves, None, keep=kept is not None)
        goes_on = matrix and (by_slope is not None or kept is not None)
        first = FirstGraph(self, matrix, ForwardGraph(output, kept, tangent_by_gradient)) if goes_on else None
        return loss.detach(), [None if g is None else g.detach() for g in taken], first

    def product(self, matrix: str, graph: FirstGraph | None = None) -> MatrixProduct:
        """The product v -> A v for a name of `MATRICES`; the product keeps its graphs for as long as it exists.

        graph: the graph that `value_and_gradients` kept for this matrix; without it the product makes its own.
        """
        kept: Any = None if graph is None else graph.graph
        if MATRICES[matrix].is_hessian:
            return MatrixProduct(self.hessian(kept))
        return self._product_by_outputs(matrix, kept or self._forward_graph())

    def hessian(self, gradients: Gradients | None = None) -> Product:
        """The product v -> H v = d <grad L, v> / dtheta, computed from the graph of the gradients."""
        derivatives = self.derivatives_of(gradients or self._derivable_gradients()[1], self.leaves)

        def product(v: Tensor) -> Tensor:
            # The graph holds a forward and a backward: to differentiate it costs up to three backwards.
            self._lent.backwards += 2
            return flat(derivatives(v), self.leaves)

        return product

    def gauss_newton(self) -> MatrixProduct:
        return self.product("ggn")

    def fisher(self) -> MatrixProduct:
        return self.product("fisher")

    def quadratic_form(self, matrix: str, v: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """v^T A v, and a call that completes A v from the same pass.

        For J^T B J the form is (J v)^T B (J v), which needs no backward pass; completing the product does.
        """
        if MATRICES[matrix].is_hessian:
            image = self.hessian()(v)
            return v @ image, lambda: image
        graph = self._forward_graph()
        output_numbers = self.loss.outputs_in_loss(graph.outputs)
        tangent = self.jvp(graph.kept, output_numbers)(v)
        u, by_leaves = self._output_curvature(matrix, graph.outputs, output_numbers).product(tangent, v)

        def completed() -> Tensor:
            pulled = self.vjp(joined(graph.outputs, output_numbers))(u)
            if not adjoint(tangent, u, v, pulled):
                return self.product(matrix)(v)
            return pulled if by_leaves is None else pulled + by_leaves

        form = (tangent * u).sum()
        return (form if by_leaves is None else form + v @ by_leaves), completed

    def fisher_error(self, v: Tensor) -> float:
        """Standard error of v^T F v that comes from drawing labels; 0 for an exact F."""
        if not self._label_draws:
            return 0.0
        outputs = self.output()
        output_numbers = self.loss.outputs_in_loss(outputs)
        drawn = self.fisher_of(outputs, output_numbers)
        return 0.0 if drawn is None else drawn.error(self.jvp(output_numbers=output_numbers)(v))

    def _product_by_outputs(self, matrix: str, graph: ForwardGraph) -> MatrixProduct:
        """The product v -> J^T B (J v), with B the second derivative with respect to the outputs."""
        output_numbers = self.loss.outputs_in_loss(graph.outputs)
        curvature = self._output_curvature(matrix, graph.outputs, output_numbers)
        vjp, jvp = self.vjp(joined(graph.outputs, output_numbers)), self.jvp(graph.kept, output_numbers)
        product = gauss_newton_product(curvature, vjp, jvp, graph.tangent_by_gradient, self)
        return MatrixProduct(product, curvature.reads_parameters, curvature.is_zero)

    def _output_curvature(self, matrix: str, outputs: Any, output_numbers: tuple[int, ...]) -> OutputCurvature:
        """B at these outputs. output_numbers: as `LossOfOutputs.outputs_in_loss` gives them."""
        output_matrix = MATRICES[matrix].output_matrix
        assert output_matrix is not None
        return output_matrix(self, outputs, output_numbers)

    def fisher_of(self, outputs: Any, output_numbers: tuple[int, ...]) -> FisherOfOutputs | None:
        """The Fisher matrix of the outputs; None where the loss's own second derivative is taken."""
        return fisher_of_outputs(
            self.loss.loss_fn,
            joined(outputs, output_numbers).detach(),
            self.loss.targets,
            label_draws=self._label_draws,
            seed=self._seed,
        )

    def _forward_graph(self) -> ForwardGraph:
        kept = KeptLayerOutputs(self.model)
        return ForwardGraph(self.output(around=kept.keeping()), kept)

    def _derivable_gradients(self) -> tuple[Tensor, Gradients]:
        """The loss and its gradients, with a graph so that the gradients can be differentiated again."""
        loss = self.loss(self.output())
        if not loss.requires_grad:
            return loss, [None] * len(self.leaves)

        self._look_outside(loss)

        def again(calls: Calls) -> None:
            self.loss(self.output(around=calls.within(self.model)))

        refuse_without_second_derivative(loss.grad_fn, again)
        self._lent.backwards += 1
        with self.pass_context():
            gradients = torch.autograd.grad(loss, self.leaves, create_graph=True, allow_unused=True)
        refuse_delayed(gradients)
        return loss, gradients

    def _look_outside(self, loss: Tensor) -> None:
        """Look in the graph of the loss for tensors that are no parameters of the model."""
        self._lent.outside.look(loss, (self._inputs.tensors, self.loss.targets), self.loss.loss_fn)
