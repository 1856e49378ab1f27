"""Average pooling and means over the image; flattening."""

from normscope.prediction.field import Cotangent, Field, Part
from normscope.prediction.walk import Walk
from normscope.theory.windows import Window, place, pool, pool_back


def average_pool(walk: Walk, x: Field, window: Window, *, flat: bool = False) -> Field:
    """Mean over all pairs of taps; flat: the result has no dimensions of space left."""
    after = window.after
    parts = tuple(
        Part(
            part.channels,
            pool(window, part.kernel),
            place(window, part.mean, averaged=True),
            part.noise / window.taps**2,
        )
        for part in x.parts
    )
    space = {0: (), 1: (after.width,), 2: (after.height, after.width)}[0 if flat else len(x.shape) - 1]
    gaussian = x.gaussian or window.taps == 1
    out = Field(after, parts, (x.channels, *space), gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        g = tuple(pool_back(window, g) for g in cotangent.g)
        bend = tuple(pool_back(window, b) for b in cotangent.bend)
        return [Cotangent(g, bend, cotangent.spread)]

    return walk.record(out, [x], back)


def global_mean(walk: Walk, x: Field, *, flat: bool) -> Field:
    """Mean over all sites."""
    if x.flat:
        raise ValueError("takes a mean over features, which has no map here")
    return average_pool(walk, x, Window(x.sites, (x.sites.height, x.sites.width), (1, 1), (0, 0)), flat=flat)


def reshape(walk: Walk, x: Field, shape: tuple[int, ...]) -> Field:
    """Flattening, and shapes that say what is there already."""
    if shape == x.shape:
        return x
    size = 1
    for n in x.shape:
        size *= n
    if shape == (size,) or (x.flat and x.sites.count == 1 and shape in ((size, 1, 1), (size, 1))):
        out = Field(x.sites, x.parts, shape, x.gaussian, x.roots)
        return walk.record(out, [x], lambda cotangent: [cotangent])
    raise ValueError(
        f"reshapes (N, {', '.join(map(str, x.shape))}) to (N, {', '.join(map(str, shape))}), which has no map here"
    )
