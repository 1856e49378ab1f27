"""The probes of the Monitor by name, and presets of probes by cost."""

from collections.abc import Callable, Sequence
from typing import Any

from normscope.choices import check_choice
from normscope.monitor.probes.activations import ActivationProbe
from normscope.monitor.probes.covariate_shift import ShiftProbe
from normscope.monitor.probes.critical_rate import CriticalProbe
from normscope.monitor.probes.health import HealthProbe
from normscope.monitor.probes.landscape import LandscapeProbe


def _curvature() -> Any:
    # Imported on use: the curvature package takes longest to import, and most runs do without it.
    from normscope.monitor.probes.curvature import CurvatureProbe

    return CurvatureProbe()


PROBES: dict[str, Callable[[], Any]] = {
    "critical": CriticalProbe,
    "landscape": LandscapeProbe,
    "health": HealthProbe,
    "activations": ActivationProbe,
    "shift": ShiftProbe,
    "curvature": _curvature,
}
PRESETS = {
    "light": ("critical",),
    "standard": ("landscape", "critical", "health"),
    "full": ("critical", "landscape", "health", "activations", "shift"),
}


def probes(measure: str | Sequence[Any]) -> list[Any]:
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
    chosen = [PROBES[item]() if isinstance(item, str) else item for item in measure]
    names = [probe.name for probe in chosen]
    if len(set(names)) < len(names):
        raise ValueError(
            f"Two probes have the same name, so the second result would replace the first: {', '.join(names)}. Give "
            "one of the objects another .name."
        )
    return chosen
