r"""The step that many copies of one network make at once.

    g_k = grad_k loss(f(theta_k, x), y) + wd_k theta_k     v_k <- mu_k v_k + g_k     theta_k <- theta_k - lr_k v_k

for all members k together: `torch.func.vmap` of the gradient over stacked parameters and buffers (running statistics
move in place, each member's own), then SGD with momentum as torch.optim has it, with a rate, momentum and weight decay
of each member's own. The batch is one and the same for all.

Parameters and velocities are made new, not moved in place, which is faster where it is compiled for a GPU (measured by
benchmarks/sweep.py: 0.80 against 0.73 of what memory traffic allows).

Dropout in an ensemble: all members draw the same masks, those that each would draw alone from the plan's stream. On a
GPU that holds for `torch.nn.Dropout`; a network that calls torch.nn.functional.dropout itself draws others there.
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
    """Stacked state, first axis the member; a step puts new parameters and velocities into it."""

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
        """The members in these rows, as copies."""
        parts = (self.parameters, self.fixed, self.buffers, self.velocity)
        parameters, fixed, buffers, velocity = ({name: t[rows] for name, t in part.items()} for part in parts)
        lr, momentum, decay = self.lr[rows], self.momentum[rows], self.decay[rows]
        return Members(parameters, fixed, buffers, velocity, lr, momentum, decay, self.decays)


class Program:
    """One network's step and evaluation for stacks of its copies, on one device.

    Args:
        model: the network, on its device, in the mode it trains in; copied.
        loss_fn: loss_fn(output, target) is the scalar loss.
        lowered: convolutions as matrix products.
        compiled: torch.compile, or eager with a warning where it fails.
        draws, stream_seed: whether layers draw random numbers, and from which seed.
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
            # The generators' own order of draws, so that masks are those of the eager step.
            options: dict[str, Any] = {"fallback_random": True}
            self._moved = torch.compile(self.moved, dynamic=False, fullgraph=True, options=options)

    def step(self, members: Members, x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """One step of every member; their losses before it and their right answers (of labels), (K,)."""
        with seeded_on(seed_of_step(self.stream_seed, number), self.device) if self.draws else nullcontext():
            try:
                found = self._moved(members, x, y)
            except torch._dynamo.exc.TorchDynamoException as error:
                # Raised while compiling, before anything has moved.
                reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                warnings.warn(f"The step does not compile and runs eager instead ({reason}).", stacklevel=2)
                self.compiled, self._moved = False, self.moved
                found = self._moved(members, x, y)
        losses, right, members.parameters, members.velocity = found
        return losses, right

    def moved(self, members: Members, x: Tensor, y: Tensor) -> Moved:
        """Losses, right answers, and the parameters and velocities after a step; buffers move in place."""

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
        """Losses and right answers of every member in eval mode, with its own running statistics."""

        def outputs_of(parameters: Tensors, fixed: Tensors, buffers: Tensors) -> Tensor:
            found: Tensor = functional_call(self.evaluating, (parameters, fixed, buffers), (x,))
            return found

        outputs = vmap(outputs_of, randomness="same")(members.parameters, members.fixed, members.buffers)
        return vmap(self.loss_fn, (0, None))(outputs, y), right_answers(outputs, y)


def right_answers(outputs: Tensor, y: Tensor) -> Tensor:
    """How many samples' largest output is their label; nan where targets are no labels."""
    if y.is_floating_point() or y.ndim != 1:
        return torch.full(outputs.shape[:-2], torch.nan, device=outputs.device)
    return (outputs.argmax(-1) == y).sum(-1, dtype=torch.float32)


def seed_of_step(stream_seed: int, step: int) -> int:
    """What layers draw in a step follows from the stream's seed and the step alone."""
    return (stream_seed * 1_000_003 + step) % 2**63


def stack(
    models: Sequence[nn.Module], optimizers: Sequence[tuple[float, float, float]], device: torch.device
) -> Members:
    """Members from networks (one object may stand for several rows) and (lr, momentum, weight decay) of each."""
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
    decays = any(its for _, _, its in optimizers)
    return Members(parameters, fixed, buffers, velocity, lr, momentum, decay, decays)
