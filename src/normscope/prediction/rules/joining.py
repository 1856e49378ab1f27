r"""The rules of sums, differences and concatenations.

    sum             K = K_1 + K_2 + mean_1 mean_2 + mean_2 mean_1       independent summands; G goes back to both
    concatenation   the parts side by side; the next linear map sees their mean, weighted by channels

A residual branch ends in weights that nothing else of the sum has seen, so it is independent of what it is added to.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from normscope.prediction.kernels.cotangent import Cotangent, Strand
from normscope.prediction.kernels.field import Field, FieldPart
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.rules.constants import constant, scale, shift
from normscope.prediction.rules.elementwise_map import of_gaussian
from normscope.prediction.rules.pooling import average_pool
from normscope.prediction.rules.registry import rule
from normscope.prediction.walk import Walk
from normscope.theory.marginals import Marginal
from normscope.theory.modes import common_spread
from normscope.theory.place_lengths import kurtosis, variance
from normscope.theory.site_pairs import Sites
from normscope.theory.taps import Window

# Smallest variance of a branch, over the other summand's squares, that a distribution is widened by.
_SMALLEST_VARIANCE = 1e-6


@rule("add", "add_", "iadd")
def add(walk: Walk, name: str, left: Any, right: Any, alpha: float = 1.0) -> Any:
    """left + alpha right, of two fields or of a field and a number."""
    if isinstance(left, Field) and isinstance(right, Field):
        return _sum_of(walk, left, right if alpha == 1 else scale(walk, right, alpha))
    field, other = (left, right) if isinstance(left, Field) else (right, left)
    return shift(walk, field, constant(walk, other) * alpha)


@rule("sub", "sub_", "isub")
def subtract(walk: Walk, name: str, left: Any, right: Any) -> Any:
    """left - right, of two fields or of a field and a number."""
    if isinstance(right, Field):
        return add(walk, name, left, scale(walk, right, -1.0))
    return shift(walk, left, -constant(walk, right))


def _sum_of(walk: Walk, left: Field, right: Field) -> Field:
    """left + right. Refused if both come from the same weights with no other weights in between."""
    if left is right:
        return scale(walk, left, 2.0)
    left, right = _one_form(walk, [left, right])
    if left.shape != right.shape:
        raise UnknownOperation(
            f"adds shapes {left.shape} and {right.shape}, which would broadcast; there is a map for equal ones"
        )
    if left.sites != right.sites:
        raise UnknownOperation(
            f"adds a flattened image of {max(left.sites.count, right.sites.count)} sites and features that have no "
            "sites, which has no map here. Add images before flattening"
        )
    common = left.roots & right.roots
    if common:
        raise UnknownOperation(
            f"adds two tensors that are both functions of {', '.join(sorted(map(str, common)))} with no weights in "
            "between, so they are not independent, and their sum has no map here. End one of them in a linear layer"
        )
    cuts = _cuts(left, right)
    left_parts, right_parts = _split(left, cuts), _split(right, cuts)
    parts = []
    for a, b in zip(left_parts, right_parts, strict=True):
        cross = left.sites.outer(a.mean, b.mean) + left.sites.outer(b.mean, a.mean)
        parts.append(
            FieldPart(
                a.channels,
                a.kernel + b.kernel + cross,
                a.mean + b.mean,
                a.tangent + b.tangent,
                a.noise + b.noise,
                length=common_spread([(_size(left, a), a.length), (_size(left, b), b.length)]),
                marginal=(marginal := _marginal((left, a), (right, b))),
                scale_variance=(differing := _scale_variance(left.sites, a, b)),
                kurtosis=kurtosis(differing) if marginal else 0.0,
                own_kurtosis=kurtosis(differing) if marginal else 0.0,
            )
        )
    out = Field(left.sites, tuple(parts), left.shape, left.gaussian and right.gaussian, left.roots | right.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        cotangent = walk.tape.drawn(cotangent, out)
        return [_with_strands(_gather(cotangent, cuts, field), cotangent, field, out) for field in (left, right)]

    return walk.tape.record(out, [left, right], back)


def _scale_variance(sites: Sites, a: FieldPart, b: FieldPart) -> float:
    """Relative variance of places' variances. Places that are long in one summand are long in both."""
    if sites.each_sample:
        return 0.0
    return common_spread([(max(variance(sites, part.kernel), 0.0), part.scale_variance) for part in (a, b)])


def _marginal(one: tuple[Field, FieldPart], two: tuple[Field, FieldPart]) -> Marginal | None:
    """Distribution of a sum with a Gaussian summand; None if the other summand's distribution is not known."""
    if one[0].gaussian:
        one, two = two, one
    (field, part), (other, added) = one, two
    summand = _known(field, part)
    if summand is None or not other.gaussian:
        return None
    pairs = other.sites.pairs(added.kernel, added.mean)
    # A branch whose gamma starts at zero leaves the other as it is.
    q = max(float(pairs.q.mean()), _SMALLEST_VARIANCE * summand.square)
    return summand.plus(float(pairs.mean.mean()), q) if q > 0 else None


