"""The rule of BatchNorm, by the statistics of the batch or by running statistics."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normscope.norms.noisy import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d, NoisyBatchNormNd
from normscope.prediction.kernels.cotangent import Cotangent
from normscope.prediction.kernels.field import Field, FieldPart
from normscope.prediction.refusals import UnknownOperation, check_channels
from normscope.prediction.rules.gamma_beta import (
    channel_values,
    directions,
    gamma_beta,
    handed_to_beta,
    held_pair_before,
    mean_of_squares,
    tangent_after,
)
from normscope.prediction.rules.registry import rule, without_rule
from normscope.prediction.rules.weighted_sums import kept_by_norm
from normscope.prediction.walk import Walk
from normscope.theory.normalizing import Normalized, normalize, send_back
from normscope.theory.place_lengths import kurtosis
from normscope.theory.site_pairs import average

_DIMENSIONS = {nn.BatchNorm1d: (1, 2), nn.BatchNorm2d: (3,), nn.BatchNorm3d: (4,)}
# Directions of a real batch below which predictions were measured to be off.
_FEWEST_DIRECTIONS = 12
# Mean square of running means that counts as zero.
_ZERO_MEAN_SQUARE = 1e-12
# Largest ratio of that mean square to the mean square of the inputs' means that occurs by chance.
_LARGEST_MEAN_RATIO = 1.6


def _settings(layer: Any, x: Field) -> dict[str, Any]:
    _check_dimensions(layer, x)
    by_batch = layer.training or layer.running_mean is None
    return {
        "running_mean": None if by_batch else layer.running_mean,
        "running_var": None if by_batch else layer.running_var,
        "weight": layer.weight,
        "bias": layer.bias,
        "training": by_batch,
        "eps": layer.eps,
    }


@rule("batch_norm", modules=[nn.modules.batchnorm._BatchNorm], settings=_settings)
def batch_norm(
    walk: Walk,
    name: str,
    x: Field,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Field:
    """BatchNorm, with the arguments of torch.nn.functional.batch_norm."""
    if x.flattened_image:
        raise UnknownOperation(
            "normalizes each feature of a flattened image by itself; there is a map only for statistics over all sites."
            " Normalize before flattening"
        )
    affine = gamma_beta(walk, name, x, weight, bias, eps)
    if training or running_mean is None or running_var is None:
        return _by_batch(walk, name, x, weight, bias, affine, eps)
    return _by_running(walk, name, x, weight, bias, affine, eps, (running_mean, running_var))


@rule(exported=["batch_norm"])
def exported_batch_norm(
    walk: Walk, name: str, x: Field, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any
) -> Field:
    """BatchNorm, with the arguments of torch.ops.aten.batch_norm: rest holds momentum and eps first."""
    return batch_norm(walk, name, x, mean, var, weight, bias, training, rest[0], rest[1])


# The noise that they add has no rule.
without_rule(NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d, NoisyBatchNormNd)


def _check_dimensions(layer: Any, x: Field) -> None:
    """Dimensions as torch's own layers ask for them, and channels where the layer holds any."""
    taken = [n for layer_type, n in _DIMENSIONS.items() if isinstance(layer, layer_type)]
    if taken and len(x.shape) not in taken[0]:
        raise ValueError(
            f"takes {' or '.join(f'{n + 1}' for n in taken[0])} dimensions and gets (N, {', '.join(map(str, x.shape))})"
        )
    if layer.affine or layer.track_running_stats:
        check_channels(layer.num_features, x)


