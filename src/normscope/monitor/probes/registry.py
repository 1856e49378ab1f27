"""The probes of the Monitor by name, and presets of probes by cost.

To add a probe, write a file in this folder with two classes: the probe, and the frozen dataclass of its result
(`probe.py` has the methods of both). Then add an entry to `PROBES`, and its name to the presets that shall measure it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from normscope.messages.choices import check_choice

if TYPE_CHECKING:
    from normscope.monitor.probes.probe import Probe, Result


@dataclass(frozen=True)
class KnownProbe:
    """The place of a probe. Its module is imported on first use: most runs do without the curvature package.

    Attributes:
        module: the file in `monitor/probes`.
        probe, result: names of the two classes in it.
    """

    module: str
    probe: str
    result: str

    def probe_class(self) -> "type[Probe]":
        """The class of the probe; it takes no arguments, or has a default for each."""
        return self._named(self.probe)

    def result_class(self) -> "type[Result]":
        """The class of the probe's result."""
        return self._named(self.result)

    def _named(self, name: str) -> Any:
        return getattr(import_module(f"normscope.monitor.probes.{self.module}"), name)


PROBES = {
    "critical": KnownProbe("critical_rate", "CriticalProbe", "CriticalRate"),
    "landscape": KnownProbe("landscape", "LandscapeProbe", "Landscape"),
    "health": KnownProbe("health", "HealthProbe", "NormHealth"),
    "activations": KnownProbe("activations", "ActivationProbe", "Activations"),
    "shift": KnownProbe("covariate_shift", "ShiftProbe", "CovariateShift"),
    "curvature": KnownProbe("curvature", "CurvatureProbe", "Curvature"),
}
PRESETS = {
    "light": ("critical",),
    "standard": ("landscape", "critical", "health"),
    "full": ("critical", "landscape", "health", "activations", "shift"),
}


def probes(measure: str | Sequence[Any]) -> "list[Probe]":
    """The probe objects for a preset, or for a list of names and probe objects.

    Raises:
        ValueError: an unknown name, an object that is not a probe, an empty list, or two probes of one name.

    Example:
        >>> [probe.name for probe in probes("light")]
        ['critical']
    """
    if isinstance(measure, str):
        check_choice("measure", measure, PRESETS)
        measure = PRESETS[measure]
    if not isinstance(measure, Sequence) or not measure:
        raise ValueError(f"measure is one of {', '.join(PRESETS)}, or a list of probes; got {measure!r}.")
    for item in measure:
        if isinstance(item, str):
            check_choice("probe", item, PROBES)
        elif isinstance(item, type) or not all(hasattr(item, a) for a in ("name", "forward_only", "measure")):
            raise ValueError(
                f"A probe is a name or an object with name, forward_only and measure(snapshot); got {item!r}."
            )
    chosen = [PROBES[item].probe_class()() if isinstance(item, str) else item for item in measure]
    names = [probe.name for probe in chosen]
    if len(set(names)) < len(names):
        raise ValueError(
            f"Two probes have the same name, so the second result would replace the first: {', '.join(names)}. Give "
            "one of the objects another .name."
        )
    return chosen