def _known(field: Field, part: FieldPart) -> Marginal | None:
    """Distribution of one place: as the part carries it, or of two half lines of a Gaussian field; else None."""
    if part.marginal is not None or field.before is None:
        return part.marginal
    phi, before = field.before
    distribution = None if phi.line is None else of_gaussian(before)
    return distribution and distribution.through(phi)


def _with_strands(sent: Cotangent, arriving: Cotangent, field: Field, out: Field) -> Cotangent:
    """Strands for the summand whose values decide the slopes above; to the Gaussian summand they are independent."""
    if not arriving.strands or field.gaussian or len(field.parts) != len(out.parts):
        return sent
    strands = []
    for part, strands_above in zip(out.parts, arriving.strands, strict=True):
        if part.marginal is None:
            return sent
        pulled = part.marginal.pulled(torch.stack([each for s in strands_above for each in (s.first, s.second)]))
        strands.append(
            tuple(
                Strand(s.g, *both)
                for s, both in zip(strands_above, pulled.reshape(len(strands_above), 2, -1).unbind(0), strict=True)
            )
        )
    return replace(sent, strands=tuple(strands))


@rule("cat", "concat")
def concatenate(walk: Walk, name: str, tensors: Any, dim: int = 0) -> Field:
    """Tensors side by side along the channels."""
    if not all(tensor.shape for tensor in tensors):
        raise UnknownOperation("concatenates the samples of tensors (N,), which has no map here")
    if dim != 1 and not (dim < 0 and dim + len(tensors[0].shape) + 1 == 1):
        raise UnknownOperation(f"concatenates along dimension {dim}; there is a map for channels, dimension 1")
    return _concatenated(walk, list(tensors))


def _concatenated(walk: Walk, fields: Sequence[Field]) -> Field:
    """Along the channels."""
    fields = _one_form(walk, fields)
    first = fields[0]
    if any(f.shape[1:] != first.shape[1:] for f in fields):
        raise ValueError(f"concatenates shapes {', '.join(str(f.shape) for f in fields)}, whose sites differ")
    if first.flat and any(f.sites.count > 1 for f in fields):
        raise UnknownOperation(
            "concatenates flattened images; there is a map only before flattening. Concatenate channels first"
        )
    # Some readers may normalize a part and others not, so none is told how many weights a value sums.
    parts = tuple(replace(part, added_tangent=None) for f in fields for part in f.parts)
    shape = (sum(f.shape[0] for f in fields), *first.shape[1:])
    roots = frozenset().union(*(f.roots for f in fields))
    out = Field(first.sites, parts, shape, all(f.gaussian for f in fields), roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        sent, first_part = [], 0
        for f in fields:
            last_part = first_part + len(f.parts)
            g, bend, held = (
                of[first_part:last_part] for of in (cotangent.g, cotangent.bend, cotangent.held_gradient_and_drift)
            )
            sent.append(Cotangent(g, bend, held, cotangent.spread, origin=cotangent.origin))
            first_part = last_part
        return sent

    return walk.tape.record(out, fields, back)


def _one_form(walk: Walk, fields: Sequence[Field]) -> list[Field]:
    """Fields in one form; a small image in offsets that no layer has read yet gets every pair of its sites."""
    if len({type(f.sites) for f in fields}) == 1:
        return list(fields)
    return [
        average_pool(walk, f, Window(f.sites, (1, 1), (1, 1), (0, 0))) if not f.sites.has_borders and not f.flat else f
        for f in fields
    ]


def _size(field: Field, part: FieldPart) -> float:
    return float(field.sites.diagonal(part.kernel).mean())


def _cuts(left: Field, right: Field) -> list[int]:
    """Channels at which either field's parts end."""
    ends = set()
    for field in (left, right):
        end = 0
        for part in field.parts:
            end += part.channels
            ends.add(end)
    return sorted(ends)


def _split(field: Field, cuts: list[int]) -> list[FieldPart]:
    pieces, first_channel, cut = [], 0, 0
    for part in field.parts:
        end = first_channel + part.channels
        while cut < len(cuts) and cuts[cut] <= end:
            pieces.append(replace(part, channels=cuts[cut] - (cuts[cut - 1] if cut else 0), kurtosis=0.0))
            cut += 1
        first_channel = end
    return pieces


def _gather(cotangent: Cotangent, cuts: list[int], field: Field) -> Cotangent:
    """The cotangent of the field: cotangents of its cut pieces, summed for each part."""
    g, bend, held, first_channel, cut = [], [], [], 0, 0
    for part in field.parts:
        end, first = first_channel + part.channels, cut
        while cut < len(cuts) and cuts[cut] <= end:
            cut += 1
        g.append(_summed(cotangent.g[first:cut]))
        bend.append(_summed(cotangent.bend[first:cut]))
        held.append(_summed(cotangent.held_gradient_and_drift[first:cut]))
        first_channel = end
    return Cotangent(tuple(g), tuple(bend), tuple(held), cotangent.spread, origin=cotangent.origin)


def _summed(pieces: tuple[Tensor, ...]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.stack(pieces).sum(0)
