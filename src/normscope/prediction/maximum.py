"""Max pooling of a Gaussian field or of a rising activation of one."""

from normscope.prediction.field import Cotangent, Field, Part
from normscope.prediction.walk import Walk
from normscope.theory.gaussian import LINEAR
from normscope.theory.maxima import agreement, largest, products
from normscope.theory.windows import Window, convolve_back, place, pool, pool_back


def max_pool(walk: Walk, name: str, x: Field, window: Window) -> Field:
    """The activation and the maximum together: a rising phi takes the largest place to the largest value."""
    phi, before = x.before or (LINEAR, x)
    if not before.gaussian or not phi.monotone:
        raise ValueError(
            "takes maxima of values that are no rising activation of Gaussian ones, which has no map here. Pool after "
            "the normalizer, or average"
        )
    walk.note(
        f"{name}: maxima by quadrature with equal correlations inside a window, and to second order between windows."
    )
    n, after = window.taps, window.after
    parts, backs = [], []
    for part in before.parts:
        pairs = before.sites.pairs(part.kernel, part.mean)
        q, mean = float(pairs.q.mean()), float(pairs.mean.mean())
        covariance = pool(window, pairs.k)
        own = after.diagonal(covariance).detach().clamp_min(0)
        inside = (float(own.mean()) * n / q - 1) / (n - 1) if n > 1 and q > 0 else 0.0
        found = largest(phi.function, n, q, mean, inside)
        same = after.outer(own.sqrt(), own.sqrt())
        parts.append(
            Part(part.channels, products(found, covariance, same), 0 * place(window, part.mean, averaged=True) + found.mean)
        )
        backs.append((found, agreement(covariance.detach(), same)))
    space = (after.width,) if len(x.shape) == 2 else (after.height, after.width)
    out = Field(after, tuple(parts), (x.channels, *space), False, x.roots)
    others = 1 - before.sites.same()

    def back(cotangent: Cotangent) -> list[Cotangent]:
        sent, bends = [], []
        for (found, chosen), g in zip(backs, cotangent.g, strict=True):
            apart = pool_back(window, (1 - chosen) * g)
            together = convolve_back(window, chosen * g)
            sent.append(found.slope**2 * apart + found.slope2 * together)
            bends.append(found.bend**2 * pool_back(window, g) * others)
        return [Cotangent(tuple(sent), tuple(bends), cotangent.spread)]

    return walk.record(out, [before], back)
