"""The largest eigenvalue of the mean mode and of the data modes, added up from the shares of the layers."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.prediction.kernels.cotangent import Cotangent
from normscope.prediction.kernels.field import Field, ReaderFacts
from normscope.prediction.layer_row import LayerRow
from normscope.prediction.walk import Walk
from normscope.theory.lengths import longest
from normscope.theory.modes import Bulk, common_spread, unevenness, weighed_widening, widening


@dataclass(frozen=True)
class ModeEigenvalues:
    """The largest eigenvalues of both modes; -inf for a mode that the batch does not have.

    Attributes:
        mean, data: eigenvalues with the correction for finite width.
        mean_infinite, data_infinite: eigenvalues at infinite width.
        shares: the amounts that each row adds to the mean mode and to the data modes.
    """

    mean: float
    data: float
    mean_infinite: float
    data_infinite: float
    shares: dict[LayerRow, tuple[float, float]]


def mode_eigenvalues(walk: Walk, x: Field, out: Field, images: Tensor | None) -> ModeEigenvalues:
    """Send cotangents back from one output, and compute the eigenvalues from the shares of the layers."""
    outputs = out.shape[0]
    if out.sites.each_sample:
        return _of_samples(walk, x, out, outputs)
    return _of_classes(walk, x, out, outputs, images)


Shares = list[tuple[LayerRow, list[float]]]


def _added(walk: Walk) -> Shares:
    """The rows that add to lambda_max, each with its share in every direction."""
    adding = [(row, row.share.detach().tolist()) for row in walk.rows if row.share is not None]
    if not adding:
        raise ValueError(
            "No trainable parameter lies between input and output, so there is no curvature to predict. Set "
            "requires_grad=True on some, or change parameters=."
        )
    return adding


def _factor(walk: Walk, rows: Shares, mode: int, outputs: int) -> float:
    """The factor by which finite width raises the shares of all layers but the last one with weights."""
    parts = [(max(share[min(mode, len(share) - 1)], 0.0), row.spread[mode]) for row, share in rows]
    spread = common_spread([part for part in parts if part[1] > 0])
    return widening(outputs, spread) if walk.loss_heights is None else weighed_widening(walk.loss_heights, spread)


def _of_samples(walk: Walk, x: Field, out: Field, outputs: int) -> ModeEigenvalues:
    """Eigenvalues for a batch of which every pair of samples is known.

    lambda_max of a direction v is linear in the seed m v v^T. So the derivative of lambda_max with respect to the seed
    is the kernel of the m samples, divided by m.
    """
    m = out.sites.batch
    seed = torch.ones(1, 1, m, m, dtype=torch.float64, requires_grad=True)
    walk.send_back(out, seed, x)
    rows = _added(walk)
    factor = _factor(walk, rows, 0, outputs)
    raised = [row.share[0] * (factor if row.spread[0] > 0 else 1) for row, _ in rows if row.share is not None]
    lam = torch.stack(raised).sum()
    (kernel,) = torch.autograd.grad(lam, seed)
    kernel = m * (kernel[0, 0] + kernel[0, 0].T) / 2
    values, vectors = torch.linalg.eigh(kernel)
    constant = int((vectors.sum(0) ** 2).argmax())
    best = max((i for i in range(m) if i != constant), key=lambda i: float(values[i]))
    seeds = torch.stack([m * torch.outer(vectors[:, i], vectors[:, i]) for i in (constant, best)])[:, None]
    walk.send_back(out, seeds, x)
    return _read(walk, outputs, m=m)


@torch.inference_mode()
def _of_classes(walk: Walk, x: Field, out: Field, outputs: int, images: Tensor | None) -> ModeEigenvalues:
    m = x.sites.batch
    seeds = torch.ones(2, 2, 1, 1, dtype=torch.float64)
    seeds[1, 1] = -1 / (m - 1) if m > 1 else 0
    arrived = walk.send_back(out, seeds, x)
    if m == 1:
        # One sample has one direction.
        return replace(_read(walk, outputs, m=m), data=-math.inf, data_infinite=-math.inf)
    # The second seed gives the mean eigenvalue of the m - 1 directions orthogonal to 1. The edge lies above this mean.
    inputs, widths, own_spread = _overlaps(walk, x, arrived, images)
    return _read(walk, outputs, m=m, inputs=inputs, widths=widths, own_spread=own_spread)


Parts = list[tuple[Tensor, float]]


def _overlaps(walk: Walk, x: Field, arrived: Cotangent | None, images: Tensor | None) -> tuple[Parts, Parts, float]:
    """Fluctuations of the overlaps between samples, as summands of `Bulk`.

    Returns:
        The fluctuations of the inputs' overlaps, which come from the finite dimension of the inputs; the fluctuations
        of the hidden tensors' overlaps, which come from finite widths; and, for a real batch, the rise of the largest
        eigenvalue that its own overlaps cause. A tensor that two layers read counts once.
    """
    if arrived is None:
        return [], [], 0.0
    m = x.sites.batch
    widths: Parts = []
    counted: set[ReaderFacts] = set()
    for row in walk.rows:
        inputs = row.inputs
        if inputs is None or row.of_data or inputs.readers.drift is None or inputs.readers in counted:
            continue
        counted.add(inputs.readers)
        # Only the part of the values that two samples do not share fluctuates.
        size = row.numbers["qh"] - row.numbers["qh_xy"]
        widths.append((inputs.sites.eigenvalues(inputs.readers.drift) * (size / inputs.channels), inputs.channels))
    ((_, drift),) = arrived.held_gradient_and_drift
    waves = x.sites.eigenvalues(drift)
    if images is None:
        return [(waves / x.channels, float(x.channels))], widths, 0.0
    rows = torch.fft.fft2(images - images.mean(0)).flatten(1)
    weights = (waves / (x.channels * x.sites.count)).flatten().repeat(x.channels)
    gram = ((rows * weights) @ rows.conj().T).real
    return [], widths, float(torch.linalg.eigvalsh(gram)[-1] - gram.diagonal().sum() / (m - 1)) / m


def _read(
    walk: Walk,
    outputs: int,
    *,
    m: int,
    inputs: Parts | None = None,
    widths: Parts | None = None,
    own_spread: float = 0.0,
) -> ModeEigenvalues:
    rows = _added(walk)
    # Three factors: for the mean mode, for the data modes, and for a data mode of a single sample.
    factors = [_factor(walk, rows, mode, outputs) for mode in range(3)]
    shares: dict[LayerRow, tuple[float, float]] = {}
    infinite, corrected = [0.0] * 3, [0.0] * 3
    for row, share in rows:
        shares[row] = share[0], share[1]
        for i, part in enumerate((share[0], share[1], share[1])):
            infinite[i] += part
            # In the data modes, gammas and betas get no factor here: `_few_directions` has their correction.
            factor = factors[i] if row.spread[i] > 0 and not (i and row.columns) else 1
            # Gradients that are handed down get no factor either: `GradientOverlaps` has their correction.
            handed = _handed(row, part, m) if i else 0.0
            corrected[i] += (part - handed) * factor + handed
    # Finite width raises the part that is linear in the overlaps by the same factor as the whole.
    widened = corrected[1] / infinite[1] if infinite[1] > 0 else 1.0
    narrow = [*(inputs or [])]
    wide = [(values * widened, n) for values, n in (*narrow, *(widths or []))]
    counted = outputs if walk.loss_heights is None else float(walk.loss_heights.sum())
    wide += _few_directions(rows, m, counted)

    tilted = 1 + common_spread([(max(share[0], 0.0), row.overlap_variance) for row, share in rows])
    infinite[0], corrected[0] = tilted * infinite[0], tilted * corrected[0]
    for row, share in rows:
        if row.handed:
            walk.tape.overlaps.add(row.handed[0], m * _handed(row, share[1], m))
    bulk, own = Bulk(wide, m, walk.tape.overlaps, counted * m), m * corrected[1]

    def ends(mean: float, data: float, bulk: Bulk, variance: float) -> tuple[float, float]:
        above = data + own_spread + (bulk.edge(variance) - bulk.total) / m
        return mean + bulk.pushed(m * (mean - data), variance) / m, above

    first = ends(infinite[0], infinite[1], Bulk(narrow, m), 0.0)
    second = ends(corrected[0], corrected[1], bulk, _variance(rows, outputs, 1) * own * own)
    alone = corrected[2] * longest(m, _variance(rows, outputs, 2))
    alone += bulk.pushed(m * (alone - corrected[1])) / m
    return ModeEigenvalues(_raised(rows, outputs, second[0]), max(second[1], alone), first[0], first[1], shares)


def _handed(row: LayerRow, part: float, m: int) -> float:
    """The part of a row's share in the data modes whose gradients have overlaps that the layer hands down."""
    return min(row.handed[1] / m, max(part, 0.0)) if row.handed else 0.0


