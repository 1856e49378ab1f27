"""The rule of max pooling, for Gaussian fields and rising activations of them."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.prediction.kernels.cotangent import Cotangent
from normscope.prediction.kernels.field import Field, FieldPart
from normscope.prediction.refusals import UnknownOperation
from normscope.prediction.rules.registry import rule
from normscope.prediction.rules.windows import pooling_window
from normscope.prediction.walk import Walk
from normscope.theory.convolved_kernels import convolve, convolve_back, pool, pool_back
from normscope.theory.gaussian import LINEAR
from normscope.theory.maxima import agreement, distribution, of_windows, products, products_slope
from normscope.theory.place_lengths import scatter
from normscope.theory.site_pairs import average
from normscope.theory.taps import Window, taps_inside

# Measured over predicted lambda, convolutions of 64 to 96 channels with two and three maxima under BatchNorm.
MAXIMA_SEEN = (0.8, 1.9)


@rule(
    "max_pool1d",
    "max_pool2d",
    modules=[nn.MaxPool1d, nn.MaxPool2d],
    settings=("kernel_size", "stride", "padding", "dilation", "ceil_mode"),
)
def max_pooling(
    walk: Walk,
    name: str,
    x: Field,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Field:
    """Max pooling, with torch's arguments."""
    if any(d != 1 for d in (dilation if isinstance(dilation, (tuple, list)) else (dilation,))):
        raise UnknownOperation("takes maxima over dilated windows, which has no map here. Pool without dilation")
    return max_pool(walk, name, x, pooling_window(x, kernel_size, stride, padding, dilation, ceil_mode))


def max_pool(walk: Walk, name: str, x: Field, window: Window) -> Field:
    """The field of maxima. A rising activation before max pooling keeps the order, so both are computed together."""
    phi, before = x.before or (LINEAR, x)
    if not before.gaussian or not phi.monotone:
        raise UnknownOperation(
            "takes maxima of values that are no rising activation of Gaussian ones, which has no map here. Pool after "
            "the normalizer, or average"
        )
    walk.remarks.note(
        f"{name}: maxima by quadrature with equal correlations inside a window, and to second order between windows."
    )
    walk.remarks.widen(MAXIMA_SEEN)
    after = window.after
    parts, backs = [], []
    for part in before.parts:
        pairs = before.sites.pairs(part.kernel, part.mean)
        q, mean = average(pairs.q), average(pairs.mean)
        inside = _inside(window, pairs.k, pairs.q)
        maxima, share = of_windows(window, phi.function, q, mean, inside)
        covariance = pool(window, pairs.k) / after.outer(share, share)
        own = after.diagonal(covariance).clamp_min(0)
        chosen = agreement(after, covariance, own)
        # How cotangents go back to single places, apart and together, and by them the tangents forward.
        slopes, weights = after.outer(maxima.slope / share, maxima.slope / share), maxima.slope2 / share
        apart, together = slopes * (1 - chosen), after.outer(weights.sqrt(), weights.sqrt()) * chosen
        tangent = after.different_samples(apart) * pool(window, part.tangent)
        tangent = tangent + after.different_samples(together) * convolve(window, part.tangent)
        marginal = distribution(window, q, mean, inside).through(phi) if phi.line is not None and q > 0 else None
        parts.append(
            FieldPart(
                part.channels,
                products(after, maxima, covariance, own),
                maxima.mean,
                tangent,
                part.noise / window.taps**2,
                length=part.length,
                overlap_variance=x.parts[0].overlap_variance,
                marginal=marginal,
                scale_variance=part.scale_variance,
                square_variance=scatter(marginal.at, marginal.weight) if marginal else 2.0,
            )
        )
        slope = after.different_samples(products_slope(after, maxima, covariance, own)) / after.outer(share, share)
        backs.append((apart, together, after.outer(maxima.bend / share, maxima.bend / share), slope))
    space = (after.width,) if len(x.shape) == 2 else (after.height, after.width)
    pooled = (name, window, x) if x.before is None else None
    out = Field(after, tuple(parts), (x.channels, *space), False, x.roots, pooled=pooled)
    others = before.sites.others()

    def back(cotangent: Cotangent) -> list[Cotangent]:
        sent, bends, sent_held = [], [], []
        held = cotangent.held_gradient_and_drift
        for (apart, together, bend, slope), g, (pair, drift) in zip(backs, cotangent.g, held, strict=True):
            sent.append(pool_back(window, apart * g) + convolve_back(window, together * g))
            bends.append(pool_back(window, bend * g) * others)
            to_single = pool_back(window, after.different_samples(apart) * pair)
            to_all = convolve_back(window, after.different_samples(together) * pair)
            sent_held.append(torch.stack([to_single + to_all, pool_back(window, slope * drift)]))
        return [Cotangent(tuple(sent), tuple(bends), tuple(sent_held), cotangent.spread, origin=cotangent.origin)]

    return walk.tape.record(out, [before], back, nonlinear=f"{name!r} (max pooling)")


def _inside(window: Window, covariance: Tensor, q: Tensor) -> float:
    """Mean correlation between different places of a window, over windows without padding."""
    n = window.taps
    if not window.after.has_borders:
        window = replace(window, padding=(0, 0))
    after = window.after
    sums = after.diagonal(pool(window, covariance))
    if sums.ndim:
        whole = taps_inside(window) > 1 - 1e-9
        sums = sums[whole].mean() if bool(whole.any()) else sums.max()
    own = float(sums)
    size = average(q)
    return (own * n / size - 1) / (n - 1) if size > 0 and n > 1 else 0.0
