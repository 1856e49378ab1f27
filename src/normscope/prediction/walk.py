"""The walk through a network: fields go forward operation by operation; a tape sends cotangents back for lambda."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from normscope.prediction.kernels.cotangent import Cotangent
from normscope.prediction.kernels.field import Field
from normscope.prediction.layer_row import LayerRow
from normscope.prediction.remarks import Remarks
from normscope.prediction.tape import Tape
from normscope.theory.taps import Window


@dataclass
class UsedWeights:
    """Weights that were read already.

    Attributes:
        layers: for each weight tensor, the layers that read it, in order.
        fields: for weight, bias, input and window, the field they gave: the same weights on the same tensor give the
            same values, not another draw.
    """

    layers: dict[Tensor, list[str]] = field(default_factory=dict)
    fields: dict[tuple[Tensor, Tensor | None, Field, Window], Field] = field(default_factory=dict)


@dataclass
class Encountered:
    """Kinds of operations met on the way, on which the calibrated range depends.

    Attributes:
        called: names of all operations that a rule was applied for, in order.
        without_borders: a layer whose sites are taken without the image's borders.
        after_sum: an activation of a sum that an activation's values are part of, place by place.
        curved: an activation that is not two half lines.
        normalized_activation: a BatchNorm of an activation's own values.
        length_growth: factor by which BatchNorm layers multiply differences in length between samples.
    """

    called: list[str] = field(default_factory=list)
    without_borders: bool = False
    after_sum: bool = False
    curved: bool = False
    normalized_activation: bool = False
    length_growth: float = 1.0


@dataclass
class Walk:
    """One pass over one network, which every rule gets and adds to.

    Attributes:
        batch: number of samples.
        as_trained: whether batch statistics are differentiated through (held constant if not).
        trains: whether a tensor is a trained parameter.
        rows: layers with parameters.
        remarks: warnings and notes.
        used: weights read so far.
        met: kinds of operations.
        tape: operations for the way back.
        loss_heights: the loss's curvature for each output over the largest of them; None where all are the same.
    """

    batch: int
    as_trained: bool
    trains: Callable[[Tensor | None], bool]
    rows: list[LayerRow] = field(default_factory=list)
    remarks: Remarks = field(default_factory=Remarks)
    used: UsedWeights = field(default_factory=UsedWeights)
    met: Encountered = field(default_factory=Encountered)
    tape: Tape = field(default_factory=Tape)
    loss_heights: Tensor | None = None

    def row(self, layer: str, layer_type: str, **numbers: float) -> LayerRow:
        """Append a row for a layer with parameters."""
        self.rows.append(LayerRow(layer, layer_type, numbers))
        return self.rows[-1]

    def send_back(self, out: Field, seeds: Tensor, x: Field) -> Cotangent | None:
        """Send cotangents of one output unit through the tape to x; rows collect their shares from zero."""
        for row in self.rows:
            row.share = row.handed = None
        return self.tape.send_back(out, seeds, x)
