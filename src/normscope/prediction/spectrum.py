"""The largest eigenvalues of what the walk added up, of the mean mode and of the data modes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.prediction.field import Field
from normscope.prediction.walk import Row, Walk
from normscope.theory.modes import edge, widening


@dataclass(frozen=True)
class Spectrum:
    """Both modes, with and without the correction for finite width; shares: of each row, by its id."""

    mean: float
    data: float
    mean_infinite: float
    data_infinite: float
    shares: dict[int, tuple[float, float]]
    torus: bool


def spectrum(walk: Walk, x: Field, out: Field, images: Tensor | None) -> Spectrum:
    """Sends cotangents back from one output and reads the eigenvalues off."""
    outputs = out.shape[0]
    if x.sites.form == "samples":
        return _of_samples(walk, out, outputs)
    return _of_classes(walk, x, out, outputs, images)


def _added(walk: Walk) -> list[Row]:
    return [row for row in walk.rows if row.share is not None]


def _of_samples(walk: Walk, out: Field, outputs: int) -> Spectrum:
    """lambda is linear in the seed m v v^T, so its derivative by the seed is the kernel of the m samples, over m."""
    m = out.sites.batch
    seed = torch.ones(1, 1, m, m, dtype=torch.float64, requires_grad=True)
    walk.send_back(out, seed)
    lam = sum(row.share[0] * widening(outputs, row.spread[0]) for row in _added(walk) if row.share is not None)
    assert isinstance(lam, Tensor)
    (kernel,) = torch.autograd.grad(lam, seed)
    kernel = m * (kernel[0, 0] + kernel[0, 0].T) / 2
    values, vectors = torch.linalg.eigh(kernel)
    shares_of_ones = vectors.sum(0) ** 2 / m
    constant = int(shares_of_ones.argmax())
    others = [i for i in range(m) if i != constant]
    best = max(others, key=lambda i: float(values[i]))
    seeds = torch.stack([m * torch.outer(vectors[:, i], vectors[:, i]) for i in (constant, best)])[:, None]
    walk.send_back(out, seeds)
    return _read(walk, outputs, 0.0, 0.0, torus=False)


def _of_classes(walk: Walk, x: Field, out: Field, outputs: int, images: Tensor | None) -> Spectrum:
    m = x.sites.batch
    seeds = torch.ones(3, 2, 1, 1, dtype=torch.float64)
    seeds[1, 1] = -1 / (m - 1) if m > 1 else 0
    walk.send_back(out, seeds)
    if m == 1:
        return _read(walk, outputs, 0.0, 0.0, torus=x.sites.count > 1)
    # In the m - 1 directions orthogonal to 1 the mean eigenvalue is the second seed's; the edge lies above it.
    extra = [_above(walk, x, images, [widening(c, row.spread[1]) for row in walk.rows], wide=c > 0) for c in (0, outputs)]
    return _read(walk, outputs, *extra, torus=x.sites.count > 1)


def _above(walk: Walk, x: Field, images: Tensor | None, factors: list[float], *, wide: bool) -> float:
    """(edge of W - mean of W) / m: how far fluctuating overlaps spread the data modes.

    Overlaps of the inputs fluctuate by their dimension, those of a layer's inputs again by its width.
    """
    added = [
        row.elementwise * factor
        for row, factor in zip(walk.rows, factors, strict=True)
        if row.elementwise is not None and row.elementwise.requires_grad
    ]
    if not added:
        return 0.0
    m = x.sites.batch
    (start,) = (part.kernel for part in x.parts)
    layers = [row for row in walk.rows if row.inputs is not None and row.inputs[1] is not start] if wide else []
    kernels = [start, *(row.inputs[1] for row in layers if row.inputs is not None)]
    slopes = torch.autograd.grad(torch.stack(added).sum(), kernels, retain_graph=True, allow_unused=True)
    parts: list[tuple[Tensor, float]] = []
    for row, slope in zip(layers, slopes[1:], strict=True):
        if slope is not None and row.inputs is not None:
            sites, kernel, channels = row.inputs
            # What fluctuates is what two samples do not share.
            size = sites.diagonal(kernel[:1] - kernel[1:]).detach().mean()
            parts.append((sites.eigenvalues(slope[1].detach()) * size / channels, channels))
    assert slopes[0] is not None
    waves = x.sites.eigenvalues(slopes[0][1].detach())
    if images is None:
        parts.append((waves / x.channels, x.channels))
        mean = sum(float(n * values.clamp_min(0).sum()) for values, n in parts)
        return (edge(parts, m) - mean) / m
    rows = torch.fft.fft2(images - images.mean(0)).flatten(1)
    weights = (waves / (x.channels * x.sites.count)).flatten().repeat(x.channels)
    gram = ((rows * weights) @ rows.conj().T).real
    return float(torch.linalg.eigvalsh(gram)[-1] - gram.diagonal().sum() / (m - 1)) / m


def _read(walk: Walk, outputs: int, extra: float, extra_wide: float, *, torus: bool) -> Spectrum:
    shares: dict[int, tuple[float, float]] = {}
    infinite, corrected = [0.0, 0.0], [0.0, 0.0]
    for row in _added(walk):
        assert row.share is not None
        both = float(row.share[0].detach()), float(row.share[1].detach())
        shares[id(row)] = both
        for i, share in enumerate(both):
            infinite[i] += share
            corrected[i] += share * widening(outputs, row.spread[i])
    return Spectrum(
        mean=corrected[0],
        data=corrected[1] + extra_wide,
        mean_infinite=infinite[0],
        data_infinite=infinite[1] + extra,
        shares=shares,
        torus=torus,
    )
