r"""The map of elementwise functions on Gaussian fields, and on fields of a known distribution.

K' = E[phi phi]      G' = G E[phi' phi']      bend' = G E[phi''] E[phi'']
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from normscope.prediction.kernels.cotangent import Cotangent, Spread, Strand
from normscope.prediction.kernels.field import Field, FieldPart
from normscope.prediction.rules.max_pooling import max_pool
from normscope.prediction.walk import Walk
from normscope.theory.gaussian import Activation, Moments, Pairs, derivative, gamma_beta_correlation, length_slope
from normscope.theory.gradient_overlaps import Origin
from normscope.theory.lengths import fluctuations
from normscope.theory.marginals import Joined, Marginal
from normscope.theory.marginals import gaussian as gaussian_marginal
from normscope.theory.place_lengths import all_tied, deviations, scatter
from normscope.theory.site_pairs import average

# Slopes of the length map below which depth was not seen to make a difference.
_LEAST_LENGTH_SLOPE = 1.25


def activation(walk: Walk, name: str, x: Field, phi: Activation) -> Field:
    """The field of phi(x), for a Gaussian x, or for two half lines phi of a sum whose distribution is known.

    A rising phi commutes with max pooling: phi goes before the maxima. Any other field is taken as a Gaussian of the
    same moments, and a note says so.

    Args:
        walk: the walk through the graph, which keeps the tape.
        name: name of the operation's layer.
        x: the field before the activation.
        phi: the function.

    Returns:
        The field after the activation.
    """
    if x.pooled is not None and phi.monotone:
        place, window, before = x.pooled
        return max_pool(walk, place, activation(walk, name, before, phi), window)
    walk.met.curved |= phi.line is None
    known = phi.line is not None and all(part.marginal is not None for part in x.parts)
    if not x.gaussian and not known:
        text = (
            "takes a sum, a pooling or data, which are not Gaussian; a Gaussian of the same moments took their place."
        )
        walk.remarks.note(f"{phi.name} {text}", name)
    # Maxima come with their distribution too, and are no sums.
    walk.met.after_sum |= known and any(m.moved is not None for part in x.parts if (m := part.marginal))
    pairs = [x.sites.pairs(part.kernel, part.mean) for part in x.parts]
    joined = [Joined(m, p) if known and (m := part.marginal) else None for part, p in zip(x.parts, pairs, strict=True)]
    gaussian = [
        distribution.moments(phi) if distribution else phi.moments(p)
        for distribution, p in zip(joined, pairs, strict=True)
    ]
    corrected = [_of_batch(phi, x, *each) for each in zip(x.parts, pairs, gaussian, strict=True)]
    lengths = [_lengths(phi, x, part, p) for part, p in zip(x.parts, pairs, strict=True)]
    walk.met.length_growth *= max(_lengthens(phi, part, p) for part, p in zip(x.parts, pairs, strict=True))
    for part, p in zip(x.parts, pairs, strict=True):
        part.readers.gamma_beta_correlation = _gamma_beta_correlation(phi, p)
    places = [_places(phi, *each) for each in zip(x.parts, pairs, joined, strict=True)]
    parts = tuple(
        FieldPart(
            part.channels,
            m.value,
            m.mean,
            part.tangent * x.sites.different_samples(m.slope),
            part.noise * _of_two(x, m.slope) ** 2,
            length=length,
            marginal=part.marginal.through(phi) if known and part.marginal else None,
            overlap_variance=rise**2 * part.scale_variance * all_tied(x.sites, part.kernel) if part.kurtosis else 0.0,
            scale_variance=slope**2 * part.scale_variance,
            square_variance=single,
        )
        for part, m, (length, _), (single, slope, rise) in zip(x.parts, corrected, lengths, places, strict=True)
    )
    out = Field(x.sites, parts, x.shape, False, x.roots, (phi, x))
    others = x.sites.others()

    def back(cotangent: Cotangent) -> list[Cotangent]:
        g = tuple(g * m.slope for g, m in zip(cotangent.g, corrected, strict=True))
        bend = tuple(g * (x.sites.outer(m.bend, m.bend) * others) for g, m in zip(cotangent.g, corrected, strict=True))
        strands: tuple[tuple[Strand, ...], ...] = ()
        if known:
            g, bend, strands = _through_strands(
                phi, x, cotangent, [distribution for distribution in joined if distribution]
            )
        elif cotangent.strands and (marginal := of_gaussian(x)):
            # To what made Gaussian values, the slopes that these decide are independent.
            g, bend, _ = _through_strands(phi, x, cotangent, [Joined(marginal, pairs[0])])
        held = tuple(
            _held_pair(x, *each)
            for each in zip(x.parts, gaussian, corrected, cotangent.held_gradient_and_drift, strict=True)
        )
        single, crossed = _length_spread(x, cotangent, [pairs for _, pairs in lengths])
        more = Spread(0.0, 0.0, crossed, (1 + 2 / walk.tape.outputs) * single, _apart(x, cotangent.g, g))
        spread = cotangent.spread.plus(more)
        return [Cotangent(g, bend, held, spread, strands, _masked(x, cotangent, g, corrected))]

    return walk.tape.record(out, [x], back, nonlinear=f"{name!r} ({phi.name})")


def of_gaussian(x: Field) -> Marginal | None:
    """The distribution of one place of a Gaussian field whose channels are all alike; None for other fields."""
    if not x.gaussian or len(x.parts) > 1:
        return None
    pairs = x.sites.pairs(x.parts[0].kernel, x.parts[0].mean)
    q = average(pairs.q)
    return gaussian_marginal(average(pairs.mean), q) if q > 0 else None


def _through_strands(
    phi: Activation, x: Field, arriving: Cotangent, joined: list[Joined]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[tuple[Strand, ...], ...]]:
    """g, bend and strands before phi, whose slopes depend on the same values as slopes further on."""
    gs, bends, strands = [], [], []
    for i, distribution in enumerate(joined):
        slopes = derivative(phi.function, distribution.marginal.at)
        ones = torch.ones_like(slopes)
        own = arriving.strands[i] if arriving.strands else (Strand(arriving.g[i], ones, ones),)
        first = torch.stack([s.first for s in own]) * slopes
        second = torch.stack([s.second for s in own]) * slopes.square()
        through = distribution.read(distribution.marginal.tables(first, second))
        bent = distribution.bend(first)
        gs.append(sum(s.g * each for s, each in zip(own, through, strict=True)))
        bends.append(sum(s.g * each for s, each in zip(own, bent, strict=True)) * x.sites.others())
        strands.append(tuple(Strand(s.g, a, b) for s, a, b in zip(own, first, second, strict=True)))
    return tuple(gs), tuple(bends), tuple(strands)


def _held_pair(x: Field, part: FieldPart, gaussian: Moments, m: Moments, arriving: Tensor) -> Tensor:
    """`Cotangent.held_gradient_and_drift` before phi; the drift comes through the value and through the slope."""
    slope, curve = x.sites.different_samples(gaussian.slope), x.sites.different_samples(gaussian.curve)
    sent = arriving * slope
    sent[1].addcmul_(part.tangent * curve, arriving[0])
    if m is not gaussian:
        torch.mul(arriving[0], x.sites.different_samples(m.slope), out=sent[0])
    return sent


def _lengths(phi: Activation, x: Field, part: FieldPart, pairs: Pairs) -> tuple[float, Tensor]:
    """Relative variance of the squared length after phi, and the gradient's additional one for each pair."""
    if x.sites.each_sample:
        return part.length, torch.zeros_like(part.kernel[0])
    q, k = average(pairs.q), pairs.k[0]
    own, back, slope = fluctuations(phi, q, average(pairs.mean), k / q if q > 0 else k)
    return slope**2 * part.length + average(own) / part.channels, back


