r"""Find the kind of a loss (squared error, cross-entropy or another) from its gradients, not from its name.

Gradients of the loss with respect to the outputs are compared with w (phi(z) - q) (`canonical_fit.py`), at a few chosen
points and at the batch's own outputs. So a loss is recognised whatever its name, reduction, weights, label smoothing,
mask or shape. Outputs that are probabilities or log-probabilities are treated as functions of logits; a temperature is
a factor of the logits. A loss of logits takes 5 gradients with respect to the outputs, another loss up to 40. None of
them goes through the model.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from normscope.isolation.generators import Generators
from normscope.loss_kinds.canonical_fit import Points, fit
from normscope.loss_kinds.gradients import Layout, Probed, Undecided, along, layouts
from normscope.loss_kinds.kinds import FLAT, KINDS, LossKind, kind_by_name, softmax
from normscope.loss_kinds.meaning import MEANINGS
from normscope.loss_kinds.temperature import inverse_temperature
from normscope.losses.kind_names import CROSS_ENTROPY, OTHER

# Tolerance relative to the change of a gradient; the second one if autocast rounds products to half precision.
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 2e-2
# A gradient counts as unchanged if it differs by at most this many rounding errors.
_NOISE = 8
# Distances between the chosen points. The next one is tried if rounding hides the change of the gradient, as with large
# targets.
_SPREADS = (1.0, 1e3, 1e6)
_PROBABILITIES, _TINY = 1e-3, 1e-4
_UNLIKE = "its gradient with respect to the outputs changes in another way than theirs"


def loss_kind(loss: Callable[[Tensor], Tensor], outputs: Tensor) -> str:
    """The kind of a loss of the outputs: "squared", "cross_entropy" or "other".

    Args:
        loss: the scalar loss as a function of the outputs, with fixed targets.
        outputs: the outputs of one batch.

    Returns:
        A key of `KINDS`, or "other".

    Example:
        >>> y = torch.tensor([0, 2])
        >>> loss_kind(lambda z: -z.log_softmax(1)[[0, 1], y].mean(), torch.zeros(2, 3))
        'cross_entropy'
        >>> loss_kind(lambda z: (z - 1).square().sum(), torch.zeros(2, 3))
        'squared'
        >>> loss_kind(lambda z: (z - 1).abs().sum(), torch.zeros(2, 3))
        'other'
    """
    return find_kind(loss, outputs).name


def find_kind(loss: Callable[[Tensor], Any], outputs: Any) -> LossKind:
    """The kind of the loss at these outputs, with a reason if it is "other"; never raises.

    Args:
        loss: the scalar loss as a function of the outputs, with fixed targets.
        outputs: the outputs of one batch.

    Returns:
        A `LossKind`.
    """
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        got = f"a tensor of {outputs.dtype}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
        return LossKind(OTHER, f"the outputs are {got}, not one tensor of real numbers")
    if not outputs.numel() or not outputs.isfinite().all():
        return LossKind(OTHER, "the outputs are " + ("not finite" if outputs.numel() else "empty"))
    generators = Generators()
    generators.save()
    try:
        return _find(loss, outputs.detach())
    except Undecided as reason:
        return LossKind(OTHER, str(reason))
    except Exception as error:
        first_line = (str(error) or repr(error)).splitlines()[0]
        return LossKind(OTHER, f"at outputs of moderate size it raised {type(error).__name__}: {first_line}")
    finally:
        generators.restore()


def kind_of(loss_fn: Callable[..., Any], outputs: Any, targets: Any) -> LossKind:
    """The kind of loss_fn(outputs, targets), with respect to the one tensor of the outputs that the loss reads.

    Args:
        loss_fn: the loss function.
        outputs: a tensor, or a tuple, list or dict with tensors.
        targets: the targets of the batch.

    Returns:
        A `LossKind`.
    """
    named = kind_by_name(loss_fn)
    if named:
        return LossKind(named)
    leaves, form = tree_flatten(outputs)

    def loss(number: int, z: Tensor) -> Any:
        return loss_fn(tree_unflatten([*leaves[:number], z, *leaves[number + 1 :]], form), targets)

    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if len(tensors) == 1:
        return find_kind(partial(loss, tensors[0]), leaves[tensors[0]])
    kinds = [find_kind(partial(loss, i), leaves[i]) for i in tensors]
    read = [kind for kind in kinds if kind != FLAT]
    return read[0] if len(read) == 1 else LossKind(OTHER, f"it reads {len(read)} tensors of the outputs")


def _find(loss: Callable[[Tensor], Any], outputs: Tensor) -> LossKind:
    narrow = outputs.dtype.itemsize < 4
    half = narrow or torch.is_autocast_enabled(outputs.device.type)
    tolerance = _HALF_TOLERANCE if half else _TOLERANCE
    z = (outputs.float() if narrow else outputs).clone(memory_format=torch.contiguous_format)
    for probed, layout in _of_probabilities(loss, z):
        if _is_entropy(probed, layout, tolerance):
            return LossKind(CROSS_ENTROPY)
    if _between_0_and_1(z):
        # Outside [0, 1] losses of probabilities raise, and on a GPU they make the device unusable, so the points stay
        # inside first. A loss that is quadratic, linear or a softmax cross-entropy inside is not a loss of
        # probabilities.
        loss_kind = _at(Probed(loss, z, place=torch.sigmoid), 1.0, tolerance)
        if loss_kind is not None and loss_kind.name == OTHER:
            return loss_kind
    wide = Probed(loss, z)
    for spread in _SPREADS:
        loss_kind = _at(wide, spread, tolerance)
        if loss_kind is not None:
            return loss_kind
    return LossKind(OTHER, "it is linear in outputs, or in some regions of them, and these are no log-probabilities")


def _of_probabilities(loss: Callable[[Tensor], Any], z: Tensor) -> Iterator[tuple[Probed, Layout]]:
    """The loss as a function of logits, for each way in which z can be probabilities or log-probabilities."""
    inside = _between_0_and_1(z)
    for axis in range(z.ndim):
        if z.shape[axis] < 2:
            continue
        layout = along(z.shape, axis)
        if ((z.logsumexp(axis)).abs() < _PROBABILITIES).all():
            yield Probed(loss, z, partial(torch.log_softmax, dim=axis)), layout
        if inside and ((z.sum(axis) - 1).abs() < _PROBABILITIES).all():
            yield Probed(loss, z.clamp_min(_TINY).log(), partial(torch.softmax, dim=axis)), layout
    if inside:
        yield Probed(loss, z.logit(_TINY), torch.sigmoid), Layout(z.numel(), 1, 1)


def _between_0_and_1(z: Tensor) -> bool:
    return bool((z >= 0).all() and (z <= 1).all())


def _is_entropy(probed: Probed, layout: Layout, tolerance: float) -> bool:
    z = probed.normal(0)
    fitted = fit(_points(probed, layout, z, probed.gradient(z), 1.0, tolerance), softmax)
    return fitted.chosen and fitted.real


def _is_scaled_entropy(probed: Probed, layout: Layout, entry: int, tolerance: float) -> bool:
    b = inverse_temperature(probed.gradient, probed.normal(0), entry, layout.classes)
    scaled = Probed(probed.loss, probed.real * b, partial(torch.mul, other=1 / b))
    return not math.isnan(b) and _is_entropy(scaled, layout, tolerance)


def _at(probed: Probed, spread: float, tolerance: float) -> LossKind | None:
    """The kind from points at the distance `spread`; None if the gradient changes by less than its rounding errors."""
    z = probed.place(spread * probed.normal(0))
    slope = probed.gradient(z)
    entry = int(slope.abs().argmax())
    if not slope.view(-1)[entry]:
        return FLAT
    moved = probed.normal(0).view(-1)
    moved[entry] += 2 + math.log(max(z.shape, default=1))
    other = probed.gradient(probed.place(spread * moved.view(z.shape)))
    noise = _NOISE * torch.finfo(z.dtype).eps * torch.maximum(slope.abs(), other.abs())
    coupled = ((other - slope).abs() > noise).view(-1).nonzero().flatten()
    if not len(coupled):
        return None
    convex, reason = True, _UNLIKE
    for layout in layouts(z.shape, coupled):
        points = _points(probed, layout, z, slope, spread, tolerance)
        for name, form in KINDS.items():
            if not form.couples and layout.classes > 1:
                continue
            fitted = fit(points, form.phi)
            if fitted.chosen and fitted.real and fitted.resolved:
                return LossKind(name)
            if fitted.chosen and fitted.resolved:
                words = MEANINGS[name].words
                reason = f"its gradient is that of {words} at outputs of moderate size, and not at this batch's"
            if not fitted.resolved:
                return None
        if probed.anywhere and _is_scaled_entropy(probed, layout, entry, tolerance):
            return LossKind(CROSS_ENTROPY)
        convex = convex and points.monotone()
    return LossKind(OTHER, reason, convex)


def _points(probed: Probed, layout: Layout, z: Tensor, slope: Tensor, spread: float, tolerance: float) -> Points:
    """Four points with their gradients.

    The points are z, where the gradient is `slope`; two points at which the likely target of each softmax, or another
    class, is raised; and the batch's own outputs.
    """
    classes = layout.of(slope)
    higher = spread * (1 + math.log(layout.classes))
    outputs = [z]
    for seed, extreme in ((1, classes.argmin(1, keepdim=True)), (2, classes.argmax(1, keepdim=True))):
        outputs.append(probed.place(layout.raised(spread * probed.normal(seed), extreme, higher)))
    outputs.append(probed.real)
    slopes = [slope, *(probed.gradient(t) for t in outputs[1:])]
    entry = int(slope.abs().argmax())
    return Points([layout.sample(t, entry) for t in outputs], [layout.sample(g, entry) for g in slopes], tolerance)