def _by_batch(
    walk: Walk,
    name: str,
    x: Field,
    gamma: Tensor | None,
    beta: Tensor | None,
    affine: list[tuple[float, Tensor]],
    eps: float,
) -> Field:
    """BatchNorm by the mean and variance of the batch, over all samples and sites."""
    if (values := x.sites.batch * x.sites.count) < 3:
        left = "one value" if values == 1 else "two values, which become 1 and -1"
        raise ValueError(
            f"takes statistics over the batch, and batch_size={x.sites.batch} leaves {left}. Take a larger batch_size"
        )
    if x.before is not None:
        walk.met.normalized_activation = True
        walk.remarks.note("normalizes after an activation; channels were taken to have the same variance.", name)
    normalized = [
        normalize(x.sites, part.kernel, eps, part.noise + part.group_noise, part.scale_variance) for part in x.parts
    ]
    kept = [
        kept_by_norm(part.fan_in, 1 - eps / (n.variance or 1.0)) for part, n in zip(x.parts, normalized, strict=True)
    ]
    for part, share in zip(x.parts, kept, strict=True):
        if part.added_tangent is not None:
            part.readers.kept_by_norm = share
    _check(walk, name, normalized)
    row = walk.row(
        name,
        "BatchNorm",
        gamma2=sum(a[0] * p.channels for a, p in zip(affine, x.parts, strict=True)) / x.channels,
        variance=sum(n.variance * p.channels for n, p in zip(normalized, x.parts, strict=True)) / x.channels,
    )
    parts = tuple(
        FieldPart(
            part.channels,
            g2 * n.kernel + mean_of_squares(b),
            torch.full_like(part.mean, average(b)),
            tangent_after(walk, _before(part, k) * (g2 * n.inverse), x.sites.different_samples(n.kernel), gamma, beta),
            part.noise * g2**2 / n.variance**2,
            # Excess kurtosis of one entry of a vector on the sphere in `freedom` dimensions.
            -6 / (n.freedom + 2) + kurtosis(part.scale_variance) if x.gaussian else 0.0,
            _own_kurtosis(part, n) if x.gaussian else 0.0,
            part.length,
            # A long sample lengthens what it is divided by.
            scale_variance=part.scale_variance / (1 + 4 * n.own * (1 + part.scale_variance)),
        )
        for part, n, k, (g2, b) in zip(x.parts, normalized, kept, affine, strict=True)
    )
    out = Field(x.sites, parts, x.shape, x.gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        row.columns = directions(walk, out, gamma, beta)
        sent, sent_held = [], []
        for n, (g2, _), g, bend, held in zip(
            normalized, affine, cotangent.g, cotangent.bend, cotangent.held_gradient_and_drift, strict=True
        ):
            before, products = send_back(n, g, bend, g2, trained=walk.as_trained)
            if walk.trains(gamma) and walk.trains(beta):
                # Gamma and beta at once: they meet the same gradients.
                row.add(x.sites, products + g, cotangent.spread)
            elif walk.trains(gamma):
                row.add(x.sites, products, cotangent.spread)
            elif walk.trains(beta):
                row.add(x.sites, g, cotangent.spread)
            sent.append(before)
            sent_held.append(held_pair_before(walk, held, g2 * n.inverse, g2 / n.variance, 1 / n.variance, gamma))
        origin = None if walk.as_trained else handed_to_beta(walk, row, out, cotangent, beta)
        return [
            Cotangent(tuple(sent), tuple(map(torch.zeros_like, sent)), tuple(sent_held), cotangent.spread, (), origin)
        ]

    return walk.tape.record(out, [x], back, nonlinear=f"{name!r} (BatchNorm)")


def _own_kurtosis(part: FieldPart, normalized: Normalized) -> float:
    """Overlaps that differ from pair to pair act as too small a kurtosis does: E[f(k)] - f(E k) = Var[k] f'' / 2."""
    return kurtosis(part.scale_variance) - 6 * normalized.noise / (1 + 2 * normalized.noise)


def _before(part: FieldPart, kept: float) -> Tensor:
    """The tangent kernel at one length of the weights before: only the part that comes through them shrinks."""
    if part.added_tangent is None:
        return part.tangent
    return (kept * part.tangent).add_(part.added_tangent, alpha=1 - kept)


def _check(walk: Walk, name: str, normalized: Sequence[Normalized]) -> None:
    freedom = min(n.freedom for n in normalized)
    if any(n.variance < 1e-12 or n.freedom == 0 for n in normalized):
        walk.remarks.warn(
            f"{name}: the variance before it is zero, since all samples are alike there. It then divides by sqrt(eps) "
            "alone, and lambda_max depends on eps more than on the network. Initialize the weights before it, or use a "
            "larger batch_size."
        )
    elif all(n.directions is not None for n in normalized):
        most = min(n.directions.most for n in normalized if n.directions)
        if most < _FEWEST_DIRECTIONS:
            walk.remarks.warn(
                f"{name}: 90 % of the batch's variance lies in {most} directions. On such batches (2 to 10 tight "
                "clusters, or inputs of 2 to 6 dimensions) lambda_max was measured at 1 to 3 times the prediction. "
                "Measure to be sure.",
                (0.9, 3.2),
            )
    elif freedom < 4:
        seen = (0.04, 2e5) if walk.batch < 4 else (0.9, 30.0)
        walk.remarks.warn(
            f"{name}: the batch is too small, too much alike or in too few dimensions for BatchNorm's statistics. They "
            f"have {freedom:.1f} degrees of freedom. Below 4 the mean of 1/variance does not exist, so 4 were taken. "
            f"lambda_max was measured at {seen[0]:g} to {seen[1]:,g} times such predictions. Use a larger batch_size, "
            "or more inputs for each channel before it.",
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
    means, variances = (channel_values(x, values, 0.0) for values in running)
    if (lowest := min(float(v.min()) for v in variances)) + eps <= 0:
        raise ValueError(f"is in eval mode with a running variance of {lowest:.3g}, by which nothing can be divided")
    gammas = channel_values(x, gamma, 1.0)
    walk.remarks.note("is in eval mode; its running statistics were used, as those of its own inputs.", name)
    row = walk.row(name, "BatchNorm (eval)")
    rates = [float((1 / (v + eps)).mean()) for v in variances]
    scales = [float((g.square() / (v + eps)).mean()) for g, v in zip(gammas, variances, strict=True)]
    known, kernels = [], []
    for part, mean in zip(x.parts, means, strict=True):
        shared = x.sites.across_samples(part.kernel)
        share = _share_of_mean(average(mean.square()), shared)
        known.append(share)
        kernels.append(part.kernel - share * (2 - share) * shared)
    parts = tuple(
        FieldPart(
            part.channels,
            kernel * s + mean_of_squares(b),
            (1 - share) * part.mean * s**0.5 + average(b),
            tangent_after(walk, part.tangent * s, x.sites.different_samples(kernel) * rate, gamma, beta),
            part.noise * s**2,
            length=part.length,
        )
        for part, kernel, share, s, rate, (_, b) in zip(x.parts, kernels, known, scales, rates, affine, strict=True)
    )
    out = Field(x.sites, parts, x.shape, x.gaussian, x.roots)

    def back(cotangent: Cotangent) -> list[Cotangent]:
        row.columns = directions(walk, out, gamma, beta)
        sent_held = []
        for kernel, rate, s, g, held in zip(
            kernels, rates, scales, cotangent.g, cotangent.held_gradient_and_drift, strict=True
        ):
            if walk.trains(gamma):
                row.add(x.sites, g * (kernel * rate), cotangent.spread)
            if walk.trains(beta):
                row.add(x.sites, g, cotangent.spread)
            sent_held.append(held_pair_before(walk, held, s, s, rate, gamma))
        sent = tuple(g * s for g, s in zip(cotangent.g, scales, strict=True))
        origin = handed_to_beta(walk, row, out, cotangent, beta)
        return [Cotangent(sent, tuple(map(torch.zeros_like, sent)), tuple(sent_held), cotangent.spread, (), origin)]

    return walk.tape.record(out, [x], back, nonlinear=f"{name!r} (BatchNorm)")


def _share_of_mean(square: float, shared: float) -> float:
    """The share a in mean(r^2) = a^2 q_xy; refused where r is larger than any mean of these inputs."""
    if square <= _ZERO_MEAN_SQUARE:
        return 0.0
    if square > _LARGEST_MEAN_RATIO * max(shared, 0.0):
        raise ValueError(
            f"is in eval mode with running means of mean square {square:.3g}, and its inputs' means have {shared:.3g}: "
            "they were taken of other inputs or other weights. Hand in batch= with the data they were taken of, put "
            "the model in training mode, or measure it (ns.measure)"
        )
    return min((square / shared) ** 0.5, 1.0)
