"""Normalizers: BatchNorm by the batch or by running statistics, and those of each sample."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normscope.prediction.field import Cotangent, Field, Part
from normscope.prediction.linear import NARROW, kept_by_norm
from normscope.prediction.refusal import UnknownOperation
from normscope.prediction.walk import Row, Walk
from normscope.theory.gradient_overlaps import Origin
from normscope.theory.normalizing import Normalized, normalize, send_back
from normscope.theory.place_lengths import kurtosis
from normscope.theory.site_pairs import average

_UNEVEN = 0.05
# Directions of a real batch below which answers were seen to be off.
_FEW = 12
# Channels that count, where gamma differs between them, below which lambda was seen to be far off.
_COUNTED = 10
# Running means that are none, and by how much their mean square may be above that of the inputs' means by chance.
_NO_MEAN, _STRANGE = 1e-12, 1.6


def _slices(x: Field, values: Tensor | None, otherwise: float) -> list[Tensor]:
    """gamma or beta for the channels of each part."""
    if values is None:
        return [torch.full((part.channels,), otherwise, dtype=torch.float64) for part in x.parts]
    if values.numel() != x.channels:
        raise ValueError(f"normalizes {values.numel()} channels and gets {x.channels}")
    if values.grad_fn is not None:
        raise UnknownOperation("has a gamma or beta that is computed from parameters, which has no map here")
    own = values.detach().to("cpu", torch.float64).flatten()
    # A sum is finite only where all of its terms are.
    if not math.isfinite(float(own.sum())):
        raise ValueError("has a gamma, beta or running statistic that is not finite. Initialize it, or load it again")
    return list(own.split([part.channels for part in x.parts])) if len(x.parts) > 1 else [own]


def _mean_square(values: Tensor) -> float:
    return float(values.dot(values)) / len(values)


def check_features(x: Field, normalized_shape: Any) -> None:
    """Of a normalizer of the last dimension of (N, features)."""
    wanted = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if wanted != x.shape:
        raise ValueError(f"normalizes a last dimension of {', '.join(map(str, wanted))} and gets {x.shape[0]} features")


def _affine(
    walk: Walk, name: str, x: Field, gamma: Tensor | None, beta: Tensor | None, eps: float
) -> list[tuple[float, Tensor]]:
    """For each part: mean(gamma^2), and beta's channels; refuses an eps that is none."""
    if not 0 <= eps < math.inf:
        raise ValueError(f"has an eps of {eps}, and takes one of at least 0")
    gammas, betas = _slices(x, gamma, 1.0), _slices(x, beta, 0.0)
    squares = [_mean_square(values) for values in gammas]
    for values, square in zip(gammas, squares, strict=True):
        size = average(values.abs())
        if square - size**2 > _UNEVEN**2 * size**2:
            walk.note("gamma differs between channels; its mean square was taken for all.", name)
            _check_count(walk, name, len(values), len(values) * square**2 / average(values**4))
    if gamma is not None and not any(squares):
        walk.warn(
            f"{name}: gamma is zero, so it gives beta whatever comes in, and what lies before it gets no gradient "
            "through it: lambda_max has no part of that and rises as gamma moves. Measure again after some steps."
        )
    return list(zip(squares, betas, strict=True))


def _check_count(walk: Walk, name: str, channels: int, counted: float) -> None:
    """counted: (sum gamma^2)^2 / sum gamma^4, over how many channels means of squares average."""
    if counted < NARROW:
        walk.warn(
            f"{name}: gamma differs so much between channels that {channels} of them count as {counted:.1f}, outside "
            "the theory's reach, which is many channels: lambda was measured at 1.0 to 1.9 times the answer where 10 "
            "to 30 count, and at 1.1 to 15 times below. Measure instead.",
            (0.9, 1.9) if counted >= _COUNTED else (0.9, 15.0),
        )


