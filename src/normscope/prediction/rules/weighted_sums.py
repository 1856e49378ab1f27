r"""Sums of a tensor's values with independent weights: the map of linear layers and convolutions.

    q = sigma_w^2 mean_taps(qh) + sigma_b^2          sigma_w^2 = fan_in mean(W^2), sigma_b^2 = mean(b^2), as they stand
    G' = sigma_w^2 (transposed taps) G               summed over channels
    lambda gets   total(G fan_in qh) from W   and   total(G) from b

A linear map of a flattened image is the convolution whose window is the whole image.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.prediction.kernels.cotangent import Cotangent, Spread
from normscope.prediction.kernels.field import INPUTS, Field, FieldPart, ReaderFacts, Root
from normscope.prediction.kernels.site_averages import gradient_moments, independent_sites, moments
from normscope.prediction.layer_row import LayerInputs, LayerRow
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.walk import Walk
from normscope.theory.convolved_kernels import convolve, convolve_back
from normscope.theory.gradient_overlaps import Origin
from normscope.theory.modes import common_spread
from normscope.theory.place_lengths import tied, variance
from normscope.theory.site_pairs import average
from normscope.theory.taps import Window, mean_inside

# Channels and inputs of a layer below which they are few for a theory of many.
NARROW = 30


def weighted_sum(
    walk: Walk,
    name: str,
    layer_type: str,
    x: Field,
    weight: Tensor,
    bias: Tensor | None,
    window: Window,
    shape: tuple[int, ...],
    groups: int = 1,
) -> Field:
    """The field of a linear map or convolution of x.

    Args:
        walk: the walk, which gets a row for the layer.
        name: path of the layer.
        layer_type: class of the layer, for its row.
        x: the field that enters.
        weight: weights, (units, ...).
        bias: biases, (units,), or None.
        window: the window that the weights slide over the sites of x.
        shape: shape of the result without the batch dimension.
        groups: groups of channels of a convolution.
    """
    key = (weight, bias, x, window)
    if key in walk.used.fields:
        return walk.used.fields[key]
    if weight.grad_fn is not None or (bias is not None and bias.grad_fn is not None):
        raise UnknownOperation(
            "has weights that are computed from parameters, which has no map here. Use the parameters themselves, or "
            "measure this network (ns.measure)"
        )
    fan_in = float(weight[0].numel())
    sigma_w2 = fan_in * _finite("weights", mean_square(weight))
    sigma_b2 = 0.0 if bias is None else _finite("biases", mean_square(bias))
    after = window.after
    walk.met.without_borders |= not after.has_borders
    inputs, tangent = x.mixture()
    patch = convolve(window, inputs)
    kernel = sigma_w2 * patch + sigma_b2
    root = _root(walk, name, weight)
    order = moments(x.sites, inputs, "qh") | moments(after, kernel, "q")
    row = walk.row(name, layer_type, width=shape[0], sigma_w2=sigma_w2, sigma_b2=sigma_b2, **order)
    readers = x.parts[0].readers if len(x.parts) == 1 else ReaderFacts()
    row.inputs = LayerInputs(x.sites, inputs, x.channels, readers)
    row.of_data = x.roots == {INPUTS}
    row.taps, row.sites = window.taps, after.count
    row.length = _length(x)
    row.overlap_variance = max(part.overlap_variance for part in x.parts)
    together = tied(window, inputs)
    own = row.numbers["qh"] - row.numbers["qh_xy"]
    q = row.numbers["q"]
    added = after.different_samples(patch) * (fan_in * walk.trains(weight)) + float(walk.trains(bias))
    part = FieldPart(
        shape[0],
        kernel,
        torch.zeros_like(after.diagonal(kernel)),
        sigma_w2 * convolve(window, tangent) + added,
        sigma_w2**2 * _noise(x, own) * together,
        length=((q - sigma_b2) / q) ** 2 * row.length if q > 0 else 0.0,
        scale_variance=0.0 if x.sites.each_sample else _place_length_variance(x) * together / mean_inside(window) ** 2,
        fan_in=fan_in,
        added_tangent=added,
        group_noise=sigma_w2**2 * own**2 * (groups - 1) / x.channels * together,
    )
    out = Field(after, (part,), shape, True, frozenset({root}))
    way = _WayBack(walk, row, x, out, window, patch, sigma_w2, walk.trains(weight), walk.trains(bias))
    walk.used.fields[key] = out
    return walk.tape.record(out, [x], way.back, maps=True)


def _root(walk: Walk, name: str, weight: Tensor) -> Root:
    """The root for this use of the weights. A second use counts as an independent draw, with a note."""
    uses = walk.used.layers.setdefault(weight, [])
    if uses:
        walk.remarks.note(
            f"{name} uses weights a second time (first in {uses[0]}): the uses are taken as independent draws, and "
            "what they add together beyond their sum is left out."
        )
    uses.append(name)
    return Root(uses[0], len(uses))


@dataclass(frozen=True, eq=False)
class _WayBack:
    """The way of cotangents back through one weighted sum.

    Attributes:
        patch: kernel of the inputs, averaged over the taps.
        trains_weight, trains_bias: whether these are trained.
    """

    walk: Walk
    row: LayerRow
    x: Field
    out: Field
    window: Window
    patch: Tensor
    sigma_w2: float
    trains_weight: bool
    trains_bias: bool

    def back(self, cotangent: Cotangent) -> list[Cotangent]:
        """The cotangent of the inputs. The row gets the shares of weights and biases."""
        (g,), (arriving,) = cotangent.g, cotangent.held_gradient_and_drift
        (part,), x, row, after = self.out.parts, self.x, self.row, self.window.after
        assert row.inputs is not None
        row.numbers.update(gradient_moments(after, g))
        kept = 1.0 if part.readers.kept_by_norm is None else part.readers.kept_by_norm
        sent = (self.sigma_w2 * kept) * convolve_back(self.window, g)
        sites = independent_sites(x.sites, sent, row.inputs.kernel)
        cotangent = self._shares(cotangent, g, sites[0])
        held = self.sigma_w2 * arriving
        held[0] *= kept
        if self.trains_weight:
            held[1].add_(arriving[0], alpha=part.fan_in)
        held = convolve_back(self.window, held)
        gs: tuple[Tensor, ...] = (sent,)
        sent_held: tuple[Tensor, ...] = (held,)
        if len(x.parts) > 1:
            row.inputs.readers.drift = held[1]
            gs, sent_held = (tuple(of * (p.channels / x.channels) for p in x.parts) for of in (sent, held))
        bends = tuple(map(torch.zeros_like, gs))
        origin = cotangent.origin and Origin(mixed=cotangent.origin.same)
        return [Cotangent(gs, bends, sent_held, cotangent.spread.plus(self._spread(sites)), origin=origin)]

    def _shares(self, cotangent: Cotangent, g: Tensor, sites: float) -> Cotangent:
        """Add the shares of weights and biases to the row; the cotangent with its overlaps as one draw."""
        (part,), after = self.out.parts, self.window.after
        # A sample's own gradients meet the shared ones at every site, and sites are independent too.
        own = cotangent.spread._replace(sample_separation=cotangent.spread.sample_separation / sites)
        if self.trains_weight:
            self.row.add(after, g * (part.fan_in * self.patch), own)
        if self.trains_bias:
            self.row.add(after, g, own)
        cotangent = self.walk.tape.drawn(cotangent, self.out)
        if cotangent.origin is not None:
            # Weights see the part of gradients that two samples' inputs share, biases all of it.
            seen = part.fan_in * self.trains_weight * after.different_samples(self.patch) + float(self.trains_bias)
            self.row.hand_down(cotangent.origin, after.summed((g[0, 0] - g[0, 1]) * seen))
        return cotangent

    def _spread(self, sites: tuple[float, float]) -> Spread:
        """Effects of the finite number of channels and sites that enter, on cotangents that went through."""
        numbers = self.row.numbers
        widths = [self.x.channels * n for n in sites]
        # The squares of C outputs add to the variance of a gradient's length, as far as samples do not share it.
        alone = 1 - (numbers["qt_xy"] / numbers["qt"]) ** 2 if numbers["qt"] > 0 else 0.0
        length = 2 * max(alone, 0.0) / (self.walk.tape.outputs * widths[1])
        return Spread(1 / widths[0], 1 / widths[1], 1 / widths[1], length)


def kept_by_norm(fan_in: float, share: float = 1.0) -> float:
    r"""E[|w|^2 / s^2] over E[|w|^2] E[1 / s^2], w the weights of one channel and s^2 = w^T S w + eps.

        1 - 2 share / fan_in        share: of s^2 without eps; exact for Gaussian w, every S and eps = 0

    A longer w makes s larger, and BatchNorm takes its length out, which gradients that go back through w feel. For w of
    other distributions or of one length this factor is larger and E[1 / s^2] smaller, so that their product, which
    gradients through w have, stays to first order. fan_in counts as at least 4, as in E[1 / s^2].
    """
    return 1 - 2 * share / max(fan_in, 4.0)


def _length(x: Field) -> float:
    """Relative variance of the squared length of all parts together."""
    if len(x.parts) == 1:
        return x.parts[0].length
    sizes = [part.channels * average(x.sites.diagonal(part.kernel)) for part in x.parts]
    return common_spread([(size, part.length) for size, part in zip(sizes, x.parts, strict=True)])


def _place_length_variance(x: Field) -> float:
    """Relative variance of the squared length of one place: drawn with the place, and by chance of its channels."""
    if len(x.parts) == 1:
        (part,) = x.parts
        return part.scale_variance + (1 + part.scale_variance) * part.square_variance / part.channels
    sizes = [part.channels * variance(x.sites, part.kernel) for part in x.parts]
    total = sum(sizes)
    if not total > 0:
        return 0.0
    shares = [(size / total, part) for size, part in zip(sizes, x.parts, strict=True)]
    drawn = common_spread([(share, part.scale_variance) for share, part in shares])
    return drawn + (1 + drawn) * sum(share**2 * part.square_variance / part.channels for share, part in shares)


def _noise(x: Field, size: float) -> float:
    """Variance of overlaps from pair to pair of samples; size: second moment that two samples do not share."""
    return sum(p.noise * (p.channels / x.channels) ** 2 for p in x.parts) + size**2 / x.channels


def _finite(what: str, value: float) -> float:
    """The value, which must be finite. what: its noun in the error message."""
    if not math.isfinite(value):
        raise ValueError(f"has {what} that are not finite. Initialize them, or load them again")
    return value


def mean_square(tensor: Tensor) -> float:
    """Mean square, summed in double precision over pieces, without a copy of the tensor in double precision."""
    flat = tensor.detach().flatten()
    flat = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
    return sum(float(piece.dot(piece)) for piece in flat.split(1 << 17)) / tensor.numel()
