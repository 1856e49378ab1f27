"""Warnings and notes of a prediction: where the theory may be wrong, and what it took for granted."""

import math

from normscope.prediction.mode_eigenvalues import ModeEigenvalues
from normscope.prediction.remarks import USUAL
from normscope.prediction.rules.weighted_sums import NARROW
from normscope.prediction.walk import Walk

# Measured over predicted lambda with fewer than NARROW channels.
NARROW_SEEN = (0.9, 1.5)
# Measured over predicted lambda after residual sums: ResNet-18 on 8x8 images with statistics held (lowest), MLPs of 32
# channels (highest).
SUMS_SEEN = (0.75, 1.5)
# Growth of squared gradients through the network that is worth a warning.
_STEEP = 1e3
# Measured over predicted lambda where gradients grow so; where they shrink, predictions are as good as elsewhere.
_EXPLODED = (0.5, 1.4)
# Data modes beside the mean mode, and the correction for finite width, from which on answers were seen to be off.
_CLOSE, _RAISED = 0.8, 1.5
# Sum of 1/width along the way of gradients, relative variance of squares a layer of ReLU adds for each of it.
_DEEP, _GROWS = 0.1, 5.0
# Outputs, in channels of the last hidden layer, from which on they were seen to be further off, and how far.
_MANY, _MANY_SEEN = 2, 2.5
# Batches below which data modes under BatchNorm were seen to be too high.
_SMALL = 64
# Batches, in narrowest widths, above which data modes were seen to be too low.
_LARGE = 0.45
# Relative variance of images' squared lengths that is worth a warning; batches of CIFAR-10 have 0.2 to 0.3.
_UNEQUAL = 0.4
# Growth of differences in length through all layers that is worth a warning.
_LONGER = 1.9


def common(walk: Walk, eigenvalues: ModeEigenvalues, outputs: int, *, given: bool, pairs: bool) -> None:
    """Add the warnings and notes that any prediction may have.

    given: whether a batch was given. pairs: whether the overlap of every pair of samples is known.
    """
    widths = [row.numbers["width"] for row in walk.rows if row.inputs is not None]
    hidden = [int(w) for w in widths[:-1]]
    if hidden and min(hidden) < NARROW:
        walk.remarks.outside = f"the narrowest hidden layer has {min(hidden)} channels, and the theory is of many"
        walk.remarks.warn(
            f"The narrowest hidden layer has {min(hidden)} channels: outside the theory's reach, which is many "
            "channels. Measure instead.",
            NARROW_SEEN,
        )
    _deep(walk)
    _raised(walk, eigenvalues, outputs, hidden)
    _large_batch(walk, eigenvalues, hidden)
    _batch_norm(walk, eigenvalues, means=given and not pairs, pairs=pairs)
    _after_sums(walk, eigenvalues)
    if walk.met.length_growth > _LONGER:
        walk.remarks.warn(
            f"BatchNorm with these betas makes differences in length between samples {walk.met.length_growth:.2g} "
            "times larger, and the theory gives all samples one length: lambda was seen to be up to 4 times too low "
            "(ReLU, beta of -1, three hidden layers). Measure instead.",
            (0.9, 4.0),
        )
    if walk.met.without_borders:
        walk.remarks.note(
            "Large images were taken without their borders (by offsets), padding by its share of the taps."
        )
    if not given:
        walk.remarks.note("Inputs were taken as independent standard values; batch= puts real ones in their place.")


def _deep(walk: Walk) -> None:
    ratio = max(row.spread[0] for row in walk.rows)
    if ratio > _DEEP:
        walk.remarks.warn(
            f"Gradients go through widths whose inverses have a sum of {ratio:.2g}: networks of one kind then differ "
            "by factors, and the theory is of first order in it: lambda was measured at 0.8 to 1.9 times the answer "
            "with 0.12 (ten layers of 80) and at 1.2 to 5.2 times with 0.38 (thirty). Measure instead.",
            (0.7, max(math.exp(min(_GROWS * ratio, 100.0)), 1.9)),
        )


def lengths(walk: Walk, variance: float) -> None:
    """Warn of a batch of images of unequal length; variance: relative variance of their squared lengths."""
    if variance > _UNEQUAL and any(row.layer_type == "BatchNorm" for row in walk.rows):
        walk.remarks.warn(
            f"The batch's images differ in length (squared, by a relative variance of {variance:.2g}), and the theory "
            "gives all samples one: under BatchNorm lambda was measured at 1.2, 2.1, 3.1 and 4.4 times the answer with "
            "0.5, 1.5, 3.8 and 11 (log-normal lengths, two convolutions and a mean over sites). Measure to be sure.",
            (0.9, 4.6),
        )


