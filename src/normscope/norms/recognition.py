"""Recognize the normalizer that a foreign layer computes, as a twin of torch or normscope layers.

Normalizers of torch and normscope are known by their class. A subclass with a forward of its own (LayerNorm2d,
BatchNormAct2d), or a module of another class (an RMSNorm written by hand), is run on probe inputs. If a twin gives the
same outputs, the layer counts as that twin; otherwise there is a reason why not.
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
from normscope.norms.scale_invariance import normalizing
from normscope.norms.twins import alone_or_followed, base_of, of_bases, of_formula, set_mode
from normscope.norms.wrappers import EachPosition, Followed, Wrapper, core

_NAMED_NORM = re.compile(r"[Nn]orm(?!al(?!i[sz])|Free)|NORM")
_NAMED_NONE = re.compile(r"No([A-Z][a-z]+)?Norm")


@dataclass(frozen=True)
class Recognized:
    """The `twin` of a layer with its `formula` in words, or the `reason` why there is none."""

    twin: nn.Module | None
    formula: str = ""
    reason: str = ""


def known(layer: nn.Module) -> bool:
    """Whether `layer` is a normalizer of torch or normscope with an unchanged forward."""
    if isinstance(layer, Wrapper):
        return True
    if not isinstance(layer, NORM_LAYERS) or parametrize.is_parametrized(layer):
        return False
    base = base_of(type(layer))
    same = all(getattr(type(layer), name) is getattr(base, name) for name in ("forward", "train", "__call__"))
    return same and "forward" not in vars(layer)


def named_like_a_norm(layer: nn.Module) -> bool:
    """Whether the name of the class is that of a normalizer; weight normalization does not count."""
    name = type(layer).__name__
    called = bool(_NAMED_NORM.search(name)) and not _NAMED_NONE.search(name)
    return called and not type(layer).__module__.startswith("torch.nn.utils.")


def could_be_one(layer: nn.Module) -> bool:
    """Whether a layer of another class holds parameters as a normalizer does: vectors of one size, no weight layers."""
    if type(layer).__module__.startswith(("torch.nn.", "normscope.")):
        return False
    sizes = {p.numel() for p in layer.parameters(recurse=False) if p is not None}
    flat = all(p.numel() == max(p.shape, default=1) for p in layer.parameters(recurse=False))
    bare = next((p for child in layer.children() for p in child.parameters()), None) is None
    alone = next(layer.children(), None) is None
    return flat and bare and len(sizes - {1}) <= 1 and (bool(sizes) or alone or named_like_a_norm(layer))


def recognize(layer: nn.Module, modes: tuple[bool, ...] = (True, False)) -> Recognized | None:
    """The twin of a foreign layer, or the reason why there is none; None if nothing suggests a normalizer.

    Args:
        layer: a layer of another class than torch's and normscope's normalizers.
        modes: the modes in which a twin must agree with a subclass: train (True) and eval (False).
    """
    subclass = isinstance(layer, NORM_LAYERS)
    suspected = subclass or named_like_a_norm(layer)
    closed = _closed(layer)
    if closed and suspected:
        return Recognized(None, reason=closed)
    try:
        with probing.quiet():
            recognized = _of_subclass(layer, modes) if subclass else None
            if not isinstance(layer, nn.modules.batchnorm._NormBase):
                recognized = recognized or _by_fit(layer, suspected) or _of_no_known_kind(layer)
            if recognized is not None and recognized.twin is not None and _takes_both(layer):
                both = "it takes channels last in inputs of some rank and second in others, and no layer here does both"
                return Recognized(None, reason=both)
    except probing.NoCopy as error:
        holds = any(True for _ in layer.parameters())
        return Recognized(None, reason=str(error)) if suspected or holds else None
    if recognized is not None and closed:
        return Recognized(None, reason=closed)
    if recognized is None and suspected:
        said = f"is not what {base_of(type(layer)).__name__} computes" if subclass else "is no normalization known here"
        return Recognized(None, reason=f"what its class {type(layer).__name__} computes {said}")
    return recognized


def has_frozen_statistics(layer: nn.Module) -> bool:
    """Whether a layer of another class holds BatchNorm's buffers, as a frozen BatchNorm does."""
    if isinstance(layer, NORM_LAYERS):
        return False
    return all(isinstance(layer._buffers.get(name), Tensor) for name in ("running_mean", "running_var"))