def _places(phi: Activation, part: FieldPart, pairs: Pairs, joined: Joined | None) -> tuple[float, float, float]:
    """`place_lengths.deviations` of phi(x); half lines of a known distribution have no scale, and the slope 1."""
    if joined:
        return scatter(phi.function(joined.marginal.at), joined.marginal.weight), 1.0, 0.5
    q, mean = average(pairs.q), average(pairs.mean)
    return deviations(phi, 1.0 if phi.line is not None and mean == 0 else q, mean)


def _gamma_beta_correlation(phi: Activation, pairs: Pairs) -> float:
    q, mean = average(pairs.q), average(pairs.mean)
    # A line knows no scale.
    return gamma_beta_correlation(phi, 1.0 if phi.line is not None and mean == 0 else q, mean)


def _apart(x: Field, arriving: Sequence[Tensor], sent: Sequence[Tensor]) -> float:
    """The part of the mean mode's gradients that phi makes different between samples, over the part that all share."""
    if x.sites.each_sample:
        return 0.0
    ratios = []
    for gs in (arriving, sent):
        own, shared = map(sum, zip(*(g[0].sum((-2, -1)).tolist() for g in gs), strict=True))
        ratios.append(own / shared if shared * x.sites.batch > own > shared else 1.0)
    return max(ratios[1] - ratios[0], 0.0) / x.channels


