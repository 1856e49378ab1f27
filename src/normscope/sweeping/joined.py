r"""A step in which one kernel makes the gradient of a linear layer's weight and moves the weight by it.

    v_k <- mu_k v_k + dz_k^T x_k + wd_k w_k        w_k <- w_k - lr_k v_k

The gradient with respect to a layer's output, dz, is had by adding a tap of zeros to it; the product with the layer's
input x is left to the kernel, and the gradient of the weight is never written: 24 instead of 32 bytes of memory traffic
for a weight and step. Both factors come with the batch last, the order in which tensor cores take TensorFloat-32.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import linear

from normscope.sweeping.program import LossFunction, Members, Moved, Program, Tensors, right_answers

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# Below this many inputs or outputs a weight is too small for tiles of a product.
_LEAST = 64


class Tapped(nn.Linear):
    """A linear layer that keeps its input and adds a tap to its output."""

    tap: Tensor
    seen: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 2 or self.seen is not None:
            raise ValueError("a tapped layer is called once, on a batch of vectors")
        self.seen = input
        return linear(input, self.weight, self.bias) + self.tap


class JoinedProgram(Program):
    """A `Program` in which the weights of wide linear layers move as they get their gradient.

    A layer that is called twice, or on more than a batch of vectors, raises; eager, the kernel's twin in torch runs.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFunction, **options: Any) -> None:
        super().__init__(model, loss_fn, **options)
        uses = [parameter for _, parameter in self.training.named_parameters(remove_duplicate=False)]
        self.tapped: dict[str, Tapped] = {}
        for name, module in self.training.named_modules():
            once = isinstance(module, nn.Linear) and sum(module.weight is used for used in uses) == 1
            if (
                type(module) is nn.Linear
                and once
                and module.weight.requires_grad
                and min(module.weight.shape) >= _LEAST
            ):
                module.__class__ = Tapped
                module.register_buffer("tap", torch.zeros((), device=self.device), persistent=False)
                self.tapped[name] = module  # type: ignore[assignment]

    def moved(self, members: Members, x: Tensor, y: Tensor) -> Moved:
        of_taps = {f"{name}.weight" for name in self.tapped}
        weights = {name: members.parameters[name] for name in of_taps}
        rest = {name: tensor for name, tensor in members.parameters.items() if name not in of_taps}
        like = members.lr
        taps = {
            f"{name}.tap": like.new_zeros(len(members), len(x), layer.out_features)
            for name, layer in self.tapped.items()
        }

        def loss_of(rest: Tensors, taps: Tensors, weights: Tensors, fixed: Tensors, buffers: Tensors) -> Any:
            for layer in self.tapped.values():
                layer.seen = None
            output = functional_call(self.training, (rest, taps, weights, fixed, buffers), (x,))
            inputs = [layer.seen for layer in self.tapped.values()]
            for layer in self.tapped.values():
                layer.seen = None
            return self.loss_fn(output, y), (output, inputs)

        gradients_of = vmap(grad_and_value(loss_of, argnums=(0, 1), has_aux=True), randomness="same")
        (gradients, at_taps), (losses, (outputs, inputs)) = gradients_of(
            rest, taps, weights, members.fixed, members.buffers
        )
        with torch.no_grad():
            parameters, velocity = self.updated(members, gradients)
            for name, seen in zip(self.tapped, inputs, strict=True):
                key = f"{name}.weight"
                factors = at_taps[f"{name}.tap"].mT.contiguous(), seen.mT.contiguous()
                state = members.parameters[key], members.velocity[key], members.lr, members.momentum, members.decay
                join = joined if torch.compiler.is_compiling() and x.is_cuda else apart
                parameters[key], velocity[key] = join(*factors, *state)
        return losses, right_answers(outputs, y), parameters, velocity


def can_join(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel runs there."""
    return triton is not None and device.type == "cuda" and dtype == torch.float32


def apart(dz: Tensor, x: Tensor, w: Tensor, v: Tensor, lr: Tensor, mu: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """What the kernel makes, by torch; dz (K, out, batch), x (K, in, batch), w and v (K, out, in)."""
    lr, mu, decay = (rate.view(-1, 1, 1) for rate in (lr, mu, decay))
    v = torch.baddbmm(v * mu + w * decay, dz, x.mT)
    return w - lr * v, v


if triton is not None:

    @triton.autotune(
        configs=[
            triton.Config({"TO": to, "TI": ti, "TB": tb}, num_warps=warps, num_stages=stages)
            for to, ti, tb, warps, stages in (
                (128, 128, 32, 8, 3),
                (128, 128, 32, 4, 3),
                (64, 128, 32, 4, 4),
                (128, 64, 64, 4, 2),
                (64, 64, 64, 4, 2),
            )
        ],
        key=["outputs", "inputs"],
    )
    @triton.jit
    def _joined(  # type: ignore[no-untyped-def]
        dz, x, w, v, lr, mu, decay, w_new, v_new, outputs, inputs, BATCH: tl.constexpr, TO: tl.constexpr,
        TI: tl.constexpr, TB: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        member = tl.program_id(1).to(tl.int64)
        across = tl.cdiv(inputs, TI)
        o = (tl.program_id(0) // across) * TO + tl.arange(0, TO)
        i = (tl.program_id(0) % across) * TI + tl.arange(0, TI)
        total = tl.zeros((TO, TI), dtype=tl.float32)
        for start in range(0, BATCH, TB):
            b = start + tl.arange(0, TB)
            left = tl.load(
                dz + (member * outputs + o[:, None]) * BATCH + b[None, :],
                mask=(o[:, None] < outputs) & (b[None, :] < BATCH),
                other=0.0,
            )
            right = tl.load(
                x + (member * inputs + i[None, :]) * BATCH + b[:, None],
                mask=(i[None, :] < inputs) & (b[:, None] < BATCH),
                other=0.0,
            )
            total = tl.dot(left, right, total, input_precision=PRECISION)
        place = (member * outputs + o[:, None]) * inputs + i[None, :]
        inside = (o[:, None] < outputs) & (i[None, :] < inputs)
        before = tl.load(w + place, mask=inside, other=0.0)
        moved = tl.load(v + place, mask=inside, other=0.0) * tl.load(mu + member) + total
        moved += before * tl.load(decay + member)
        tl.store(v_new + place, moved, mask=inside)
        tl.store(w_new + place, before - tl.load(lr + member) * moved, mask=inside)


@torch.library.custom_op("normscope::joined", mutates_args=())
def joined(dz: Tensor, x: Tensor, w: Tensor, v: Tensor, lr: Tensor, mu: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """`apart` by the kernel; all tensors contiguous."""
    members, outputs, inputs = w.shape
    dz, x, w, v = (tensor.contiguous() for tensor in (dz, x, w, v))
    w_new, v_new = torch.empty_like(w), torch.empty_like(v)
    precision = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    _joined[lambda c: (triton.cdiv(outputs, c["TO"]) * triton.cdiv(inputs, c["TI"]), members)](
        dz, x, w, v, lr, mu, decay, w_new, v_new, outputs, inputs, BATCH=dz.shape[2], PRECISION=precision
    )
    return w_new, v_new


@joined.register_fake
def _(dz: Tensor, x: Tensor, w: Tensor, v: Tensor, lr: Tensor, mu: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(w), torch.empty_like(v)