def _few_directions(rows: Shares, m: int, outputs: float) -> Parts:
    """The fluctuations of gammas and betas, as summands of `Bulk`.

    A channel has one gamma and one beta. So the gradients of all C outputs and m samples with respect to n gammas fill
    only n directions: they are a random matrix of C m rows and n columns. `Bulk` takes matrices of m rows. A matrix
    of m rows and n / C columns, with entries' squares C times as large, has the same edge.
    """
    parts = []
    for row, share in rows:
        for n, part in row.columns:
            size = torch.tensor([max(share[1], 0.0) * part * m * outputs / n], dtype=torch.float64)
            parts.append((size, n / outputs))
    return parts


def _raised(rows: Shares, outputs: int, mean: float) -> float:
    """The mean mode, raised by the overlap of each sample's own gradient with the gradient that all samples share."""
    parts = [(max(share[0], 0.0), row.spread.sample_separation) for row, share in rows]
    coupled = math.sqrt(outputs * common_spread(parts)) * sum(c for c, _ in parts)
    return mean / 2 + math.hypot(mean / 2, coupled) if mean > 0 else mean


def _variance(rows: Shares, outputs: int, mode: int) -> float:
    """Variance, from sample to sample, of the logarithm of the largest eigenvalue of one sample alone."""
    parts = [(max(share[1], 0.0), row) for row, share in rows]
    lengths = [common_spread([(c, value(row)) for c, row in parts]) for value in (_forward, _backward)]
    data = common_spread([(c, row.spread[mode]) for c, row in parts if row.spread[mode] > 0])
    return sum(lengths) + unevenness(outputs, data)


def _forward(row: LayerRow) -> float:
    return row.length


def _backward(row: LayerRow) -> float:
    return row.spread.length
