r"""Sums of a tensor's values with independent weights: the map of linear layers and convolutions.

    q = sigma_w^2 mean_taps(qh) + sigma_b^2          sigma_w^2 = fan_in mean(W^2), sigma_b^2 = mean(b^2), as they stand
    G' = sigma_w^2 (transposed taps) G               summed over channels
    lambda gets   total(G fan_in qh) from W   and   total(G) from b

A linear map of a flattened image is the convolution whose window is the whole image.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from normscope.prediction.kernels.cotangent import Cotangent, Spread
from normscope.prediction.kernels.field import INPUTS, Field, Part, ReaderFacts, Root
from normscope.prediction.layer_row import LayerInputs
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.walk import Walk
from normscope.theory.convolved_kernels import convolve, convolve_back
from normscope.theory.gradient_overlaps import Origin
from normscope.theory.modes import common_spread
from normscope.theory.place_lengths import tied, variance
from normscope.theory.site_pairs import Sites, average
from normscope.theory.taps import Window, mean_inside

NARROW = 30
# Part of the gradients that two samples share, over their own, below which nothing is taken as shared.
_SHARED = 0.1


def weighted_sum(
    walk: Walk,
    name: str,
    kind: str,
    x: Field,
    weight: Tensor,
    bias: Tensor | None,
    window: Window,
    shape: tuple[int, ...],
    groups: int = 1,
) -> Field:
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
    walk.met.without_borders |= after.form == "torus"
    inputs, tangent = x.mixture()
    patch = convolve(window, inputs)
    kernel = sigma_w2 * patch + sigma_b2
    uses = walk.used.layers.setdefault(weight, [])
    if uses:
        walk.remarks.note(
            f"{name} uses weights a second time (first in {uses[0]}): the uses are taken as independent draws, and "
            "what they add together beyond their sum is left out."
        )
    uses.append(name)
    row = walk.row(
        name,
        kind,
        width=shape[0],
        sigma_w2=sigma_w2,
        sigma_b2=sigma_b2,
        **_moments(x.sites, inputs, "qh"),
        **_moments(after, kernel, "q"),
    )
    readers = x.parts[0].readers if len(x.parts) == 1 else ReaderFacts()
    row.inputs = LayerInputs(x.sites, inputs, x.channels, readers)
    row.of_data = x.roots == {INPUTS}
    row.taps, row.sites = window.taps, after.count
    mean = torch.zeros_like(after.diagonal(kernel))
    together = tied(window, inputs)
    own = row.numbers["qh"] - row.numbers["qh_xy"]
    noise = sigma_w2**2 * _noise(x, own) * together
    few = sigma_w2**2 * own**2 * (groups - 1) / x.channels * together
    uneven = 0.0 if x.sites.form == "samples" else _uneven(x) * together / mean_inside(window) ** 2
    row.length = _length(x)
    row.tilt = max(part.tilt for part in x.parts)
    q = row.numbers["q"]
    length = ((q - sigma_b2) / q) ** 2 * row.length if q > 0 else 0.0
    fresh = after.two(patch) * (fan_in * walk.trains(weight)) + float(walk.trains(bias))
    tangent = sigma_w2 * convolve(window, tangent) + fresh
    roots = frozenset({Root(uses[0], len(uses))})
    part = Part(
        shape[0], kernel, mean, tangent, noise, length=length, uneven=uneven, fan_in=fan_in, fresh=fresh, few=few
    )
    out = Field(after, (part,), shape, True, roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        (g,), (came,) = cotangent.g, cotangent.two
        row.numbers.update(_gradients(after, g))
        kept = 1.0 if part.readers.kept_by_norm is None else part.readers.kept_by_norm
        sent = (sigma_w2 * kept) * convolve_back(window, g)
        sites = independent_sites(x.sites, sent, inputs)
        # A sample's own gradients meet the shared ones at every site, and sites are independent too.
        own = cotangent.spread._replace(apart=cotangent.spread.apart / sites[0])
        if walk.trains(weight):
            row.add(after, g * (fan_in * patch), own)
        if walk.trains(bias):
            row.add(after, g, own)
        cotangent = walk.tape.drawn(cotangent, out)
        if cotangent.origin is not None:
            # Weights see what two samples' inputs share, biases all.
            seen = fan_in * walk.trains(weight) * after.two(patch) + float(walk.trains(bias))
            row.hand_down(cotangent.origin, after.summed((g[0, 0] - g[0, 1]) * seen))
        two = sigma_w2 * came
        two[0] *= kept
        if walk.trains(weight):
            two[1].add_(came[0], alpha=fan_in)
        two = convolve_back(window, two)
        widths = [x.channels * n for n in sites]
        # The squares of C outputs add to the variance of a gradient's length, as far as samples do not share it.
        alone = 1 - (row.numbers["qt_xy"] / row.numbers["qt"]) ** 2 if row.numbers["qt"] > 0 else 0.0
        more = Spread(
            1 / widths[0], 1 / widths[1], 1 / widths[1], 2 * max(alone, 0.0) / (walk.tape.outputs * widths[1])
        )
        spread = cotangent.spread.plus(more)
        shares: tuple[Tensor, ...] = (sent,)
        twos: tuple[Tensor, ...] = (two,)
        if len(x.parts) > 1:
            readers.drift = two[1]
            shares, twos = (tuple(of * (p.channels / x.channels) for p in x.parts) for of in (sent, two))
        return [
            Cotangent(
                shares,
                tuple(map(torch.zeros_like, shares)),
                twos,
                spread,
                origin=cotangent.origin and Origin(mixed=cotangent.origin.same),
            )
        ]

    walk.used.fields[key] = out
    return walk.tape.record(out, [x], back, maps=True)


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


def _uneven(x: Field) -> float:
    """Relative variance of the squared length of one place: drawn with the place, and by chance of its channels."""
    if len(x.parts) == 1:
        (part,) = x.parts
        return part.uneven + (1 + part.uneven) * part.single / part.channels
    sizes = [part.channels * variance(x.sites, part.kernel) for part in x.parts]
    total = sum(sizes)
    if not total > 0:
        return 0.0
    shares = [(size / total, part) for size, part in zip(sizes, x.parts, strict=True)]
    drawn = common_spread([(share, part.uneven) for share, part in shares])
    return drawn + (1 + drawn) * sum(share**2 * part.single / part.channels for share, part in shares)


def _noise(x: Field, size: float) -> float:
    """Variance of overlaps from pair to pair of samples; size: second moment that two samples do not share."""
    return sum(p.noise * (p.channels / x.channels) ** 2 for p in x.parts) + size**2 / x.channels


def _finite(what: str, value: float) -> float:
    """The value; refused where it is not finite. what: its noun in the message."""
    if not math.isfinite(value):
        raise ValueError(f"has {what} that are not finite. Initialize them, or load them again")
    return value


def mean_square(tensor: Tensor) -> float:
    """Mean square, summed in double precision over pieces, without a copy of the tensor in double precision."""
    flat = tensor.detach().flatten()
    flat = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()
    return sum(float(piece.dot(piece)) for piece in flat.split(1 << 17)) / tensor.numel()


def independent_sites(sites: Sites, g: Tensor, kernel: Tensor) -> tuple[float, float]:
    """Numbers of sites that a layer's part of an eigenvalue averages over, tr(G K)^2 / tr(G K G K).

    For the kernels of two samples (mean mode; of one, where a batch has more of samples' own gradients than of what two
    share), and for those of one. The answer is 1 where the kernel is the same for all pairs of sites, however
    independent the gradients are.
    """
    if sites.form == "samples" or sites.count == 1:
        return 1.0, 1.0
    g = g[0]
    if sites.form == "torus":
        values = torch.fft.rfft2(g).real * torch.fft.rfft2(kernel).real
        # Half of the waves are the other half's mirror images.
        counted = values * _mirrored(sites.width)
        trace, square = counted.sum((-2, -1)), (counted * values).sum((-2, -1))
    else:
        product = g @ kernel
        trace = product.diagonal(dim1=-2, dim2=-1).sum(-1)
        square = (product * product.mT).sum((-2, -1))
    one, two = (max(t * t / s, 1.0) if s > 0 else 1.0 for t, s in zip(trace.tolist(), square.tolist(), strict=True))
    own, shared = trace.tolist()
    return (two if (sites.batch - 1) * shared > _SHARED * own else one), one


@lru_cache(maxsize=16)
def _mirrored(width: int) -> Tensor:
    """Number of waves that each wave kept by rfft2 stands for."""
    found = torch.full((width // 2 + 1,), 2.0, dtype=torch.float64)
    found[0] = 1
    if width % 2 == 0:
        found[-1] = 1
    return found


def _moments(sites: Sites, kernel: Tensor, symbol: str) -> dict[str, float]:
    """A kernel's means over sites by symbol, of one sample and of two."""
    one, two = _means(sites, kernel)
    return {symbol: one, f"{symbol}_xy": two}


def _gradients(sites: Sites, g: Tensor) -> dict[str, float]:
    """Sums over sites and channels for the first direction, of one sample and of two."""
    one, two = _means(sites, g[0].detach())
    count = 1 if sites.form == "samples" else sites.count
    return {"qt": one * count, "qt_xy": two * count}


def _means(sites: Sites, kernel: Tensor) -> tuple[float, float]:
    """Means over sites that are the same at both ends, of one sample and of two."""
    if sites.form == "torus":
        one, two = kernel.select(-1, 0).select(-1, 0).tolist()
        return one, two
    own = kernel.diagonal(dim1=-2, dim2=-1).mean(-1).tolist()
    if sites.form == "exact":
        return own[0], own[1]
    m = sites.batch
    return own[0], (float(kernel[0].sum()) - m * own[0]) / (m * (m - 1)) if m > 1 else float("nan")