def _masked(x: Field, arriving: Cotangent, sent: Sequence[Tensor], moments: Sequence[Moments]) -> Origin | None:
    """Origin of the gradients' overlaps before phi: the part of them stays that two samples' slopes have in common."""
    if arriving.origin is None:
        return None
    kept = sum(
        ((g[0, 0] - g[0, 1]) * x.sites.different_samples(m.slope)).sum()
        for g, m in zip(arriving.g, moments, strict=True)
    )
    own = sum((g[0, 0] - g[0, 1]).sum() for g in sent)
    return arriving.origin.masked(float(kept / own) if own > 0 else 0.0)


def _length_spread(x: Field, cotangent: Cotangent, pairs: list[Tensor]) -> tuple[float, float]:
    """Relative variance that one sample's slopes add to its squared gradient, and to products of two outputs.

    Squares weigh the sites; gradients of two outputs have two sites in common as far as either has them so.
    """
    kernels = [g[0].detach() for g in cotangent.g]
    weights = [x.sites.diagonal(g) for g in kernels]
    total = sum(float(at.sum()) for at in weights)
    if not 0 < total < math.inf:
        return 0.0, 0.0
    single, crossed = 0.0, 0.0
    for at, g, part, spread in zip(weights, kernels, x.parts, pairs, strict=True):
        share, of_all = at / total, g[0] / total
        single += float(share @ spread @ share if share.ndim else share * share * average(spread)) / part.channels
        crossed += float((of_all * of_all * spread).sum()) / (x.sites.entry_sites * part.channels)
    return single, crossed


def _of_batch(phi: Activation, x: Field, part: FieldPart, pairs: Pairs, m: Moments) -> Moments:
    """Moments corrected for the kurtosis of values normalized by a batch: of single places, and of means elsewhere."""
    if part.kurtosis == 0:
        return m
    sites, same, others = x.sites, x.sites.same(), x.sites.others()
    value4, slope4, mean4, rise4 = m.fourth
    means = others * (sites.outer(m.mean, mean4) + sites.outer(mean4, m.mean))
    mean4 = part.kurtosis * mean4
    if phi.line is not None and pairs.centred:
        # Halves of a line: of the four only the mean is moved, and E[phi phi] is that of the kernel E[z z / s^2].
        return replace(m, value=m.value + part.own_kurtosis * means, mean=m.mean + mean4)
    means = part.kurtosis * means
    value4, slope4, rise4 = (part.kurtosis * f for f in (value4, slope4, rise4))
    rises = sites.outer(m.rise, rise4) + sites.outer(rise4, m.rise)
    return replace(
        m,
        value=m.value + same * sites.ends(value4)[0] + means,
        slope=m.slope + same * sites.ends(slope4)[0] + others * rises,
        mean=m.mean + mean4,
    )


def _lengthens(phi: Activation, part: FieldPart, pairs: Pairs) -> float:
    """Factor of differences in length between samples after BatchNorm; 1 where the slope is near 1."""
    if part.kurtosis == 0 or (phi.line is not None and pairs.centred):
        return 1.0
    slope = length_slope(phi, average(pairs.q), average(pairs.mean))
    return slope if slope > _LEAST_LENGTH_SLOPE else 1.0


def _of_two(x: Field, slope: Tensor) -> float:
    """Mean over pairs of different samples, or of all of a real batch."""
    return average(slope[-1])
