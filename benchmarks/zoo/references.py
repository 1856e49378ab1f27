"""Independent answers: what a normalizer computes, and lambda_max by power iteration."""

import math
import time
from typing import Any

import torch
from entries import Entry
from state import seed
from torch import Tensor, nn
from training import loss_of, outputs

KINDS = ("layer", "rms", "batch", "instance", "group")
_CLOSE = 2e-3


def normalized(kind: str, x: Tensor, dim: int, eps: float, groups: int = 1) -> Tensor:
    """`x` normalized over what belongs to one statistic of `kind`, channels in `dim`.

    "whole" and "whole rms" are over channels and space together, as normscope's own "layer" and "rms" are where
    channels come second.
    """
    x = x.double()
    if kind == "group":
        if x.shape[1] % groups:
            raise ValueError(f"{x.shape[1]} channels in {groups} groups")
        y: Tensor = nn.functional.group_norm(x, groups, eps=eps)
        return y
    others = tuple(d for d in range(x.ndim) if d != dim)
    inside = tuple(d for d in others if d)
    over = {"layer": (dim,), "rms": (dim,), "batch": others, "instance": inside, "whole": (*inside, dim)}
    if kind == "whole rms":
        return normalized("rms", x.flatten(1), 1, eps).reshape(x.shape)
    if not over[kind]:
        raise ValueError("nothing to normalize over")
    if kind == "rms":
        return x / (x.square().mean(dim, keepdim=True) + eps).sqrt()
    return (x - x.mean(over[kind], keepdim=True)) / (x.var(over[kind], correction=0, keepdim=True) + eps).sqrt()


def far(some: Tensor, other: Tensor) -> float:
    """Largest difference relative to the largest value."""
    some, other = some.detach().double(), other.detach().double()
    if some.shape != other.shape:
        return math.inf
    return float((some - other).abs().max() / other.abs().max().clamp(min=1e-12))


def affine(layer: nn.Module, y: Tensor, dim: int, *, above: float = 0.0) -> Tensor:
    """`y` times the layer's weight (and `above`, for weights around zero) plus its bias."""
    shape = [1] * y.ndim
    shape[dim] = -1
    weight, bias = getattr(layer, "weight", getattr(layer, "gamma", None)), getattr(layer, "bias", None)
    if isinstance(weight, Tensor):
        y = y * (weight.detach().double().reshape(shape) + above)
    return y + bias.detach().double().reshape(shape) if isinstance(bias, Tensor) else y


def kind_of(layer: nn.Module, x: Tensor, out: Tensor) -> tuple[str, int] | None:
    """The kind of a normalizer and the dimension of its channels, by its outputs for `x`; None for no normalizer."""
    if x.shape != out.shape or x.ndim < 2 or not x.is_floating_point():
        return None
    names = ("eps", "epsilon", "variance_epsilon")
    eps = next((e for e in (getattr(layer, name, None) for name in names) if isinstance(e, float)), 1e-5)
    groups = getattr(layer, "num_groups", None)
    after = getattr(layer, "act", None)
    # Where eps outweighs the values, or all are alike, no kind can be told from another; and what gives back a
    # normalized input is none.
    if (
        float(x.double().square().mean()) < 10 * eps
        or float(x.std()) < 1e-6
        or float(out.std()) < 1e-6
        or far(out, x) < _CLOSE
    ):
        return None
    own = [p.numel() for p in layer.parameters(recurse=False)]
    fitting = [dim for dim in dict.fromkeys((1, x.ndim - 1)) if all(n == x.shape[dim] for n in own)]
    # Without a weight LayerNorm over (N, L, C) and InstanceNorm of (N, C, L) are one; the first is the likelier.
    for kind in KINDS:
        for dim in fitting:
            if (kind == "group") != isinstance(groups, int) or (kind == "instance" and x.ndim < 3):
                continue
            plain = normalized(kind, x, dim, eps, groups if isinstance(groups, int) else 1)
            for above in (0.0, 1.0):
                expected = affine(layer, plain, dim, above=above)
                tried = [expected] + ([after(expected.to(x.dtype))] if isinstance(after, nn.Module) else [])
                if any(far(out, one) < _CLOSE for one in tried):
                    return kind, dim
    return None


def rayleigh(
    entry: Entry, model: nn.Module, batch: Any, number: int, matrix: str, vector: Tensor, *, seconds: float
) -> tuple[float, float]:
    """v'Av / v'v, and the largest such quotient that a power iteration from a random start has met after so long.

    A is the Hessian, or J'HJ by two backward passes through the outputs, which must be one tensor.
    """
    seed(number)
    parameters = [p for p in model.parameters() if p.requires_grad]
    vector = vector.to(parameters[0].dtype)
    if matrix == "hessian":
        grads = torch.autograd.grad(loss_of(entry, model, batch), parameters, create_graph=True, allow_unused=True)
        linked = [(g, p) for g, p in zip(grads, parameters, strict=True) if g is not None and g.requires_grad]

        def product(v: list[Tensor]) -> list[Tensor]:
            chosen = [part for part, g in zip(v, grads, strict=True) if g is not None and g.requires_grad]
            found = torch.autograd.grad(
                [g for g, _ in linked], parameters, chosen, retain_graph=True, allow_unused=True
            )
            return [torch.zeros_like(p) if f is None else f for f, p in zip(found, parameters, strict=True)]
    else:
        out = outputs(entry, model, batch)
        assert entry.loss_fn is not None
        dual = torch.zeros_like(out, requires_grad=True)
        pulled = torch.autograd.grad(out, parameters, dual, create_graph=True, allow_unused=True)
        leaf = out.detach().requires_grad_()
        (slope,) = torch.autograd.grad(entry.loss_fn(leaf, batch[-1]), leaf, create_graph=True)

        def product(v: list[Tensor]) -> list[Tensor]:
            pairs = [(g, part) for g, part in zip(pulled, v, strict=True) if g is not None]
            (moved,) = torch.autograd.grad([g for g, _ in pairs], dual, [part for _, part in pairs], retain_graph=True)
            (bent,) = torch.autograd.grad(slope, leaf, moved, retain_graph=True)
            found = torch.autograd.grad(out, parameters, bent, retain_graph=True, allow_unused=True)
            return [torch.zeros_like(p) if f is None else f for f, p in zip(found, parameters, strict=True)]

    sizes = [p.numel() for p in parameters]

    def quotient(v: list[Tensor]) -> tuple[float, list[Tensor]]:
        moved = product(v)
        top = sum(float((a.double() * b.double()).sum()) for a, b in zip(v, moved, strict=True))
        return top / sum(float(a.double().square().sum()) for a in v), moved

    at = [part.view_as(p) for part, p in zip(vector.split(sizes), parameters, strict=True)]
    own, _ = quotient(at)
    v = [torch.randn_like(p) for p in parameters]
    most, started, steps = 0.0, time.perf_counter(), 0
    while steps < 200 and time.perf_counter() - started < seconds:
        value, v = quotient(v)
        most, steps = max(most, value), steps + 1
        norm = math.sqrt(sum(float(a.square().sum()) for a in v))
        if not norm:
            break
        v = [a / norm for a in v]
    return own, most
