"""The tape of a walk: all operations in the order of the way forward, each with the map that sends cotangents back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from normscope.prediction.kernels.cotangent import Cotangent, Spread
from normscope.prediction.kernels.field import Field
from normscope.theory.gradient_overlaps import GradientOverlaps, Origin

Back = Callable[[Cotangent], Sequence[Cotangent]]


@dataclass(frozen=True)
class _Record:
    """One operation.

    Attributes:
        maps: whether independent weights lie between inputs and output.
        nonlinear: the operation's name where it is not linear; empty where it is.
    """

    out: Field
    inputs: tuple[Field, ...]
    back: Back
    maps: bool
    nonlinear: str


@dataclass
class Tape:
    """The operations of one walk, and the state of the pass that goes back through them.

    Attributes:
        outputs: number of outputs of the network, known once a pass has begun.
        overlaps: overlaps of samples' own gradients in this pass.
    """

    outputs: int = 1
    overlaps: GradientOverlaps = field(default_factory=GradientOverlaps)
    _records: list[_Record] = field(default_factory=list)

    def record(
        self, out: Field, inputs: Sequence[Field], back: Back, *, maps: bool = False, nonlinear: str = ""
    ) -> Field:
        """Append an operation and return `out`.

        Args:
            out: the field that the operation gives.
            inputs: the fields that it reads.
            back: the map from the cotangent of `out` to one cotangent for each input.
            maps: whether independent weights lie between inputs and output.
            nonlinear: name of the operation where it is not linear, for messages; empty where it is.
        """
        self._records.append(_Record(out, tuple(inputs), back, maps, nonlinear))
        return out

    def nonlinear_after_weights(self, out: Field) -> str:
        """The name of an operation between the last weights and `out` that is not linear; empty without one."""
        reached = {out}
        for record in reversed(self._records):
            if record.out in reached and not record.maps:
                if record.nonlinear:
                    return record.nonlinear
                reached |= set(record.inputs)
        return ""

    def send_back(self, out: Field, seeds: Tensor, x: Field) -> Cotangent | None:
        """Send the cotangents of one output unit through all operations to x; None where none arrives there."""
        self.outputs = out.shape[0]
        self.overlaps = GradientOverlaps()
        ones = torch.ones_like(out.parts[0].tangent)
        held = torch.stack([ones, 0 * ones])
        origin = None if out.sites.each_sample else Origin(own=1.0)
        first = Cotangent((seeds,), (torch.zeros_like(seeds),), (held,), Spread(), origin=origin)
        waiting = {out: first}
        for record in reversed(self._records):
            cotangent = waiting.pop(record.out, None)
            if cotangent is None:
                continue
            for part, held in zip(record.out.parts, cotangent.held_gradient_and_drift, strict=True):
                part.readers.drift = held[1]
            for source, sent in zip(record.inputs, record.back(cotangent), strict=True):
                known = waiting.get(source)
                waiting[source] = sent if known is None else known + sent
        return waiting.get(x)

    def drawn(self, cotangent: Cotangent, out: Field) -> Cotangent:
        """The cotangent of `out` with its overlaps as one draw, which several layers may see."""
        if cotangent.origin is None:
            return cotangent
        return replace(cotangent, origin=Origin({self.overlaps.drawn(cotangent.origin, out.channels): 1.0}))

    def forget(self) -> None:
        """Drop all operations, whose functions hold every kernel."""
        self._records.clear()
