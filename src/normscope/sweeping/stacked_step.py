r"""One training step of many copies of a network at once.

    g_k = grad_k loss(f(theta_k, x), y) + wd_k theta_k     v_k <- mu_k v_k + g_k     theta_k <- theta_k - lr_k v_k

for all members k together. The gradient is `torch.func.vmap` of that of one member, over stacked parameters and
buffers; each member moves its own running statistics in place. The update is SGD with momentum as in torch.optim; each
member has its own learning rate, momentum and weight decay. All members see the same batch.

A step makes new tensors for parameters and velocities instead of writing in place. Compiled for a GPU this is faster:
0.80 of the speed that memory traffic allows, in place 0.73 (benchmarks/sweep.py).

Dropout in an ensemble: all members draw the same masks, which are those that each would draw alone from the plan's
stream. On a GPU that holds for `torch.nn.Dropout`; a network that calls torch.nn.functional.dropout draws other masks.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from normscope.compiling import why_not_compiled
from normscope.sweeping.lowering import draw_alike, lower, use_kernels
from normscope.training import seeded_on

LossFunction = Callable[[Tensor, Tensor], Tensor]
Tensors = dict[str, Tensor]
Moved = tuple[Tensor, Tensor, Tensors, Tensors]


@dataclass
class Members:
    """The stacked state of all members; the first axis is the member.

    fixed: parameters that are not trained. decays: whether any member has weight decay. A step replaces `parameters`
    and `velocity`.
    """

    parameters: Tensors
    fixed: Tensors
    buffers: Tensors
    velocity: Tensors
    lr: Tensor
    momentum: Tensor
    decay: Tensor
    decays: bool

    def __len__(self) -> int:
        return len(self.lr)

    def at(self, rows: Tensor) -> "Members":
        """Copies of the members in these rows."""
        parts = (self.parameters, self.fixed, self.buffers, self.velocity)
        parameters, fixed, buffers, velocity = ({name: t[rows] for name, t in part.items()} for part in parts)
        lr, momentum, decay = self.lr[rows], self.momentum[rows], self.decay[rows]
        return Members(parameters, fixed, buffers, velocity, lr, momentum, decay, self.decays)


class Program:
    """The training step and the evaluation of stacked copies of one network, on one device.

    Args:
        model: the network, on its device, in the mode it trains in; it is copied.
        loss_fn: loss_fn(output, target) returns the scalar loss.
        lowered: whether convolutions run as matrix products.
        compiled: whether to use torch.compile; if compiling fails, the step runs eager with a warning.
        draws: whether layers draw random numbers.
        stream_seed: the seed from which they draw.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        *,
        lowered: bool,
        compiled: bool,
        draws: bool = False,
        stream_seed: int = 0,
    ) -> None:
        self.training = deepcopy(model)
        self.loss_fn, self.stream_seed = loss_fn, stream_seed
        self.device = next(model.parameters()).device
        self.draws = draws
        self.compiled = compiled and not why_not_compiled(self.device.type)
        draw_alike(self.training)
        if lowered:
            lower(self.training)
        if not self.compiled:
            use_kernels(self.training)
        self.evaluating = deepcopy(self.training).eval()
        self._moved: Callable[..., Moved] = self.moved
        if self.compiled:
            # Draw in the order of torch's generators, so that masks are those of the eager step.
            options: dict[str, Any] = {"fallback_random": True}
            self._moved = torch.compile(self.moved, dynamic=False, fullgraph=True, options=options)

    def step(self, members: Members, x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Make one step of every member; returns their losses before it and numbers of right answers, each (K,)."""
        with seeded_on(seed_of_step(self.stream_seed, number), self.device) if self.draws else nullcontext():
            try:
                moved = self._moved(members, x, y)
            except torch._dynamo.exc.TorchDynamoException as error:
                # The compiler raises before any buffer has moved, so the step can be repeated.
                reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                warnings.warn(f"The step does not compile and runs eager instead ({reason}).", stacklevel=2)
                self.compiled, self._moved = False, self.moved
                moved = self._moved(members, x, y)
        losses, right, members.parameters, members.velocity = moved
        return losses, right

    def moved(self, members: Members, x: Tensor, y: Tensor) -> Moved:
        """The losses, right answers, and the parameters and velocities after a step; buffers move in place."""

        def loss_of(parameters: Tensors, fixed: Tensors, buffers: Tensors) -> tuple[Tensor, Tensor]:
            output = functional_call(self.training, (parameters, fixed, buffers), (x,))
            return self.loss_fn(output, y), output

        member_gradients = vmap(grad_and_value(loss_of, has_aux=True), randomness="same")
        gradients, (losses, outputs) = member_gradients(members.parameters, members.fixed, members.buffers)
        parameters: Tensors = {}
        velocity: Tensors = {}
        with torch.no_grad():
            for name, parameter in members.parameters.items():
                each = (-1,) + (1,) * (parameter.ndim - 1)
                gradient = gradients.pop(name)
                if members.decays:
                    gradient = torch.addcmul(gradient, parameter, members.decay.view(each))
                velocity[name] = torch.addcmul(gradient, members.velocity[name], members.momentum.view(each))
                parameters[name] = torch.addcmul(parameter, velocity[name], members.lr.view(each), value=-1)
        return losses, right_answers(outputs, y), parameters, velocity

    @torch.no_grad()
    def evaluate(self, members: Members, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The losses and right answers of every member in eval mode, with its own running statistics."""

        def outputs_of(parameters: Tensors, fixed: Tensors, buffers: Tensors) -> Tensor:
            output: Tensor = functional_call(self.evaluating, (parameters, fixed, buffers), (x,))
            return output

        outputs = vmap(outputs_of, randomness="same")(members.parameters, members.fixed, members.buffers)
        return vmap(self.loss_fn, (0, None))(outputs, y), right_answers(outputs, y)


def right_answers(outputs: Tensor, y: Tensor) -> Tensor:
    """The number of samples whose largest output is their label; nan if targets are not labels."""
    if y.is_floating_point() or y.ndim != 1:
        return torch.full(outputs.shape[:-2], torch.nan, device=outputs.device)
    return (outputs.argmax(-1) == y).sum(-1, dtype=torch.float32)


def seed_of_step(stream_seed: int, step: int) -> int:
    """The seed of the random numbers that layers draw in a step; it depends on the stream's seed and the step only."""
    return (stream_seed * 1_000_003 + step) % 2**63


def stack(
    models: Sequence[nn.Module], optimizers: Sequence[tuple[float, float, float]], device: torch.device
) -> Members:
    """Stack networks into members.

    Args:
        models: one network a row; the same object may stand for several rows.
        optimizers: (lr, momentum, weight decay) of each row.
        device: device of the stack.
    """
    first = models[0]
    trained = {name for name, parameter in first.named_parameters() if parameter.requires_grad}
    dtype = next(first.parameters()).dtype
    parameters: Tensors = {}
    fixed: Tensors = {}
    buffers: Tensors = {}
    states = [dict(model.named_parameters()) | dict(model.named_buffers()) for model in models]
    for name, tensor in states[0].items():
        whole = torch.empty(len(models), *tensor.shape, dtype=tensor.dtype, device=device)
        for row, state in enumerate(states):
            whole[row].copy_(state[name].detach())
        is_buffer = not isinstance(tensor, nn.Parameter)
        (buffers if is_buffer else parameters if name in trained else fixed)[name] = whole
    rates = torch.tensor(optimizers, dtype=torch.float64).to(device, dtype)
    velocity = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
    lr, momentum, decay = rates.T.contiguous()
    decays = any(weight_decay for _, _, weight_decay in optimizers)
    return Members(parameters, fixed, buffers, velocity, lr, momentum, decay, decays)
