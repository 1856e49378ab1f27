"""The rules of products and quotients with a number, and the maps of c x and x + c."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from normscope.prediction.kernels.cotangent import Cotangent
from normscope.prediction.kernels.field import Field, ReaderFacts
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.rules.registry import rule
from normscope.prediction.walk import Walk


@rule("mul", "mul_", "imul")
def multiply(walk: Walk, name: str, left: Any, right: Any) -> Any:
    """A field times a number."""
    if isinstance(left, Field) and isinstance(right, Field):
        raise UnknownOperation("multiplies two tensors of the network (a gate, attention), which has no map here")
    field, other = (left, right) if isinstance(left, Field) else (right, left)
    return scale(walk, field, constant(walk, other))


@rule("truediv", "div", "div_", "itruediv")
def divide(walk: Walk, name: str, left: Any, right: Any) -> Any:
    """A field divided by a number."""
    if isinstance(right, Field):
        raise UnknownOperation("divides by a tensor of the network, which has no map here")
    divisor = constant(walk, right)
    if divisor == 0:
        raise ValueError("divides by zero")
    return scale(walk, left, 1 / divisor)


def constant(walk: Walk, value: Any) -> float:
    """The number that a field is combined with; trained numbers and whole tensors are refused."""
    if isinstance(value, Tensor):
        if walk.trains(value) or value.grad_fn is not None:
            raise UnknownOperation(
                "combines values with a trained number, whose part of lambda has no map here. Leave it out with "
                "parameters= or requires_grad_(False), or measure this network (ns.measure)"
            )
        if value.numel() != 1:
            raise UnknownOperation(
                f"combines a tensor of shape {tuple(value.shape)} elementwise; there is a map for one number"
            )
        return float(value.detach())
    return float(value)


def multiplied(
    walk: Walk, x: Field, factor: Callable[[Field], Tensor | float], of_mean: float, *, gaussian: bool
) -> Field:
    """Kernels times a factor for each pair, the same for what comes back."""
    factors = factor(x)
    parts = tuple(
        replace(
            part,
            kernel=part.kernel * factors,
            mean=part.mean * of_mean,
            tangent=part.tangent * of_mean**2,
            noise=part.noise * of_mean**4,
            group_noise=part.group_noise * of_mean**4,
            marginal=None,
            added_tangent=None if part.added_tangent is None else part.added_tangent * of_mean**2,
            readers=ReaderFacts(),
        )
        for part in x.parts
    )
    out = Field(x.sites, parts, x.shape, gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        _tell_before(x, out)
        bend = tuple(b * of_mean**4 for b in cotangent.bend)
        held = tuple(both * of_mean**2 for both in cotangent.held_gradient_and_drift)
        return [
            Cotangent(tuple(g * factors for g in cotangent.g), bend, held, cotangent.spread, origin=cotangent.origin)
        ]

    return walk.tape.record(out, [x], back)


def scale(walk: Walk, x: Field, factor: float) -> Field:
    """factor x."""
    return multiplied(walk, x, lambda _: factor * factor, factor, gaussian=x.gaussian)


def shift(walk: Walk, x: Field, constant: float) -> Field:
    """x + constant."""
    parts = tuple(
        replace(
            part,
            kernel=part.kernel + constant * (x.sites.ends(part.mean)[0] + x.sites.ends(part.mean)[1]) + constant**2,
            mean=part.mean + constant,
            marginal=None,
            readers=ReaderFacts(),
        )
        for part in x.parts
    )
    out = Field(x.sites, parts, x.shape, x.gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        _tell_before(x, out)
        return [cotangent]

    return walk.tape.record(out, [x], back)


def _tell_before(x: Field, out: Field) -> None:
    """Pass on to the kernels of x the facts that the readers of `out` have filled in."""
    for before, after in zip(x.parts, out.parts, strict=True):
        if after.readers.kept_by_norm is not None:
            before.readers.kept_by_norm = after.readers.kept_by_norm
        if after.readers.gamma_beta_correlation is not None:
            before.readers.gamma_beta_correlation = after.readers.gamma_beta_correlation
