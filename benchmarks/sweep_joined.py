"""A step of stacks in which one kernel of ours makes a weight's gradient and moves the weight by it.

    v <- mu v + dz^T x        w <- w - lr v

The gradient with respect to a layer's output is had by adding a tap of zeros to it; the product with the layer's input
is left to the kernel, and the gradient of the weight is never written.
"""

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import linear

from normscope.sweeping.program import Members, Moved, Program, Tensors, right_answers

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


class Tapped(nn.Linear):
    """A linear layer that keeps its input and adds a tap to its output."""

    tap: Tensor
    seen: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        self.seen = input
        return linear(input, self.weight, self.bias) + self.tap


class JoinedProgram(Program):
    """A Program whose linear layers' weights, each used once on a batch of vectors, move in one kernel."""

    def __init__(self, model: nn.Module, *args: Any, **options: Any) -> None:
        super().__init__(model, *args, **options)
        self.tapped = {}
        for name, module in self.training.named_modules():
            if type(module) is nn.Linear and module.out_features >= 16:
                module.__class__ = Tapped
                module.register_buffer("tap", torch.zeros(1), persistent=False)
                self.tapped[name] = module

    def moved(self, members: Members, x: Tensor, y: Tensor) -> Moved:
        of_taps = {f"{name}.weight" for name in self.tapped}
        weights = {name: members.parameters[name] for name in of_taps}
        rest = {name: tensor for name, tensor in members.parameters.items() if name not in of_taps}
        taps = {
            f"{name}.tap": torch.zeros(len(members), len(x), layer.out_features, device=x.device, dtype=x.dtype)
            for name, layer in self.tapped.items()
        }

        def loss_of(rest: Tensors, taps: Tensors, weights: Tensors, fixed: Tensors, buffers: Tensors) -> Any:
            output = functional_call(self.training, (rest, taps, weights, fixed, buffers), (x,))
            inputs = [layer.seen for layer in self.tapped.values()]
            for layer in self.tapped.values():
                layer.seen = None
            return self.loss_fn(output, y), (output, inputs)

        both = vmap(grad_and_value(loss_of, argnums=(0, 1), has_aux=True), randomness="same")
        (gradients, at_taps), (losses, (outputs, inputs)) = both(rest, taps, weights, members.fixed, members.buffers)
        parameters: Tensors = {}
        velocity: Tensors = {}
        with torch.no_grad():
            for name, parameter in rest.items():
                each = (-1,) + (1,) * (parameter.ndim - 1)
                velocity[name] = torch.addcmul(gradients[name], members.velocity[name], members.momentum.view(each))
                parameters[name] = torch.addcmul(parameter, velocity[name], members.lr.view(each), value=-1)
            for name, seen in zip(self.tapped, inputs, strict=True):
                key = f"{name}.weight"
                move = joined if x.is_cuda else apart
                parameters[key], velocity[key] = move(
                    at_taps[f"{name}.tap"], seen, weights[key], members.velocity[key], members.lr, members.momentum
                )
        return losses, right_answers(outputs, y), parameters, velocity


def apart(dz: Tensor, x: Tensor, w: Tensor, v: Tensor, lr: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    """What the kernel makes, by torch."""
    v = torch.baddbmm(v * mu.view(-1, 1, 1), dz.mT, x)
    return w - lr.view(-1, 1, 1) * v, v


if triton is not None:

    @triton.autotune(
        configs=[
            triton.Config({"TO": o, "TI": i, "TB": b}, num_warps=warps, num_stages=stages)
            for (o, i, warps), (b, stages) in itertools.product(
                [(128, 128, 8), (64, 128, 4), (128, 64, 4), (64, 64, 4), (64, 256, 8)], [(32, 3), (64, 2)]
            )
        ],
        key=["outputs", "inputs"],
    )
    @triton.jit
    def _joined(
        dz, x, w, v, lr, mu, w_new, v_new, outputs, inputs, dz_k, dz_b, x_k, x_b, BATCH: tl.constexpr,
        TO: tl.constexpr, TI: tl.constexpr, TB: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        member = tl.program_id(1).to(tl.int64)
        across = tl.cdiv(inputs, TI)
        o = (tl.program_id(0) // across) * TO + tl.arange(0, TO)
        i = (tl.program_id(0) % across) * TI + tl.arange(0, TI)
        b = tl.arange(0, TB)
        total = tl.zeros((TO, TI), dtype=tl.float32)
        for start in range(0, BATCH, TB):
            row = start + b
            left = tl.load(
                dz + member * dz_k + row[None, :] * dz_b + o[:, None],
                mask=(row[None, :] < BATCH) & (o[:, None] < outputs),
                other=0.0,
            )
            right = tl.load(
                x + member * x_k + row[:, None] * x_b + i[None, :],
                mask=(row[:, None] < BATCH) & (i[None, :] < inputs),
                other=0.0,
            )
            total = tl.dot(left, right, total, input_precision=PRECISION)
        place = member * outputs * inputs + o[:, None] * inputs + i[None, :]
        inside = (o[:, None] < outputs) & (i[None, :] < inputs)
        moved = tl.load(v + place, mask=inside, other=0.0) * tl.load(mu + member) + total
        tl.store(v_new + place, moved, mask=inside)
        tl.store(w_new + place, tl.load(w + place, mask=inside, other=0.0) - tl.load(lr + member) * moved, mask=inside)


@torch.library.custom_op("normscope_bench::joined", mutates_args=())
def joined(dz: Tensor, x: Tensor, w: Tensor, v: Tensor, lr: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel on (K, B, out), (K, B, in) with rows in order, and (K, out, in) in order."""
    assert dz.stride(2) == x.stride(2) == 1
    assert w.is_contiguous()
    assert v.is_contiguous()
    members, outputs, inputs = w.shape
    w_new, v_new = torch.empty_like(w), torch.empty_like(v)
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    _joined[lambda c: (triton.cdiv(outputs, c["TO"]) * triton.cdiv(inputs, c["TI"]), members)](
        dz, x, w, v, lr, mu, w_new, v_new, outputs, inputs, dz.stride(0), dz.stride(1), x.stride(0), x.stride(1),
        BATCH=dz.shape[1], PRECISION=precision,
    )  # fmt: skip
    return w_new, v_new


@joined.register_fake
def _(dz: Tensor, x: Tensor, w: Tensor, v: Tensor, lr: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(w), torch.empty_like(v)