def batch_norm(
    walk: Walk,
    name: str,
    x: Field,
    gamma: Tensor | None,
    beta: Tensor | None,
    eps: float,
    running: tuple[Tensor, Tensor] | None,
) -> Field:
    """By the statistics of the batch, or, where `running` is given, by those."""
    if x.flat and x.sites.count > 1 and x.sites.form != "samples":
        raise UnknownOperation(
            "normalizes each feature of a flattened image by itself; there is a map only for statistics over all sites."
            " Normalize before flattening"
        )
    affine = _affine(walk, name, x, gamma, beta, eps)
    if running is not None:
        return _by_running(walk, name, x, gamma, beta, affine, eps, running)
    if (values := x.sites.batch * x.sites.count) < 3:
        left = "one value" if values == 1 else "two values, which become 1 and -1"
        raise ValueError(
            f"takes statistics over the batch, and batch_size={x.sites.batch} leaves {left}. Take a larger batch_size"
        )
    if x.before is not None:
        walk.activated = True
        walk.note("normalizes after an activation; channels were taken to have the same variance.", name)
    found = [normalize(x.sites, part.kernel, eps, part.noise + part.few, part.uneven) for part in x.parts]
    kept = [kept_by_norm(part.fan_in, 1 - eps / (n.variance or 1.0)) for part, n in zip(x.parts, found, strict=True)]
    walk.normed |= {id(p.kernel): k for p, k in zip(x.parts, kept, strict=True) if p.fresh is not None}
    _check(walk, name, found)
    row = walk.row(
        name,
        "BatchNorm",
        gamma2=sum(a[0] * p.channels for a, p in zip(affine, x.parts, strict=True)) / x.channels,
        variance=sum(n.variance * p.channels for n, p in zip(found, x.parts, strict=True)) / x.channels,
    )
    parts = tuple(
        Part(
            part.channels,
            g2 * n.kernel + _mean_square(b),
            torch.full_like(part.mean, average(b)),
            _tangent(walk, _before(part, k) * (g2 * n.inverse), x.sites.two(n.kernel), gamma, beta),
            part.noise * g2**2 / n.variance**2,
            # Of one entry of a vector on the sphere of that many dimensions.
            -6 / (n.freedom + 2) + kurtosis(part.uneven) if x.gaussian else 0.0,
            _paired(part, n) if x.gaussian else 0.0,
            part.length,
            # A long sample lengthens what it is divided by.
            uneven=part.uneven / (1 + 4 * n.own * (1 + part.uneven)),
        )
        for part, n, k, (g2, b) in zip(x.parts, found, kept, affine, strict=True)
    )
    out = Field(x.sites, parts, x.shape, x.gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        row.columns = _columns(walk, out, gamma, beta)
        sent, twos = [], []
        for n, (g2, _), g, bend, two in zip(found, affine, cotangent.g, cotangent.bend, cotangent.two, strict=True):
            before, products = send_back(n, g, bend, g2, trained=walk.trained)
            if walk.trains(gamma) and walk.trains(beta):
                # In one: the gradients of both meet what they are multiplied with.
                walk.adds(row, x.sites, products + g, cotangent.spread)
            elif walk.trains(gamma):
                walk.adds(row, x.sites, products, cotangent.spread)
            elif walk.trains(beta):
                walk.adds(row, x.sites, g, cotangent.spread)
            sent.append(before)
            twos.append(_two(walk, two, g2 * n.inverse, g2 / n.variance, 1 / n.variance, gamma))
        origin = None if walk.trained else _handed(walk, row, out, cotangent, beta)
        return [Cotangent(tuple(sent), tuple(map(torch.zeros_like, sent)), tuple(twos), cotangent.spread, (), origin)]

    return walk.record(out, [x], back, bends=f"{name!r} (BatchNorm)")


def _paired(part: Part, found: Normalized) -> float:
    """Overlaps that differ from pair to pair act as too small a kurtosis does: E[f(k)] - f(E k) = Var[k] f'' / 2."""
    return kurtosis(part.uneven) - 6 * found.noise / (1 + 2 * found.noise)


def _before(part: Part, kept: float) -> Tensor:
    """The tangents' kernel at one length of the weights before: what comes through them shrinks, their own does not."""
    if part.fresh is None:
        return part.tangent
    return (kept * part.tangent).add_(part.fresh, alpha=1 - kept)


def _tangent(walk: Walk, before: Tensor, kernel: Tensor, gamma: Tensor | None, beta: Tensor | None) -> Tensor:
    """The tangents' kernel with what a trained gamma and beta add; kernel: of two samples, that gamma multiplies."""
    found = before + kernel if walk.trains(gamma) else before
    return found + 1.0 if walk.trains(beta) else found


def _two(
    walk: Walk, came: Tensor, back: Tensor | float, value: Tensor | float, hat: Tensor | float, gamma: Tensor | None
) -> Tensor:
    """back: of cotangents. The drift goes through the values, and through what a trained gamma is multiplied with."""
    g, drift = came.unbind(0)
    return torch.stack([g * back, drift * value + g * hat if walk.trains(gamma) else drift * value])


def _columns(walk: Walk, out: Field, gamma: Tensor | None, beta: Tensor | None) -> tuple[tuple[float, float], ...]:
    """One direction for each channel's gamma and one for its beta, as far as both do not lean on the same samples.

    Below a sum they are taken as not leaning.
    """
    if not (walk.trains(gamma) and walk.trains(beta)):
        return ((float(out.channels), 1.0),)
    leans = [abs(walk.leans.get(id(part.kernel), 0.0)) * part.channels for part in out.parts]
    common = sum(leans) / out.channels
    return (out.channels, (1 + common) / 2), (out.channels, (1 - common) / 2)


def _handed(walk: Walk, row: Row, out: Field, cotangent: Cotangent, beta: Tensor | None) -> Origin | None:
    """What beta sees of samples' own gradients, with gamma as far as it leans on it, others below see too."""
    cotangent = walk.drawn(cotangent, out)
    if cotangent.origin is not None and row.share is not None and walk.trains(beta):
        (_, part), *rest = row.columns
        walk.hands(row, cotangent.origin, float(row.share[1]) * part * walk.batch)
        row.columns = tuple(rest)
    return cotangent.origin


def _check(walk: Walk, name: str, found: Sequence[Normalized]) -> None:
    freedom = min(n.freedom for n in found)
    if any(n.variance < 1e-12 or n.freedom == 0 for n in found):
        walk.warn(
            f"{name}: the variance before it is zero (all samples are alike there), so that it divides by sqrt(eps) "
            "alone, and lambda_max is by eps more than by the network. Initialize the weights before it, or use a "
            "larger batch_size."
        )
    elif all(n.directions is not None for n in found):
        most = min(n.directions.most for n in found if n.directions)
        if most < _FEW:
            walk.warn(
                f"{name}: nine tenths of the batch's variance lie in {most} directions; with so few lambda was seen at "
                "1 to 3 times the answer (two to ten tight clusters, inputs of two to six dimensions). Measure to be "
                "sure.",
                (0.9, 3.2),
            )
    elif freedom < 4:
        seen = (0.04, 2e5) if walk.batch < 4 else (0.9, 30.0)
        walk.warn(
            f"{name}: the batch is too small, too much alike or in too few dimensions for BatchNorm's statistics: it "
            f"has {freedom:.1f} degrees of freedom, below 4 the mean of 1/variance does not exist, and 4 were taken. "
            f"lambda_max was seen at {seen[0]:g} to {seen[1]:,g} times the answer then. Use a larger batch_size, or "
            "more inputs for each channel before it.",
            seen,
        )


def _by_running(
    walk: Walk,
    name: str,
    x: Field,
    gamma: Tensor | None,
    beta: Tensor | None,
    affine: list[tuple[float, Tensor]],
    eps: float,
    running: tuple[Tensor, Tensor],
) -> Field:
    r"""An affine map with constants: z' = gamma (z - r) / sqrt(v + eps) + beta, channel by channel.

    The running mean r is not independent of z: it is a share a of z's own mean over the data, whose mean square over
    channels is the kernel of two samples, q_xy. With mean(r^2) = a^2 q_xy,

        K' = gamma^2 (K - (2 a - a^2) q_xy) / (v + eps) + beta^2

    a is 0 for a layer that has seen nothing and 1 for one that has seen its inputs often.
    """
    means, variances = (_slices(x, values, 0.0) for values in running)
    if (lowest := min(float(v.min()) for v in variances)) + eps <= 0:
        raise ValueError(f"is in eval mode with a running variance of {lowest:.3g}, by which nothing can be divided")
    gammas = _slices(x, gamma, 1.0)
    walk.note("is in eval mode; its running statistics were used, as those of its own inputs.", name)
    row = walk.row(name, "BatchNorm (eval)")
    rates = [float((1 / (v + eps)).mean()) for v in variances]
    scales = [float((g.square() / (v + eps)).mean()) for g, v in zip(gammas, variances, strict=True)]
    known, kernels = [], []
    for part, mean in zip(x.parts, means, strict=True):
        shared = _shared(x, part.kernel)
        share = _share_of_mean(average(mean.square()), shared)
        known.append(share)
        kernels.append(part.kernel - share * (2 - share) * shared)
    parts = tuple(
        Part(
            part.channels,
            kernel * s + _mean_square(b),
            (1 - share) * part.mean * s**0.5 + average(b),
            _tangent(walk, part.tangent * s, x.sites.two(kernel) * rate, gamma, beta),
            part.noise * s**2,
            length=part.length,
        )
        for part, kernel, share, s, rate, (_, b) in zip(x.parts, kernels, known, scales, rates, affine, strict=True)
    )
    out = Field(x.sites, parts, x.shape, x.gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        row.columns = _columns(walk, out, gamma, beta)
        twos = []
        for kernel, rate, s, g, two in zip(kernels, rates, scales, cotangent.g, cotangent.two, strict=True):
            if walk.trains(gamma):
                walk.adds(row, x.sites, g * (kernel * rate), cotangent.spread)
            if walk.trains(beta):
                walk.adds(row, x.sites, g, cotangent.spread)
            twos.append(_two(walk, two, s, s, rate, gamma))
        sent = tuple(g * s for g, s in zip(cotangent.g, scales, strict=True))
        origin = _handed(walk, row, out, cotangent, beta)
        return [Cotangent(sent, tuple(map(torch.zeros_like, sent)), tuple(twos), cotangent.spread, (), origin)]

    return walk.record(out, [x], back, bends=f"{name!r} (BatchNorm)")


def _shared(x: Field, kernel: Tensor) -> float:
    """Mean over pairs of different samples and all pairs of sites: the mean square of channels' means over the data."""
    m = x.sites.batch
    if x.sites.form != "samples":
        return average(kernel[1])
    return float(kernel[0].sum() - kernel[0].trace()) / (m * (m - 1)) if m > 1 else 0.0


def _share_of_mean(square: float, shared: float) -> float:
    """a in mean(r^2) = a^2 q_xy; refused where r is larger than any mean of these inputs."""
    if square <= _NO_MEAN:
        return 0.0
    if square > _STRANGE * max(shared, 0.0):
        raise ValueError(
            f"is in eval mode with running means of mean square {square:.3g}, and its inputs' means have {shared:.3g}: "
            "they were taken of other inputs or other weights. Hand in batch= with the data they were taken of, put "
            "the model in training mode, or measure it (ns.measure)"
        )
    return min((square / shared) ** 0.5, 1.0)


def sample_norm(
    walk: Walk, name: str, x: Field, gamma: Tensor | None, beta: Tensor | None, eps: float, *, centre: bool, kind: str
) -> Field:
    r"""LayerNorm, GroupNorm, RMSNorm: each sample by its own statistics over many channels (and sites).

        K' = gamma^2 K_c / (s(x) s(y)) + beta^2       s^2 = mean_a K_c(x, a; x, a) + eps

    With many channels the statistics are constants of the weights; the direction that their gradient takes out is one
    of as many as there are channels, and is left in.
    """
    affine = _affine(walk, name, x, gamma, beta, eps)
    sites, total = x.sites, x.channels
    mean = sum(part.mean * (part.channels / total) for part in x.parts)
    assert isinstance(mean, Tensor)
    middle = mean if sites.form == "samples" else mean.mean().expand(mean.shape)
    middle = middle if centre else 0 * middle

    def moved(part: Part) -> Tensor:
        return (
            part.kernel - sites.outer(middle, part.mean) - sites.outer(part.mean, middle) + sites.outer(middle, middle)
        )

    kernels = [moved(part) for part in x.parts]
    square = sum(sites.diagonal(k) * (p.channels / total) for k, p in zip(kernels, x.parts, strict=True))
    assert isinstance(square, Tensor)
    square = (square if sites.form == "samples" else square.mean().expand(square.shape)) + eps
    rate = sites.outer(square.rsqrt(), square.rsqrt())
    row = walk.row(name, kind, variance=average(square))
    hats = [k * rate for k in kernels]
    parts = tuple(
        Part(
            p.channels,
            g2 * hat + _mean_square(b),
            (p.mean - middle) * square.rsqrt() * g2**0.5 + average(b),
            _tangent(walk, p.tangent * (g2 * rate), sites.two(hat), gamma, beta),
            p.noise * (g2 / average(square)) ** 2,
        )
        for p, hat, (g2, b) in zip(x.parts, hats, affine, strict=True)
    )
    out = Field(sites, parts, x.shape, x.gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        row.columns = _columns(walk, out, gamma, beta)
        twos = []
        for hat, (g2, _), g, two in zip(hats, affine, cotangent.g, cotangent.two, strict=True):
            if walk.trains(gamma):
                walk.adds(row, sites, g * hat, cotangent.spread)
            if walk.trains(beta):
                walk.adds(row, sites, g, cotangent.spread)
            twos.append(_two(walk, two, g2 * rate, g2 * rate, rate, gamma))
        sent = tuple(g * g2 * rate for g, (g2, _) in zip(cotangent.g, affine, strict=True))
        return [Cotangent(sent, tuple(map(torch.zeros_like, sent)), tuple(twos), cotangent.spread)]

    return walk.record(out, [x], back, bends=f"{name!r} ({kind})")
