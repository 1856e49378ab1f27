"""Max pooling of a Gaussian field or of a rising activation of one."""

from dataclasses import replace

from torch import Tensor

from normscope.prediction.field import Cotangent, Field, Part
from normscope.prediction.refusal import UnknownOperation
from normscope.prediction.walk import Walk
from normscope.theory.gaussian import LINEAR
from normscope.theory.maxima import agreement, of_windows, products
from normscope.theory.window import Window, taps_inside
from normscope.theory.windows import convolve_back, pool, pool_back


def max_pool(walk: Walk, name: str, x: Field, window: Window) -> Field:
    """The activation and the maximum together: a rising phi takes the largest place to the largest value."""
    phi, before = x.before or (LINEAR, x)
    if not before.gaussian or not phi.monotone:
        raise UnknownOperation(
            "takes maxima of values that are no rising activation of Gaussian ones, which has no map here. Pool after "
            "the normalizer, or average"
        )
    walk.note(
        f"{name}: maxima by quadrature with equal correlations inside a window, and to second order between windows."
    )
    after = window.after
    parts, backs = [], []
    for part in before.parts:
        pairs = before.sites.pairs(part.kernel, part.mean)
        q, mean = float(pairs.q.mean()), float(pairs.mean.mean())
        inside = _inside(window, pairs.k.detach(), pairs.q)
        found, share = of_windows(window, phi.function, q, mean, inside)
        covariance = pool(window, pairs.k) / after.outer(share, share)
        own = after.diagonal(covariance).detach().clamp_min(0)
        parts.append(
            Part(
                part.channels,
                products(after, found, covariance, own),
                found.mean,
                part.noise / window.taps**2,
                length=part.length,
            )
        )
        backs.append((found, share, agreement(after, covariance.detach(), own)))
    space = (after.width,) if len(x.shape) == 2 else (after.height, after.width)
    out = Field(after, tuple(parts), (x.channels, *space), False, x.roots)
    others = before.sites.others()

    def back(cotangent: Cotangent) -> list[Cotangent]:
        sent, bends = [], []
        for (found, share, chosen), g in zip(backs, cotangent.g, strict=True):
            slopes, weights = after.outer(found.slope / share, found.slope / share), found.slope2 / share
            apart = pool_back(window, slopes * (1 - chosen) * g)
            together = convolve_back(window, after.outer(weights.sqrt(), weights.sqrt()) * chosen * g)
            sent.append(apart + together)
            bends.append(pool_back(window, after.outer(found.bend / share, found.bend / share) * g) * others)
        return [Cotangent(tuple(sent), tuple(bends), cotangent.spread)]

    return walk.record(out, [before], back, bends=f"{name!r} (max pooling)")


def _inside(window: Window, covariance: Tensor, q: Tensor) -> float:
    """Mean correlation between different places of a window, over windows without padding."""
    n = window.taps
    if window.after.form == "torus":
        window = replace(window, padding=(0, 0))
    after = window.after
    sums = after.diagonal(pool(window, covariance))
    whole = taps_inside(window) > 1 - 1e-9
    own = float(sums.mean() if after.form == "torus" else sums[whole].mean() if bool(whole.any()) else sums.max())
    size = float(q.mean())
    return (own * n / size - 1) / (n - 1) if size > 0 and n > 1 else 0.0
