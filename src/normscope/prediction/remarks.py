"""Warnings and notes collected in one walk, and the calibrated range that they widen."""

from collections.abc import Sequence
from dataclasses import dataclass, field

# Measured over predicted lambda of networks with 30 channels or more that get no warning.
USUAL = (0.9, 1.2)


@dataclass
class Remarks:
    """Warnings, notes and the calibrated range of one prediction.

    Attributes:
        warnings: where the theory is out of its depth.
        notes: conventions and approximations.
        layers_of: the layers that a note is about.
        calibrated_range: between which multiples of the answer networks like it were measured, on average over seeds.
        outside: the reason why the network is outside the theory's reach, so that no learning rate is named; or "".
    """

    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    layers_of: dict[str, list[str]] = field(default_factory=dict)
    calibrated_range: tuple[float, float] = USUAL
    outside: str = ""

    def note(self, text: str, layer: str = "") -> None:
        """Add a note once; layers with the same note share it.

        Args:
            text: the note; with `layer` it continues a sentence that begins with the layer's name.
            layer: path of the layer that the note is about; empty for the whole network.
        """
        if text not in self.notes:
            self.notes.append(text)
        if layer:
            self.layers_of.setdefault(text, []).append(layer)

    def warn(self, text: str, measured: tuple[float, float] = USUAL) -> None:
        """Add a warning once, and widen the calibrated range to the multiples that such networks were measured at."""
        if text not in self.warnings:
            self.warnings.append(text)
        self.widen(measured)

    def widen(self, measured: tuple[float, float]) -> None:
        """Widen the calibrated range to include these multiples."""
        low, high = self.calibrated_range
        self.calibrated_range = (min(low, measured[0]), max(high, measured[1]))

    def all_notes(self) -> tuple[str, ...]:
        """The notes, each after the layers it is about."""
        return tuple(
            f"{_listed(self.layers_of[text])}: {text}" if text in self.layers_of else text for text in self.notes
        )


def _listed(names: Sequence[str]) -> str:
    """The first name, and how many others there are."""
    once = list(dict.fromkeys(names))
    return once[0] + (f" and {len(once) - 1} more" if len(once) > 1 else "")
