"""What a foreign layer computes: a twin made of layers of ours that holds its parameters and gives what it gives.

A class of torch or of ours is known. A subclass with a forward of its own (LayerNorm2d, BatchNormAct2d), and a module
that is none of ours at all (RMSNorm, by hand), are asked on a probe; where no twin agrees there is a reason instead.
"""

import contextlib
import inspect
import math
import re
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.utils import parametrize

from normscope.norms import probing
from normscope.norms.formula_fit import fit
from normscope.norms.kinds import NORM_LAYERS
from normscope.norms.twins import alone_or_followed, base_of, of_bases, of_formula, set_mode
from normscope.norms.wrappers import EachPosition, Followed, Wrapper, core

_NAMED_NORM = re.compile(r"[Nn]orm(?!al(?!i[sz])|Free)|NORM")
_NAMED_NONE = re.compile(r"No([A-Z][a-z]+)?Norm")


@dataclass(frozen=True)
class Recognized:
    """A layer taken for its `twin`, or left for a `reason`; `formula`: what it was found to compute, in words."""

    twin: nn.Module | None
    formula: str = ""
    reason: str = ""


def known(layer: nn.Module) -> bool:
    """Whether `layer` is a normalizer whose class says what it computes."""
    if isinstance(layer, Wrapper):
        return True
    if not isinstance(layer, NORM_LAYERS) or parametrize.is_parametrized(layer):
        return False
    base = base_of(type(layer))
    same = all(getattr(type(layer), name) is getattr(base, name) for name in ("forward", "train", "__call__"))
    return same and "forward" not in vars(layer)


def named_like_a_norm(layer: nn.Module) -> bool:
    """Whether the class is called one; what normalizes weights (torch's weight_norm) is none."""
    name = type(layer).__name__
    called = bool(_NAMED_NORM.search(name)) and not _NAMED_NONE.search(name)
    return called and not type(layer).__module__.startswith("torch.nn.utils.")


def could_be_one(layer: nn.Module) -> bool:
    """Whether a layer of another class holds what a normalizer holds: vectors of one size, no layers with weights."""
    if type(layer).__module__.startswith(("torch.nn.", "normscope.")):
        return False
    sizes = {p.numel() for p in layer.parameters(recurse=False) if p is not None}
    flat = all(p.numel() == max(p.shape, default=1) for p in layer.parameters(recurse=False))
    bare = next((p for child in layer.children() for p in child.parameters()), None) is None
    alone = next(layer.children(), None) is None
    return flat and bare and len(sizes - {1}) <= 1 and (bool(sizes) or alone or named_like_a_norm(layer))


def recognize(layer: nn.Module, modes: tuple[bool, ...] = (True, False)) -> Recognized | None:
    """The twin of a foreign layer or why there is none; None where nothing says that it is a normalizer.

    modes: in which it has to agree with a subclass, train (True) and eval (False).
    """
    subclass = isinstance(layer, NORM_LAYERS)
    suspected = subclass or named_like_a_norm(layer)
    closed = _closed(layer)
    if closed and suspected:
        return Recognized(None, reason=closed)
    try:
        with probing.quiet():
            found = _of_subclass(layer, modes) if subclass else None
            if not isinstance(layer, nn.modules.batchnorm._NormBase):
                found = found or _by_fit(layer, suspected)
            if found is not None and found.twin is not None and _takes_both(layer):
                both = "it takes channels last in inputs of some rank and second in others, and no layer here does both"
                return Recognized(None, reason=both)
    except probing.NoCopy as error:
        holds = any(True for _ in layer.parameters())
        return Recognized(None, reason=str(error)) if suspected or holds else None
    if found is not None and closed:
        return Recognized(None, reason=closed)
    if found is None and suspected:
        said = f"is not what {base_of(type(layer)).__name__} computes" if subclass else "is no normalization known here"
        return Recognized(None, reason=f"what its class {type(layer).__name__} computes {said}")
    return found


def has_frozen_statistics(layer: nn.Module) -> bool:
    """Whether a layer that is no BatchNorm holds the buffers of one, as a frozen BatchNorm does."""
    if isinstance(layer, NORM_LAYERS):
        return False
    return all(isinstance(layer._buffers.get(name), Tensor) for name in ("running_mean", "running_var"))


