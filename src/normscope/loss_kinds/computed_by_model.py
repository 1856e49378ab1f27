r"""Find the kind of a loss that a model computes itself, from its second derivative M at the predictions z.

    cross-entropy over classes       M v = w (p v - p <p, v>),  p = softmax(z),  one w >= 0 for each softmax
    cross-entropy of single logits   M v = w p (1 - p) v,       p = sigmoid(z),  one w for all
    squared error                    M v = w v,                                  one w for all

A single logit or an entry of a squared error that the loss leaves out has neither a slope nor a second derivative.

A loss inside the model cannot be called at other outputs. So there is one point, the batch's, and two vectors v.
"""

import torch
from torch import Tensor

from normscope.loss_kinds.kinds import KINDS, LossKind
from normscope.losses.kind_names import CROSS_ENTROPY, OTHER

_TOLERANCE = 1e-3
_NO_OUTPUTS = "the model or forward= gives the loss, and no predictions to find its kind by"
_UNLIKE = (
    "its second derivative with respect to the predictions is neither that of cross-entropy nor that of squared error"
)


def kind_inside(loss: Tensor, z: Tensor | None) -> LossKind:
    """The kind of `loss`, computed from the predictions z in the same graph; costs two products with M.

    Example:
        >>> z = torch.tensor([[1.0, 0.0, -1.0]], requires_grad=True)
        >>> kind_inside(torch.nn.functional.cross_entropy(z, torch.tensor([0])), z).name
        'cross_entropy'
    """
    if z is None or not z.requires_grad or not loss.requires_grad:
        return LossKind(OTHER, _NO_OUTPUTS)
    (slope,) = torch.autograd.grad(loss, z, create_graph=True, allow_unused=True)
    if slope is None or not slope.requires_grad:
        return LossKind(OTHER, _NO_OUTPUTS if slope is None else _UNLIKE)
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for _ in range(2):
        v = torch.randn(z.shape, generator=generator, dtype=torch.float32).to(z)
        (image,) = torch.autograd.grad(slope, z, v, retain_graph=True, allow_unused=True)
        pairs.append((v.double(), torch.zeros_like(v).double() if image is None else image.detach().double()))
    outputs = z.detach().double()
    if not any(image.any() for _, image in pairs):
        return LossKind(OTHER, _UNLIKE)
    if any(_is_softmax(pairs, outputs, axis) for axis in dict.fromkeys((-1, 1 if z.ndim > 1 else -1))):
        return LossKind(CROSS_ENTROPY)
    for name, form in KINDS.items():
        if _is_diagonal(pairs, form.slope(outputs)) and not slope[pairs[0][1] == 0].any():
            return LossKind(name)
    return LossKind(OTHER, _UNLIKE)


def _is_softmax(pairs: list[tuple[Tensor, Tensor]], z: Tensor, axis: int) -> bool:
    """Whether both images are w (p v - p <p, v>) with the same w >= 0 along each line of the axis."""
    if z.shape[axis] < 2:
        return False
    p = z.softmax(axis)
    (like, image), (other_like, other) = ((p * v - p * (p * v).sum(axis, keepdim=True), w) for v, w in pairs)
    weight = (like * image).sum(axis, keepdim=True) / like.square().sum(axis, keepdim=True).clamp_min(1e-300)
    return bool((weight >= 0).all()) and _near(weight * like, image) and _near(weight * other_like, other)


def _is_diagonal(pairs: list[tuple[Tensor, Tensor]], diagonal: Tensor) -> bool:
    """Whether both images are w diagonal v with one positive w, or 0 for entries that the loss leaves out."""
    (v, image), (other_v, other) = pairs
    used = image != 0
    weight = float((image / (diagonal * v))[used].median())
    expected = weight * diagonal * used
    return weight > 0 and _near(expected * v, image) and _near(expected * other_v, other)


def _near(expected: Tensor, image: Tensor) -> bool:
    return bool((expected - image).norm() <= _TOLERANCE * image.norm())
