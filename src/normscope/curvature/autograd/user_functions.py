r"""Autograd functions written by the user: a check of their second derivatives.

    y = f(x),    b(g, x) = J(x)^T g the function's own backward,    phi(g, x) = <b(g, x), w>

Torch finds the second derivative by differentiating the operations that b is made of. It misses terms, without an
error, in four cases: b is a fused kernel, runs under no_grad, is marked `once_differentiable`, or uses values that only
the forward knew.

So derivatives of the scalar phi, w any vector, are compared with differences of phi. A Gauss-Newton product by reverse
mode twice needs the derivative with respect to the slope g. A Hessian product needs the one with respect to x too. Each
function is checked alone, near the inputs of a call that the model makes. The differences go along few entries, so that
they rarely cross a kink.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.utils._pytree import tree_leaves, tree_map_only

from normscope.isolation.module_calls import answering
from normscope.isolation.outside_tensors import nodes

BY_SLOPE, BY_INPUT = "by the slope", "by the inputs"
# Steps of the differences, as shares of the inputs' size, and the relative difference to bear. At the first step, a
# function that works in float32 whatever it is given would show differences of rounding alone.
_STEPS = {torch.float64: (1e-6, 1e-4), torch.float32: (1e-2, 0.1)}
# A difference over a kink is wrong, so one draw that agrees is enough: with dropped terms no draw agrees.
_DRAWS, _ENTRIES = 3, 8
# Inputs are moved by this share of their size: zeros, as ReLU gives, lie on kinks.
_JITTER = 0.01
_ONCE_DIFFERENTIABLE = once_differentiable(lambda _: None).__code__


class NoSecondDerivative(ValueError):
    """A function's second derivative is not the derivative of its first one."""


def functions_of(root: Any) -> list[type]:
    """The autograd functions written in Python in the graph below a node, without those of normscope."""
    written = (getattr(type(node), "_forward_cls", None) for node in nodes([root]))
    return list(dict.fromkeys(kind for kind in written if kind and not kind.__module__.startswith("normscope.")))


def delayed(roots: Sequence[Any]) -> bool:
    """Whether a graph of gradients ends in a node that refuses a derivative, which torch passes over where it can."""
    return any(type(node).__name__ == "DelayedError" for node in nodes(roots))


def refuse_without_second_derivative(root: Any, run: Callable[["Calls"], Any], *, slope_alone: bool = False) -> None:
    """Raise where a function in the graph below `root` would make products with second derivatives wrong.

    Args:
        run: makes the forward of the graph once more.
        slope_alone: whether derivatives with respect to the slope are all that is needed.
    """
    kinds = functions_of(root)
    if not kinds:
        return
    calls = Calls(kinds)
    with calls.watched():
        run(calls)
    for kind in kinds:
        args, where = calls.first.get(kind, (None, ""))
        lacks = lacking(kind, args)
        if BY_SLOPE in lacks or (lacks and not slope_alone):
            raise NoSecondDerivative(_message_for(kind, where))


def refuse_delayed(gradients: Sequence[Tensor | None]) -> None:
    """Raise for a function that is not written in Python: one without a derivative shows in the gradients alone."""
    if delayed([g.grad_fn for g in gradients if g is not None]):
        raise NoSecondDerivative(
            "An autograd function in the model's graph has a first derivative alone, and no name (it is not written in "
            "Python). Replace it by plain torch operations."
        )


def lacking(kind: type, args: tuple[Any, ...] | None) -> list[str]:
    """The second derivatives that the function has wrong.

    args: the arguments of one call, None where no call was watched.

    Torch's own functions are asked for `once_differentiable` alone: some of them talk to other processes.
    """
    if is_once_differentiable(kind):
        return [BY_SLOPE, BY_INPUT]
    if args is None or kind.__module__.startswith("torch."):
        return []
    for dtype in _STEPS:
        try:
            wrong = _differ(kind, args, dtype)
        except Exception:
            # The function knows no such dtype, or raises because it has no derivative; the product will raise too.
            continue
        if wrong is not None:
            return wrong
    return []