def recognize_in_eval(layer: nn.Module) -> Recognized | None:
    """The BatchNorm that a frozen one is, alone or followed by its children, whatever mode it is in."""
    mean = layer.running_mean
    assert isinstance(mean, Tensor)
    eps, affine = getattr(layer, "eps", 1e-5), [getattr(layer, name, None) for name in ("weight", "bias")]
    plain = nn.BatchNorm2d(mean.numel(), eps, affine=False, device=mean.device, dtype=mean.dtype).eval()
    plain.running_mean, plain.running_var = mean.flatten(), layer.running_var.flatten()  # type: ignore[operator]
    for name, tensor in zip(("weight", "bias"), affine, strict=True):
        if isinstance(tensor, Tensor) and tensor.numel() == mean.numel():
            # As buffers: a probe gives parameters other values, and the frozen layer's are buffers.
            del plain._parameters[name]
            plain.register_buffer(name, tensor.detach().flatten())
    after = dict(layer.named_children())
    with contextlib.suppress(probing.NoCopy), probing.quiet():
        for twin in alone_or_followed(plain, after):
            if probing.agree(layer, twin, mean.numel(), last=False, modes=(False,)):
                return Recognized(twin)
    return None


def _takes_both(layer: nn.Module) -> bool:
    """Asked of a layer over channels alone, by its vectors; one without takes inputs of any size."""
    over_channels = not isinstance(layer, (nn.modules.batchnorm._NormBase, nn.GroupNorm))
    vectors = {tensor.numel() for tensor in (*layer.parameters(), *layer.buffers())} - {1}
    return over_channels and any(probing.takes_both(layer, channels) for channels in vectors)


def _of_subclass(layer: nn.Module, modes: tuple[bool, ...]) -> Recognized | None:
    """What its base computes, over the last dimension or at each position, alone or followed by its children."""
    after = dict(layer.named_children())
    for plain, channels, last in of_bases(layer):
        for twin in alone_or_followed(plain, after):
            if probing.agree(layer, twin, channels, last=last, modes=modes):
                parts = [core(twin), *(after.values() if isinstance(twin, Followed) else ())]
                where = " at each position" * isinstance(plain, EachPosition)
                return Recognized(
                    set_mode(twin, layer.training), ", then ".join(type(part).__name__ for part in parts) + where
                )
    return None


def _closed(layer: nn.Module) -> str:
    """Why a layer cannot be asked by giving it one tensor."""
    if "Lazy" in type(layer).__name__ and not any(True for _ in layer.parameters()):
        return "it does not know its channels yet; run one batch first"
    if any(parametrize.is_parametrized(module) for module in layer.modules()):
        return "its parameters are computed from others (a parametrization)"
    try:
        arguments = [*inspect.signature(layer.forward).parameters]
    except (TypeError, ValueError):
        return "the arguments of its forward are not known"
    if len(arguments) != 1:
        return f"its forward takes {', '.join(map(repr, arguments[1:])) or 'nothing'} besides its input"
    return ""


def _by_fit(layer: nn.Module, suspected: bool) -> Recognized | None:
    """The twin by the formula that fits, for each number of channels that the layer could have."""
    for channels in _channels(layer):
        for last in (False, True):
            (copied,) = probing.copies(layer)
            formula = fit(copied, channels, last=last)
            if formula is None or (formula.fixed and not suspected):
                continue
            if formula.missed:
                return Recognized(None, reason=formula.missed)
            twin = of_formula(layer, channels, formula)
            if not probing.agree(layer, twin, channels, last=last):
                why = f"it computes {formula} of large values only: its eps is not added to the variance"
                return Recognized(None, reason=why)
            if not _tied_to(layer, channels, last):
                return Recognized(
                    None, reason=f"it computes {formula} of any number of channels, and holds no weight to say how many"
                )
            said = f"{formula}, eps={formula.eps:g}" + ", times 1 + weight" * bool(formula.offset)
            return Recognized(set_mode(twin, layer.training), said)
    return None


def _channels(layer: nn.Module) -> list[int]:
    """Numbers of channels that the parameters have, or those that attributes without parameters may stand for."""
    sizes = {tensor.numel() for tensor in (*layer.parameters(), *layer.buffers())} - {1}
    if sizes:
        return [*sizes]
    numbers: list[int] = []
    for name, value in vars(layer).items():
        if name.startswith("_") or isinstance(value, bool):
            continue
        if isinstance(value, (tuple, list)) and len(value) == 1:
            (value,) = value
        if isinstance(value, float) and math.isfinite(value) and value > 0:
            # The square root of their number, or one over it.
            square = value**2 if value > 1 else value**-2
            value = round(square) if math.isclose(square, round(square), rel_tol=1e-6) else 0
        if isinstance(value, int) and 1 < value <= 2**16:
            numbers.append(value)
    return [*dict.fromkeys(numbers)]


def _tied_to(layer: nn.Module, channels: int, last: bool) -> bool:
    """Whether the layer is for this number of channels only; one with vectors is."""
    if any(p.numel() == channels for p in layer.parameters()):
        return True
    (copied,) = probing.copies(layer)
    formula = fit(copied, channels + 6, last=last)
    return formula is None or bool(formula.missed)