def recognize_in_eval(layer: nn.Module) -> Recognized | None:
    """The eval-mode BatchNorm that a frozen BatchNorm computes in every mode, alone or followed by its children."""
    mean = layer.running_mean
    assert isinstance(mean, Tensor)
    eps, affine = getattr(layer, "eps", 1e-5), [getattr(layer, name, None) for name in ("weight", "bias")]
    plain = nn.BatchNorm2d(mean.numel(), eps, affine=False, device=mean.device, dtype=mean.dtype).eval()
    plain.running_mean, plain.running_var = mean.flatten(), layer.running_var.flatten()  # type: ignore[operator]
    for name, tensor in zip(("weight", "bias"), affine, strict=True):
        if isinstance(tensor, Tensor) and tensor.numel() == mean.numel():
            # Registered as buffers: a probe changes the values of parameters, and the frozen layer's are buffers.
            del plain._parameters[name]
            plain.register_buffer(name, tensor.detach().flatten())
    after = dict(layer.named_children())
    with contextlib.suppress(probing.NoCopy), probing.quiet():
        for twin in alone_or_followed(plain, after):
            if probing.agree(layer, twin, mean.numel(), last=False, modes=(False,)):
                return Recognized(twin)
    return None


def _takes_both(layer: nn.Module) -> bool:
    """Whether a layer over channels alone takes them last in some inputs and second in others.

    The number of channels is that of the layer's vectors; a layer without vectors takes any number, and is not tested.
    """
    over_channels = not isinstance(layer, (nn.modules.batchnorm._NormBase, nn.GroupNorm))
    vectors = {tensor.numel() for tensor in (*layer.parameters(), *layer.buffers())} - {1}
    return over_channels and any(probing.takes_both(layer, channels) for channels in vectors)


def _of_subclass(layer: nn.Module, modes: tuple[bool, ...]) -> Recognized | None:
    """The twin of a subclass: its base class over the last dimension or at each position, with or without children."""
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
    """The reason why a layer cannot be probed with one tensor; "" if it can."""
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
    """The twin by the formula that fits the layer's outputs, for each number of channels the layer may have."""
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


def _of_no_known_kind(layer: nn.Module) -> Recognized | None:
    """The reason for a layer that normalizes in train mode and computes none of the known kinds."""
    (copied,) = probing.copies(layer)
    copied.train()
    for channels in _channels(layer):
        for shape in [*probing.shapes(channels, last=False), *probing.shapes(channels, last=True)]:
            x = probing.draw(shape, 100.0, copied)
            y = probing.output(copied, x)
            if not isinstance(y, Tensor):
                continue
            with contextlib.suppress(Exception):
                if normalizing(lambda each: copied(each.clone()), x, y).normalizes:
                    return Recognized(None, reason="it computes a normalization that is none of the known kinds")
    return None


def _channels(layer: nn.Module) -> list[int]:
    """Possible numbers of channels: sizes of the parameters or, without parameters, numbers among the attributes."""
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
            # The attribute may be the square root of the number of channels, or one over it.
            square = value**2 if value > 1 else value**-2
            value = round(square) if math.isclose(square, round(square), rel_tol=1e-6) else 0
        if isinstance(value, int) and 1 < value <= 2**16:
            numbers.append(value)
    return [*dict.fromkeys(numbers)]


def _tied_to(layer: nn.Module, channels: int, last: bool) -> bool:
    """Whether the layer works for this number of channels only, as a layer with vectors does."""
    if any(p.numel() == channels for p in layer.parameters()):
        return True
    (copied,) = probing.copies(layer)
    formula = fit(copied, channels + 6, last=last)
    return formula is None or bool(formula.missed)