def _raised(walk: Walk, modes: ModeEigenvalues, outputs: int, hidden: list[int]) -> None:
    seen = (0.9, _MANY_SEEN if hidden and outputs > _MANY * hidden[-1] else 1.9)
    if modes.data > _CLOSE * modes.mean and modes.data > _RAISED * modes.data_infinite > 0:
        walk.remarks.warn(
            f"Data modes decide or nearly do, and finite width raises them by {modes.data / modes.data_infinite:.2g}; "
            "with so large a correction the answer was seen to be up to 13 % too low with 10 outputs, up to 46 % with "
            f"as many outputs as channels and up to 59 % with 3 to 16 times as many (here {outputs}). Measure to be "
            "sure.",
            seen,
        )
    elif modes.mean > _RAISED * modes.mean_infinite > 0:
        walk.remarks.warn(
            f"{outputs} outputs are many beside these widths: finite width raises the answer by "
            f"{modes.mean / modes.mean_infinite:.2g}, and with so large a correction it was seen to be up to 46 % too "
            "low with as many outputs as channels, and up to 59 % with 3 to 16 times as many. Measure to be sure.",
            seen,
        )


def _large_batch(walk: Walk, eigenvalues: ModeEigenvalues, hidden: list[int]) -> None:
    if hidden and eigenvalues.data > eigenvalues.mean and walk.batch > _LARGE * min(hidden):
        walk.remarks.warn(
            f"Data modes decide, and a batch of {walk.batch} is large beside {min(hidden)} channels: they were seen to "
            "be 3 to 19 % too low with batches of half the width, and 27 % with larger ones. Measure to be sure.",
            (0.9, 1.4),
        )


def _batch_norm(walk: Walk, eigenvalues: ModeEigenvalues, *, means: bool, pairs: bool) -> None:
    if eigenvalues.data <= eigenvalues.mean or not any(row.layer_type == "BatchNorm" for row in walk.rows):
        return
    if walk.batch < _SMALL:
        walk.remarks.warn(
            f"Data modes decide, under BatchNorm with a batch of {walk.batch}: below {_SMALL} samples they were seen "
            "to be 10 to 45 % too high. Measure to be sure.",
            (1 / 1.45, 1.2),
        )
    if means:
        walk.remarks.warn(
            "Data modes of a real batch of images decide, under BatchNorm: with tight clusters they were seen to be up "
            "to 80 % too high. Measure to be sure.",
            (1 / 1.8, 1.2),
        )
    if pairs and walk.met.normalized_activation:
        walk.remarks.warn(
            "Data modes of a real batch decide, and BatchNorm comes after an activation, whose values are no Gaussian: "
            "with samples of unequal length they were seen to be up to 90 % too high, with tanh up to 20 % too low. "
            "Measure to be sure.",
            (0.5, 1.3),
        )


def _after_sums(walk: Walk, eigenvalues: ModeEigenvalues) -> None:
    if walk.met.after_sum:
        walk.remarks.widen(SUMS_SEEN)
    if walk.met.after_sum and eigenvalues.data > _CLOSE * eigenvalues.mean:
        walk.remarks.warn(
            "Data modes decide or nearly do, and an activation comes after residual sums: lambda was seen to be 7 % "
            "too low to 4 % too high (ResNet-18 of widths 32 to 96, 16x16, gamma of 0.1, 1 and 5), and 28 % too high "
            "with statistics held and one site in the last blocks (8x8). Measure to be sure.",
            SUMS_SEEN,
        )


def explosion(walk: Walk) -> None:
    """Warn where squared gradients grow or shrink steeply from the last hidden layer to the first."""
    hidden = [row.numbers["qt"] for row in walk.rows if row.inputs is not None and "qt" in row.numbers][:-1]
    if len(hidden) < 2 or min(hidden[0], hidden[-1]) <= 0:
        return
    factor = hidden[0] / hidden[-1]
    if not 1 / _STEEP < factor < _STEEP:
        rate = math.exp((math.log(hidden[0]) - math.log(hidden[-1])) / (len(hidden) - 1))
        seen = _EXPLODED if factor > 1 else USUAL
        walk.remarks.warn(
            f"Squared gradients {'grow' if factor > 1 else 'shrink'} by {rate:.3g} a layer on their way back, by "
            f"{factor:.1e} over {len(hidden)} layers: one learning rate does not fit all. Training is known to end at "
            f"about {16 / abs(math.log(rate)):.0f} layers of such a stack; skip connections mend it. Small errors "
            "add up over so many layers: lambda of a ResNet-50 was measured at 0.81 and 0.85 times the answer (64x64, "
            "batch of 32, 10 outputs), at 1.09 times (1000 outputs) and at 0.53 times (224x224, batch of 64, 1000 "
            "outputs, cross-entropy). Measure to be sure.",
            seen,
        )
