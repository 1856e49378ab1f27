"""The measurements by name, alone and in presets by cost."""

from collections.abc import Callable, Sequence
from typing import Any

from normscope.choices import check_choice
from normscope.observe.activations import ActivationProbe
from normscope.observe.critical import CriticalProbe
from normscope.observe.health import HealthProbe
from normscope.observe.landscape import LandscapeProbe
from normscope.observe.shift import ShiftProbe


def _curvature() -> Any:
    # Curvature stands on this folder; importing it above would close a circle.
    from normscope.curvature.probe import CurvatureProbe

    return CurvatureProbe()


MEASUREMENTS: dict[str, Callable[[], Any]] = {
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


def measurements(measure: str | Sequence[Any]) -> list[Any]:
    """The objects that a preset or a list of names and objects stands for."""
    if isinstance(measure, str):
        check_choice("measure", measure, PRESETS)
        measure = PRESETS[measure]
    if not isinstance(measure, Sequence) or not measure:
        raise ValueError(f"measure is one of {', '.join(PRESETS)}, or a list of measurements; got {measure!r}.")
    for item in measure:
        if isinstance(item, str):
            check_choice("measurement", item, MEASUREMENTS)
        elif isinstance(item, type) or not all(hasattr(item, a) for a in ("name", "forward_only", "measure")):
            raise ValueError(
                f"A measurement is a name or an object with name, forward_only and measure(probe); got {item!r}."
            )
    found = [MEASUREMENTS[item]() if isinstance(item, str) else item for item in measure]
    names = [item.name for item in found]
    if len(set(names)) < len(names):
        raise ValueError(
            f"Two measurements have one name, and the second would replace the first: {', '.join(names)}. Give one of "
            "the objects another .name."
        )
    return found