def is_once_differentiable(kind: Any) -> bool:
    """Whether its backward has torch's decorator, below others perhaps."""
    function = kind.vjp if kind.backward is torch.autograd.Function.backward else kind.backward
    while function is not None:
        if getattr(function, "__code__", None) is _ONCE_DIFFERENTIABLE:
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def _differ(kind: Any, args: tuple[Any, ...], dtype: torch.dtype) -> list[str] | None:
    """The derivatives that disagree; None where the function works in float32 and was given more digits."""
    wrong = {BY_SLOPE, BY_INPUT}
    # Functions that draw, draw the same each time.
    devices = {t.device for t in args if isinstance(t, Tensor) and t.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        for draw in range(_DRAWS):
            probe = _Probe(kind, args, dtype, torch.Generator().manual_seed(draw))
            if dtype is torch.float64 and probe.narrow:
                return None
            wrong -= probe.agreeing()
    return [which for which in (BY_SLOPE, BY_INPUT) if which in wrong]


class _Probe:
    """The scalar phi of one function, near the arguments of one call."""

    def __init__(self, kind: Any, args: tuple[Any, ...], dtype: torch.dtype, generator: torch.Generator) -> None:
        self._kind, self._args, self._generator = kind, args, generator
        self._places = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point()]
        self._step, self._tolerance = _STEPS[dtype]
        x = [args[i].to(dtype) for i in self._places]
        self._x = [t + _JITTER * _size(t) * self._draw(t) for t in x]
        outputs = self._outputs(self._x)
        self.narrow = all(torch.equal(y, y.float().to(y.dtype)) for y in outputs)
        self._g = [self._draw(y) for y in outputs]
        self._w = [self._draw(t) for t in x]

    def _draw(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self._generator, dtype=torch.float64).to(like)

    def _outputs(self, x: Sequence[Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        args = list(self._args)
        for i, t in zip(self._places, x, strict=True):
            args[i] = t if t.requires_grad else t.detach().requires_grad_()
        outputs = tree_leaves(self._kind.apply(*args))
        return [y for y in outputs if isinstance(y, Tensor) and y.requires_grad]

    def _phi(self, x: Sequence[Tensor], g: Sequence[Tensor], graph: bool = False) -> Tensor:
        x = [t if t.requires_grad else t.detach().requires_grad_() for t in x]
        slopes = torch.autograd.grad(self._outputs(x), x, list(g), create_graph=graph, allow_unused=True)
        parts = [(b.double() * w.double()).sum() for b, w in zip(slopes, self._w, strict=True) if b is not None]
        return torch.stack(parts).sum() if parts else torch.zeros((), dtype=torch.float64)

    def agreeing(self) -> set[str]:
        """The derivatives that agree with differences; any derivative agrees with differences that are not finite."""
        x = [t.detach().requires_grad_() for t in self._x]
        g = [t.detach().requires_grad_() for t in self._g]
        directions, cotangents = [self._few(t) for t in x], [self._draw(t) for t in g]
        value = self._phi(x, g, graph=True)
        inputs = [*x, *g]
        gradients: Sequence[Tensor | None] = [None] * len(inputs)
        if value.requires_grad:
            gradients = torch.autograd.grad(value, inputs, allow_unused=True)
        by_x, by_g = _directional(gradients[: len(x)], directions), _directional(gradients[len(x) :], cotangents)
        ahead = self._phi([t + self._step * v for t, v in zip(x, directions, strict=True)], self._g)
        behind = self._phi([t - self._step * v for t, v in zip(x, directions, strict=True)], self._g)
        agrees = {BY_INPUT} if self._near(by_x, float(ahead - behind) / (2 * self._step), float(value)) else set()
        # phi is linear in g.
        return agrees | ({BY_SLOPE} if self._near(by_g, float(self._phi(x, cotangents)), float(value)) else set())

    def _few(self, t: Tensor) -> Tensor:
        """A direction along few entries, as large as the inputs are."""
        direction = torch.zeros(t.numel(), dtype=t.dtype)
        places = torch.randperm(t.numel(), generator=self._generator)[:_ENTRIES]
        direction[places] = torch.randn(len(places), generator=self._generator).to(direction)
        return direction.reshape(t.shape).to(t.device) * _size(t)

    def _near(self, taken: float, difference: float, value: float) -> bool:
        gap = abs(taken - difference)
        # Rounding of the moved entries, divided by the step.
        moved = min(_ENTRIES / max(sum(t.numel() for t in self._x), 1), 1.0) ** 0.5
        least = 100 * torch.finfo(self._x[0].dtype).eps * abs(value) * moved / self._step
        return not gap > self._tolerance * max(abs(taken), abs(difference)) + least


def _size(t: Tensor) -> float:
    return float(t.detach().double().square().mean().sqrt()) or 1.0


def _directional(taken: Sequence[Tensor | None], directions: Sequence[Tensor]) -> float:
    pairs = zip(taken, directions, strict=True)
    return sum(float((t.double() * v.double()).sum()) for t, v in pairs if t is not None)


class Calls:
    """The first call of each of some functions: its arguments, and the module that made it."""

    def __init__(self, kinds: Sequence[Any]) -> None:
        self._kinds, self._place = kinds, [""]
        self.first: dict[type, tuple[tuple[Any, ...], str]] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        own_forwards = {kind: vars(kind).get("forward") for kind in self._kinds}
        try:
            for kind in self._kinds:
                kind.forward = self._watching(kind, kind.forward)
            yield
        finally:
            for kind, forward in own_forwards.items():
                if forward is None:
                    del kind.forward
                else:
                    kind.forward = forward

    @contextmanager
    def within(self, model: nn.Module) -> Iterator[None]:
        """Inside, calls in a pass of `model` are recorded with the name of their module."""
        with answering(dict(model.named_modules()), self._inside):
            yield

    def _inside(self, name: str, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._place.append(name)
        try:
            return forward(*args, **kwargs)
        finally:
            self._place.pop()

    def _watching(self, kind: type, forward: Callable[..., Any]) -> Any:
        @functools.wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if kind not in self.first:
                inputs = args[1:] if args and isinstance(args[0], FunctionCtx) else args
                self.first[kind] = tree_map_only(Tensor, lambda t: t.detach().clone(), inputs), self._place[-1]
            return forward(*args, **kwargs)

        return staticmethod(watched)


def _message_for(kind: type, where: str) -> str:
    place = f" in {where}" if where else ""
    why = "it is marked once_differentiable" if is_once_differentiable(kind) else "its backward drops terms"
    return (
        f"The autograd function {kind.__qualname__}{place} has no second derivative: {why}. Torch would leave the "
        "missing terms out without an error, and the curvature would be wrong. While you measure, replace the function "
        "by plain torch operations, or write its backward from operations that torch can differentiate. For a "
        "Gauss-Newton matrix it is enough that the function has a jvp."
    )
