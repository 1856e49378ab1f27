"""The walk through a network: fields go forward, layer by layer; a tape sends cotangents back and adds up lambda."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from normscope.prediction.field import Cotangent, Field, Spread
from normscope.theory.gradient_overlaps import Handed, Origin
from normscope.theory.site_pairs import Sites

Back = Callable[[Cotangent], Sequence[Cotangent]]
# Measured over predicted lambda, of networks with 30 channels or more about which nothing else is said.
USUAL = (0.9, 1.2)
_NOTHING = Spread()


@dataclass
class Row:
    """Order parameters of a layer, its share of lambda in every direction sent back, and the kernel that enters it.

    of_data: nothing but the data enters it, so that no width is behind its inputs. length: relative variance, from
    sample to sample, of the squared length of what enters; tilt: of its product with what all samples share. columns:
    of gammas and betas, which are few: directions that they have, and the part of the share that lies in them. handed:
    the draw of gradients (`theory/gradient_overlaps.py`) that its parameters see, and what they add with it to a row of
    J J^T.
    """

    layer: str
    kind: str
    numbers: dict[str, float] = field(default_factory=dict)
    share: Tensor | None = None
    spread: Spread = _NOTHING
    length: float = 0.0
    tilt: float = 0.0
    inputs: tuple[Sites, Tensor, int] | None = None
    of_data: bool = False
    taps: int = 1
    sites: int = 1
    columns: tuple[tuple[float, float], ...] = ()
    handed: tuple[int, float] | None = None


@dataclass
class _Record:
    out: Field
    inputs: tuple[Field, ...]
    back: Back
    maps: bool
    bends: str


class Walk:
    """One pass over one network; `trains` says which tensors are trained.

    made: fields that layers have given, by weights and input. offsets: whether some layer's sites have no borders.
    normed: by the ids of kernels that BatchNorm normalizes, what that leaves of gradients through the weights before.
    leans: of activations (`theory/gaussian.py`), by the ids of the kernels that enter them.
    lengths: by what BatchNorm layers multiply differences in length between samples. drifts: of the kernels that the
    last cotangents met, by the kernels' ids.
    rectified: whether an activation of a sum with what an activation gave was met, place by place.
    curved: whether an activation was met that is not two half lines.
    activated: whether BatchNorm of an activation's own values was met.
    heights: the loss's curvatures by the outputs over the largest of them; None where all are the same.
    seen: between which multiples of the answer networks like it were measured, on average over seeds.
    """

    def __init__(self, batch: int, trained: bool, trains: Callable[[Tensor | None], bool]) -> None:
        self.batch = batch
        self.trained = trained
        self.trains = trains
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.places: dict[str, list[str]] = {}
        self.warnings: list[str] = []
        self.used: dict[int, list[str]] = {}
        self.made: dict[Hashable, Field] = {}
        self.called: list[str] = []
        self.seen = USUAL
        self.offsets = False
        self.normed: dict[int, float] = {}
        self.leans: dict[int, float] = {}
        self.rectified = False
        self.activated = False
        self.curved = False
        self.lengths = 1.0
        self.outputs = 1
        self.heights: Tensor | None = None
        self.drifts: dict[int, Tensor] = {}
        self.handed = Handed()
        self._tape: list[_Record] = []

    def note(self, text: str, layer: str = "") -> None:
        """layer: of which it is said; several of which the same is said share one note."""
        if text not in self.notes:
            self.notes.append(text)
        if layer:
            self.places.setdefault(text, []).append(layer)

    def noted(self) -> tuple[str, ...]:
        return tuple(f"{_listed(self.places[text])}: {text}" if text in self.places else text for text in self.notes)

    def warn(self, text: str, seen: tuple[float, float] = USUAL) -> None:
        """seen: between which multiples of the answer such networks were measured."""
        if text not in self.warnings:
            self.warnings.append(text)
        self.doubt(seen)

    def doubt(self, seen: tuple[float, float]) -> None:
        self.seen = (min(self.seen[0], seen[0]), max(self.seen[1], seen[1]))

    def record(self, out: Field, inputs: Sequence[Field], back: Back, *, maps: bool = False, bends: str = "") -> Field:
        """maps: independent weights are in between; bends: what the operation is called where it is not linear."""
        self._tape.append(_Record(out, tuple(inputs), back, maps, bends))
        return out

    def bent(self, out: Field) -> str:
        """What stands between the last weights and `out` that is not linear; "" for nothing."""
        reached = {id(out)}
        for record in reversed(self._tape):
            if id(record.out) in reached and not record.maps:
                if record.bends:
                    return record.bends
                reached |= set(map(id, record.inputs))
        return ""

    def row(self, layer: str, kind: str, **numbers: float) -> Row:
        self.rows.append(Row(layer, kind, numbers))
        return self.rows[-1]

    def adds(self, row: Row, sites: Sites, products: Tensor, spread: Spread) -> None:
        """What one parameter tensor adds; products: G times the kernel that it is multiplied with."""
        total = sites.total(products)
        row.share = total if row.share is None else row.share + total
        row.spread = spread

    def drawn(self, cotangent: Cotangent, out: Field) -> Cotangent:
        """With the overlaps of what came back to `out` as one draw, which several may see."""
        if cotangent.origin is None:
            return cotangent
        return replace(cotangent, origin=Origin({self.handed.drawn(cotangent.origin, out.channels): 1.0}))

    def hands(self, row: Row, origin: Origin, size: float) -> None:
        """The row's parameters see this draw alone of samples' own gradients, and add so much."""
        (draw,) = origin.same
        row.handed = draw, max(size, 0.0)

    def send_back(self, out: Field, seeds: Tensor, x: Field) -> Cotangent | None:
        """Cotangents of one output unit, through the tape to x; rows collect their shares."""
        self.outputs = out.shape[0]
        for row in self.rows:
            row.share = row.handed = None
        one = torch.ones_like(out.parts[0].tangent)
        two = torch.stack([one, 0 * one])
        origin = None if out.sites.form == "samples" else Origin(own=1.0)
        first = Cotangent((seeds,), (torch.zeros_like(seeds),), (two,), _NOTHING, origin=origin)
        waiting = {id(out): first}
        self.handed = Handed()
        for record in reversed(self._tape):
            cotangent = waiting.pop(id(record.out), None)
            if cotangent is None:
                continue
            for part, two in zip(record.out.parts, cotangent.two, strict=True):
                self.drifts[id(part.kernel)] = two[1]
            for source, sent in zip(record.inputs, record.back(cotangent), strict=True):
                known = waiting.get(id(source))
                waiting[id(source)] = sent if known is None else known + sent
        return waiting.get(id(x))

    def forget(self) -> None:
        """Drops the tape, whose functions hold every kernel."""
        self._tape.clear()
        self.drifts.clear()


def _listed(names: Sequence[str]) -> str:
    once = list(dict.fromkeys(names))
    return once[0] + (f" and {len(once) - 1} more" if len(once) > 1 else "")
